//! Who does something when, in virtual time, and what goes wrong. Each step is one effect of one party, drawn by the seed.

use super::control::Control;
use super::database::Database;
use super::event::{Event, Key, fence};
use super::plan::{Fault, Plan};
use super::task::{Goes, Task};
use super::topic::{Answer, Request, Topic};
use super::{Journal, Slip};
use crate::event::Time;
use crate::journal::Breach;
use crate::rng::Rng;
use laneway_lane::relay::{Suspicions, is_lost, losses};
use std::hash::Hasher;

/// A healed world has this long to come to its end, ms.
const DRAIN: Time = 60_000;

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    /// The first thing that was broken.
    pub breach: Option<Breach>,
    /// Deliveries that had to be published.
    pub deliveries: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Virtual time, ms.
    pub virtual_ms: u64,
    /// Hash of the history.
    pub hash: u64,
    /// The log, if it was to be kept.
    pub log: Vec<(Time, Event)>,
}

/// What becomes of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    Fails,
    /// It is done, and who asked for it does not learn it.
    ReplyLost,
}

/// One process.
pub(super) struct Instance {
    /// When it begins; none: it runs.
    starts_at: Option<Time>,
    paused_until: Time,
    tend_at: Time,
    tasks: Vec<Task>,
    /// The tenant that its sources may not speak for, by its settings.
    pub(super) refused: Option<Key>,
    // The topic as it knows it, and the watch over it.
    pub(super) installed: u64,
    pub(super) generation: u64,
    pub(super) marks: Vec<i64>,
    pub(super) producer: u64,
    pub(super) dead_producer: bool,
    pub(super) look_at: Time,
    looking: Option<(u64, Vec<i64>)>,
    suspicions: Suspicions,
}

/// Everything.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) now: Time,
    pub(super) slip: Option<Slip>,
    pub(super) database: Database,
    pub(super) control: Control,
    pub(super) topic: Topic,
    pub(super) instances: Vec<Instance>,
    pub(super) sendings: u64,
    rng: Rng,
    producers: u64,
    journal: Journal,
    healed: bool,
    too_large: bool,
    hot: Option<Key>,
    /// The generation in which the log was truncated and nobody has seen it, and the partition if it takes nothing until
    /// somebody has.
    unseen: Option<(u64, Option<u32>)>,
    next_fault: Time,
    faults: u64,
    deliveries: u64,
}

impl World {
    pub(super) fn run(seed: u64, keep: bool, slip: Option<Slip>) -> Report {
        let plan = Plan::new(seed);
        let mut world = Self {
            now: 0,
            slip,
            database: Database::new(plan.shards),
            control: Control::new(plan.partitions),
            topic: Topic::new(plan.partitions),
            instances: Vec::new(),
            sendings: 0,
            rng: Rng::new(seed, 102),
            producers: 0,
            journal: Journal::new(plan.partitions as usize, keep),
            healed: false,
            too_large: false,
            hot: None,
            unseen: None,
            next_fault: 0,
            faults: 0,
            deliveries: 0,
            plan,
        };
        world.subscribe(0);
        for at in 0..world.plan.instances {
            world.instances.push(Instance::new());
            world.start(at);
        }
        let late = world.plan.heal_at + DRAIN;
        while world.now < world.plan.heal_at || world.unseen.is_some() && world.now < late {
            world.step();
        }
        world.heal();
        let end = world.now + DRAIN;
        while world.now < end && !world.is_drained() {
            world.step();
        }
        let drained = world.is_drained();
        world.note(Event::Over { drained });
        Report {
            breach: world.journal.breach,
            deliveries: world.deliveries,
            faults: world.faults,
            virtual_ms: world.now as u64,
            hash: world.journal.hash.finish(),
            log: world.journal.log,
        }
    }

    pub(super) fn note(&mut self, event: Event) {
        self.journal.add(self.now, event);
    }

    /// What becomes of a statement now.
    pub(super) fn fate(&mut self) -> Fate {
        let calm = self.healed || self.unseen.is_some() || !self.plan.has(Fault::LostReply);
        if calm || !self.rng.chance(1) {
            return Fate::Fine;
        }
        self.faults += 1;
        if self.rng.chance(50) { Fate::Fails } else { Fate::ReplyLost }
    }

    fn subscribe(&mut self, to: u8) {
        let mut next = self.control.versions[self.control.versions.len() - 1].clone();
        next.push(to);
        self.control.versions.push(next);
        self.note(Event::Subscribed { to });
    }

    fn step(&mut self) {
        self.now += self.rng.range(0, 2);
        let slow = if self.plan.has(Fault::SlowLog) { 6 } else { 20 };
        match self.rng.range(0, 99) {
            0..20 => self.write(),
            20..40 => self.arrive(slow),
            40..60 => self.answer(slow),
            60..62 => self.strike(),
            _ => {
                let at = self.rng.index(self.instances.len());
                self.process(at);
            }
        }
    }

