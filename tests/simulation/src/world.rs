//! The world: virtual time, the topic, the database, the network and the processes, driven by one seed.

use crate::event::{Delivery, Event, Gauges, Instance, Lane, Request, Seen, Time};
use crate::journal::{Breach, Journal};
use crate::mutants::{Planted, Slip};
use crate::plan::{Fault, MAX_SKEW, Plan, Spec};
use crate::receiver::{self, Answer, Phase};
use crate::rng::Rng;
use crate::shell::{Part, Process};
use crate::store::{DeliveryInfo, Owner, Settle, Settled, Store};
use bytes::Bytes;
use laneway_lane::{
    AttemptResult, Effect, Endpoint, EndpointState, Epoch, Incoming, Input, Known, Partition,
    Ticket,
};
use laneway_wire::record::Head;
use laneway_wire::{
    DeliveryId, EndpointId, EventId, LaneId, LaneMode, Record, TenantId, Timestamp,
};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
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
    /// Facts read too early, by a planted fault.
    pub(crate) early: Option<Known>,
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
    Produce,
    Nemesis,
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
    pub(crate) store: Store,
    pub(crate) topic: Vec<Vec<LogRecord>>,
    pub(crate) processes: Vec<Process>,
    /// Which process Kafka gives each partition.
    pub(crate) assignment: Vec<usize>,
    pub(crate) travels: Vec<Travel>,
    pub(crate) journal: Journal,
    pub(crate) store_slow_until: Time,
    pub(crate) faults: u64,
    pub(crate) tx_ids: u64,
    pub(crate) effects: Vec<Effect>,
    made: u32,
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
        store.owners = vec![Owner { released: true, ..Owner::default() }; plan.partitions as usize];
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
            store,
            topic: vec![Vec::new(); plan.partitions as usize],
            processes,
            assignment: (0..plan.partitions as usize).map(|p| p % plan.instances).collect(),
            travels: Vec::new(),
            journal,
            store_slow_until: 0,
            faults: 0,
            tx_ids: 0,
            effects: Vec::new(),
            made: 0,
            phase_until: 0,
            over: false,
            steps: 0,
            plan,
        };
        for instance in 0..world.processes.len() {
            world.started(instance);
        }
        world.at(0, Happening::Produce);
        world.at(world.plan.heal_at / 10, Happening::Nemesis);
        world.at(world.plan.heal_at, Happening::Heal);
        world
    }

    pub(crate) fn at(&mut self, at: Time, what: Happening) {
        let tie = self.chance.next();
        self.agenda.push(Scheduled { at, tie, what });
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
            Happening::Tx { instance, incarnation, tx, sent } => {
                self.transaction(instance, incarnation, tx, sent);
            }
            Happening::TakeOver { instance, incarnation, partition, seen, sent } => {
                if self.processes[instance].incarnation != incarnation {
                    return;
                }
                let owner = self.store.take_over(partition, seen);
                if let Some(owner) = owner {
                    let (epoch, clean) = (owner.epoch, seen.released);
                    self.log(Event::Owned {
                        partition,
                        epoch,
                        instance: instance as Instance,
                        clean,
                    });
                }
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
            Happening::Produce => self.produce(),
            Happening::Nemesis => self.strike(),
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
        let partition = tx.partition;
        let delay = self.store_delay();
        if self.strikes(Fault::LostReply, self.plan.losses) {
            let wait = self.chance.range(100, 900);
            self.tell(instance, wait, Note::TxRetry { partition, id: tx.id });
        } else {
            self.tell(instance, delay, Note::TxReply { partition, tx, result, sent });
        }
    }

    // --- the topic ---

    fn produce(&mut self) {
        if self.made < self.plan.deliveries {
            let at_once = self.producer.pick(&[1, 1, 1, 3, 8]);
            for _ in 0..at_once {
                if self.made < self.plan.deliveries {
                    self.produce_new();
                }
            }
        }
        if self.plan.has(Fault::Garbage) && self.producer.chance(8) {
            let partition = self.producer.range(0, i64::from(self.plan.partitions) - 1) as u32;
            let offset = self.append(partition, None);
            self.faults += 1;
            self.log(Event::Garbage { partition, offset });
        }
        if self.plan.has(Fault::Republish) && self.producer.chance(12) {
            self.republish();
        }
        let left = i64::from(self.plan.deliveries.saturating_sub(self.made)) + 1;
        let step = (self.plan.heal_at - self.now).max(0) / left + 1;
        let next = self.now + self.producer.range(1, 2 * step);
        if self.made < self.plan.deliveries || next < self.plan.heal_at {
            self.at(next, Happening::Produce);
        }
    }

    fn produce_new(&mut self) {
        let lanes = self.plan.lanes.len();
        let slot = self.producer.index(lanes).min(self.producer.index(lanes));
        let plan = &self.plan.lanes[slot];
        let index = self.made;
        self.made += 1;
        let time = 1_000 + u128::from(index);
        let event =
            EventId::from_uuid(Uuid::from_u128((time << 80) | (7 << 76) | (2 << 62) | time));
        let endpoint = self.store.endpoints[plan.endpoint].1.id;
        let id = DeliveryId::first(event, endpoint);
        let user_key = plan.keyed.then(|| format!("user_{slot}"));
        let mode = if plan.keyed { LaneMode::User } else { LaneMode::None };
        let lane_id = LaneId::of(endpoint, mode, user_key.as_deref(), id);
        let next_lane = self.store.lane_by_id.len() as Lane;
        let lane = *self.store.lane_by_id.entry(lane_id).or_insert(next_lane);
        let record = Record {
            head: Head {
                generation: 1,
                delivery: id.as_uuid(),
                event: event.as_uuid(),
                endpoint: endpoint.as_uuid(),
                tenant: Uuid::from_u128(7),
                mode,
                user_key,
                event_type: "a.b".into(),
                content_type: "application/json".into(),
                headers: Vec::new(),
                traceparent: None,
                source: "app".into(),
                row: i64::from(index),
                created_at: Timestamp(self.now),
                replay: 0,
            },
            payload: Bytes::from(vec![b'x'; self.producer.pick(&[10, 50, 200])]),
        };
        let partition = u32::from(lane_id.bucket().number()) % self.plan.partitions;
        let info = DeliveryInfo {
            record: Arc::new(record),
            lane_id,
            lane,
            endpoint: plan.endpoint,
            partition,
            slot,
            rejected: self.producer.chance(self.plan.rejects),
        };
        self.store.by_id.insert(id, index);
        self.store.deliveries.push(info);
        let endpoint = self.plan.lanes[slot].endpoint as u32;
        let offset = self.append(partition, Some(index));
        self.log(Event::Produced {
            partition,
            offset,
            delivery: index,
            lane,
            endpoint,
            first: true,
        });
    }

    /// The relay lost a cursor's save and publishes a stretch of the partition again.
    fn republish(&mut self) {
        let partition = self.producer.range(0, i64::from(self.plan.partitions) - 1) as u32;
        let records = &self.topic[partition as usize];
        if records.is_empty() {
            return;
        }
        let back = self.producer.range(1, 12) as usize;
        let from = records.len().saturating_sub(back);
        let to = from + self.producer.range(1, back as i64) as usize;
        let stretch: Vec<_> =
            records[from..to.min(records.len())].iter().filter_map(|r| r.delivery).collect();
        self.faults += 1;
        for delivery in stretch {
            let info = &self.store.deliveries[delivery as usize];
            let (lane, endpoint) = (info.lane, info.endpoint as u32);
            let offset = self.append(partition, Some(delivery));
            self.log(Event::Produced { partition, offset, delivery, lane, endpoint, first: false });
        }
    }

    fn append(&mut self, partition: Partition, delivery: Option<Delivery>) -> i64 {
        let gap = if self.producer.chance(6) { self.producer.range(1, 4) } else { 0 };
        let offset = self.end(partition) + gap;
        self.topic[partition as usize].push(LogRecord { offset, delivery, early: None });
        for instance in 0..self.processes.len() {
            self.kick(instance, partition);
        }
        offset
    }

    /// The offset behind the last record.
    pub(crate) fn end(&self, partition: Partition) -> i64 {
        self.topic[partition as usize].last().map_or(0, |record| record.offset + 1)
    }

    // --- requests ---

    /// A request leaves; its lease was just checked.
    pub(crate) fn depart(
        &mut self,
        instance: usize,
        ticket: Ticket,
        timeout: Duration,
        probe: bool,
        lease_left: i64,
    ) {
        let delivery = self.store.by_id[&ticket.delivery];
        let request = self.travels.len() as Request;
        let deadline = self.now + timeout.as_millis() as i64;
        let process = &self.processes[instance];
        self.travels.push(Travel {
            instance,
            incarnation: process.incarnation,
            ticket,
            delivery,
            began: self.now,
            deadline,
            arrived: false,
            ended: false,
            dropped: false,
            frozen: false,
        });
        self.log(Event::Began {
            request,
            instance: instance as Instance,
            partition: ticket.partition,
            epoch: ticket.epoch,
            delivery,
            attempt: ticket.attempt,
            probe,
            deadline,
            lease_left,
        });
        let endpoint = self.store.deliveries[delivery as usize].endpoint;
        let mood = receiver::mood(&self.plan, self.phase, endpoint, self.now);
        if mood == crate::plan::Mood::Refused {
            self.faults += 1;
            let delay = self.chance.range(1, 60);
            let note = Note::Ended { request, seen: Seen::NotSent, class: "refused" };
            self.tell(instance, delay, note);
            return;
        }
        let delay = self.chance.range(1, 25);
        self.at(self.now + delay, Happening::Arrive(request));
        self.tell(
            instance,
            deadline - self.now,
            Note::Ended { request, seen: Seen::Unknown, class: "timeout" },
        );
        if self.processes[instance].pause_at_send {
            self.pause(instance);
        }
    }

    fn arrive(&mut self, request: Request) {
        let travel = &self.travels[request as usize];
        if travel.dropped {
            return;
        }
        let (instance, incarnation) = (travel.instance, travel.incarnation);
        let paused_until = self.processes[instance].paused_until;
        if travel.frozen && self.now < paused_until {
            let delay = self.chance.range(0, 30);
            self.at(paused_until + delay, Happening::Arrive(request));
            return;
        }
        let info = &self.store.deliveries[travel.delivery as usize];
        let who = (info.endpoint, info.slot, info.rejected);
        let answer = receiver::answer(&self.plan, self.phase, who, self.now, &mut self.moods);
        let (status, note, delay) = match answer {
            Answer::Status(status, delay) => {
                (Some(status), Some((Seen::Status(status), "status")), delay)
            }
            Answer::Reset(delay) => (None, Some((Seen::Unknown, "reset")), delay),
            Answer::Silence => (None, None, 0),
        };
        self.faults += u64::from(status != Some(200));
        self.travels[request as usize].arrived = true;
        self.log(Event::Arrived { request, status });
        if let Some((seen, class)) = note {
            let back = self.chance.range(1, 25);
            let note = Note::Ended { request, seen, class };
            self.at(self.now + delay + back, Happening::To { instance, incarnation, note });
        }
    }

    /// The process learns how its request ended.
    pub(crate) fn ended(&mut self, request: Request, seen: Seen, class: &'static str) {
        let travel = &mut self.travels[request as usize];
        if travel.ended {
            return;
        }
        travel.ended = true;
        let travel = travel.clone();
        self.log(Event::Ended { request, seen });
        let process = &self.processes[travel.instance];
        let left = (travel.deadline - self.now).max(0);
        let clear_at = process.database_time(self.now) + Duration::from_millis(MAX_SKEW as u64);
        let clear_at = if seen == Seen::Cut && !self.slips(Slip::CutIsOver) {
            clear_at + Duration::from_millis(left as u64)
        } else {
            clear_at
        };
        let result = match seen {
            Seen::NotSent => AttemptResult::NotSent { class },
            Seen::Status(status) => AttemptResult::Responded {
                status,
                body: if status == 200 { Bytes::new() } else { Bytes::from_static(b"no") },
            },
            Seen::Unknown | Seen::Cut => AttemptResult::Unknown { class, clear_at },
        };
        let part = process.part(travel.ticket.partition);
        let current = part.is_some_and(|part| part.epoch == travel.ticket.epoch);
        if !current && !self.strikes(Fault::LateResults, 50) {
            return;
        }
        let took = Duration::from_millis((self.now - travel.began).max(0) as u64);
        let input = Input::AttemptEnded { ticket: travel.ticket, result, took };
        if self.strikes(Fault::LateResults, 4) {
            let late = self.nemesis.range(200, 12_000) * self.plan.scale;
            self.tell(travel.instance, late, Note::Give(Box::new(input)));
        } else {
            self.step(travel.instance, input);
        }
    }

    /// Records as the core wants them.
    pub(crate) fn incoming(&self, records: &[LogRecord], known: &[Known]) -> Vec<Incoming> {
        let mut known = known.iter();
        let one = |record: &LogRecord| match record.delivery {
            None => Incoming::Unreadable {
                offset: record.offset,
                reason: "bad_head",
                raw: Bytes::from_static(b"?"),
            },
            Some(delivery) => {
                let info = &self.store.deliveries[delivery as usize];
                let now = *known.next().expect("one fact for each delivery of an intake");
                Incoming::Delivery {
                    offset: record.offset,
                    record: info.record.clone(),
                    lane: info.lane_id,
                    known: record.early.unwrap_or(now),
                }
            }
        };
        let dropped = self.slips(Slip::GarbageDropped);
        let records = records.iter().filter(|record| !dropped || record.delivery.is_some());
        records.map(one).collect()
    }

    // --- healing and the end ---

    fn heal(&mut self) {
        self.phase = Phase::Healed;
        self.store_slow_until = 0;
        for instance in 0..self.processes.len() {
            let process = &mut self.processes[instance];
            (process.crash_at_step, process.crash_at_commit, process.pause_at_send) =
                (false, false, false);
            if !process.alive {
                self.restart(instance);
            }
            if self.now < self.processes[instance].paused_until {
                self.processes[instance].paused_until = self.now;
                self.resume(instance);
            }
        }
        for endpoint in 0..self.store.endpoints.len() {
            self.switch(endpoint, EndpointState::Enabled);
        }
        self.log(Event::Healed);
        self.phase_until = self.now + self.plan.drain();
        self.at(self.now + LOOK_EVERY * self.plan.scale, Happening::Look);
    }

    /// Lanes that something that lingers holds back.
    fn blocked(&self) -> Vec<Lane> {
        let mut blocked = vec![false; self.store.lane_by_id.len()];
        for info in &self.store.deliveries {
            let bad = receiver::lane_is_bad(&self.plan, self.phase, info.slot, self.now);
            blocked[info.lane as usize] |= bad || self.plan.endpoints[info.endpoint].lingers;
        }
        for (delivery, _) in self.store.unknowns() {
            blocked[self.store.deliveries[delivery as usize].lane as usize] = true;
        }
        (0..blocked.len() as Lane).filter(|lane| blocked[*lane as usize]).collect()
    }

    fn look(&mut self) {
        let done = self.made >= self.plan.deliveries;
        let lag: i64 = (0..self.plan.partitions)
            .map(|p| self.end(p) - self.store.owners[p as usize].next_offset.min(self.end(p)))
            .sum();
        if self.phase == Phase::Healed {
            let blocked = self.blocked();
            let open = (0..self.made).any(|delivery| {
                let lane = self.store.deliveries[delivery as usize].lane;
                !self.store.is_settled(delivery) && blocked.binary_search(&lane).is_err()
            });
            if (done && !open) || self.now > self.phase_until {
                self.log(Event::Lingered { blocked });
                self.log(Event::Cured);
                self.phase = Phase::Cured;
                self.phase_until = self.now + self.plan.drain();
            }
        } else {
            self.resolve_all();
            let commands = self.store.commands.iter().filter(|command| !command.done).count();
            let settled = self.store.settled_count() == self.made as usize;
            let (parked, intents) = (self.store.parked_count(), self.store.intent_count());
            let drained =
                done && settled && lag == 0 && commands == 0 && parked == 0 && intents == 0;
            if drained || self.now > self.phase_until {
                self.log(Event::Over { drained, parked, intents, commands, lag });
                self.over = true;
            }
        }
        self.at(self.now + LOOK_EVERY * self.plan.scale, Happening::Look);
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
