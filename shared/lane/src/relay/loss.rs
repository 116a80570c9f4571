//! Whether the log has lost what was acknowledged, and where a shard then goes back to (design section 4, "Loss of the
//! log").

use super::cursor::{Cursor, EntryAcks};
use super::mutant::{Mutant, broken};
use std::collections::BTreeMap;

/// Where a generation's loss begins: from `first_lost` on, records stamped with an older generation complete unsent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The generation that began with the loss.
    pub generation: u64,
    /// The partition.
    pub partition: u32,
    /// The first lost offset.
    pub first_lost: i64,
}

/// Whether an acknowledged offset shows that the log was lost: it lies at or below the partition's mark as it was known
/// before the record was handed to the producer.
pub fn is_lost(mark: i64, offset: i64) -> bool {
    offset <= mark && !broken(Mutant::ReusedOffsetCounts)
}

/// What acknowledgements have shown to be lost: the lowest such offset by the generation it was sent in and partition. It
/// is kept until a fence covers it. Of an earlier generation it counts as well: that generation may have ended for the loss
/// of another partition, or by a loss that was taken to begin behind this offset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspicions(BTreeMap<(u64, u32), i64>);

impl Suspicions {
    /// An acknowledgement of `generation` came to lie on what had been acknowledged ([`is_lost`]).
    pub fn add(&mut self, generation: u64, partition: u32, offset: i64) {
        let lowest = self.0.entry((generation, partition)).or_insert(offset);
        *lowest = offset.min(*lowest);
    }

    /// The first generation that one is of; none: nothing is suspected.
    pub fn first(&self) -> Option<u64> {
        self.0.keys().next().map(|&(generation, _)| generation)
    }

    /// Forgets what `fences` cover: what was lost there is published again.
    pub fn covered_by(&mut self, fences: &[Fence]) {
        let any = broken(Mutant::OlderSuspicionDropped);
        self.0.retain(|&(generation, partition), offset| {
            !fences.iter().any(|fence| {
                let covers = fence.partition == partition && fence.first_lost <= *offset;
                fence.generation > generation && (covers || any)
            })
        });
    }

    /// What is suspected, for [`losses`].
    pub fn lost(&self) -> impl Iterator<Item = (u32, i64)> + '_ {
        self.0.iter().map(|(&(_, partition), &offset)| (partition, offset))
    }
}

/// What is gone of a topic, as (partition, first lost offset): all of it if it was made anew; else what lies between a
/// partition's end and its mark, and what acknowledgements have shown (`suspected`). `marks` were read before `ends`.
pub fn losses(
    recreated: bool,
    marks: &[i64],
    ends: &[i64],
    suspected: impl IntoIterator<Item = (u32, i64)>,
) -> Vec<(u32, i64)> {
    if recreated && !broken(Mutant::RecreationUnseen) {
        return (0u32..).zip(marks).map(|(partition, _)| (partition, 0)).collect();
    }
    let spared = i64::from(broken(Mutant::LastRecordSpared));
    let short = (0u32..)
        .zip(marks.iter().zip(ends))
        .filter(|(_, (mark, end))| **end + spared <= **mark)
        .map(|(partition, (_, end))| (partition, *end));
    short.chain(suspected).collect()
}

/// Where a shard goes whose cursor has looked at another generation than the topic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// Another process knows of a later generation than this one: it is waited for.
    Wait,
    /// Nothing that was published is lost, or all of it lies ahead of the cursor.
    Nowhere,
    /// To this entry of the history.
    To(u64),
}

/// Where a shard goes back to: `fences` are of all generations, `acks` the shard's whole history.
pub fn look_back(cursor: &Cursor, generation: u64, acks: &[EntryAcks], fences: &[Fence]) -> Back {
    if generation < cursor.generation {
        return Back::Wait;
    }
    // Of later generations this process knows nothing yet: it looks at them when it does.
    let known: Vec<Fence> =
        fences.iter().filter(|fence| fence.generation <= generation).copied().collect();
    // Never forward: what lies ahead of a cursor that goes over its history is published again anyway.
    match first_lost_entry(acks, &known, cursor.generation) {
        Some(entry) if entry <= cursor.entry => Back::To(entry),
        _ => Back::Nowhere,
    }
}

