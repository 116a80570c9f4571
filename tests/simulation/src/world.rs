//! The world: virtual time, the topic, the database, the network and the processes, driven by one seed.

mod authority;
mod erasure;
mod failover;
mod heal;
mod loss;
mod rewind;
mod topic;
mod travel;

use crate::event::{Delivery, Event, Gauges, Instance, Request, Seen, Time};
use crate::journal::{Breach, Journal};
use crate::mutants::{Planted, Slip};
use crate::plan::{Fault, Plan, Spec};
use crate::receiver::Phase;
use crate::rng::Rng;
use crate::shell::{Part, Process};
use crate::store::{Owner, Settle, Settled, Store};
use authority::{Asked, Desk};
use erasure::Erasure;
use laneway_lane::{
    AttemptResult, Effect, Endpoint, EndpointState, Epoch, Input, Known, Partition, Ticket, Verdict,
};
use laneway_wire::{EndpointId, TenantId, Timestamp};
use loss::Log;
use rewind::{Rewinds, Turn};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// How often a healed world is looked at, ms; times [`Plan::scale`].
const LOOK_EVERY: Time = 500;
/// The core checks its own invariants after every so many steps: they cost a pass over all it holds.
const CHECK_EVERY: u64 = 16;
/// A schedule that takes more steps than this is a breach of its own: something loops.
const MAX_STEPS: u64 = 400_000;

/// One record of a partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogRecord {
    pub(crate) offset: i64,
    /// None: undecodable.
    pub(crate) delivery: Option<Delivery>,
    /// What it is stamped with.
    pub(crate) generation: u64,
    /// Nothing is left of its payload.
    pub(crate) erased: bool,
    /// It lies behind a loss, as its reader knows: complete unsent.
    pub(crate) skip: bool,
    /// Facts read too early, by a planted fault.
    pub(crate) early: Option<Known>,
}

impl LogRecord {
    /// The delivery, if its facts are asked for.
    pub(crate) fn taken(&self) -> Option<Delivery> {
        self.delivery.filter(|_| !self.skip)
    }
}

/// A request on its way.
#[derive(Debug, Clone)]
pub(crate) struct Travel {
    pub(crate) instance: usize,
    pub(crate) incarnation: u32,
    pub(crate) ticket: Ticket,
    pub(crate) delivery: Delivery,
    pub(crate) began: Time,
    pub(crate) deadline: Time,
    pub(crate) arrived: bool,
    /// Its process knows how it ended, or is gone.
    pub(crate) ended: bool,
    /// Its bytes never left the dead process.
    pub(crate) dropped: bool,
    /// Checked its lease, then was frozen before the first byte.
    pub(crate) frozen: bool,
}

/// A message to one incarnation of a process.
#[derive(Debug)]
pub(crate) enum Note {
    Poll,
    Wake(Timestamp),
    Fetch(Partition),
    TxReply { partition: Partition, tx: Rc<Settle>, result: Settled, sent: Time },
    TxRetry { partition: Partition, id: u64 },
    Taken { partition: Partition, owner: Option<Owner>, sent: Time },
    Lanes { partition: Partition, epoch: Epoch, from: usize },
    Give(Box<Input>),
    Ended { request: Request, seen: Seen, class: &'static str },
}

impl Note {
    /// The process gives it to itself after a time; else it comes from outside.
    fn is_timer(&self) -> bool {
        let timeout = matches!(self, Self::Ended { seen: Seen::Unknown, class: "timeout", .. });
        // The core's own wake-up is looked for again with every beat of the process.
        let own = matches!(self, Self::Poll | Self::Fetch(_) | Self::TxRetry { .. });
        own || timeout
    }
}

/// Something that will happen.
#[derive(Debug)]
pub(crate) enum Happening {
    To {
        instance: usize,
        incarnation: u32,
        note: Note,
    },
    /// A transaction or query reaches the database.
    Tx {
        instance: usize,
        incarnation: u32,
        tx: Rc<Settle>,
        sent: Time,
    },
    TakeOver {
        instance: usize,
        incarnation: u32,
        partition: Partition,
        seen: Owner,
        sent: Time,
    },
    Query {
        instance: usize,
        incarnation: u32,
        effect: Box<Effect>,
    },
    Arrive(Request),
    /// The receiver does what a request asks for.
    Work(Request),
    /// A reconciler looks around.
    Reconcile,
    Ask(Asked),
    Answered {
        asked: Asked,
        verdict: Option<Verdict>,
    },
    Produce,
    Nemesis,
    /// One of the faults that have streams of their own.
    LaterNemesis,
    /// The relay of a shard looks at the topic.
    LookAtTopic(usize),
    /// The topic is made again.
    TopicMade,
    /// An erasure is worked on.
    Erase(Erasure),
    /// Something of rewinds.
    Rewind(Turn),
    Restart(usize),
    Resume(usize),
    /// Kafka has noticed that the process is gone.
    SessionOver {
        instance: usize,
        incarnation: u32,
        paused: bool,
    },
    Heal,
    Look,
}

struct Scheduled {
    at: Time,
    tie: u64,
    what: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.tie).cmp(&(self.at, self.tie))
    }
}