    /// A writer does something.
    fn write(&mut self) {
        let open = self.database.open.len();
        if open > 0 && (self.healed || self.rng.chance(70)) {
            let at = self.rng.index(open);
            if self.healed || self.database.open[at].ends_at <= self.now {
                return self.end_transaction(at);
            }
            let most = if self.hot.is_some() { 12 } else { 4 };
            if self.database.open[at].rows.len() < most {
                let any = self.rng.range(0, i64::from(self.plan.keys) - 1) as Key;
                let key = self.hot.filter(|_| self.rng.chance(70)).unwrap_or(any);
                // Or another transaction has the key's lock: it waits.
                self.database.insert(at, key);
            }
        } else if !self.healed && open < 5 && self.database.inserted() < self.plan.rows {
            let long = self.plan.has(Fault::LongTransaction) && self.rng.chance(15);
            let lasts = if long { self.rng.range(100, 1_500) } else { self.rng.range(1, 40) };
            let commits = !(self.plan.has(Fault::Rollback) && self.rng.chance(15));
            self.database.begin(self.now + lasts, commits);
        }
    }

    fn end_transaction(&mut self, at: usize) {
        let ended = self.database.end(at);
        if ended.commits {
            let to = self.control.versions[self.control.versions.len() - 1].len();
            self.deliveries += (ended.rows.len() * to) as u64;
            self.note(Event::Committed { xid: ended.xid, rows: ended.rows });
        } else {
            self.note(Event::RolledBack { xid: ended.xid });
        }
    }

    /// Requests reach the broker.
    fn arrive(&mut self, percent: u32) {
        for _ in 0..3 {
            let arriving = self.topic.arriving();
            if arriving.is_empty() || !self.rng.chance(percent * 4) {
                return;
            }
            let place = self.rng.pick(&arriving);
            let request = self.topic.wire[place];
            let generation = self.control.generation();
            if self
                .unseen
                .is_some_and(|(of, closed)| of == generation && closed == Some(request.partition))
            {
                continue;
            }
            if request.waiting.is_some() && self.goes_wrong(Fault::ProducerError, 1) {
                self.topic.wire[place].answer = Some(Answer::Fatal);
                continue;
            }
            let too_large = self.too_large && request.record.delivery.0 % 7 == 3;
            if let Some((partition, offset)) = self.topic.take(place, too_large) {
                let record = request.record;
                let (generation, delivery, key) = (record.generation, record.delivery, record.key);
                self.note(Event::Appended { partition, offset, generation, delivery, key });
            }
        }
    }

    fn goes_wrong(&mut self, fault: Fault, percent: u32) -> bool {
        let calm = self.healed || self.unseen.is_some();
        let wrong = !calm && self.plan.has(fault) && self.rng.chance(percent);
        self.faults += u64::from(wrong);
        wrong
    }

    /// Answers reach who sent.
    fn answer(&mut self, percent: u32) {
        for _ in 0..3 {
            let answering = self.topic.answering();
            if answering.is_empty() || !self.rng.chance(percent * 4) {
                return;
            }
            let place = self.rng.pick(&answering);
            let request = self.topic.wire[place];
            let Some(at) = request.witness else {
                self.topic.wire.remove(place);
                continue;
            };
            if self.instances[at].paused_until > self.now {
                continue;
            }
            self.topic.wire.remove(place);
            let Some(answer) = request.answer else { continue };
            let lost = self.compare(at, &request, answer);
            let Some(waiting) = request.waiting else { continue };
            let mut tasks = std::mem::take(&mut self.instances[at].tasks);
            for task in &mut tasks {
                task.answered(self, waiting, answer, lost);
            }
            self.instances[at].tasks = tasks;
        }
    }

    /// The producers' witness: whether the place of an acknowledged record shows that the log was lost.
    fn compare(&mut self, at: usize, request: &Request, answer: Answer) -> bool {
        let Answer::Acked { partition, offset } = answer else { return false };
        let (now, slip) = (self.now, self.slip);
        let instance = &mut self.instances[at];
        let present = instance.producer == request.producer;
        let mark = &mut instance.marks[partition as usize];
        let floor = if slip == Some(Slip::MarksReadLate) { *mark } else { request.floor };
        let lost = is_lost(floor, offset);
        if present {
            *mark = offset.max(*mark);
        }
        if lost && (present || slip != Some(Slip::AbandonedUncompared)) {
            instance.suspicions.add(request.record.generation, partition, offset);
            instance.look_at = now;
        }
        lost
    }

