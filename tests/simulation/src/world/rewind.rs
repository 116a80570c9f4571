//! Rewinds (design section 6): commands over dead letters, and the reconcilers that work them off page by page. A page is
//! one transaction of several statements (`laneway_store::rewinds`): locks on the command and on its dead letters,
//! snapshots statement by statement, all or nothing at the end. A reconciler can die or stand still between any two of
//! them. What is written for the outbox a relay publishes later, in the order of its rows.

use super::{Happening, World};
use crate::event::{Delivery, Event, Lane, Time};
use crate::mutants::Slip;
use crate::plan::Fault;
use crate::receiver::Phase;
use crate::rng::Rng;
use crate::store::{DeliveryInfo, Selection, State};
use laneway_lane::rewind::{self, Original, Repeat};
use laneway_wire::{LaneId, LaneMode, Record, RewindId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Reconcilers that work on commands.
const WORKERS: usize = 2;
/// Commands of a schedule at most.
const MOST: usize = 8;
/// A transaction that says nothing for so long is ended by the server, ms.
const IDLE: Time = 5_000;
/// Between two looks at what is not settled, ms; times [`crate::plan::Plan::scale`].
const WAITING_PAUSE: Time = 500;

/// What of rewinds happens next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn {
    /// A person commands something.
    Command,
    /// A reconciler's next statement.
    Statement(usize),
    /// A relay looks at the outbox.
    Publish,
}

/// Commands, who works on them, and what they have written.
#[derive(Debug)]
pub(crate) struct Rewinds {
    rng: Rng,
    /// Dead letters of a page.
    rows: usize,
    /// Repeats of one endpoint without an outcome at most.
    unsettled: usize,
    jobs: Vec<Job>,
    open: [Option<Tx>; WORKERS],
    /// Written, visible, not published.
    outbox: BTreeMap<u32, Row>,
    next_row: u32,
    /// Repeats that were written, by endpoint; those that are published with their delivery.
    written: Vec<(usize, u32)>,
    published: BTreeMap<u32, Delivery>,
    /// What each of them repeats.
    repeats: BTreeMap<Delivery, Delivery>,
}

/// One row of `rewinds`.
#[derive(Debug, Clone, Copy)]
struct Job {
    created: Time,
    selection: Selection,
    discards: bool,
    state: Progress,
    position: i64,
    until: i64,
    updated: Time,
    retry_at: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    Paused,
    Done,
}

/// The next statement of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Statement {
    Find,
    Lock,
    Number,
    Write,
    Note,
    Commit,
}

/// A page under way.
#[derive(Debug)]
struct Tx {
    job: usize,
    began: Time,
    /// The last statement.
    said: Time,
    /// Which server it is open at.
    server: Time,
    next: Statement,
    span: (i64, i64),
    found: Vec<i64>,
    /// The place to go on behind, once found.
    position: Option<i64>,
    locked: BTreeSet<i64>,
    meant: Vec<i64>,
    originals: Vec<Original>,
    repeats: Vec<Repeat>,
    rows: Vec<u32>,
}

/// One row of the outbox.
#[derive(Debug, Clone)]
struct Row {
    of: Delivery,
    record: Record,
}

impl Rewinds {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 10);
        let (rows, unsettled) = (rng.pick(&[1, 2, 3, 50]), rng.pick(&[1, 4, 50]));
        Self {
            rng,
            rows,
            unsettled,
            jobs: Vec::new(),
            open: [const { None }; WORKERS],
            outbox: BTreeMap::new(),
            next_row: 0,
            written: Vec::new(),
            published: BTreeMap::new(),
            repeats: BTreeMap::new(),
        }
    }

    fn is_paused_or_running(&self) -> bool {
        self.jobs.iter().any(|job| job.state != Progress::Done)
    }

    /// The first delivery of what a delivery repeats: a ledger knows them by its key.
    pub(super) fn first(&self, mut delivery: Delivery) -> Delivery {
        while let Some(of) = self.repeats.get(&delivery) {
            delivery = *of;
        }
        delivery
    }

    /// All that was written is published.
    pub(super) fn is_published(&self) -> bool {
        self.outbox.is_empty()
    }
}