/// What one schedule came to.
#[derive(Debug)]
pub struct Report {
    /// The first breach, if there is one.
    pub breach: Option<Breach>,
    /// Records that were no repeats.
    pub deliveries: u64,
    /// Faults that struck: kills, pauses, lost replies, bad answers and so on.
    pub faults: u64,
    /// Virtual time, ms.
    pub virtual_ms: u64,
    /// Requests made.
    pub requests: u64,
    /// Hash of the history.
    pub hash: u64,
    /// The log, if it was kept.
    pub log: Vec<(Time, Event)>,
}

/// The world of one schedule.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) planted: Option<Planted>,
    pub(crate) now: Time,
    pub(crate) phase: Phase,
    agenda: BinaryHeap<Scheduled>,
    /// Latencies and ties.
    pub(crate) chance: Rng,
    /// What receivers do.
    moods: Rng,
    /// What the producer does.
    producer: Rng,
    /// What the nemesis does.
    pub(crate) nemesis: Rng,
    /// What it does of the faults that have streams of their own.
    pub(crate) later: Rng,
    /// What receivers have done without saying so.
    ledger: Rng,
    desk: Desk,
    rewinds: Rewinds,
    pub(crate) store: Store,
    pub(crate) topic: Vec<Vec<LogRecord>>,
    pub(crate) kafka: Log,
    pub(crate) processes: Vec<Process>,
    /// Which process Kafka gives each partition.
    pub(crate) assignment: Vec<usize>,
    pub(crate) travels: Vec<Travel>,
    pub(crate) journal: Journal,
    pub(crate) store_slow_until: Time,
    pub(crate) store_away_until: Time,
    pub(crate) faults: u64,
    /// Results that reach their core late, each with its process.
    pub(crate) late: Vec<(usize, u32, AttemptResult, Ticket)>,
    pub(crate) tx_ids: u64,
    pub(crate) effects: Vec<Effect>,
    made: u32,
    /// Erasures that are not done.
    erasures: u32,
    phase_until: Time,
    over: bool,
    steps: u64,
}

impl World {
    /// Runs the schedule to its end or its first breach; with `keep`, the log is kept.
    pub fn run(spec: Spec, keep: bool, planted: Option<Planted>) -> Report {
        let mut world = Self::new(Plan::new(spec), keep, planted);
        while !world.over && world.journal.breach().is_none() {
            let Some(next) = world.agenda.pop() else { break };
            world.steps += 1;
            if world.steps > MAX_STEPS {
                world.journal.breach_of("P10", "the schedule does not come to an end".into());
                break;
            }
            world.now = next.at;
            world.happen(next.what);
        }
        Report {
            deliveries: u64::from(world.made),
            faults: world.faults,
            virtual_ms: world.now.unsigned_abs(),
            requests: world.travels.len() as u64,
            hash: world.journal.hash(),
            breach: world.journal.take_breach(),
            log: world.journal.into_log(),
        }
    }

