//! What must hold whatever happens, counted when it does not: `laneway_invariant_violations_total{promise}`. A test
//! build stops at the first one, a product goes on and tells.
//!
//! An invariant is named once, where it is looked at, by what would be wrong; the label is the promise that it is part
//! of (docs/guarantees.md).

use crate::metrics::Counter;
use crate::metrics::family::Family;
use prometheus_client::encoding::EncodeLabelSet;

/// The promises of which parts are looked at while a service runs.
const PROMISES: [&str; 7] = ["P1", "P2", "P4", "P6", "P8", "P10", "P13"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByPromise {
    promise: &'static str,
}

/// The counter of a process ([`crate::metrics::Registry::invariants`]). Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Invariants {
    violations: Family<ByPromise, Counter>,
}

impl Invariants {
    /// With a series for each promise, so that the first violation is an increase.
    pub(crate) fn new(violations: Family<ByPromise, Counter>) -> Self {
        for promise in PROMISES {
            drop(violations.get_or_create(&ByPromise { promise }));
        }
        Self { violations }
    }

    /// Looks at one: `wrong` says what would be, if it does not hold.
    ///
    /// # Panics
    /// In a debug build if it does not hold.
    pub fn hold(&self, promise: &'static str, wrong: &'static str, holds: bool) {
        if !holds {
            self.violated(promise, wrong, 1);
            debug_assert!(holds, "{promise}: {wrong}");
        }
    }

    /// Counts what was found elsewhere, `times`.
    pub fn violated(&self, promise: &'static str, wrong: &'static str, times: u64) {
        if times > 0 {
            self.violations.get_or_create(&ByPromise { promise }).inc_by(times);
            tracing::error!(promise, wrong, times, "an invariant does not hold");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Registry;

    #[test]
    fn a_violation_is_counted_under_its_promise() {
        let registry = Registry::new("test");
        let invariants = registry.invariants();
        invariants.hold("P4", "nothing", true);
        invariants.violated("P2", "an outcome is not durable", 2);
        let text = registry.encode();
        let line = |promise, count| {
            format!("laneway_invariant_violations_total{{promise=\"{promise}\"}} {count}\n")
        };
        assert!(text.contains(&line("P2", 2)) && text.contains(&line("P4", 0)), "{text}");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "P4: the position goes back")]
    fn a_debug_build_stops_at_the_first_one() {
        Registry::new("test").invariants().hold("P4", "the position goes back", false);
    }
}
