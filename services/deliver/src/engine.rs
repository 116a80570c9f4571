//! The one task that owns the core: inputs in, effects out, exactly one timer.
//!
//! Nothing here waits for IO. What takes time is a task that posts a [`Back`]; how many there are is bounded by the
//! core (requests), the slots (settle transactions), permits (loads) and one-at-a-time flags (everything else).

use crate::endpoints::Endpoints;
use crate::health::{self, Change, Claimed};
use crate::intake::Buckets;
use crate::load::{LanesPage, Loader};
use crate::metrics::Metrics;
use crate::ownership::{Owning, TakenOver};
use crate::part::Part;
use crate::send::{Ended, Request, Sender};
use crate::settle::{Done, Settler, Slot};
use laneway_bus::{Consumer, Event, Events};
use laneway_lane::{
    AttemptResult, CommandId, Core, Effect, Effects, Epoch, Input, Partition, Ticket,
};
use laneway_platform::clock::{self, DbClock};
use laneway_platform::{failpoint, task};
use laneway_store::Pool;
use laneway_store::delivery::{
    EndpointRow, HealthView, KeptDead, OpenCommand, Waiting, endpoints_load,
};
use laneway_wire::{EndpointId, Record, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Messages taken from one channel before the loop looks at the others.
const TURN: usize = 256;
/// Messages that may wait for the engine beside ended requests.
pub(crate) const BACK_QUEUE: usize = 1_024;
/// The loop looks around at least so often: leases, drains, refreshes.
pub(crate) const BEAT: Duration = Duration::from_millis(100);

/// What tasks bring back.
#[derive(Debug)]
pub(crate) enum Back {
    Taken {
        partition: Partition,
        number: u64,
        taken: TakenOver,
    },
    Lanes {
        partition: Partition,
        epoch: Epoch,
        page: LanesPage,
    },
    /// All pages were given, or (`false`) they could not be read.
    LanesEnd {
        partition: Partition,
        epoch: Epoch,
        whole: bool,
    },
    Settled(Done),
    Loaded(Input),
    Claimed(Claimed),
    /// The view, or none if it could not be read.
    Health {
        view: Option<HealthView>,
        took: Duration,
    },
    /// Changed endpoints and the database's clock, or none.
    Endpoints(Option<(Timestamp, Vec<EndpointRow>)>),
    /// One endpoint that had been forgotten.
    Endpoint(Vec<EndpointRow>),
    Commands(Vec<OpenCommand>),
    /// What waits in the database, or none.
    Waiting(Option<Vec<Waiting>>),
    Kept(Option<Vec<KeptDead>>),
    /// Where each partition of the topic ends.
    Ends(Option<Vec<i64>>),
    Released {
        partition: Partition,
        epoch: Epoch,
    },
    /// The topic was looked at: a new generation may have begun.
    TopicChecked,
}

/// One look that is repeated and never made twice at a time.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) under_way: bool,
    pub(crate) next: Duration,
}

impl Round {
    /// Whether it is to be made now; if so it is under way.
    pub(crate) fn begin(&mut self, now: Duration, every: Duration) -> bool {
        let due = !self.under_way && now >= self.next;
        if due {
            self.under_way = true;
            self.next = now + every;
        }
        due
    }
}

