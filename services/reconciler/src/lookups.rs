//! Asks authorities what became of requests whose outcome nobody knows (design 5.5, C8, I12–I14). Nothing is locked
//! while it asks: the store's claim makes an answer count once, or not at all.

use crate::config::Reconciler;
use crate::error::Error;
use crate::metrics::Metrics;
use laneway_courier::{Courier, Question, SendResult, Target};
use laneway_platform::service::Chain;
use laneway_platform::{clock, failpoint, task};
use laneway_store::Pool;
use laneway_store::lookups::{
    Lookup, Settled, lookup_settle, lookups_claim, lookups_find, lookups_waiting,
};
use laneway_store::secrets::SecretsKey;
use laneway_wire::authority::{Answer, Judgement};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
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

impl Asker {
    /// Works until `shutdown`; questions under way are ended first.
    pub(crate) async fn work(self: Arc<Self>, shutdown: CancellationToken) -> Result<(), Error> {
        let mut asking: Vec<JoinHandle<()>> = Vec::new();
        let mut counted: Option<Duration> = None;
        let mut looked: Option<Duration> = None;
        while !shutdown.is_cancelled() {
            asking.retain(|handle| !handle.is_finished());
            let now = clock::monotonic();
            if counted.is_none_or(|counted| now.saturating_sub(counted) >= COUNT_EVERY) {
                counted = Some(now);
                self.count().await;
            }
            let all = looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK_EVERY);
            let pause = match self.claim(asking.len(), (!all).then_some(LATELY)).await {
                Ok((found, claimed)) => {
                    // A look finds so many at most: the next one sees what is left.
                    if all && found == 0 {
                        looked = Some(now);
                    }
                    failpoint::hit("lookup.after_claim");
                    for lookup in claimed {
                        asking.push(task::spawn("lookup", Arc::clone(&self).ask(lookup)));
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
            }
        }
        for handle in asking {
            // A panic in it has ended the process already.
            let _ = handle.await;
        }
        Ok(())
    }

    async fn claim(
        &self,
        under_way: usize,
        lately: Option<Duration>,
    ) -> Result<(u64, Vec<Lookup>), laneway_store::Error> {
        let found = lookups_find(&self.pool, self.settings.lookup_grace, lately).await?;
        let room = self.settings.lookups_at_once.saturating_sub(under_way);
        if room == 0 {
            return Ok((found, Vec::new()));
        }
        let span = self.settings.lookup_deadline + CLAIM_SLACK;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        Ok((found, lookups_claim(&self.pool, room, span).await?))
    }

    /// Asks once and writes the answer. An answer that cannot be written is lost with its claim, and asked for again.
    async fn ask(self: Arc<Self>, lookup: Lookup) {
        let Judgement { answer, detail } = self.question(&lookup).await;
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

    async fn question(&self, lookup: &Lookup) -> Judgement {
        let nothing = |detail: String| Judgement { answer: Answer::Unknown, detail };
        let (tenant, endpoint) = (lookup.tenant, lookup.endpoint);
        let authority = &lookup.authority.authority;
        let credential = match lookup.authority.credential(&self.secrets, tenant, endpoint) {
            Ok(credential) => credential,
            Err(error) => return nothing(error.to_string()),
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
        match sent.result {
            SendResult::NotSent { class } | SendResult::Unknown { class } => {
                nothing(format!("no answer: {class}"))
            }
            SendResult::Responded { status, truncated: true, .. } => {
                nothing(format!("status {status}, the body was cut off or is too long"))
            }
            SendResult::Responded { status, body, .. } => authority.judge(status, &body),
        }
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
