//! The relay in a simulated world: several processes with [`laneway_lane::relay`], an outbox whose transactions commit
//! out of the order of their ids, a log that acknowledges late, loses replies, its end or everything. One seed is one
//! schedule.
//!
//! `plan`: what a seed decides; `world`: who does something when, and what goes wrong; `task`: one shard under one lease, as
//! `services/relay` runs it; `database`: what the source's tables do; `control`: generations, marks and fences; `topic`:
//! the log and what is on its way there; [`event`]: the log of the run; `check`: who reads it.

mod check;
mod control;
mod database;
pub mod event;
mod plan;
mod task;
mod topic;
mod world;

use crate::event::{HistoryHash, Time};
use crate::journal::Breach;
use event::Event;
use laneway_lane::relay::{Mutant, plant};
use std::hash::{Hash, Hasher};

pub use world::Report;

/// A mistake of what acts upon the rules: of the order of effects in `services/relay`, or of a statement of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slip {
    /// The cursor is saved when records are handed to the producer.
    SavedBeforeAcked,
    /// The cursor is saved before the marks are raised.
    MarksAfterCursor,
    /// Acknowledgements are compared with marks that have moved meanwhile.
    MarksReadLate,
    /// Marks are those that this process has raised: what others had acknowledged is not known.
    MarksCached,
    /// Acknowledgements that a shard does not await any more are not compared.
    AbandonedUncompared,
    /// A cursor is saved whoever owns its shard (P13).
    SaveUnfenced,
    /// A batch that is resumed ends where the database is now, not where it was opened to.
    ResumedToNow,
    /// What had left the held rows in lost entries is not held again.
    LeftStaysLeft,
    /// The subscriptions' version is read before the batch's end is taken.
    VersionReadFirst,
}

impl Slip {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::SavedBeforeAcked,
        Self::MarksAfterCursor,
        Self::MarksReadLate,
        Self::MarksCached,
        Self::AbandonedUncompared,
        Self::SaveUnfenced,
        Self::ResumedToNow,
        Self::LeftStaysLeft,
        Self::VersionReadFirst,
    ];
}

/// A planted fault of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// In its rules.
    Rule(Mutant),
    /// In what acts upon them.
    Shell(Slip),
}

impl Planted {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let rules = Mutant::ALL.into_iter().map(Self::Rule);
        rules.chain(Slip::ALL.into_iter().map(Self::Shell))
    }
}

/// Runs one schedule.
pub fn one(seed: u64, keep: bool, planted: Option<Planted>) -> Report {
    plant(match planted {
        Some(Planted::Rule(mutant)) => Some(mutant),
        _ => None,
    });
    let slip = match planted {
        Some(Planted::Shell(slip)) => Some(slip),
        _ => None,
    };
    let report = world::World::run(seed, keep, slip);
    plant(None);
    report
}

/// The log and those who read it.
pub(crate) struct Journal {
    book: check::Book,
    hash: HistoryHash,
    keep: bool,
    log: Vec<(Time, Event)>,
    breach: Option<Breach>,
}

impl Journal {
    fn new(partitions: usize, keep: bool) -> Self {
        Self {
            book: check::Book::new(partitions),
            hash: HistoryHash::default(),
            keep,
            log: Vec::new(),
            breach: None,
        }
    }

    /// Adds a line. After the first breach nothing more is checked.
    fn add(&mut self, at: Time, event: Event) {
        self.hash.write_i64(at);
        event.hash(&mut self.hash);
        if self.breach.is_none() {
            let judged = self.book.look(&event);
            self.breach = judged.err().map(|(checker, what)| Breach { checker, at, what });
        }
        if self.keep {
            self.log.push((at, event));
        }
    }
}
