//! Where a shard goes back to after a loss (design section 4, "Loss of the log"). Pure.

use laneway_store::relay::EntryAcks;
use laneway_store::topology::Fence;

/// The first entry of the history that a loss has touched: one with an acknowledged offset at or beyond a fence of a
/// generation later than the acknowledgement's. Fences up to generation `looked` have been dealt with: what they
/// touched was published again, with acknowledgements of its own, or still lies ahead of the cursor.
pub(crate) fn first_lost_entry(acks: &[EntryAcks], fences: &[Fence], looked: u64) -> Option<u64> {
    let lost = |generation: u64, partition: u32, offset: i64| {
        let beyond = |fence: &&Fence| {
            fence.generation > generation
                && fence.partition == partition
                && fence.first_lost <= offset
        };
        let first = fences.iter().filter(beyond).map(|fence| fence.generation).min();
        first.is_some_and(|first| first > looked)
    };
    acks.iter()
        .filter(|entry| {
            (0u32..).zip(&entry.acked).any(|(partition, offset)| {
                offset.is_some_and(|offset| lost(entry.generation, partition, offset))
            })
        })
        .map(|entry| entry.entry)
        .min()
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
