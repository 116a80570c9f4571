//! The open offsets of one partition: what was taken in and is not yet complete, and so the position (I9).
//!
//! Offsets need not be contiguous. An offset at or below the last taken one is a repeat and is not taken again.

use laneway_wire::LaneId;
use std::collections::VecDeque;

#[derive(Debug)]
struct Slot {
    offset: i64,
    /// The lane that it is in, if it is a delivery.
    lane: Option<LaneId>,
    /// Payload bytes of all slots taken before this one in this epoch.
    before: u64,
    bytes: u32,
    complete: bool,
}

/// Open offsets in order.
#[derive(Debug)]
pub(crate) struct Ledger {
    slots: VecDeque<Slot>,
    /// One behind the last offset taken.
    next: i64,
    taken_bytes: u64,
    open: u32,
    open_bytes: u64,
}

impl Ledger {
    /// Everything below `next_offset` is complete.
    pub(crate) fn new(next_offset: i64) -> Self {
        Self { slots: VecDeque::new(), next: next_offset, taken_bytes: 0, open: 0, open_bytes: 0 }
    }

    /// Takes an offset in; false if it was taken before.
    pub(crate) fn take(&mut self, offset: i64, lane: Option<LaneId>, bytes: usize) -> bool {
        if offset < self.next {
            return false;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.slots.push_back(Slot {
            offset,
            lane,
            before: self.taken_bytes,
            bytes,
            complete: false,
        });
        self.next = offset + 1;
        self.taken_bytes += u64::from(bytes);
        self.open_bytes += u64::from(bytes);
        self.open += 1;
        true
    }

    /// Completes an offset; false if it is not open.
    pub(crate) fn complete(&mut self, offset: i64) -> bool {
        let Some(index) = self.find(offset) else { return false };
        let slot = &mut self.slots[index];
        if slot.complete {
            return false;
        }
        slot.complete = true;
        self.open -= 1;
        self.open_bytes -= u64::from(slot.bytes);
        while self.slots.front().is_some_and(|slot| slot.complete) {
            self.slots.pop_front();
        }
        true
    }

    /// Whether the offset is taken and not complete.
    pub(crate) fn is_open(&self, offset: i64) -> bool {
        self.find(offset).is_some_and(|index| !self.slots[index].complete)
    }

    /// The first offset that is not complete.
    pub(crate) fn position(&self) -> i64 {
        self.slots.front().map_or(self.next, |slot| slot.offset)
    }

    /// Offsets not complete.
    pub(crate) fn open(&self) -> u32 {
        self.open
    }

    /// Payload bytes of what is not complete.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    /// What a restart would read again: offsets from the position to the end, and payload bytes.
    pub(crate) fn span(&self) -> (u64, u64) {
        self.slots.front().map_or((0, 0), |slot| self.behind_slot(slot))
    }

    /// The same if `offset` were the position; nothing if it is not open.
    pub(crate) fn behind(&self, offset: i64) -> (u64, u64) {
        self.find(offset).map_or((0, 0), |index| self.behind_slot(&self.slots[index]))
    }

    /// Lanes of what is open at or behind `from`, oldest first, with offset and what lies behind it.
    pub(crate) fn open_from(&self, from: i64) -> impl Iterator<Item = (i64, LaneId, (u64, u64))> {
        let start = self.slots.partition_point(|slot| slot.offset < from);
        self.slots
            .range(start..)
            .filter(|slot| !slot.complete)
            .filter_map(|slot| Some((slot.offset, slot.lane?, self.behind_slot(slot))))
    }

    fn behind_slot(&self, slot: &Slot) -> (u64, u64) {
        ((self.next - slot.offset).unsigned_abs(), self.taken_bytes - slot.before)
    }

    fn find(&self, offset: i64) -> Option<usize> {
        let first = self.slots.front()?.offset;
        // Without gaps the place is the distance; gaps only make it smaller.
        let guess = usize::try_from(offset.checked_sub(first)?).ok()?.min(self.slots.len() - 1);
        if self.slots[guess].offset == offset {
            return Some(guess);
        }
        self.slots.binary_search_by_key(&offset, |slot| slot.offset).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_position_stops_at_the_first_incomplete_offset_whatever_completes_behind_it() {
        let mut ledger = Ledger::new(5);
        assert_eq!(ledger.position(), 5);
        for offset in [7, 8, 12] {
            assert!(ledger.take(offset, None, 10));
        }
        assert!(!ledger.take(8, None, 10), "a repeat is not taken");
        assert_eq!(ledger.span(), (6, 30));
        assert!(ledger.complete(8));
        assert_eq!(ledger.position(), 7);
        assert!(ledger.complete(7));
        assert_eq!((ledger.position(), ledger.span()), (12, (1, 10)));
        assert!(!ledger.complete(7) && !ledger.complete(9));
        assert!(ledger.complete(12));
        assert_eq!((ledger.position(), ledger.open(), ledger.open_bytes()), (13, 0, 0));
    }

    proptest! {
        #[test]
        fn the_position_is_the_smallest_open_offset(gaps in prop::collection::vec(1i64..4, 1..60), order: u64) {
            let mut ledger = Ledger::new(0);
            let mut open: Vec<i64> = gaps.iter().scan(-1, |at, gap| { *at += gap; Some(*at) }).collect();
            for &offset in &open {
                prop_assert!(ledger.take(offset, None, 1));
            }
            let end = open.last().unwrap() + 1;
            let mut state = order;
            while !open.is_empty() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let offset = open.remove((state >> 33) as usize % open.len());
                prop_assert!(ledger.complete(offset));
                prop_assert_eq!(ledger.position(), open.iter().min().copied().unwrap_or(end));
                prop_assert_eq!(ledger.open() as usize, open.len());
            }
        }
    }
}