    /// A process does one thing.
    fn process(&mut self, at: usize) {
        let instance = &self.instances[at];
        if instance.paused_until > self.now {
            return;
        }
        if let Some(starts_at) = instance.starts_at {
            if starts_at <= self.now {
                self.start(at);
            }
            return;
        }
        if instance.looking.is_some() || instance.look_at <= self.now {
            if self.rng.chance(40) {
                return self.look(at);
            }
        } else if instance.tend_at <= self.now {
            return self.tend(at);
        }
        let mut tasks = std::mem::take(&mut self.instances[at].tasks);
        if !tasks.is_empty() {
            let which = self.rng.index(tasks.len());
            if tasks[which].step(self, at) == Goes::Over {
                let over = tasks.swap_remove(which);
                self.release(over.shard, over.token);
            }
        }
        self.instances[at].tasks = tasks;
    }

    fn start(&mut self, at: usize) {
        let tenant = self.plan.has(Fault::Tenant) && !self.healed;
        let refused = (tenant && self.rng.chance(50)).then_some(0);
        self.instances[at].starts_at = None;
        self.instances[at].refused = refused;
        self.instances[at].tend_at = self.now;
        self.install(at);
        // What was lost while nobody looked must be seen before the first record is sent.
        self.look(at);
        self.look(at);
    }

    /// `Topics`: the present generation, with its marks and a producer of its own.
    fn install(&mut self, at: usize) {
        self.abandon(at, false);
        self.producers += 1;
        let generation = self.control.generation();
        let instance = &mut self.instances[at];
        instance.installed += 1;
        instance.generation = generation;
        instance.marks = self.control.marks(generation);
        instance.producer = self.producers;
        instance.dead_producer = false;
    }

    fn abandon(&mut self, at: usize, gone: bool) {
        let rng = &mut self.rng;
        self.topic.abandon(self.instances[at].producer, gone, || rng.index(4));
    }

    /// `Watch::look`, in two steps: marks, then ends.
    fn look(&mut self, at: usize) {
        let fate = self.fate();
        let instance = &mut self.instances[at];
        let Some((seen, marks)) = instance.looking.take() else {
            let stored = self.control.generation();
            if stored > instance.generation {
                self.install(at);
            }
            self.instances[at].looking = Some((stored, self.control.marks(stored)));
            return;
        };
        instance.look_at = self.now + self.plan.watch;
        if fate == Fate::Fails {
            return;
        }
        instance.suspicions.covered_by(&self.control.fences);
        let suspected: Vec<(u32, i64)> = instance.suspicions.lost().collect();
        let recreated = self.topic.id != self.control.topic_of(seen);
        let lost = losses(recreated, &marks, &self.topic.ends(), suspected);
        if !lost.is_empty() {
            let raised = self.control.generation_raise(seen, self.topic.id, &lost, self.now);
            if let Some(fences) = raised {
                let generation = self.control.generation();
                let fences = fences.iter().map(fence).collect();
                self.note(Event::Raised { generation, fences });
            }
            self.install(at);
        } else if self.instances[at].dead_producer {
            self.install(at);
        }
    }

    /// `Source::tend`: renews leases, takes what is free up to this process's share.
    fn tend(&mut self, at: usize) {
        let (now, lease) = (self.now, self.plan.lease);
        self.instances[at].tend_at = now + lease / 5;
        let mut tasks = std::mem::take(&mut self.instances[at].tasks);
        tasks.retain_mut(|task| {
            let kept = self.database.lease_renew(task.shard, task.token, now + lease);
            task.lease_end = now + lease;
            kept
        });
        let share = self.plan.shards.div_ceil(self.instances.len());
        let share = if self.rng.chance(30) { self.plan.shards } else { share };
        if tasks.len() < share {
            let own: Vec<u64> = tasks.iter().map(|task| task.token).collect();
            if let Some((shard, token)) = self.database.lease_acquire(at, &own, now, lease) {
                self.note(Event::Leased { shard, instance: at, token });
                if let Some(cursor) = self.database.cursor_load(shard, token) {
                    tasks.push(Task::new(shard, token, now + lease, cursor));
                }
            }
        }
        self.instances[at].tasks = tasks;
    }

    fn release(&mut self, shard: usize, token: u64) {
        if self.database.lease_release(shard, token) {
            self.note(Event::Released { shard });
        }
    }

