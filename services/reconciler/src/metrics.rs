//! What the reconciler counts.

use laneway_platform::metrics::family::Family;
use laneway_platform::metrics::{Counter, Registry};
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Action {
    action: &'static str,
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
        }
    }

    pub(crate) fn rewound(&self, action: &'static str, count: u64) {
        self.rewound.get_or_create(&Action { action }).inc_by(count);
    }

    pub(crate) fn error(&self, part: &'static str) {
        self.errors.get_or_create(&Part { part }).inc();
    }
}
