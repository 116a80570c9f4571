//! What the reconciler counts.

use laneway_platform::metrics::family::Family;
use laneway_platform::metrics::gauge::Gauge;
use laneway_platform::metrics::{Counter, Histogram, Registry};
use laneway_store::lookups::Waiting;
use prometheus_client::encoding::EncodeLabelSet;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Bounds of answers' durations, seconds.
const SECONDS: [f64; 8] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Action {
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Check {
    check: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    answer: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    part: &'static str,
}

/// Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    rewound: Family<Action, Counter>,
    errors: Family<Part, Counter>,
    removed: Family<Kind, Counter>,
    overdue: Gauge,
    violations: Family<Check, Gauge>,
    audits: Counter,
    repaired: Family<Check, Counter>,
    contradictions: Family<Reason, Gauge>,
    lookups: Family<Answer, Counter>,
    lookup_seconds: Histogram,
    waiting: Gauge,
    oldest: Gauge<f64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            rewound: registry.register(
                "laneway_rewind_deliveries_total",
                "Deliveries that commands over many deliveries were done to",
                Family::default(),
            ),
            errors: registry.register(
                "laneway_reconciler_errors_total",
                "Errors after which a part began again",
                Family::default(),
            ),
            removed: registry.register(
                "laneway_retention_removed_total",
                "Rows, and days of the inbox, that were removed because their time was over",
                Family::default(),
            ),
            overdue: registry.register(
                "laneway_inbox_days_overdue",
                "Days of the inbox that are still there although their time is over",
                Gauge::default(),
            ),
            violations: registry.register(
                "laneway_audit_violations",
                "Rows that break a promise, as the last audit has found them",
                Family::default(),
            ),
            audits: registry.register(
                "laneway_audits_total",
                "Audits that were made",
                Counter::default(),
            ),
            repaired: registry.register(
                "laneway_audit_repaired_total",
                "Deliveries that an audit missed and published again",
                Family::default(),
            ),
            contradictions: registry.register(
                "laneway_windows_contradicting",
                "Windows of sources and deliver processes that contradict others, by reason",
                Family::default(),
            ),
            lookups: registry.register(
                "laneway_lookups_total",
                "Questions to authorities, by what they came to",
                Family::default(),
            ),
            lookup_seconds: registry.register(
                "laneway_lookup_seconds",
                "How long authorities took to answer",
                Histogram::new(SECONDS),
            ),
            waiting: registry.register(
                "laneway_lookups_waiting",
                "Unknown outcomes that an authority is asked about and has not settled, in all",
                Gauge::default(),
            ),
            oldest: registry.register(
                "laneway_lookup_oldest_seconds",
                "Age of the oldest of them",
                Gauge::default(),
            ),
        }
    }

    pub(crate) fn rewound(&self, action: &'static str, count: u64) {
        self.rewound.get_or_create(&Action { action }).inc_by(count);
    }

    pub(crate) fn lookup(&self, answer: &'static str) {
        self.lookups.get_or_create(&Answer { answer }).inc();
    }

    pub(crate) fn lookup_took(&self, took: Duration) {
        self.lookup_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn waiting(&self, waiting: Waiting) {
        self.waiting.set(i64::try_from(waiting.unknowns).unwrap_or(i64::MAX));
        self.oldest.set(waiting.oldest.as_secs_f64());
    }

    pub(crate) fn violations(&self, check: &'static str, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.violations.get_or_create(&Check { check }).set(count);
    }

    pub(crate) fn removed(&self, kind: &'static str, count: u64) {
        self.removed.get_or_create(&Kind { kind }).inc_by(count);
    }

    pub(crate) fn overdue(&self, days: usize) {
        self.overdue.set(i64::try_from(days).unwrap_or(i64::MAX));
    }

    pub(crate) fn repaired(&self, check: &'static str, count: u64) {
        if count > 0 {
            self.repaired.get_or_create(&Check { check }).inc_by(count);
        }
    }

    pub(crate) fn contradicting(&self, reason: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.contradictions.get_or_create(&Reason { reason }).set(count);
    }

    pub(crate) fn audited(&self) {
        self.audits.inc();
    }

    pub(crate) fn error(&self, part: &'static str) {
        self.errors.get_or_create(&Part { part }).inc();
    }
}