    fn new(plan: Plan, keep: bool, planted: Option<Planted>) -> Self {
        let seed = plan.spec.seed;
        let mut store = Store::default();
        let free = Owner { released: true, generation: 1, ..Owner::default() };
        store.owners = vec![free; plan.partitions as usize];
        for (index, endpoint) in plan.endpoints.iter().enumerate() {
            let id = EndpointId::from_uuid(Uuid::from_u128(0x1000 + index as u128));
            store.endpoint_by_id.insert(id, index);
            let settings = Endpoint {
                id,
                tenant: TenantId::from_uuid(Uuid::from_u128(7)),
                state: EndpointState::Enabled,
                on_unknown: endpoint.on_unknown,
                timeout: Duration::from_millis(endpoint.timeout.unsigned_abs()),
                max_in_flight: endpoint.max_in_flight,
            };
            store.endpoints.push((1, settings));
        }
        let journal = Journal::new(&plan, keep);
        let mut chance = Rng::new(seed, 2);
        let processes = (0..plan.instances)
            .map(|n| Process::start(n as Instance, 0, &plan, planted, &mut chance))
            .collect();
        let mut world = Self {
            planted,
            now: 0,
            phase: Phase::Faulty,
            agenda: BinaryHeap::new(),
            chance,
            moods: Rng::new(seed, 3),
            producer: Rng::new(seed, 4),
            nemesis: Rng::new(seed, 5),
            later: Rng::new(seed, 8),
            ledger: Rng::new(seed, 6),
            desk: Desk::default(),
            rewinds: Rewinds::new(seed),
            store,
            topic: vec![Vec::new(); plan.partitions as usize],
            kafka: Log::new(plan.partitions as usize),
            processes,
            assignment: (0..plan.partitions as usize).map(|p| p % plan.instances).collect(),
            travels: Vec::new(),
            journal,
            store_slow_until: 0,
            store_away_until: 0,
            faults: 0,
            late: Vec::new(),
            tx_ids: 0,
            effects: Vec::new(),
            made: 0,
            erasures: 0,
            phase_until: 0,
            over: false,
            steps: 0,
            plan,
        };
        for instance in 0..world.processes.len() {
            world.started(instance);
        }
        world.at(0, Happening::Produce);
        world.start_reconcilers();
        world.at(world.plan.heal_at / 10, Happening::Nemesis);
        world.at(world.plan.heal_at, Happening::Heal);
        world.start_relays();
        world.start_rewinds();
        if world.plan.has_later() {
            world.at(world.plan.heal_at / 10, Happening::LaterNemesis);
        }
        world
    }

    pub(crate) fn at(&mut self, at: Time, what: Happening) {
        let tie = self.chance.next();
        self.agenda.push(Scheduled { at, tie, what });
    }

    /// The timers of a process that sleeps fire later by `span`.
    pub(crate) fn put_off_timers(&mut self, instance: usize, incarnation: u32, span: Time) {
        let mut agenda = std::mem::take(&mut self.agenda).into_vec();
        for scheduled in &mut agenda {
            if let Happening::To { instance: of, incarnation: life, note } = &scheduled.what
                && (*of, *life) == (instance, incarnation)
                && note.is_timer()
            {
                scheduled.at += span;
            }
        }
        self.agenda = agenda.into();
    }

    /// Something for a process, after a delay.
    pub(crate) fn tell(&mut self, instance: usize, delay: Time, note: Note) {
        let incarnation = self.processes[instance].incarnation;
        self.at(self.now + delay, Happening::To { instance, incarnation, note });
    }

    pub(crate) fn log(&mut self, event: Event) {
        self.journal.add(self.now, event);
    }

    /// One way to or from the database.
    pub(crate) fn store_delay(&mut self) -> Time {
        if self.now < self.store_slow_until && self.phase == Phase::Faulty {
            self.chance.range(50, 2_500)
        } else {
            self.chance.range(1, 6)
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::To { instance, incarnation, note } => {
                let process = &mut self.processes[instance];
                if process.incarnation != incarnation || !process.alive {
                    return;
                }
                if self.now < process.paused_until {
                    process.deferred.push(note);
                } else {
                    self.note(instance, note);
                }
            }
            Happening::Tx { instance, incarnation, tx, .. } if self.is_store_away() => {
                let wait = self.store_back();
                let note = Note::TxRetry { partition: tx.partition, id: tx.id };
                self.at(self.now + wait, Happening::To { instance, incarnation, note });
            }
            Happening::TakeOver { .. } if self.is_store_away() => {}
            Happening::Query { .. } if self.is_store_away() => {
                let wait = self.store_back();
                self.at(self.now + wait, what);
            }
            Happening::Tx { instance, incarnation, tx, sent } => {
                self.transaction(instance, incarnation, tx, sent);
            }
            Happening::TakeOver { instance, incarnation, partition, seen, sent } => {
                if self.processes[instance].incarnation != incarnation {
                    return;
                }
                let owner = self.take_over(instance, partition, seen);
                if self.strikes(Fault::LostReply, self.plan.losses) {
                    return;
                }
                let delay = self.store_delay();
                self.tell(instance, delay, Note::Taken { partition, owner, sent });
            }
            Happening::Query { instance, incarnation, effect } => {
                if self.processes[instance].incarnation == incarnation {
                    self.query(instance, *effect);
                }
            }
            Happening::Arrive(request) => self.arrive(request),
            Happening::Work(request) => self.worked(request),
            Happening::Reconcile => self.reconcile(),
            Happening::Ask(asked) => self.ask(asked),
            Happening::Answered { asked, verdict } => self.answered(asked, verdict),
            Happening::Produce => self.produce(),
            Happening::Nemesis => self.strike(),
            Happening::LaterNemesis => self.strike_later(),
            Happening::LookAtTopic(shard) => self.look_at_topic(shard),
            Happening::TopicMade => self.make_topic(),
            Happening::Erase(erasure) => self.work_on(erasure),
            Happening::Rewind(turn) => self.take_turn(turn),
            Happening::Restart(instance) => {
                if !self.processes[instance].alive {
                    self.restart(instance);
                }
            }
            Happening::Resume(instance) => self.resume(instance),
            Happening::SessionOver { instance, incarnation, paused } => {
                let process = &self.processes[instance];
                let gone = if paused { self.now < process.paused_until } else { !process.alive };
                if process.incarnation == incarnation && gone {
                    self.reassign_all(instance);
                }
            }
            Happening::Heal => self.heal(),
            Happening::Look => self.look(),
        }
    }

