//! Logs to standard error and spans to an OTLP collector, wired once for the process.

use crate::config::{LogFormat, Telemetry};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use std::io::IsTerminal;
use std::time::Duration;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Libraries whose spans would be exported through themselves, or that say little for their number.
const SILENT: &[&str] = &["hyper", "hyper_util", "h2", "reqwest", "rustls", "opentelemetry"];
/// How long the last spans may take to reach the collector.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The exporter for spans could not be made.
    #[error("the exporter to {endpoint} could not be made")]
    Exporter {
        /// The collector's URL.
        endpoint: String,
        /// What the library said.
        source: opentelemetry_otlp::ExporterBuildError,
    },
}

/// Keeps telemetry going; [`Guard::flush`] before the process ends, or the last spans are lost.
#[derive(Debug, Default)]
pub struct Guard {
    spans: Option<SdkTracerProvider>,
}

/// Sets up logs and, if there is an endpoint, spans. A second call in one process (tests do that) changes nothing.
///
/// `service` and `instance` name the process in spans.
///
/// # Errors
/// If the exporter cannot be made. A collector that is away is no error: spans are dropped and the log says so.
pub fn init(
    service: &'static str,
    instance: &str,
    settings: &Telemetry,
) -> Result<Guard, TelemetryError> {
    let spans = match &settings.otlp_endpoint {
        Some(endpoint) => Some(exporter(service, instance, endpoint, settings.sample_ratio)?),
        None => None,
    };
    global::set_text_map_propagator(TraceContextPropagator::new());
    let silent = |level: &str| {
        let directives: Vec<String> =
            SILENT.iter().map(|target| format!("{target}={level}")).collect();
        directives.join(",")
    };
    let filter = EnvFilter::new(format!("{},{}", silent("warn"), settings.log_level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match settings.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Auto if std::io::stderr().is_terminal() => lines.boxed(),
        LogFormat::Auto | LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
        }
    };
    let exported = spans.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("laneway"))
            .with_filter(EnvFilter::new(format!("info,{}", silent("off"))))
    });
    let set = tracing_subscriber::registry().with(exported).with(lines.with_filter(filter));
    if set.try_init().is_err() {
        tracing::debug!("telemetry was set up before");
        return Ok(Guard::default());
    }
    Ok(Guard { spans })
}

fn exporter(
    service: &'static str,
    instance: &str,
    endpoint: &url::Url,
    sample_ratio: f64,
) -> Result<SdkTracerProvider, TelemetryError> {
    let traces = format!("{}/v1/traces", endpoint.as_str().trim_end_matches('/'));
    // The batch processor exports from a thread of its own, so the client must be the blocking one.
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(&traces)
        .build()
        .map_err(|source| TelemetryError::Exporter { endpoint: traces, source })?;
    let resource = Resource::builder()
        .with_service_name(format!("laneway-{service}"))
        .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample_ratio))))
        .with_resource(resource)
        .build())
}

impl Guard {
    /// Sends what is left, within a few seconds, from a thread that may block.
    pub async fn flush(self) {
        let Some(spans) = self.spans else { return };
        let flushed = crate::task::blocking(move || spans.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if let Err(error) = flushed {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}
