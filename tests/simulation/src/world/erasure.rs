//! Erasures (C17): of a user key, that is of one lane here. First the outbox, as soon as it is published; then the lanes'
//! owners, until all that the topic had is behind them and nothing of it waits.

use super::{Happening, LogRecord, World};
use crate::event::{Event, Lane};
use crate::plan::Fault;
use crate::store::Command;
use laneway_lane::{Partition, Verdict};
use laneway_wire::Timestamp;

/// One row of `erasures`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Erasure {
    lane: Lane,
    partition: Partition,
    before: Timestamp,
    /// What the owner must have passed, and in which generation, once the outbox is done.
    end: Option<(u64, i64)>,
}

impl World {
    /// Somebody wants erased what a user has said so far.
    pub(crate) fn erase(&mut self) {
        if self.store.deliveries.is_empty() || self.is_store_away() || self.is_rewinding() {
            return;
        }
        let info = &self.store.deliveries[self.later.index(self.store.deliveries.len())];
        if !self.plan.lanes[info.slot].keyed {
            return;
        }
        let (lane, partition) = (info.lane, info.partition);
        self.faults += 1;
        self.erasures += 1;
        // What is written in this very moment is not before it.
        let before = Timestamp(self.now);
        self.log(Event::ErasureBegan { lane, before: before.0 });
        self.store.erase_dead(lane, before);
        self.at(self.now + 1, Happening::Erase(Erasure { lane, partition, before, end: None }));
    }

    /// One step of an erasure.
    pub(super) fn work_on(&mut self, mut erasure: Erasure) {
        let topology = &self.store.topology;
        let present = topology.generation;
        if !self.is_store_away() && self.is_published() {
            let Erasure { lane, partition, before, .. } = erasure;
            match erasure.end {
                Some((generation, end)) if generation == present => {
                    // A cut can leave a gap before the end, which nobody reads.
                    let next = self.store.owners[partition as usize].next_offset;
                    let left = |record: &LogRecord| (next..end).contains(&record.offset);
                    let is_kept = self.kafka.begin[partition as usize] <= next;
                    let passed =
                        next >= end || is_kept && !self.topic[partition as usize].iter().any(left);
                    let waits = self.store.waits(lane, before);
                    let open = self.store.commands.iter().any(|command| {
                        let erases = matches!(command.verdict, Verdict::Erase { .. });
                        let of = self.store.deliveries[command.delivery as usize].lane;
                        of == lane && erases && !command.done
                    });
                    if let (Some(delivery), false) = (waits, open) {
                        self.command_erasure(delivery, before);
                    }
                    if passed && waits.is_none() && !open {
                        self.store.erase_dead(lane, before);
                        self.erasures -= 1;
                        self.log(Event::ErasureDone { lane, before: before.0 });
                        return;
                    }
                }
                _ => {
                    for info in &mut self.store.deliveries {
                        info.erased |= info.lane == lane && info.record.head.created_at < before;
                    }
                    erasure.end = Some((present, self.end(partition)));
                }
            }
        }
        let wait = self.later.range(self.plan.poll(), 3 * self.plan.poll());
        self.at(self.now + wait, Happening::Erase(erasure));
    }

    fn command_erasure(&mut self, delivery: u32, before: Timestamp) {
        let command = self.store.commands.len() as i64;
        let verdict = Verdict::Erase { before };
        self.store.commands.push(Command { delivery, verdict, done: false });
        self.log(Event::Commanded { command, delivery, verdict: verdict.into() });
    }

    /// Whether every erasure is done.
    pub(super) fn is_erased(&self) -> bool {
        self.erasures == 0 || !self.plan.has(Fault::Erase)
    }
}