impl World {
    /// Reconcilers and relay begin, and somebody at whom dead letters are shown.
    pub(super) fn start_rewinds(&mut self) {
        if !self.plan.has(Fault::Rewind) {
            return;
        }
        let first = self.plan.heal_at / 5;
        self.turn(first, Turn::Command);
        for worker in 0..WORKERS {
            self.turn(first, Turn::Statement(worker));
        }
        self.turn(first, Turn::Publish);
    }

    fn turn(&mut self, at: Time, turn: Turn) {
        self.at(at, Happening::Rewind(turn));
    }

    pub(super) fn take_turn(&mut self, turn: Turn) {
        match turn {
            Turn::Command => self.command_rewind(),
            Turn::Statement(worker) => self.work_off(worker),
            Turn::Publish => self.publish_rewinds(),
        }
    }

    /// Whether every command is done and all of it published.
    pub(super) fn is_rewound(&self) -> bool {
        !self.plan.has(Fault::Rewind)
            || (!self.rewinds.is_paused_or_running() && self.rewinds.is_published())
    }

    /// Whether a page is under way: the beginning of an erasure waits for it.
    pub(super) fn is_rewinding(&self) -> bool {
        let open = |worker| self.is_open(worker);
        (0..WORKERS).any(open) && !self.slips(Slip::RewindUnderErasure)
    }

    /// What people have paused goes on.
    pub(super) fn resume_rewinds(&mut self) {
        for job in &mut self.rewinds.jobs {
            if job.state == Progress::Paused {
                job.state = Progress::Running;
            }
        }
    }

    /// One that no page is under way of: its row is locked. Now and then it is ended for good.
    fn stop_rewind(&mut self) {
        let running = |job: &Job| job.state == Progress::Running;
        let Some(first) = self.rewinds.jobs.iter().position(running) else { return };
        if self.has_page(first) && !self.slips(Slip::CancelledInAPage) {
            return;
        }
        if self.rewinds.rng.chance(25) {
            self.rewinds.jobs[first].state = Progress::Done;
            self.log(Event::RewindCancelled { rewind: first as u32 });
        } else if !self.has_page(first) {
            self.rewinds.jobs[first].state = Progress::Paused;
        }
    }

    /// Whether a page of the command is under way.
    fn has_page(&self, job: usize) -> bool {
        (0..WORKERS).any(|worker| {
            let open = self.rewinds.open[worker].as_ref();
            self.is_open(worker) && open.is_some_and(|tx| tx.job == job)
        })
    }

    /// Whether the server still has a worker's transaction.
    fn is_open(&self, worker: usize) -> bool {
        self.rewinds.open[worker].as_ref().is_some_and(|tx| {
            tx.server == self.store_away_until && self.now < tx.said + IDLE * self.plan.scale
        })
    }

    fn command_rewind(&mut self) {
        if self.phase != Phase::Faulty {
            return;
        }
        if !self.is_store_away() && !self.store.dead.letters.is_empty() {
            match self.rewinds.rng.range(0, 9) {
                0..=1 => self.stop_rewind(),
                2..=4 => self.resume_rewinds(),
                _ if self.rewinds.jobs.len() < MOST => self.write_command(),
                _ => {}
            }
        }
        let left = (self.plan.heal_at - self.now).max(1);
        let wait = self.rewinds.rng.range(1, (left / 3).max(2));
        let last = self.plan.heal_at - 1;
        if self.now < last {
            self.turn((self.now + wait).min(last), Turn::Command);
        }
    }

    fn write_command(&mut self) {
        let until = self.store.dead.letters.len() as i64;
        let rng = &mut self.rewinds.rng;
        let letter = self.store.dead.letters[rng.index(until as usize)];
        let info = &self.store.deliveries[letter.delivery as usize];
        let mut selection = match rng.range(0, 3) {
            0 | 1 => Selection::default(),
            2 => Selection { endpoint: Some(info.endpoint), ..Selection::default() },
            _ => Selection { lane: Some(info.lane), ..Selection::default() },
        };
        selection.unknowns = letter.reason == "unknown" && rng.chance(30);
        let mut discards = rng.chance(12);
        // The same once more.
        if let Some(last) = self.rewinds.jobs.last().filter(|_| rng.chance(40)) {
            (selection, discards) = (last.selection, last.discards);
        }
        let matched = self.store.meant(&selection, discards, (0, until), false).len();
        let rewind = self.rewinds.jobs.len() as u32;
        self.faults += 1;
        self.log(Event::RewindBegan {
            rewind,
            endpoint: selection.endpoint.map(|endpoint| endpoint as u32),
            lane: selection.lane,
            unknowns: selection.unknowns,
            discards,
        });
        let state = if matched == 0 { Progress::Done } else { Progress::Running };
        let job = Job {
            created: self.now,
            selection,
            discards,
            state,
            position: 0,
            until,
            updated: self.now,
            retry_at: 0,
        };
        self.rewinds.jobs.push(job);
        if matched == 0 {
            self.log(Event::RewindDone { rewind });
        }
    }

