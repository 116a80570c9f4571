//! Asks authorities what became of requests whose outcome nobody knows (design 5.5, C8, I12–I14). Nothing is locked
//! while it asks: the store's claim makes an answer count once, or not at all.

use crate::config::Reconciler;
use crate::error::Error;
use crate::metrics::Metrics;
use laneway_courier::{CONNECTIONS_BUSY, Courier, Question, SendResult, Target};
use laneway_platform::service::Chain;
use laneway_platform::{clock, failpoint, task};
use laneway_store::Pool;
use laneway_store::lookups::{
    Lookup, Room, Settled, lookup_release, lookup_settle, lookups_claim, lookups_find,
    lookups_waiting,
};
use laneway_store::secrets::SecretsKey;
use laneway_wire::EndpointId;
use laneway_wire::authority::{Answer, Judgement};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// After an error of the database.
const PAUSE: Duration = Duration::from_secs(1);
/// A claim holds for the question's deadline and this.
const CLAIM_SLACK: Duration = Duration::from_secs(15);
/// How often what waits is counted.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// The jitter's part of a pause: up to one fifth is added, nothing is taken off.
const JITTER_PART: u64 = 5;

/// Between two looks at all unknowns, for authorities that were set meanwhile; the others look at young ones alone.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How young: more than `LOOK_EVERY` and the longest transaction.
const LATELY: Duration = Duration::from_secs(120);

/// What the questions share.
pub(crate) struct Asker {
    pub(crate) pool: Pool,
    pub(crate) courier: Courier,
    pub(crate) secrets: SecretsKey,
    pub(crate) settings: Reconciler,
    pub(crate) metrics: Metrics,
}

/// When unknowns were looked for last, and when all of them.
#[derive(Default)]
struct Looks {
    last: Option<Duration>,
    all: Option<Duration>,
}

/// Questions under way, and how many of each endpoint.
#[derive(Default)]
struct Asking {
    tasks: JoinSet<EndpointId>,
    of: HashMap<EndpointId, u32>,
}

impl Asking {
    fn begin(&mut self, endpoint: EndpointId, question: impl Future<Output = ()> + Send + 'static) {
        *self.of.entry(endpoint).or_default() += 1;
        let task = task::spawn("lookup", question);
        self.tasks.spawn(async move {
            // A panic in it has ended the process already.
            let _ = task.await;
            endpoint
        });
    }

    /// Waits until one has ended; for ever if there is none.
    async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(ended) => self.forget(ended.ok()),
            None => std::future::pending().await,
        }
    }

    fn forget(&mut self, ended: Option<EndpointId>) {
        if let Some(endpoint) = ended
            && let Some(count) = self.of.get_mut(&endpoint)
        {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&endpoint);
            }
        }
    }
}

