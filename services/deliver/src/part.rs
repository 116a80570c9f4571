//! One owned partition, as far as the shell has to know it.

use crate::intake::Batch;
use crate::lease::Lease;
use laneway_bus::RawRecord;
use laneway_lane::{SettleItem, SettleSeq};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Buffered records above which reading stops, and below which it goes on.
pub(crate) const BUFFER_HIGH: usize = 2_000;
pub(crate) const BUFFER_LOW: usize = 500;

/// Why a partition is being given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    /// It is not.
    No,
    /// Kafka wants it, or the service stops; requests are cut at this monotonic time.
    Until(Duration),
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) lease: Arc<Lease>,
    pub(crate) generation: u64,
    /// Where to read on.
    pub(crate) start: i64,
    /// (generation, first lost offset) of every loss of this partition.
    pub(crate) losses: Vec<(u64, i64)>,
    pub(crate) queue: VecDeque<(SettleSeq, SettleItem)>,
    pub(crate) buffer: VecDeque<RawRecord>,
    pub(crate) buffered_bytes: usize,
    pub(crate) paused: bool,
    /// A batch that waits for its turn in the settle queue.
    pub(crate) batch: Option<Batch>,
    /// A batch's answer is under way.
    pub(crate) asking: bool,
    /// When the last renewing statement was sent (boot time).
    pub(crate) renewed: Duration,
    /// The last position told to Kafka.
    pub(crate) told: i64,
    pub(crate) drain: Drain,
    /// Drained; the release is under way.
    pub(crate) releasing: bool,
}

impl Part {
    pub(crate) fn new(
        lease: Arc<Lease>,
        generation: u64,
        start: i64,
        losses: Vec<(u64, i64)>,
    ) -> Self {
        Self {
            renewed: laneway_platform::clock::boottime(),
            lease,
            generation,
            start,
            losses,
            queue: VecDeque::new(),
            buffer: VecDeque::new(),
            buffered_bytes: 0,
            paused: false,
            batch: None,
            asking: false,
            told: start,
            drain: Drain::No,
            releasing: false,
        }
    }

    /// Whether a record stamped with `generation` at `offset` is complete unsent: it lies at or behind a loss that a
    /// later generation began with, and is published again.
    pub(crate) fn is_lost_to(&self, generation: u64, offset: i64) -> bool {
        self.losses.iter().any(|&(began, first)| began > generation && offset >= first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_records_at_or_behind_a_loss_are_left_out() {
        let lease = Lease::new(1, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let part = Part::new(Arc::new(lease), 3, 0, vec![(2, 100), (3, 50)]);
        for (generation, offset, lost) in
            [(1, 49, false), (1, 50, true), (2, 50, true), (2, 49, false), (3, 500, false)]
        {
            assert_eq!(part.is_lost_to(generation, offset), lost, "{generation} {offset}");
        }
    }
}
