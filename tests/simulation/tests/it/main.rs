//! Fixed schedules of the simulator: clean without a planted fault, and each planted fault seen by a checker.

use laneway_simulation::plan::Spec;
use laneway_simulation::{mutants, relay, run};

/// Schedules of every `make test`; many more run with `make sim`.
const FIXED: u64 = 2_000;
/// A planted fault has to be seen within so many.
const PATIENCE: u64 = 3_000;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// P1–P10, P13 (design section 1), B7, C17 and I1–I5, I9, I10, I12–I14, I16–I18, I22, I31–I33, I46, I47 over crashes
/// between any two effects, torn groups, rebalances, zombies and all that [`laneway_simulation::plan::Fault`] lists.
#[test]
fn fixed_seeds_break_no_promise() {
    let total = run::many(0, FIXED, threads(), 5, None);
    assert!(total.breaches.is_empty(), "{:#?}", total.breaches);
    assert_eq!(total.schedules, FIXED);
    assert!(total.faults > 10 * FIXED, "hardly a fault struck: {}", total.faults);
}

/// P2, P4, P13, I8 and no false alarm, over what [`laneway_simulation::relay`] lists.
#[test]
fn fixed_seeds_of_the_relay_break_no_promise() {
    let total = run::many_relay(0, FIXED, threads(), 5);
    assert!(total.breaches.is_empty(), "{:#?}", total.breaches);
    assert_eq!(total.schedules, FIXED);
    assert!(total.faults > 3 * FIXED, "hardly a fault struck: {}", total.faults);
}

/// Seeds that once broke something, with what shrinking left of them.
#[test]
fn found_seeds_stay_clean() {
    for line in include_str!("../../seeds/found.txt").lines() {
        let line = line.split('#').next().unwrap_or_default();
        let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let [seed, without, deliveries] = numbers[..] else {
            assert!(numbers.is_empty(), "want `seed without deliveries`: {line}");
            continue;
        };
        let spec = Spec { seed, without: without as u32, deliveries: deliveries as u32 };
        for spec in [spec, Spec::of(seed)] {
            let report = run::one(spec, false, None);
            assert_eq!(report.breach, None, "{spec:?}");
        }
    }
}

/// The same of the relay.
#[test]
fn found_seeds_of_the_relay_stay_clean() {
    for line in include_str!("../../seeds/relay.txt").lines() {
        let seed = line.split('#').next().unwrap_or_default().trim();
        if !seed.is_empty() {
            assert_eq!(relay::one(seed.parse().unwrap(), false, None).breach, None, "{seed}");
        }
    }
}

/// I53.
#[test]
fn the_same_seed_gives_the_same_history() {
    let hash = |seed| run::one(Spec::of(seed), false, None).hash;
    let first: Vec<_> = (0..40).map(hash).collect();
    let second: Vec<_> = (0..40).map(hash).collect();
    assert_eq!(first, second);
    let mut different = first;
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 40, "different seeds give different histories");
    let hash = |seed| relay::one(seed, false, None).hash;
    let first: Vec<_> = (0..40).map(hash).collect();
    assert_eq!(first, (0..40).map(hash).collect::<Vec<_>>());
}

/// The checkers see what they are for (docs/mutants.md has the table).
#[test]
fn each_planted_fault_is_seen_by_a_checker() {
    let alive: Vec<_> = mutants::hunt(0, PATIENCE, None)
        .into_iter()
        .filter(|kill| kill.first.is_none())
        .map(|kill| kill.planted)
        .collect();
    assert!(alive.is_empty(), "not seen: {alive:?}");
}
