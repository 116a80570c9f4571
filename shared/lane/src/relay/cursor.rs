//! Where a shard stands, and what comes next for it.

use super::chain::Published;
use super::mutant::{Mutant, broken};
use super::snapshot::Snapshot;

/// Where a shard stands: its present batch is what `s2` sees and `s1` does not, done up to `last_id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Where the batch begins; none for the batch after a logical restore, which is every row up to `floor_id`.
    pub s1: Option<Snapshot>,
    /// Where it ends.
    pub s2: Snapshot,
    /// Rows up to this id are no part of any batch by snapshot.
    pub floor_id: i64,
    /// Rows of the batch up to this id are acknowledged or held.
    pub last_id: i64,
    /// Entry of the history that the batch belongs to.
    pub entry: u64,
    /// Last entry of the history: beyond `entry` if the shard publishes again what it has published before.
    pub last_entry: u64,
    /// Generation of the topic up to which losses have been looked at; 0 before the first.
    pub generation: u64,
    /// Version that the batch is routed by.
    pub subscription_version: u64,
    /// Whether the server is another one than the snapshots speak of, or has begun its transactions anew.
    pub restored: bool,
    /// Whether the batch was opened just now as a new one: all that comes before it has been passed. Not known of a cursor
    /// that was read.
    pub opened: bool,
}

/// What a shard does first with the cursor that it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The snapshots mean nothing any more: all of the outbox is published again.
    Restore,
    /// The topic has another generation than was looked at: [`super::look_back`].
    LookBack,
    /// The batch goes on behind `last_id`.
    Read,
}

impl Cursor {
    /// What comes first, with the topic's generation as this process knows it.
    pub fn step(&self, generation: u64) -> Step {
        if self.restored {
            Step::Restore
        } else if generation != self.generation {
            Step::LookBack
        } else {
            Step::Read
        }
    }

    /// Whether held rows may follow while the batch is under way. If it may have been published before, not until it is
    /// passed: what left in it is held again, and what comes before that in its lane is still to be published again.
    pub fn held_may_follow(&self) -> bool {
        self.opened || broken(Mutant::HeldFollowTooEarly)
    }

    /// The entry of the history to be published again when nothing is left of the batch; none: the next batch is new.
    pub fn again(&self) -> Option<u64> {
        (self.entry < self.last_entry).then_some(self.entry + 1)
    }
}

/// Highest acknowledged offset by partition of one entry's records in one generation; none: nothing acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryAcks {
    /// The entry.
    pub entry: u64,
    /// The generation.
    pub generation: u64,
    /// By partition.
    pub acked: Vec<Option<i64>>,
}

impl EntryAcks {
    /// Takes in what was acknowledged.
    pub fn add(&mut self, published: &Published) {
        let lowest = broken(Mutant::LowestAckKept);
        for at in &published.acked {
            if let Some(acked) = self.acked.get_mut(at.partition as usize) {
                let known = acked.unwrap_or(at.offset);
                *acked = Some(if lowest { known.min(at.offset) } else { known.max(at.offset) });
            }
        }
    }
}
