//! Which deliveries of a page are sent, in what order, and which are held (design section 4, wave rule and held rows).
//!
//! A page's deliveries of one lane form a chain: each is sent when the one before is acknowledged, so no failure
//! can leave a gap in a lane. A chain has at most `waves` links; what is left of a hot lane is held, so that one lane
//! does not delay a shard, and whatever comes behind a held delivery is held too.

use super::mutant::{Mutant, broken};
use laneway_wire::LaneId;
use std::collections::{HashMap, HashSet};

/// Why a delivery is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// The rest of a lane that has more than a page publishes at once, or what came after such a rest.
    Hot,
    /// It comes behind a row of its lane that is held.
    Behind,
    /// Its source may not speak for its tenant.
    Tenant,
    /// The broker refuses a record of that size.
    Size,
    /// The broker refuses the record as it is.
    Format,
}

impl HoldReason {
    /// As stored, and as a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Behind => "behind",
            Self::Tenant => "tenant",
            Self::Size => "size",
            Self::Format => "format",
        }
    }
}

/// A page's deliveries by index: every one is in exactly one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Deliveries of one lane each, in the page's order.
    pub chains: Vec<Vec<usize>>,
    /// Deliveries that are held, in the page's order.
    pub held: Vec<(usize, HoldReason)>,
}

/// Plans a page. `deliveries` are in row order, each with its lane and whether its source may speak for its tenant;
/// `held` are the lanes that have held rows already.
pub fn plan(
    deliveries: impl IntoIterator<Item = (LaneId, bool)>,
    held: &HashSet<LaneId>,
    waves: usize,
) -> Plan {
    let mut plan = Plan::default();
    let mut chains: HashMap<LaneId, usize> = HashMap::new();
    let mut closed: HashMap<LaneId, HoldReason> = HashMap::new();
    for (index, (lane, allowed)) in deliveries.into_iter().enumerate() {
        let closed_by = match closed.get(&lane) {
            Some(reason) => Some(*reason),
            None if held.contains(&lane) && !broken(Mutant::HeldLaneOvertaken) => {
                Some(HoldReason::Behind)
            }
            None => None,
        };
        if !allowed {
            plan.held.push((index, HoldReason::Tenant));
            closed.insert(lane, HoldReason::Behind);
            continue;
        }
        if let Some(reason) = closed_by {
            plan.held.push((index, reason));
            continue;
        }
        let chain = *chains.entry(lane).or_insert_with(|| {
            plan.chains.push(Vec::new());
            plan.chains.len() - 1
        });
        if plan.chains[chain].len() < waves {
            plan.chains[chain].push(index);
        } else {
            closed.insert(lane, HoldReason::Hot);
            if !broken(Mutant::HotRestDropped) {
                plan.held.push((index, HoldReason::Hot));
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lane(number: u8) -> LaneId {
        LaneId::from_bytes([number; 16])
    }

    proptest! {
        #[test]
        fn every_delivery_is_sent_or_held_and_nothing_overtakes_in_its_lane(
            page in proptest::collection::vec((0u8..6, prop::bool::weighted(0.9)), 0..80),
            held in proptest::collection::hash_set(0u8..6, 0..3),
            waves in 1usize..6,
        ) {
            let deliveries: Vec<_> = page.iter().map(|(number, allowed)| (lane(*number), *allowed)).collect();
            let held: HashSet<_> = held.into_iter().map(lane).collect();
            let plan = plan(deliveries.iter().copied(), &held, waves);

            let mut seen = vec![0; deliveries.len()];
            let mut first_held: HashMap<LaneId, usize> = HashMap::new();
            for (index, reason) in &plan.held {
                seen[*index] += 1;
                first_held.entry(deliveries[*index].0).or_insert(*index);
                prop_assert_eq!(*reason == HoldReason::Tenant, !deliveries[*index].1);
            }
            for chain in &plan.chains {
                prop_assert!(!chain.is_empty() && chain.len() <= waves);
                prop_assert!(chain.is_sorted());
                let lane = deliveries[chain[0]].0;
                prop_assert!(!held.contains(&lane));
                for index in chain {
                    seen[*index] += 1;
                    prop_assert_eq!(deliveries[*index].0, lane);
                    prop_assert!(deliveries[*index].1);
                    prop_assert!(first_held.get(&lane).is_none_or(|first| index < first));
                }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
            let lanes: HashSet<_> = plan.chains.iter().map(|chain| deliveries[chain[0]].0).collect();
            prop_assert_eq!(lanes.len(), plan.chains.len());
        }
    }

    #[test]
    fn the_rest_of_a_hot_lane_is_held_and_other_lanes_are_not() {
        let page = [(lane(1), true); 5].into_iter().chain([(lane(2), true)]);
        let plan = plan(page, &HashSet::new(), 2);
        assert_eq!(plan.chains, [vec![0, 1], vec![5]]);
        let hot = HoldReason::Hot;
        assert_eq!(plan.held, [(2, hot), (3, hot), (4, hot)]);
    }
}