    /// The planted mistake of the shell, if there is one.
    pub(crate) fn slip(&self) -> Option<Slip> {
        match self.planted {
            Some(Planted::Shell(slip)) => Some(slip),
            _ => None,
        }
    }

    /// Whether the shell makes this mistake.
    pub(crate) fn slips(&self, slip: Slip) -> bool {
        self.slip() == Some(slip)
    }

    /// Whether a fault strikes here, in `percent` of the cases.
    pub(crate) fn strikes(&mut self, fault: Fault, percent: u32) -> bool {
        let strikes =
            self.phase == Phase::Faulty && self.plan.has(fault) && self.nemesis.chance(percent);
        self.faults += u64::from(strikes);
        strikes
    }

    fn take_over(&mut self, instance: usize, partition: Partition, seen: Owner) -> Option<Owner> {
        let owner = self.store.take_over(partition, seen)?;
        let (epoch, clean) = (owner.epoch, seen.released);
        self.log(Event::Owned { partition, epoch, instance: instance as Instance, clean });
        Some(owner)
    }

    /// A transaction commits and nobody hears of it.
    fn commit_unheard(&mut self, tx: &Settle) {
        let mut events = Vec::new();
        let slip = self.slip();
        self.store.settle(self.now, tx, slip, &mut events);
        for event in events {
            self.log(event);
        }
    }

    fn transaction(&mut self, instance: usize, incarnation: u32, tx: Rc<Settle>, sent: Time) {
        let same = |world: &Self| world.processes[instance].incarnation == incarnation;
        if !same(self) && self.chance.chance(50) {
            return; // its connection died with the process, before the commit
        }
        if same(self) && self.processes[instance].crash_at_commit {
            if self.chance.chance(50) {
                self.crash(instance);
                return;
            }
            self.crash(instance);
        }
        let mut events = Vec::new();
        let slip = self.slip();
        let result = self.store.settle(self.now, &tx, slip, &mut events);
        for event in events {
            self.log(event);
        }
        if !same(self) {
            return;
        }
        if self.processes[instance].pause_at_commit {
            self.pause(instance);
        }
        if let Some(span) = self.processes[instance].sleep_at_commit.take() {
            self.sleep(instance, span);
        }
        let partition = tx.partition;
        let delay = self.store_delay();
        if self.strikes(Fault::LostReply, self.plan.losses) {
            let wait = self.chance.range(100, 900);
            self.tell(instance, wait, Note::TxRetry { partition, id: tx.id });
        } else {
            self.tell(instance, delay, Note::TxReply { partition, tx, result, sent });
        }
    }

    /// Notes what a process holds after a step.
    pub(crate) fn gauge(&mut self, instance: usize) {
        let process = &self.processes[instance];
        let held = process.core.gauges();
        let gauges = Gauges {
            in_flight: held.in_flight,
            loaded_lanes: held.lanes_loaded,
            loaded_bytes: held.loaded_bytes,
        };
        // A planted fault has to be seen in what the core does.
        if self.planted.is_none()
            && self.steps.is_multiple_of(CHECK_EVERY)
            && let Err(what) = process.core.check()
        {
            self.journal.breach_of("core", what);
        }
        let process = &self.processes[instance];
        if gauges != process.gauges {
            self.processes[instance].gauges = gauges;
            self.log(Event::Gauge { instance: instance as Instance, gauges });
        }
    }

    /// Fetches soon, if the process owns the partition and does not fetch already.
    pub(crate) fn kick(&mut self, instance: usize, partition: Partition) {
        let wait = self.chance.range(1, 60);
        let Some(part) = self.processes[instance].part_mut(partition) else { return };
        if part.may_fetch() {
            part.fetching = true;
            self.tell(instance, wait, Note::Fetch(partition));
        }
    }
}

impl Part {
    fn may_fetch(&self) -> bool {
        self.running && !self.fetching && self.draining_since.is_none()
    }
}