    /// A reconciler's next statement, and when the one after it comes.
    fn work_off(&mut self, worker: usize) {
        let scale = self.plan.scale;
        if self.is_store_away() {
            self.rewinds.open[worker] = None;
            let wait = self.store_away_until - self.now + self.rewinds.rng.range(1, 200);
            return self.turn(self.now + wait, Turn::Statement(worker));
        }
        if !self.is_open(worker) {
            self.rewinds.open[worker] = None;
        }
        let faulty = self.phase == Phase::Faulty;
        if faulty && self.rewinds.open[worker].is_some() && self.rewinds.rng.chance(6) {
            // Killed; its successor begins anew.
            self.faults += 1;
            self.rewinds.open[worker] = None;
            let back = self.rewinds.rng.range(50, 4_000) * scale;
            return self.turn(self.now + back, Turn::Statement(worker));
        }
        if faulty && self.rewinds.rng.chance(4) {
            // Stands still; its transaction is open.
            self.faults += 1;
            let until = self.now + self.rewinds.rng.pick(&[400, 2_000, 8_000]) * scale;
            return self.turn(until, Turn::Statement(worker));
        }
        let turns_up = |world: &Self, tx: &Tx| {
            world.rewinds.jobs[..tx.job].iter().any(|job| job.state == Progress::Paused)
        };
        let open = self.rewinds.open[worker].as_ref();
        if open.is_some_and(|tx| turns_up(self, tx)) && self.rewinds.rng.chance(25) {
            // An earlier one goes on in the middle of a later one's page.
            self.resume_rewinds();
        }
        let busy = match self.rewinds.open[worker].take() {
            Some(tx) => {
                self.rewinds.open[worker] = self.statement(worker, tx);
                true
            }
            None => {
                self.rewinds.open[worker] = self.claim();
                self.rewinds.open[worker].is_some()
            }
        };
        let wait = if busy { 30 } else { self.plan.poll() };
        let wait = self.rewinds.rng.range(1, 2 * wait);
        self.turn(self.now + wait, Turn::Statement(worker));
    }

    /// The command that was worked on least recently, if it can be had: one of a project after the other, none while
    /// something is being erased, and none that another worker has.
    fn claim(&self) -> Option<Tx> {
        if !self.is_erased() && !self.slips(Slip::RewindUnderErasure) {
            return None;
        }
        let first = self.rewinds.jobs.iter().position(|job| job.state == Progress::Running)?;
        let job = &self.rewinds.jobs[first];
        (job.retry_at <= self.now && !self.has_page(first)).then(|| Tx {
            job: first,
            began: self.now,
            said: self.now,
            server: self.store_away_until,
            next: Statement::Find,
            span: (job.position, job.until),
            found: Vec::new(),
            position: None,
            locked: BTreeSet::new(),
            meant: Vec::new(),
            originals: Vec::new(),
            repeats: Vec::new(),
            rows: Vec::new(),
        })
    }

