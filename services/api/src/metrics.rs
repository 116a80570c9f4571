//! What the API counts.

use laneway_platform::metrics::family::Family;
use laneway_platform::metrics::gauge::Gauge;
use laneway_platform::metrics::{Counter, Histogram, Registry};
use prometheus_client::encoding::EncodeLabelSet;
use std::time::Duration;

/// Bounds of the semantic conventions for HTTP durations, seconds.
const SECONDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    http_request_method: &'static str,
    http_route: String,
    http_response_status_code: u16,
    error_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Idempotency {
    operation: &'static str,
    result: &'static str,
}

/// Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    requests: Family<Request, Histogram, fn() -> Histogram>,
    idempotency: Family<Idempotency, Counter>,
    pub(crate) accepted: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) connections: Gauge,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.register(
                "http_server_request_duration_seconds",
                "Time from a request's headers to its answer; error_type is the problem's code, empty if it went well",
                Family::new_with_constructor(|| Histogram::new(SECONDS)),
            ),
            idempotency: registry.register(
                "laneway_idempotency_requests_total",
                "Requests with an Idempotency-Key, or lacking one, by what became of them",
                Family::default(),
            ),
            accepted: registry.register(
                "laneway_events_accepted_total",
                "Events that were committed to the outbox by the API",
                Counter::default(),
            ),
            in_flight: registry.register(
                "laneway_api_requests_in_flight",
                "Requests worked on now",
                Gauge::default(),
            ),
            connections: registry.register(
                "laneway_api_connections",
                "Connections open now",
                Gauge::default(),
            ),
        }
    }

    pub(crate) fn request(
        &self,
        method: &'static str,
        route: &str,
        status: u16,
        error: &'static str,
        took: Duration,
    ) {
        let labels = Request {
            http_request_method: method,
            http_route: route.to_owned(),
            http_response_status_code: status,
            error_type: error,
        };
        self.requests.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn idempotency(&self, operation: &'static str, result: &'static str) {
        self.idempotency.get_or_create(&Idempotency { operation, result }).inc();
    }
}