    /// Something goes wrong, perhaps.
    fn strike(&mut self) {
        if let Some((of, _)) = self.unseen {
            let old = self.topic.wire.iter().any(|request| request.record.generation <= of);
            let suspected = self.instances.iter().any(|at| at.suspicions.first().is_some());
            if self.control.generation() == of || old || suspected {
                return;
            }
            self.unseen = None;
        }
        if self.healed || self.now < self.next_fault {
            return;
        }
        self.next_fault = self.now + self.rng.range(0, self.plan.pace);
        let at = self.rng.index(self.instances.len());
        match self.rng.range(0, 10) {
            0 | 1 if self.plan.has(Fault::Crash) => self.crash(at),
            2 if self.plan.has(Fault::Pause) => {
                let lease = self.plan.lease;
                self.instances[at].paused_until = self.now + self.rng.range(lease / 4, lease * 2);
                self.note(Event::Paused { instance: at });
            }
            3 if self.plan.has(Fault::DatabaseCrash) => {
                self.database.crash();
                self.note(Event::DatabaseCrashed);
                let now = self.now;
                for instance in &mut self.instances {
                    instance.tasks.iter_mut().for_each(|task| task.again(now));
                }
            }
            4 if self.plan.has(Fault::Recreate) && self.rng.chance(40) => {
                let rng = &mut self.rng;
                self.topic.recreate(|| rng.chance(50));
                self.note(Event::Recreated);
            }
            5 if self.plan.has(Fault::Truncate) => self.truncate(),
            6 if self.plan.has(Fault::TooLarge) => self.too_large = !self.too_large,
            7 if self.plan.has(Fault::HotLane) => {
                self.hot = match self.hot {
                    Some(_) => None,
                    None => Some(self.rng.range(0, i64::from(self.plan.keys) - 1) as Key),
                };
            }
            8 if self.plan.has(Fault::HandOver) => {
                self.instances[at].tasks.iter_mut().for_each(|task| task.stop = true);
            }
            9 => {
                let subscribed = self.control.versions[self.control.versions.len() - 1].len() as u8;
                if subscribed < self.plan.endpoints {
                    self.subscribe(subscribed);
                }
                return;
            }
            _ => return,
        }
        self.faults += 1;
    }

    fn crash(&mut self, at: usize) {
        self.abandon(at, true);
        let starts_at = self.now + self.rng.range(1, 300);
        let instance = &mut self.instances[at];
        instance.tasks.clear();
        instance.suspicions = Suspicions::default();
        instance.looking = None;
        instance.paused_until = 0;
        instance.starts_at = Some(starts_at);
        self.note(Event::Crashed { instance: at });
    }

    /// A partition loses its end, at a moment at which nothing is under way: what was acknowledged and is in no mark yet can
    /// be lost and written over unseen. Nor does anything else go wrong until it is seen (`unseen`): who dies with an
    /// acknowledgement that shows the loss takes that knowledge along. No rule of the relay sees either (docs/guarantees.md,
    /// "Known limits").
    fn truncate(&mut self) {
        let partition = self.rng.index(self.topic.partitions.len());
        let length = self.topic.partitions[partition].len() as i64;
        let calm = |instance: &Instance| {
            !instance.dead_producer && !instance.tasks.iter().any(Task::is_sending)
        };
        if length == 0 || !self.topic.wire.is_empty() || !self.instances.iter().all(calm) {
            return;
        }
        let end = length - self.rng.range(1, length.min(6));
        let generation = self.control.generation();
        let marked = self.control.marks(generation)[partition];
        let partition = partition as u32;
        if end <= marked {
            let open = self.rng.chance(70);
            self.unseen = Some((generation, (!open).then_some(partition)));
        }
        self.topic.truncate(partition, end, || true);
        self.note(Event::Truncated { partition, end });
    }

    /// Faults are over: every process starts anew with settings that refuse nothing.
    fn heal(&mut self) {
        self.healed = true;
        self.unseen = None;
        self.too_large = false;
        while !self.database.open.is_empty() {
            self.end_transaction(0);
        }
        for at in 0..self.instances.len() {
            self.crash(at);
        }
        self.note(Event::Healed);
    }

    fn is_drained(&self) -> bool {
        let generation = self.control.generation();
        let whole = |shard: usize| {
            let idle = |task: &Task| task.shard == shard && task.is_idle();
            self.instances.iter().any(|instance| {
                instance.generation == generation && instance.tasks.iter().any(idle)
            }) && self.database.is_passed(shard, generation)
        };
        self.topic.wire.is_empty()
            && (0..self.plan.shards).all(whole)
            && losses(
                self.topic.id != self.control.topic(),
                &self.control.marks(generation),
                &self.topic.ends(),
                [],
            )
            .is_empty()
    }
}

impl Instance {
    fn new() -> Self {
        Self {
            starts_at: None,
            paused_until: 0,
            tend_at: 0,
            tasks: Vec::new(),
            refused: None,
            installed: 0,
            generation: 0,
            marks: Vec::new(),
            producer: 0,
            dead_producer: false,
            look_at: 0,
            looking: None,
            suspicions: Suspicions::default(),
        }
    }
}