    /// One statement; what is left of the transaction after it.
    fn statement(&mut self, worker: usize, mut tx: Tx) -> Option<Tx> {
        tx.said = self.now;
        match tx.next {
            Statement::Find => {
                if !self.find(&mut tx) {
                    let job = &mut self.rewinds.jobs[tx.job];
                    job.updated = self.now;
                    job.retry_at = self.now + WAITING_PAUSE * self.plan.scale;
                    return None;
                }
                if self.slips(Slip::PagePassedFirst) {
                    self.rewinds.jobs[tx.job].position = tx.position.unwrap_or(tx.span.1);
                }
                tx.next = Statement::Lock;
            }
            Statement::Lock => {
                // One by one, in the order of places; the first that somebody else has is waited for.
                for place in tx.found.clone() {
                    if self.is_locked(worker, place) {
                        return Some(tx);
                    }
                    tx.locked.insert(place);
                }
                let blind = self.slips(Slip::NotLookedAtAgain);
                let dead = &mut self.store.dead;
                let open = |place: &i64| blind || dead.at(*place).state == State::Open;
                tx.meant = tx.found.iter().copied().filter(open).collect();
                tx.next = if self.rewinds.jobs[tx.job].discards {
                    Statement::Commit
                } else {
                    Statement::Number
                };
            }
            Statement::Number => {
                tx.originals = tx.meant.iter().map(|place| self.store.original(*place)).collect();
                let id = rewind_id(tx.job, self.rewinds.jobs[tx.job].created);
                let dead = &self.store.dead;
                tx.repeats = rewind::number(id, &tx.originals, |event, endpoint| {
                    dead.last_number(event, endpoint)
                });
                tx.next = Statement::Write;
            }
            Statement::Write => {
                // Rows have their ids from a sequence, which nothing takes back.
                let first = self.rewinds.next_row;
                self.rewinds.next_row += tx.meant.len() as u32;
                tx.rows = (first..self.rewinds.next_row).collect();
                tx.next = Statement::Note;
                if self.slips(Slip::CopiesBeforeMark) {
                    self.write_rows(&tx);
                }
            }
            Statement::Note => tx.next = Statement::Commit,
            Statement::Commit => {
                self.commit_page(&tx);
                return None;
            }
        }
        Some(tx)
    }

    /// Whether another transaction has the dead letter.
    fn is_locked(&self, worker: usize, place: i64) -> bool {
        (0..WORKERS).any(|other| {
            other != worker
                && self.is_open(other)
                && self.rewinds.open[other].as_ref().is_some_and(|tx| tx.locked.contains(&place))
        })
    }

    /// Looks for the page's dead letters; false: the first of them has to wait.
    fn find(&mut self, tx: &mut Tx) -> bool {
        let job = self.rewinds.jobs[tx.job];
        let until = if self.slips(Slip::LaterDeadTaken) { i64::MAX } else { tx.span.1 };
        let careless = self.slips(Slip::UnknownsTaken);
        let mut meant =
            self.store.meant(&job.selection, job.discards, (tx.span.0, until), careless);
        let rows = if job.discards { 50 } else { self.rewinds.rows };
        let last = meant.len() < rows;
        meant.truncate(rows);
        let full = |endpoint| {
            let index = self.store.endpoint_by_id[&endpoint];
            let open = self.rewinds.written.iter().filter(|(of, row)| {
                let delivery = self.rewinds.published.get(row);
                *of == index && delivery.is_none_or(|delivery| !self.store.is_settled(*delivery))
            });
            !job.discards && open.count() >= self.rewinds.unsettled
        };
        let found: Vec<_> = meant.iter().map(|place| self.store.found(*place)).collect();
        let page = if self.slips(Slip::FullPassedOver) {
            meant.retain(|place| !full(self.store.found(*place).endpoint));
            let position = found.last().map(|found| found.place).filter(|_| !last);
            Some(rewind::Page { take: meant.len(), position })
        } else {
            rewind::page(&found, last, full)
        };
        let Some(rewind::Page { take, position }) = page else { return false };
        meant.truncate(take);
        if self.slips(Slip::PageBackwards) {
            meant.reverse();
        }
        (tx.found, tx.position) = (meant, position);
        true
    }

    /// The page is done: its rows are there, its dead letters closed, its command is behind it, all at once.
    fn commit_page(&mut self, tx: &Tx) {
        let (rewind, job) = (tx.job as u32, self.rewinds.jobs[tx.job]);
        if job.discards {
            for place in &tx.meant {
                let letter = self.store.dead.at(*place);
                letter.state = State::Discarded;
                let delivery = letter.delivery;
                self.log(Event::Discarded { rewind, delivery });
            }
        } else {
            let taken = tx.originals.iter().zip(&tx.repeats).any(|(original, repeat)| {
                let last = self.store.dead.last_number(original.event, original.endpoint);
                last >= repeat.number
            });
            // The keys of `rewound` refuse it: the page is made again.
            if taken && !self.slips(Slip::CopiesBeforeMark) {
                return;
            }
            for (original, repeat) in tx.originals.iter().zip(&tx.repeats) {
                self.store.dead.note(original.event, original.endpoint, repeat.number);
            }
            if !self.slips(Slip::CopiesBeforeMark) {
                self.write_rows(tx);
            }
            for place in &tx.meant {
                self.store.dead.at(*place).state = State::Rewound;
            }
        }
        let row = &mut self.rewinds.jobs[tx.job];
        row.updated = self.now;
        row.position = tx.position.unwrap_or(row.until);
        if tx.position.is_none() {
            row.state = Progress::Done;
            self.log(Event::RewindDone { rewind });
        }
    }