/// The first entry of the history that a loss has touched: one with an acknowledged offset at or beyond a fence of a
/// generation later than the acknowledgement's. Fences up to generation `looked` have been dealt with: what they
/// touched was published again, with acknowledgements of its own, or still lies ahead of the cursor.
fn first_lost_entry(acks: &[EntryAcks], fences: &[Fence], looked: u64) -> Option<u64> {
    let lost = |generation: u64, partition: u32, offset: i64| {
        let beyond = |fence: &&Fence| {
            fence.generation > generation
                && fence.partition == partition
                && fence.first_lost <= offset
        };
        let first = fences.iter().filter(beyond).map(|fence| fence.generation).min();
        first.is_some_and(|first| first > looked)
    };
    let touched = acks
        .iter()
        .filter(|entry| {
            (0u32..).zip(&entry.acked).any(|(partition, offset)| {
                offset.is_some_and(|offset| lost(entry.generation, partition, offset))
            })
        })
        .map(|entry| entry.entry);
    if broken(Mutant::BackToLast) { touched.max() } else { touched.min() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acks(entry: u64, generation: u64, acked: &[Option<i64>]) -> EntryAcks {
        EntryAcks { entry, generation, acked: acked.to_vec() }
    }

    fn fence(generation: u64, partition: u32, first_lost: i64) -> Fence {
        Fence { generation, partition, first_lost }
    }

    #[test]
    fn the_first_entry_at_or_beyond_the_loss_is_gone_back_to() {
        let history = [
            acks(1, 1, &[Some(9), None]),
            acks(2, 1, &[Some(19), Some(3)]),
            acks(3, 1, &[Some(30), None]),
        ];
        assert_eq!(first_lost_entry(&history, &[fence(2, 0, 19)], 1), Some(2));
        assert_eq!(first_lost_entry(&history, &[fence(2, 0, 31)], 1), None);
        assert_eq!(first_lost_entry(&history, &[fence(2, 1, 4)], 1), None);
        assert_eq!(first_lost_entry(&history, &[fence(2, 0, 0), fence(2, 1, 0)], 1), Some(1));
    }

    #[test]
    fn what_an_earlier_loss_took_is_not_lost_again() {
        // Generation 2 lost offsets from 5 on, both entries were published again; generation 3 lost those from 7 on.
        let history = [
            acks(1, 1, &[Some(8)]),
            acks(1, 2, &[Some(6)]),
            acks(2, 1, &[Some(9)]),
            acks(2, 2, &[Some(7)]),
        ];
        let fences = [fence(2, 0, 5), fence(3, 0, 7)];
        assert_eq!(first_lost_entry(&history, &fences, 2), Some(2));
        assert_eq!(first_lost_entry(&history, &fences, 1), Some(1));
        assert_eq!(first_lost_entry(&history, &fences, 3), None);
    }

    #[test]
    fn what_lies_ahead_of_the_cursor_or_is_not_known_yet_is_not_gone_back_to() {
        let snapshot = crate::relay::Snapshot::parse("1:1:").unwrap();
        let cursor = |entry, generation| Cursor {
            s1: None,
            s2: snapshot.clone(),
            floor_id: 0,
            last_id: 0,
            entry,
            last_entry: 5,
            generation,
            subscription_version: 1,
            restored: false,
            opened: false,
        };
        let history = [acks(2, 1, &[Some(9)]), acks(4, 1, &[Some(20)])];
        let fences = [fence(2, 0, 15), fence(3, 0, 5)];
        assert_eq!(look_back(&cursor(5, 1), 2, &history, &fences), Back::To(4));
        assert_eq!(look_back(&cursor(5, 1), 3, &history, &fences), Back::To(2));
        assert_eq!(look_back(&cursor(3, 1), 2, &history, &fences), Back::Nowhere);
        assert_eq!(look_back(&cursor(5, 3), 2, &history, &fences), Back::Wait);
    }

    #[test]
    fn a_partition_that_ends_at_or_below_its_mark_has_lost_something() {
        assert_eq!(losses(false, &[4, 4, -1], &[5, 4, 0], []), [(1, 4)]);
        assert_eq!(losses(false, &[4], &[9], [(0, 3)]), [(0, 3)]);
        assert_eq!(losses(true, &[4, -1], &[9, 9], []), [(0, 0), (1, 0)]);
        assert!(is_lost(4, 4) && !is_lost(4, 5));
    }

    #[test]
    fn a_suspicion_is_kept_until_a_fence_covers_it() {
        let mut suspicions = Suspicions::default();
        suspicions.add(2, 1, 9);
        suspicions.add(2, 1, 4);
        suspicions.add(2, 1, 6);
        suspicions.add(2, 0, 3);
        assert_eq!(suspicions.first(), Some(2));
        // The loss was seen by the partition's end, behind records that were written over it; and one of another partition.
        suspicions.covered_by(&[fence(3, 1, 5), fence(2, 1, 0), fence(3, 2, 0)]);
        assert_eq!(suspicions.lost().collect::<Vec<_>>(), [(0, 3), (1, 4)]);
        suspicions.covered_by(&[fence(4, 1, 4), fence(4, 0, 0)]);
        assert_eq!((suspicions.first(), suspicions.lost().count()), (None, 0));
    }

    proptest! {
        #[test]
        fn whatever_lies_beyond_a_new_fence_is_gone_back_to(
            offsets in proptest::collection::vec(0i64..100, 1..30),
            first_lost in 0i64..110,
        ) {
            let history: Vec<_> =
                (1u64..).zip(&offsets).map(|(entry, offset)| acks(entry, 1, &[Some(*offset)])).collect();
            let found = first_lost_entry(&history, &[fence(2, 0, first_lost)], 1);
            for entry in &history {
                let lost = entry.acked[0].unwrap() >= first_lost;
                prop_assert!(!lost || found.is_some_and(|found| found <= entry.entry));
            }
            if let Some(found) = found {
                prop_assert!(history[(found - 1) as usize].acked[0].unwrap() >= first_lost);
            }
        }
    }
}
