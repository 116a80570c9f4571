//! One shard under one lease, one effect a step, in the order of `services/relay` (`shard`, `publish`, `held`): a crash can
//! fall between any two. Memory never decides: after any error or change of the topic it starts from the stored cursor.

use super::Slip;
use super::database::{HeldKey, Row};
use super::event::{Delivery, Event, Key, RowId, To};
use super::topic::{Answer, Record, Request, Waiting};
use super::world::{Fate, World};
use crate::event::Time;
use laneway_lane::relay::{
    Acked, Back, Chain, Cursor, EntryAcks, HoldReason, Plan, Published, PublishedAt, Snapshot,
    Step, look_back, plan,
};
use laneway_wire::LaneId;
use std::collections::HashSet;

/// An idle shard whose batch had rows opens an empty one after this, ms.
const REFRESH: Time = 300;
/// Between two rounds over held rows while a batch is read, and when none could go, ms.
const HELD_WITHIN_BATCH: Time = 10;
const HELD_PAUSE: Time = 60;
/// After an error, ms.
const ERROR_PAUSE: Time = 15;

/// A page, or held rows, on the way.
pub(super) struct Sending {
    number: u64,
    deliveries: Vec<(Row, To, LaneId)>,
    plan: Plan,
    chains: Vec<Chain>,
    open: usize,
    /// By delivery, if these are held rows.
    held: Vec<HeldKey>,
    /// The page's last row, and whether the batch ends with it.
    end: (RowId, bool),
    published: Published,
}

enum Phase {
    Load,
    LookBack,
    GoBack(Option<u64>),
    Reload,
    Begin,
    Read,
    /// The marks were read.
    Marked(Box<Sending>),
    Send(Box<Sending>),
    Marks(Box<Sending>),
    Save(Box<Sending>),
    Reopen(u64),
    Idle,
    Version(Snapshot),
    Open(Snapshot, u64),
    /// Within a batch or between two.
    HeldRead {
        within: bool,
    },
}

/// A shard that a process works on.
pub(super) struct Task {
    pub(super) shard: usize,
    pub(super) token: u64,
    /// On the process's own clock.
    pub(super) lease_end: Time,
    /// It is to be given away.
    pub(super) stop: bool,
    not_before: Time,
    phase: Phase,
    /// The topic as it was when the course began: which installation of it, which generation.
    installed: u64,
    generation: u64,
    cursor: Cursor,
    acks: Option<EntryAcks>,
    holds: bool,
    next_round: Time,
    refresh_at: Option<Time>,
    /// By planted faults only: marks that are still to be raised, and a version read too early.
    late_marks: Option<Vec<Acked>>,
    early_version: u64,
}

/// Whether the task goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goes {
    On,
    /// The lease is gone, or given back.
    Over,
}

impl Task {
    pub(super) fn new(shard: usize, token: u64, lease_end: Time, cursor: Cursor) -> Self {
        Self {
            shard,
            token,
            lease_end,
            stop: false,
            not_before: 0,
            phase: Phase::Load,
            installed: 0,
            generation: 0,
            cursor,
            acks: None,
            holds: false,
            next_round: 0,
            refresh_at: None,
            late_marks: None,
            early_version: 0,
        }
    }

