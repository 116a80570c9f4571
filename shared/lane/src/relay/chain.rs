//! The wave rule: of a lane one record is unacknowledged at a time, so that no failure can leave a gap in a lane.

use super::mutant::{Mutant, broken};
use super::plan::{HoldReason, Plan};
use std::collections::BTreeMap;

/// Where a delivery's record came to lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedAt {
    /// The delivery's index in its page.
    pub index: usize,
    /// The partition.
    pub partition: u32,
    /// The acknowledged offset.
    pub offset: i64,
}

/// What was acknowledged in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// The partition.
    pub partition: u32,
    /// The lowest offset.
    pub low: i64,
    /// The highest offset.
    pub high: i64,
}

/// What became of a page.
#[derive(Debug, Clone, Default)]
pub struct Published {
    /// Acknowledged deliveries.
    pub acked: Vec<PublishedAt>,
    /// Refused ones and what stood behind them in their chains, to be held.
    pub held: Vec<(usize, HoldReason)>,
}

impl Published {
    /// Takes in what became of a chain.
    pub fn add(&mut self, chain: Self) {
        self.acked.extend(chain.acked);
        self.held.extend(chain.held);
    }

    /// Lowest and highest acknowledged offset by partition, in order of partition: what the marks are raised to.
    pub fn by_partition(&self) -> Vec<Acked> {
        let mut partitions: BTreeMap<u32, Acked> = BTreeMap::new();
        for &PublishedAt { partition, offset, .. } in &self.acked {
            partitions
                .entry(partition)
                .and_modify(|acked| {
                    acked.low = acked.low.min(offset);
                    acked.high = acked.high.max(offset);
                })
                .or_insert(Acked { partition, low: offset, high: offset });
        }
        partitions.into_values().collect()
    }

    /// What is to be held when the cursor passes the page: what was planned so and what was refused.
    pub fn held_with<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (usize, HoldReason)> + 'a {
        plan.held.iter().chain(&self.held).copied()
    }

    /// Whether each of a page's `deliveries` is acknowledged or to be held: only then may the cursor pass the page.
    pub fn covers(&self, plan: &Plan, deliveries: usize) -> bool {
        self.acked.len() + plan.held.len() + self.held.len() == deliveries
    }
}

/// One lane's deliveries of a page while they are sent.
#[derive(Debug)]
pub struct Chain {
    links: Vec<usize>,
    sent: usize,
    acked: usize,
    done: Published,
}

impl Chain {
    /// Nothing of `links` (indices in the page, in lane order) is sent yet.
    pub fn new(links: &[usize]) -> Self {
        Self { links: links.to_vec(), sent: 0, acked: 0, done: Published::default() }
    }

    /// The delivery to be sent now; none while one is unacknowledged, and when nothing is left.
    pub fn to_send(&mut self) -> Option<usize> {
        if self.sent > self.acked && !broken(Mutant::SecondWaveEarly) {
            return None;
        }
        let index = *self.links.get(self.sent)?;
        self.sent += 1;
        Some(index)
    }

    /// The oldest unacknowledged one is acknowledged.
    pub fn acked(&mut self, partition: u32, offset: i64) {
        if let Some(&index) = self.links.get(self.acked) {
            self.acked += 1;
            self.done.acked.push(PublishedAt { index, partition, offset });
        }
    }

    /// It is refused for itself: it is held, and what comes behind it is held and not sent.
    pub fn refused(&mut self, reason: HoldReason) {
        let Some((&index, behind)) = self.links[self.acked..].split_first() else { return };
        self.done.held.push((index, reason));
        if broken(Mutant::BehindRefusedSent) {
            self.acked += 1;
            return;
        }
        self.done.held.extend(behind.iter().map(|index| (*index, HoldReason::Behind)));
        self.links.truncate(self.acked);
    }

    /// What became of it.
    pub fn finish(self) -> Published {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_record_of_a_lane_waits_for_the_acknowledgement_of_the_one_before() {
        let links = [2, 5, 7];
        let mut chain = Chain::new(&links);
        assert_eq!(chain.to_send(), Some(2));
        assert_eq!(chain.to_send(), None);
        chain.acked(3, 40);
        assert_eq!((chain.to_send(), chain.to_send()), (Some(5), None));
        chain.refused(HoldReason::Size);
        assert_eq!(chain.to_send(), None);
        let done = chain.finish();
        assert_eq!(done.acked, [PublishedAt { index: 2, partition: 3, offset: 40 }]);
        assert_eq!(done.held, [(5, HoldReason::Size), (7, HoldReason::Behind)]);
    }

    #[test]
    fn a_page_is_passed_only_when_each_delivery_is_acknowledged_or_held() {
        let at = |index, partition, offset| PublishedAt { index, partition, offset };
        let plan = Plan { chains: vec![vec![0, 1]], held: vec![(2, HoldReason::Hot)] };
        let mut published = Published { acked: vec![at(0, 1, 9)], held: Vec::new() };
        assert!(!published.covers(&plan, 3));
        published.acked.push(at(1, 1, 7));
        assert!(published.covers(&plan, 3));
        assert_eq!(published.by_partition(), [Acked { partition: 1, low: 7, high: 9 }]);
    }
}