impl Asker {
    /// Works until `shutdown`; questions under way are ended first.
    pub(crate) async fn work(self: Arc<Self>, shutdown: CancellationToken) -> Result<(), Error> {
        let mut asking = Asking::default();
        let mut counted: Option<Duration> = None;
        let mut looks = Looks::default();
        while !shutdown.is_cancelled() {
            while let Some(ended) = asking.tasks.try_join_next() {
                asking.forget(ended.ok());
            }
            let now = clock::monotonic();
            if counted.is_none_or(|counted| now.saturating_sub(counted) >= COUNT_EVERY) {
                counted = Some(now);
                self.count().await;
            }
            let pause = match self.claim(&asking, &mut looks, now).await {
                Ok(claimed) => {
                    failpoint::hit("lookup.after_claim");
                    for lookup in claimed {
                        asking.begin(lookup.endpoint, Arc::clone(&self).ask(lookup));
                    }
                    self.settings.poll
                }
                Err(error) => {
                    self.metrics.error("lookups");
                    tracing::warn!(error = %Chain(&error), "unknowns could not be looked for");
                    PAUSE
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
                // There is room for another one.
                () = asking.ended() => {}
            }
        }
        while asking.tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Claims what can be asked at once: of each endpoint as much as its connections carry, so that an authority that does
    /// not answer keeps others from nothing.
    async fn claim(
        &self,
        asking: &Asking,
        looks: &mut Looks,
        now: Duration,
    ) -> Result<Vec<Lookup>, laneway_store::Error> {
        self.find(looks, now).await?;
        let room = self.settings.lookups_at_once.saturating_sub(asking.tasks.len());
        if room == 0 {
            return Ok(Vec::new());
        }
        let under_way: Vec<(EndpointId, u32)> =
            asking.of.iter().map(|(endpoint, count)| (*endpoint, *count)).collect();
        let room = Room {
            questions: u32::try_from(room).unwrap_or(u32::MAX),
            of_endpoint: self.settings.lookup_connections,
            under_way: &under_way,
        };
        lookups_claim(&self.pool, room, self.settings.lookup_deadline + CLAIM_SLACK).await
    }

    /// Finds what is to be asked about: not more often than each poll, and mostly among young ones.
    async fn find(&self, looks: &mut Looks, now: Duration) -> Result<(), laneway_store::Error> {
        let is_due =
            |at: Option<Duration>, every| at.is_none_or(|at| now.saturating_sub(at) >= every);
        if !is_due(looks.last, self.settings.poll) {
            return Ok(());
        }
        let all = is_due(looks.all, LOOK_EVERY);
        let lately = (!all).then_some(LATELY);
        let found = lookups_find(&self.pool, self.settings.lookup_grace, lately).await?;
        looks.last = Some(now);
        // A look finds so many at most: the next one sees what is left.
        if all && found == 0 {
            looks.all = Some(now);
        }
        Ok(())
    }

    /// Asks once and writes the answer. An answer that cannot be written is lost with its claim, and asked for again.
    async fn ask(self: Arc<Self>, lookup: Lookup) {
        let Some(Judgement { answer, detail }) = self.question(&lookup).await else {
            if let Err(error) = lookup_release(&self.pool, &lookup, self.settings.poll).await {
                self.metrics.error("lookups");
                tracing::warn!(
                    delivery = %lookup.delivery, error = %Chain(&error), "a claim could not be given back"
                );
            }
            return;
        };
        failpoint::hit("lookup.after_answer");
        let pause = self.pause(&lookup);
        let settled = lookup_settle(&self.pool, &lookup, answer, &detail, pause).await;
        failpoint::hit("lookup.after_settle");
        match settled {
            Ok(Settled::Stale) => self.metrics.lookup("stale"),
            Ok(settled) => {
                self.metrics.lookup(answer.as_str());
                if settled == Settled::Commanded {
                    tracing::info!(
                        delivery = %lookup.delivery, endpoint = %lookup.endpoint, answer = answer.as_str(),
                        detail, "an authority has settled an unknown outcome"
                    );
                }
            }
            Err(error) => {
                self.metrics.error("lookups");
                tracing::warn!(
                    delivery = %lookup.delivery, error = %Chain(&error), "an answer could not be written"
                );
            }
        }
    }

    /// What the authority says; none if it was not asked, because all connections to it were in use.
    async fn question(&self, lookup: &Lookup) -> Option<Judgement> {
        let nothing = |detail: String| Judgement { answer: Answer::Unknown, detail };
        let (tenant, endpoint) = (lookup.tenant, lookup.endpoint);
        let authority = &lookup.authority.authority;
        let credential = match lookup.authority.credential(&self.secrets, tenant, endpoint) {
            Ok(credential) => credential,
            Err(error) => return Some(nothing(error.to_string())),
        };
        let (url, body) = authority.question(lookup.event, lookup.delivery);
        let target = Target {
            tenant,
            endpoint,
            version: lookup.authority.revision,
            // Checked with this delivery's own ids: placeholders are no part of a URL.
            url: url.clone(),
            secrets: Vec::new(),
            max_connections: self.settings.lookup_connections,
            headers: credential
                .map(|(name, value)| (name, value.as_str().to_owned()))
                .into_iter()
                .collect(),
        };
        let post = authority.method == laneway_wire::authority::Method::Post;
        let question = Question { url, body: body.map(Into::into), post };
        let began = clock::monotonic();
        let sent = self.courier.ask(&target, question, self.settings.lookup_deadline).await;
        self.metrics.lookup_took(clock::monotonic().saturating_sub(began));
        Some(match sent.result {
            SendResult::NotSent { class: CONNECTIONS_BUSY } => return None,
            SendResult::NotSent { class } | SendResult::Unknown { class } => {
                nothing(format!("no answer: {class}"))
            }
            SendResult::Responded { status, truncated: true, .. } => {
                nothing(format!("status {status}, the body was cut off or is too long"))
            }
            SendResult::Responded { status, body, .. } => authority.judge(status, &body),
        })
    }

    /// The pause before the next question about this unknown: doubling, and a little longer by chance.
    fn pause(&self, lookup: &Lookup) -> Duration {
        let Reconciler { lookup_first, lookup_max, .. } = self.settings;
        let step = lookup_first.saturating_mul(1 << lookup.asked.min(20)).min(lookup_max);
        let jitter = u64::try_from(step.as_millis()).unwrap_or(u64::MAX) / JITTER_PART;
        step + Duration::from_millis(lookup.draw() % (jitter + 1))
    }

    async fn count(&self) {
        match lookups_waiting(&self.pool).await {
            Ok(waiting) => self.metrics.waiting(waiting),
            Err(error) => {
                self.metrics.error("lookups");
                tracing::warn!(error = %Chain(&error), "unknowns could not be counted");
            }
        }
    }
}