    /// Whether it waits for rows and has nothing under way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && !self.holds
    }

    /// Whether something that it sends, or has sent, is not in the marks and the cursor yet.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self.phase, Phase::Marked(_) | Phase::Send(_) | Phase::Marks(_) | Phase::Save(_))
    }

    /// Starts again from the stored cursor, after `pause`.
    pub(super) fn again(&mut self, not_before: Time) {
        self.phase = Phase::Load;
        self.not_before = not_before;
        self.late_marks = None;
    }

    fn fenced(&self, world: &mut World) -> Goes {
        world.note(Event::Fenced { shard: self.shard, token: self.token });
        Goes::Over
    }

    /// One effect.
    pub(super) fn step(&mut self, world: &mut World, at: usize) -> Goes {
        if world.now < self.not_before {
            return Goes::On;
        }
        if let Some(late) = self.late_marks.take() {
            world.control.marks_raise(self.generation, &late, world.now);
            return Goes::On;
        }
        let changed = world.instances[at].installed != self.installed;
        let sending = matches!(self.phase, Phase::Send(_));
        let marked = matches!(self.phase, Phase::Marked(_));
        if changed && (sending || marked || matches!(self.phase, Phase::Idle)) {
            // Only these look at the topic meanwhile.
            self.again(0);
            return Goes::On;
        }
        let fate = if sending || marked { Fate::Fine } else { world.fate() };
        if fate == Fate::Fails {
            self.again(world.now + ERROR_PAUSE);
            return Goes::On;
        }
        let goes = self.act(world, at);
        if fate == Fate::ReplyLost && goes == Goes::On {
            self.again(world.now + ERROR_PAUSE);
        }
        goes
    }

    fn act(&mut self, world: &mut World, at: usize) -> Goes {
        let (shard, token, now) = (self.shard, self.token, world.now);
        match std::mem::replace(&mut self.phase, Phase::Load) {
            Phase::Load => {
                self.installed = world.instances[at].installed;
                self.generation = world.instances[at].generation;
                if world.slip == Some(Slip::ResumedToNow) {
                    world.database.resume_to_now(shard, token);
                }
                let Some(cursor) = world.database.cursor_load(shard, token) else {
                    return self.fenced(world);
                };
                self.cursor = cursor;
                self.phase = match self.cursor.step(self.generation) {
                    Step::LookBack => Phase::LookBack,
                    Step::Restore | Step::Read => Phase::Begin,
                };
            }
            Phase::LookBack => {
                let acks = world.database.acks_all(shard);
                let fences = &world.control.fences;
                self.phase = match look_back(&self.cursor, self.generation, &acks, fences) {
                    Back::Wait => {
                        world.instances[at].look_at = now;
                        Phase::Reload
                    }
                    Back::Nowhere => Phase::GoBack(None),
                    Back::To(to) => Phase::GoBack(Some(to)),
                };
            }
            Phase::GoBack(to) => {
                let left_stays = world.slip == Some(Slip::LeftStaysLeft);
                let generation = self.generation;
                if !world.database.cursor_go_back(shard, token, generation, to, left_stays) {
                    return self.fenced(world);
                }
                world.note(Event::WentBack { shard, token, generation, to });
                self.phase = Phase::Reload;
            }
            Phase::Reload => {
                let Some(cursor) = world.database.cursor_load(shard, token) else {
                    return self.fenced(world);
                };
                self.cursor = cursor;
                self.phase = Phase::Begin;
            }
            Phase::Begin => {
                let refused = world.instances[at].refused;
                world.database.held_reconsider(shard, token, refused);
                self.holds = world.database.held_any(shard);
                (self.acks, self.next_round) = (None, 0);
                self.refresh_at = Some(now + REFRESH);
                self.phase = Phase::Read;
            }
            Phase::Read => return self.read(world, at),
            Phase::Marked(sending) => self.begin_sending(world, at, sending),
            Phase::Send(sending) => self.send(world, at, sending),
            Phase::Marks(sending) => self.raise_marks(world, at, sending),
            Phase::Save(sending) => return self.save(world, &sending),
            Phase::Reopen(entry) => {
                if !world.database.batch_reopen(shard, token, entry) {
                    return self.fenced(world);
                }
            }
            Phase::Idle => return self.idle(world),
            Phase::Version(s2) => {
                let version = match world.slip {
                    Some(Slip::VersionReadFirst) => self.early_version,
                    _ => world.control.version(),
                };
                self.phase = Phase::Open(s2, version);
            }
            Phase::Open(s2, version) => {
                let age = world.plan.entry_age;
                let opened = world.database.batch_open(shard, token, &s2, version, now, age);
                let Some(cursor) = opened else { return self.fenced(world) };
                let entry = cursor.entry;
                world.note(Event::Opened { shard, token, entry, s2: s2.as_str().to_owned() });
                self.cursor = cursor;
                self.refresh_at = None;
                self.phase = Phase::Read;
            }
            Phase::HeldRead { within } => self.held_read(world, at, within),
        }
        Goes::On
    }

    /// Reads the next page, routes it and plans it.
    fn read(&mut self, world: &mut World, at: usize) -> Goes {
        let after = self.cursor.last_id;
        let (rows, last) =
            world.database.batch_page(self.shard, &self.cursor, after, world.plan.page_rows);
        let Some(last_id) = rows.last().map(|row| row.id) else {
            self.end_of_batch(world);
            return Goes::On;
        };
        self.refresh_at = Some(world.now + REFRESH);
        if self.stop {
            return Goes::Over;
        }
        if world.now >= self.lease_end {
            return self.fenced(world);
        }
        let to = &world.control.versions[self.cursor.subscription_version as usize];
        let routed =
            rows.iter().flat_map(|row| to.iter().map(|to| (*row, *to, lane(*to, row.key))));
        let deliveries: Vec<(Row, To, LaneId)> = routed.collect();
        let mut held: HashSet<LaneId> = HashSet::new();
        if self.holds {
            let lanes = deliveries.iter().map(|(_, _, lane)| *lane);
            held.extend(lanes.filter(|lane| world.database.held_has(self.shard, *lane)));
        }
        let refused = world.instances[at].refused;
        let page = deliveries.iter().map(|(row, _, lane)| (*lane, refused != Some(row.key)));
        let plan = plan(page, &held, world.plan.waves);
        self.mark(world, at, deliveries, plan, Vec::new(), (last_id, last));
        Goes::On
    }

    /// Reads the marks: a partition needs longer to lose its end than a process from here to its first record.
    fn mark(
        &mut self,
        world: &mut World,
        at: usize,
        deliveries: Vec<(Row, To, LaneId)>,
        plan: Plan,
        held: Vec<HeldKey>,
        end: (RowId, bool),
    ) {
        world.sendings += 1;
        let chains = plan.chains.iter().map(|links| Chain::new(links)).collect();
        let instance = &mut world.instances[at];
        if instance.installed == self.installed && world.slip != Some(Slip::MarksCached) {
            let marks = world.control.marks(self.generation);
            instance
                .marks
                .iter_mut()
                .zip(marks)
                .for_each(|(known, mark)| *known = mark.max(*known));
        }
        self.phase = Phase::Marked(Box::new(Sending {
            number: world.sendings,
            deliveries,
            plan,
            chains,
            open: 0,
            held,
            end,
            published: Published::default(),
        }));
    }

    fn begin_sending(&mut self, world: &mut World, at: usize, mut sending: Box<Sending>) {
        sending.push(world, at, self.generation);
        if world.slip == Some(Slip::SavedBeforeAcked) && sending.held.is_empty() {
            // What follows is as if all had been acknowledged.
            self.save(world, &sending);
            return;
        }
        self.phase = Phase::Send(sending);
    }

    /// Sends what may be sent; when all is answered, goes on.
    fn send(&mut self, world: &mut World, at: usize, mut sending: Box<Sending>) {
        sending.push(world, at, self.generation);
        if sending.open > 0 {
            self.phase = Phase::Send(sending);
            return;
        }
        for chain in std::mem::take(&mut sending.chains) {
            sending.published.add(chain.finish());
        }
        for &(index, reason) in &sending.published.held {
            if let (Some(key), HoldReason::Size) = (sending.held.get(index), reason) {
                world.database.held_refuse(self.shard, self.token, *key);
            }
        }
        self.phase = match world.slip {
            Some(Slip::MarksAfterCursor) => Phase::Save(sending),
            _ => Phase::Marks(sending),
        };
    }

    /// An answer to one of its requests, if it still waits for it; `lost`: its place shows a loss.
    pub(super) fn answered(
        &mut self,
        world: &mut World,
        waiting: Waiting,
        answer: Answer,
        lost: bool,
    ) {
        let Phase::Send(sending) = &mut self.phase else { return };
        if sending.number != waiting.sending {
            return;
        }
        sending.open -= 1;
        let chain = &mut sending.chains[waiting.chain];
        let instance = &mut world.instances[waiting.instance];
        match answer {
            Answer::Acked { partition, offset } if !lost => return chain.acked(partition, offset),
            Answer::Acked { .. } => {}
            Answer::TooLarge => return chain.refused(HoldReason::Size),
            Answer::Fatal => instance.dead_producer |= instance.installed == self.installed,
        }
        instance.look_at = world.now;
        self.again(world.now + ERROR_PAUSE);
    }

    fn raise_marks(&mut self, world: &mut World, at: usize, sending: Box<Sending>) {
        let acked = sending.published.by_partition();
        let now = world.now;
        match world.control.marks_raise(self.generation, &acked, now) {
            _ if acked.is_empty() => self.phase = Phase::Save(sending),
            Some(marks) => {
                let instance = &mut world.instances[at];
                if instance.installed == self.installed {
                    for (partition, mark) in marks {
                        let known = &mut instance.marks[partition as usize];
                        *known = mark.max(*known);
                    }
                }
                self.phase = Phase::Save(sending);
            }
            None => {
                world.instances[at].look_at = now;
                self.again(now + ERROR_PAUSE);
            }
        }
    }

    /// Moves the cursor behind the page, or marks held rows as published.
    fn save(&mut self, world: &mut World, sending: &Sending) -> Goes {
        let (shard, token) = (self.shard, self.token);
        let (entry, generation) = (self.cursor.entry, self.generation);
        let known = self.acks.take_if(|acks| acks.entry == entry && acks.generation == generation);
        let partitions = world.plan.partitions;
        let mut acks =
            known.unwrap_or_else(|| world.database.acks_of(shard, entry, generation, partitions));
        acks.add(&sending.published);
        let acks = self.acks.insert(acks);
        if world.slip == Some(Slip::MarksAfterCursor) {
            self.late_marks = Some(sending.published.by_partition());
        }
        let delivery = |index: usize| (sending.deliveries[index].0.id, sending.deliveries[index].1);
        if !sending.held.is_empty() {
            let acked = &sending.published.acked;
            let left: Vec<HeldKey> =
                acked.iter().map(|&PublishedAt { index, .. }| sending.held[index]).collect();
            if left.is_empty() {
                self.holds = world.database.held_any(shard);
                self.next_round = world.now + HELD_PAUSE;
            } else if !world.database.held_leave(shard, token, &left, acks) {
                world.note(Event::Fenced { shard, token });
                return Goes::On;
            } else {
                let sent = acked.iter().map(|at| delivery(at.index)).collect();
                world.note(Event::Left { shard, token, sent });
                self.next_round = world.now + HELD_WITHIN_BATCH;
            }
            self.phase = if sending.end.1 { Phase::Idle } else { Phase::Read };
            return Goes::On;
        }
        let held: Vec<(usize, HoldReason)> = sending.published.held_with(&sending.plan).collect();
        let holds: Vec<(HeldKey, Key, HoldReason)> = held
            .iter()
            .map(|&(index, reason)| {
                let (row, to, lane) = sending.deliveries[index];
                ((lane, row.id, to), row.key, reason)
            })
            .collect();
        let (last_id, last) = sending.end;
        let unfenced = world.slip == Some(Slip::SaveUnfenced);
        if !world.database.batch_advance(shard, token, last_id, acks, &holds, unfenced) {
            return self.fenced(world);
        }
        let held: Vec<Delivery> = held.iter().map(|(index, _)| delivery(*index)).collect();
        let sent: Vec<Delivery> = (0..sending.deliveries.len())
            .map(delivery)
            .filter(|delivery| !held.contains(delivery))
            .collect();
        self.holds |= !held.is_empty();
        world.note(Event::Passed { shard, token, last_id, sent, held });
        self.cursor.last_id = last_id;
        if last {
            self.end_of_batch(world);
        } else if self.holds && self.cursor.held_may_follow() && world.now >= self.next_round {
            self.phase = Phase::HeldRead { within: true };
        } else {
            self.phase = Phase::Read;
        }
        Goes::On
    }

    fn end_of_batch(&mut self, world: &World) {
        self.early_version = world.control.version();
        self.phase = match self.cursor.again() {
            Some(entry) => Phase::Reopen(entry),
            None => Phase::Idle,
        };
    }

    /// Lets held rows follow, or waits for the next batch.
    fn idle(&mut self, world: &mut World) -> Goes {
        self.phase = Phase::Idle;
        if self.stop {
            return Goes::Over;
        }
        if self.holds && world.now >= self.next_round {
            self.phase = Phase::HeldRead { within: false };
            return Goes::On;
        }
        let (s2, fresh) = world.database.poll(self.shard);
        if fresh || self.refresh_at.is_some_and(|at| at <= world.now) {
            if world.now >= self.lease_end {
                return self.fenced(world);
            }
            self.phase = Phase::Version(s2);
        }
        Goes::On
    }

    fn held_read(&mut self, world: &mut World, at: usize, within: bool) {
        let found = world.database.held_sendable(self.shard, world.plan.waves);
        if found.is_empty() {
            self.holds = world.database.held_any(self.shard);
            self.next_round = world.now + HELD_PAUSE;
            self.phase = if within { Phase::Read } else { Phase::Idle };
            return;
        }
        let mut plan = Plan::default();
        let (mut deliveries, mut keys) = (Vec::new(), Vec::new());
        let mut last = None;
        for ((lane, id, to), row) in found {
            if last.replace(lane) != Some(lane) {
                plan.chains.push(Vec::new());
            }
            if let Some(chain) = plan.chains.last_mut() {
                chain.push(deliveries.len());
            }
            deliveries.push((row, to, lane));
            keys.push((lane, id, to));
        }
        self.mark(world, at, deliveries, plan, keys, (0, !within));
    }
}

impl Sending {
    /// Hands the producer what may be sent now.
    fn push(&mut self, world: &mut World, at: usize, generation: u64) {
        let producer = world.instances[at].producer;
        for (chain, of) in self.chains.iter_mut().enumerate() {
            while let Some(index) = of.to_send() {
                let (row, to, lane) = self.deliveries[index];
                let partition = u32::from(lane.bucket().number()) % world.plan.partitions;
                let record = Record { generation, delivery: (row.id, to), key: row.key };
                let waiting = Some(Waiting { instance: at, sending: self.number, chain });
                let floor = world.instances[at].marks[partition as usize];
                let (witness, answer) = (Some(at), None);
                self.open += 1;
                world.topic.wire.push(Request {
                    producer,
                    partition,
                    record,
                    witness,
                    floor,
                    waiting,
                    answer,
                });
            }
        }
    }
}

/// A lane's id: its bucket, and so its partition, follows from the two.
fn lane(to: To, key: Key) -> LaneId {
    let mut bytes = [0; 16];
    bytes[7] = to * 16 + key;
    LaneId::from_bytes(bytes)
}
