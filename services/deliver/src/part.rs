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

/// What to do with records that have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// They are the ones wanted next.
    Take,
    /// They are not wanted.
    Drop,
    /// Something before them is missing: read from here again.
    ReadAgain(i64),
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) lease: Arc<Lease>,
    pub(crate) generation: u64,
    /// Where to read on.
    pub(crate) start: i64,
    /// Offset of the next record wanted; none before reading was started under this ownership.
    pub(crate) next: Option<i64>,
    /// A gap in the offsets that was seen once: wanted, found.
    gap: Option<(i64, i64)>,
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
    /// The last position given to a settle transaction.
    pub(crate) position: i64,
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
            position: start,
            next: None,
            gap: None,
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

    /// What to do with records from `first` to `last` that have come. A record that was passed over would be lost (I9):
    /// what belongs to the reading of a former ownership is dropped, and a gap is believed only if reading again from
    /// where it begins finds the same one.
    pub(crate) fn arrived(&mut self, first: i64, last: i64) -> Arrival {
        let Some(next) = self.next else { return Arrival::Drop };
        if last < next {
            return Arrival::Drop;
        }
        if first > next && self.gap != Some((next, first)) {
            self.gap = Some((next, first));
            return Arrival::ReadAgain(next);
        }
        self.next = Some(last + 1);
        Arrival::Take
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

    /// Seen in the demo on an overloaded machine: leases ran out, records of the old reading came after the new
    /// take-over and before its own reading began, and the position jumped over what lay between.
    #[test]
    fn records_of_a_former_reading_are_dropped_and_gaps_are_read_again() {
        let lease = Lease::new(1, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let mut part = Part::new(Arc::new(lease), 1, 2, Vec::new());
        assert_eq!(part.arrived(500, 510), Arrival::Drop, "reading was not started");
        part.next = Some(2);
        assert_eq!(part.arrived(500, 510), Arrival::ReadAgain(2));
        assert_eq!(part.arrived(2, 9), Arrival::Take);
        assert_eq!(part.arrived(4, 9), Arrival::Drop);
        assert_eq!(part.arrived(12, 14), Arrival::ReadAgain(10));
        assert_eq!(part.arrived(12, 14), Arrival::Take, "the log has a gap there");
        assert_eq!(part.arrived(15, 15), Arrival::Take);
    }

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
