//! What the service counts (telemetry.md 2.4). `relay` and `source` are a source's name.

use laneway_platform::invariants::Invariants;
use laneway_platform::metrics::family::Family;
use laneway_platform::metrics::gauge::Gauge;
use laneway_platform::metrics::{Counter, Histogram, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Buckets of the delay from commit to acknowledgement, seconds.
const DELAYS: [f64; 14] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3_600.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByRelay {
    pub(crate) relay: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BySource {
    pub(crate) source: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByReason {
    pub(crate) source: Arc<str>,
    pub(crate) reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByPart {
    pub(crate) part: &'static str,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) pending: Family<ByRelay, Gauge>,
    pub(crate) oldest_pending: Family<ByRelay, Gauge<f64, AtomicU64>>,
    pub(crate) delay: Histogram,
    pub(crate) rows: Family<BySource, Counter>,
    pub(crate) deliveries: Family<BySource, Counter>,
    pub(crate) held: Family<ByReason, Gauge>,
    pub(crate) held_oldest: Family<ByReason, Gauge<f64, AtomicU64>>,
    pub(crate) shards: Family<BySource, Gauge>,
    pub(crate) fenced: Counter,
    pub(crate) generation: Gauge,
    pub(crate) raised: Counter,
    pub(crate) went_back: Family<BySource, Counter>,
    pub(crate) restored: Family<BySource, Counter>,
    pub(crate) errors: Family<ByPart, Counter>,
    pub(crate) default_rows: Family<BySource, Gauge>,
    pub(crate) overdue: Family<BySource, Gauge<f64, AtomicU64>>,
    pub(crate) topic_changed: Gauge,
    pub(crate) invariants: Invariants,
}

impl Metrics {
    pub(crate) fn new(r: &Registry) -> Self {
        let fam = Family::default;
        Self {
            invariants: r.invariants(),
            pending: r.register(
                "laneway_outbox_pending",
                "Committed rows not published yet, counted up to a limit",
                fam(),
            ),
            oldest_pending: r.register(
                "laneway_outbox_oldest_pending_seconds",
                "Age of the oldest committed row that is not published yet",
                Family::default(),
            ),
            delay: r.register(
                "laneway_outbox_publish_delay_seconds",
                "From the row's writing to the broker's acknowledgement",
                Histogram::new(DELAYS),
            ),
            rows: r.register("laneway_relay_rows_total", "Outbox rows passed", Family::default()),
            deliveries: r.register(
                "laneway_relay_deliveries_total",
                "Deliveries acknowledged by the broker",
                Family::default(),
            ),
            held: r.register("laneway_relay_held", "Deliveries held, by reason", Family::default()),
            held_oldest: r.register(
                "laneway_relay_held_oldest_seconds",
                "How long the oldest of them has been held",
                Family::default(),
            ),
            shards: r.register(
                "laneway_relay_shards",
                "Shards that this instance reads",
                Family::default(),
            ),
            fenced: r.register(
                "laneway_relay_fenced_total",
                "Writes refused because another instance owns the shard (P13)",
                Counter::default(),
            ),
            generation: r.register(
                "laneway_relay_generation",
                "Generation of the topic",
                Gauge::default(),
            ),
            raised: r.register(
                "laneway_relay_generation_raised_total",
                "Losses of the log that this instance reported",
                Counter::default(),
            ),
            went_back: r.register(
                "laneway_relay_went_back_total",
                "Shards that went back to publish again after a loss",
                Family::default(),
            ),
            restored: r.register(
                "laneway_relay_restored_total",
                "Shards that began anew because their database was restored",
                Family::default(),
            ),
            errors: r.register(
                "laneway_relay_errors_total",
                "Errors after which a part began again",
                Family::default(),
            ),
            default_rows: r.register(
                "laneway_outbox_default_rows",
                "Rows whose day had no partition, counted up to a limit",
                Family::default(),
            ),
            overdue: r.register(
                "laneway_outbox_retention_overdue_seconds",
                "How long the oldest partition is kept beyond the window",
                Family::default(),
            ),
            topic_changed: r.register(
                "laneway_relay_topic_partitions_changed",
                "1 if the topic has another number of partitions than it was set up for",
                Gauge::default(),
            ),
        }
    }

    pub(crate) fn error(&self, part: &'static str) {
        self.errors.get_or_create(&ByPart { part }).inc();
    }
}