    /// The page's rows are seen by who reads the outbox.
    fn write_rows(&mut self, tx: &Tx) {
        for ((place, repeat), row) in tx.meant.iter().zip(&tx.repeats).zip(&tx.rows) {
            let of = self.store.dead.at(*place).delivery;
            let info = &self.store.deliveries[of as usize];
            let mut record = info.record.as_ref().clone();
            let head = &mut record.head;
            head.replay_of = Some(head.delivery);
            head.replay = repeat.number;
            if !self.slips(Slip::CopyKeepsItsId) {
                head.delivery = repeat.delivery.as_uuid();
            }
            if self.slips(Slip::CopyOutsideItsLane) {
                (head.mode, head.user_key) = (LaneMode::None, None);
            }
            head.row = i64::from(*row);
            head.created_at = Timestamp(tx.began);
            self.rewinds.written.push((info.endpoint, *row));
            self.rewinds.outbox.insert(*row, Row { of, record });
            self.log(Event::Rewound { rewind: tx.job as u32, of, row: *row });
        }
    }

    /// The relay publishes the first row, if no transaction that is open can still write one before it.
    fn publish_rewinds(&mut self) {
        let open = (0..WORKERS).filter(|worker| self.is_open(*worker));
        let lowest = open
            .filter_map(|worker| self.rewinds.open[worker].as_ref()?.rows.first().copied())
            .min();
        let first = self.rewinds.outbox.first_key_value();
        let first = first.map(|(row, of)| (*row, self.store.deliveries[of.of as usize].endpoint));
        let ready = first.filter(|(row, endpoint)| {
            lowest.is_none_or(|lowest| *row < lowest) && self.publishes(*endpoint)
        });
        if let (Some((row, _)), false) = (ready, self.is_store_away()) {
            self.publish_row(row);
        }
        let wait = if ready.is_some() { 20 } else { self.plan.poll() };
        let wait = self.rewinds.rng.range(1, 2 * wait);
        self.turn(self.now + wait, Turn::Publish);
    }

    fn publish_row(&mut self, row: u32) {
        let Some(Row { of, record }) = self.rewinds.outbox.remove(&row) else { return };
        let head = &record.head;
        let id = head.delivery_id();
        let original = &self.store.deliveries[of as usize];
        let (endpoint, slot, rejected) = (original.endpoint, original.slot, original.rejected);
        if let Some(&known) = self.store.by_id.get(&id) {
            self.rewinds.published.insert(row, known);
            self.log(Event::Repeated { row, delivery: known });
            return self.send_again(known);
        }
        let lane_id = LaneId::of(head.endpoint_id(), head.mode, head.user_key.as_deref(), id);
        let next_lane = self.store.lane_by_id.len() as Lane;
        let lane = *self.store.lane_by_id.entry(lane_id).or_insert(next_lane);
        let delivery = self.store.deliveries.len() as Delivery;
        let info = DeliveryInfo {
            record: Arc::new(record),
            lane_id,
            lane,
            endpoint,
            partition: u32::from(lane_id.bucket().number()) % self.plan.partitions,
            slot,
            rejected: rejected && self.rewinds.rng.chance(50),
            erased: false,
        };
        self.store.by_id.insert(id, delivery);
        self.store.deliveries.push(info);
        self.rewinds.published.insert(row, delivery);
        self.rewinds.repeats.insert(delivery, of);
        self.log(Event::Repeated { row, delivery });
        self.publish_new(delivery);
    }
}

/// A command's id, as far as ids of deliveries are made from it.
fn rewind_id(job: usize, at: Time) -> RewindId {
    let time = (at.unsigned_abs() + 1_000_000) as u128;
    RewindId::from_uuid(Uuid::from_u128((time << 80) | (7 << 76) | (2 << 62) | job as u128))
}
