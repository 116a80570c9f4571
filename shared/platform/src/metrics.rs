//! Metrics under their full names: what stands in code is what stands on a dashboard (telemetry.md 2.4).

use crate::invariants::Invariants;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Metric;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
pub use prometheus_client::metrics::{family, gauge};

/// What a metric's name may begin with: ours, the semantic conventions', and document B's one name.
const PREFIXES: &[&str] =
    &["laneway_", "http_", "messaging_", "db_", "webhook_ordering_gap_timeout_total"];

/// The metrics of one service. Cheap to clone; all clones are one registry.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    inner: Arc<Mutex<Inner>>,
    invariants: Arc<OnceLock<Invariants>>,
}

#[derive(Debug, Default)]
struct Inner {
    registry: prometheus_client::registry::Registry,
    names: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    service: &'static str,
    version: &'static str,
    revision: &'static str,
}

impl Registry {
    /// A registry with `laneway_build_info` of `service` in it.
    pub fn new(service: &'static str) -> Self {
        let registry = Self::default();
        let info = registry.register(
            "laneway_build_info",
            "Always 1; the labels say what is running",
            Family::<Build, Gauge>::default(),
        );
        let version = env!("CARGO_PKG_VERSION");
        let revision = option_env!("LANEWAY_REVISION").unwrap_or("unknown");
        info.get_or_create(&Build { service, version, revision }).set(1);
        registry
    }

    /// Adds `metric` under `name` and gives it back.
    ///
    /// `name` is the full one: `laneway_<component>_<noun>_<unit>`, with `_total` at the end if and only if it is a
    /// counter. `help` has no full stop at the end (one is added). Label values must be bounded: never a user key, a
    /// URL, a host or a delivery id.
    ///
    /// # Panics
    /// If the name breaks these rules or is taken: both show at the first start of the service.
    #[track_caller]
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        assert!(
            PREFIXES.iter().any(|prefix| name.starts_with(prefix)),
            "metric {name} must begin with one of {PREFIXES:?}"
        );
        let is_counter = matches!(metric.metric_type(), MetricType::Counter);
        assert_eq!(is_counter, name.ends_with("_total"), "metric {name}: _total is for counters");
        let mut inner = self.lock();
        assert!(inner.names.insert(name.to_owned()), "metric {name} is registered twice");
        // The library adds `_total` itself, and refuses names that have it.
        let registered = name.strip_suffix("_total").unwrap_or(name);
        inner.registry.register(registered, help, metric.clone());
        metric
    }

    /// The counter of violated invariants; one for all services of a process.
    pub fn invariants(&self) -> Invariants {
        let register = || {
            Invariants::new(self.register(
                "laneway_invariant_violations_total",
                "Things that must never be and were, by the promise that they break",
                Family::default(),
            ))
        };
        self.invariants.get_or_init(register).clone()
    }

    /// The full names registered, sorted: for the documentation's table.
    pub fn names(&self) -> Vec<String> {
        self.lock().names.iter().cloned().collect()
    }

    /// All metrics in OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if let Err(error) =
            prometheus_client::encoding::text::encode(&mut text, &self.lock().registry)
        {
            tracing::error!(%error, "metrics could not be encoded");
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_shows_under_the_name_it_was_registered_with() {
        let registry = Registry::new("relay");
        let rows =
            registry.register("laneway_relay_rows_total", "Rows read", Counter::<u64>::default());
        rows.inc_by(3);
        let text = registry.encode();
        assert!(text.contains("\nlaneway_relay_rows_total 3\n"), "{text}");
        assert!(text.contains("# HELP laneway_relay_rows Rows read.\n"), "{text}");
        assert!(text.contains("laneway_build_info{service=\"relay\",version="), "{text}");
        assert_eq!(registry.names(), ["laneway_build_info", "laneway_relay_rows_total"]);
    }

    #[test]
    #[should_panic(expected = "_total is for counters")]
    fn a_counter_without_total_is_refused() {
        Registry::default().register("laneway_rows", "Rows", Counter::<u64>::default());
    }

    #[test]
    #[should_panic(expected = "must begin with")]
    fn a_foreign_name_is_refused() {
        Registry::default().register("rows_total", "Rows", Counter::<u64>::default());
    }

    #[test]
    #[should_panic(expected = "registered twice")]
    fn a_name_is_registered_once() {
        let registry = Registry::new("relay");
        registry.register("laneway_build_info", "Again", Gauge::<i64>::default());
    }
}
