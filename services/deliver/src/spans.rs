//! One trace follows a delivery (C15): a `process` span for each attempt, child of the span that wrote the event, and
//! in it the request. Only events that carry a trace context get spans; whether they are kept was decided there.

use laneway_lane::{AttemptResult, Ticket};
use laneway_platform::trace;
use laneway_wire::Record;
use tracing::{Span, field};

/// The spans of one attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    process: Span,
    pub(crate) request: Span,
}

impl Attempt {
    /// Begins them, disabled if the event carries no trace context.
    pub(crate) fn begin(record: &Record, ticket: Ticket) -> Self {
        let Some(parent) = record.head.traceparent.as_deref() else {
            return Self { process: Span::none(), request: Span::none() };
        };
        let head = &record.head;
        let process = tracing::info_span!(
            parent: None,
            "process",
            otel.name = "process laneway.deliveries",
            otel.kind = "consumer",
            "messaging.system" = "kafka",
            "messaging.operation.name" = "process",
            "messaging.operation.type" = "process",
            "messaging.message.id" = %head.event_id(),
            "messaging.destination.partition.id" = %ticket.partition,
            "laneway.tenant.id" = %head.tenant_id(),
            "laneway.endpoint.id" = %head.endpoint_id(),
            "laneway.delivery.id" = %head.delivery_id(),
            "laneway.lane.hash" = %head.lane(),
            "laneway.attempt" = ticket.attempt,
            "laneway.outcome" = field::Empty,
        );
        trace::set_parent(&process, parent);
        let request = tracing::info_span!(
            parent: &process,
            "request",
            otel.name = "POST",
            otel.kind = "client",
            otel.status_code = field::Empty,
            "http.request.method" = "POST",
            "http.response.status_code" = field::Empty,
            "http.request.resend_count" = ticket.attempt.saturating_sub(1),
            "error.type" = field::Empty,
        );
        Self { process, request }
    }

    /// Says what came back.
    pub(crate) fn end(self, result: &AttemptResult) {
        let outcome = match result {
            AttemptResult::NotStarted => "retry",
            AttemptResult::NotSent { class } => {
                self.request.record("error.type", *class);
                self.request.record("otel.status_code", "ERROR");
                "retry"
            }
            AttemptResult::Responded { status, .. } => {
                self.request.record("http.response.status_code", *status);
                if *status >= 400 {
                    self.request.record("error.type", field::display(status));
                    self.request.record("otel.status_code", "ERROR");
                }
                if (200..300).contains(status) { "delivered" } else { "failed" }
            }
            AttemptResult::Unknown { class, .. } => {
                self.request.record("error.type", *class);
                self.request.record("otel.status_code", "ERROR");
                "unknown"
            }
        };
        self.process.record("laneway.outcome", outcome);
    }
}
