//! Trace context as text, for outbox rows, Kafka headers and HTTP requests: the only door to OpenTelemetry for the
//! other crates (telemetry.md 2.3).

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Makes `span` a child of the span that `traceparent` names. Call it before the span is entered. An invalid text is
/// ignored.
pub fn set_parent(span: &tracing::Span, traceparent: &str) {
    if let Some(context) = parse(traceparent) {
        let parent = opentelemetry::Context::new().with_remote_span_context(context);
        // Refused only where no spans are exported or the span has begun: then there is nothing to set.
        let _ = span.set_parent(parent);
    }
}

/// Links `span` to the span that `traceparent` names. An invalid text is ignored.
pub fn add_link(span: &tracing::Span, traceparent: &str) {
    if let Some(context) = parse(traceparent) {
        span.add_link(context);
    }
}

/// The W3C `traceparent` of `span`; `None` if spans are not exported.
pub fn traceparent(span: &tracing::Span) -> Option<String> {
    let context = span.context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| {
        let flags = span.trace_flags() & TraceFlags::SAMPLED;
        format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())
    })
}

/// The trace id of a `traceparent`, as 32 hexadecimal digits; `None` if the text is not one.
pub fn trace_id(traceparent: &str) -> Option<String> {
    parse(traceparent).map(|context| context.trace_id().to_string())
}

/// Version 00, and later ones by their first four parts, as the W3C wants it.
fn parse(text: &str) -> Option<SpanContext> {
    let is_hex = |part: &str, digits: usize| {
        part.len() == digits
            && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let well_formed = is_hex(version, 2)
        && version != "ff"
        && (version != "00" || parts.next().is_none())
        && is_hex(trace, 32)
        && is_hex(span, 16)
        && is_hex(flags, 2);
    if !well_formed {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn only_a_valid_traceparent_is_taken() {
        assert_eq!(trace_id(GIVEN).as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(trace_id(bad), None, "{bad}");
        }
        assert!(trace_id(&format!("01{}-later", &GIVEN[2..])).is_some());
    }

    #[test]
    fn a_span_stays_in_the_trace_that_the_row_carried() {
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::info_span!("process");
            set_parent(&span, GIVEN);
            let ours = span.in_scope(|| traceparent(&span)).unwrap();
            assert_eq!(trace_id(&ours), trace_id(GIVEN));
            assert_ne!(ours, GIVEN);
            set_parent(&span, "nonsense");
            add_link(&span, "nonsense");
        });
        assert_eq!(traceparent(&tracing::info_span!("nobody listens")), None);
    }
}