pub(crate) struct Engine {
    pub(crate) core: Core,
    pub(crate) effects: Effects,
    pub(crate) settings: crate::Deliver,
    pub(crate) clock: Arc<DbClock>,
    pub(crate) pool: Pool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) instance: Arc<str>,
    pub(crate) sender: Sender,
    pub(crate) settler: Settler,
    pub(crate) loader: Loader,
    pub(crate) owning: Owning,
    pub(crate) consumer: Consumer,
    pub(crate) endpoints: Endpoints,
    pub(crate) buckets: Buckets,
    /// What Kafka has assigned, and whether it ever has: also none is an assignment.
    pub(crate) assigned: BTreeSet<Partition>,
    pub(crate) joined: bool,
    /// Take-overs under way, each with its number.
    pub(crate) takings: BTreeMap<Partition, (u64, CancellationToken)>,
    pub(crate) next_taking: u64,
    pub(crate) parts: BTreeMap<Partition, Part>,
    pub(crate) slots: Vec<Slot>,
    /// Kafka waits for `Released`.
    pub(crate) revoking: bool,
    pub(crate) leaving: bool,
    pub(crate) probes: HashMap<EndpointId, u64>,
    /// Commands handed to the core: of which partition, and when (monotonic) they may be handed in again.
    pub(crate) commands: HashMap<CommandId, (Partition, Duration)>,
    pub(crate) health_round: Round,
    pub(crate) endpoints_round: Round,
    pub(crate) commands_round: Round,
    pub(crate) position_round: Round,
    pub(crate) gauges_round: Round,
    pub(crate) waiting_round: Round,
    pub(crate) kept_round: Round,
    pub(crate) lag_round: Round,
    /// System identifier and timeline of the database, once seen.
    pub(crate) server: Option<(i64, i32)>,
    /// The database's clock at the last look for changed endpoints.
    pub(crate) endpoints_seen: Timestamp,
    pub(crate) back: mpsc::Sender<Back>,
    pub(crate) ended: mpsc::Sender<Ended>,
    pub(crate) ready: laneway_platform::admin::Probe,
    /// Ready as long as the database answers.
    pub(crate) database: laneway_platform::admin::Probe,
}

impl Engine {
    /// Runs until the consumer has ended.
    pub(crate) async fn run(
        mut self,
        mut events: Events,
        mut backs: mpsc::Receiver<Back>,
        mut endeds: mpsc::Receiver<Ended>,
        shutdown: CancellationToken,
    ) -> Result<(), crate::Error> {
        loop {
            let wait = self.patience();
            let full = self.buffered() >= self.settings.buffer_bytes;
            tokio::select! {
                Some(ended) = endeds.recv() => self.attempt_ended(ended),
                Some(back) = backs.recv() => self.take_back(back),
                event = next_event(&mut events, full) => match event {
                    None => return Ok(()),
                    Some(Event::Fatal(error)) => return Err(error.into()),
                    Some(event) => self.take_event(event),
                },
                () = shutdown.cancelled(), if !self.leaving => self.leave(),
                () = tokio::time::sleep(wait) => self.input(Input::Tick),
            }
            for _ in 0..TURN {
                match endeds.try_recv() {
                    Ok(ended) => self.attempt_ended(ended),
                    Err(_) => break,
                }
            }
            for _ in 0..TURN {
                match backs.try_recv() {
                    Ok(back) => self.take_back(back),
                    Err(_) => break,
                }
            }
            self.look_around();
            self.take_in();
            self.settle();
        }
    }

    /// How long nothing has to be done if nothing comes.
    fn patience(&self) -> Duration {
        let now = self.clock.now();
        let core = self.core.next_wakeup().map_or(BEAT, |at| at.since(now));
        let monotonic = clock::monotonic();
        let settle = self.settle_due(monotonic).map_or(BEAT, |at| at.saturating_sub(monotonic));
        core.min(settle).min(BEAT)
    }

    /// Hands one input to the core and begins what it wants.
    pub(crate) fn input(&mut self, input: Input) {
        self.core.handle(self.clock.now(), input, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.begin(effect);
        }
        self.effects = effects;
    }

    fn begin(&mut self, effect: Effect) {
        match effect {
            Effect::Settle { partition, epoch, seq, item } => {
                if let Some(part) = self.held(partition, epoch) {
                    part.queue.push_back((seq, item));
                }
            }
            Effect::Send { ticket, record, timeout, probe: _ } => {
                self.begin_send(ticket, record, timeout);
            }
            Effect::LoadDue { partition, epoch, .. }
            | Effect::LoadPage { partition, epoch, .. }
            | Effect::LoadExpired { partition, epoch, .. } => {
                let Some(part) = self.held(partition, epoch) else { return };
                let lease = Arc::clone(&part.lease);
                let (loader, back) = (self.loader.clone(), self.back.clone());
                task::spawn("load", async move {
                    if let Some(input) = loader.load(effect, &lease).await {
                        let _ = back.send(Back::Loaded(input)).await;
                    }
                });
            }
            Effect::ClaimProbe { endpoint, timeout } => {
                let own: Vec<Partition> = self.parts.keys().copied().collect();
                let (pool, back, now) = (self.pool.clone(), self.back.clone(), self.clock.now());
                task::spawn("claim", async move {
                    let claimed = health::claim(&pool, endpoint, &own, timeout, now).await;
                    let _ = back.send(Back::Claimed(claimed)).await;
                });
            }
            Effect::Degrade { endpoint } => self.change_health(endpoint, Change::Degrade),
            Effect::Disable { endpoint } => self.change_health(endpoint, Change::Disable),
            Effect::ProbeEnded { endpoint, alive } => {
                if let Some(version) = self.probes.remove(&endpoint) {
                    self.change_health(endpoint, Change::ProbeEnded { version, alive });
                }
            }
            Effect::Drained { partition, epoch } => self.drained(partition, epoch),
        }
    }

    /// The partition, if it is owned under this epoch.
    pub(crate) fn held(&mut self, partition: Partition, epoch: Epoch) -> Option<&mut Part> {
        self.parts.get_mut(&partition).filter(|part| part.lease.epoch == epoch)
    }

    fn begin_send(&mut self, ticket: Ticket, record: Arc<Record>, timeout: Duration) {
        let Some(part) = self.parts.get(&ticket.partition) else { return };
        if part.lease.epoch != ticket.epoch {
            return;
        }
        let lease = Arc::clone(&part.lease);
        let endpoint = record.head.endpoint_id();
        let ended = self.ended.clone();
        if let Some(sendable) = self.endpoints.sendable(endpoint) {
            let sender = self.sender.clone();
            let request = Request { ticket, record, timeout, sendable, lease };
            task::spawn("send", async move {
                let _ = ended.send(sender.send(request).await).await;
            });
            return;
        }
        // Forgotten to keep the cache small, or its secret cannot be read.
        let (pool, back, known) =
            (self.pool.clone(), self.back.clone(), self.endpoints.has(endpoint));
        task::spawn("endpoint", async move {
            let result = if known {
                AttemptResult::NotSent { class: "bad_secrets" }
            } else {
                if let Ok(rows) = endpoints_load(&pool, &[endpoint]).await {
                    let _ = back.send(Back::Endpoint(rows)).await;
                }
                AttemptResult::NotStarted
            };
            let _ = ended.send(Ended { ticket, result, took: Duration::ZERO }).await;
        });
    }

    fn change_health(&mut self, endpoint: EndpointId, change: Change) {
        let (pool, actor) = (self.pool.clone(), Arc::clone(&self.instance));
        task::spawn("health", async move {
            health::change(&pool, endpoint, change, &actor).await;
        });
        // The change shows soon after: look again then.
        self.health_round.next = self.health_round.next.min(clock::monotonic() + BEAT);
    }

    fn attempt_ended(&mut self, ended: Ended) {
        let Ended { ticket, result, took } = ended;
        self.input(Input::AttemptEnded { ticket, result, took });
    }

    fn take_back(&mut self, back: Back) {
        match back {
            Back::Taken { partition, number, taken } => self.taken(partition, number, taken),
            Back::Lanes { partition, epoch, page } => self.lanes(partition, epoch, page),
            Back::LanesEnd { partition, epoch, whole } => self.lanes_end(partition, epoch, whole),
            Back::Settled(done) => {
                failpoint::hit("C9");
                self.settled(done);
            }
            Back::Loaded(input) => self.input(input),
            Back::Claimed(claimed) => {
                if let Some(version) = claimed.version {
                    self.probes.insert(claimed.endpoint, version);
                }
                let parts = &self.parts;
                let input =
                    claimed.input(|partition| parts.get(&partition).map(|part| part.lease.epoch));
                self.input(input);
            }
            Back::Health { view, took } => self.health_view(view, took),
            Back::Endpoints(changed) => self.endpoints_changed(changed),
            Back::Endpoint(rows) => self.tell_endpoints(rows),
            Back::Commands(commands) => self.take_commands(commands),
            Back::Waiting(waiting) => self.waiting(waiting),
            Back::Kept(kept) => self.kept(kept),
            Back::Ends(ends) => self.ends(ends),
            Back::Released { partition, epoch } => self.released(partition, epoch),
            Back::TopicChecked => {}
        }
    }

    /// Bytes of records read and not taken in.
    fn buffered(&self) -> usize {
        self.parts.values().map(|part| part.buffered_bytes).sum()
    }
}

/// The next event; no records while there is no room for them.
async fn next_event(events: &mut Events, full: bool) -> Option<Event> {
    if full { events.recv_control().await } else { events.recv().await }
}
