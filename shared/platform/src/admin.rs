//! The admin port: `/healthz` (the process runs), `/readyz` (it gets on with its work), `/metrics`.

use crate::clock;
use crate::metrics::Registry;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Whether a service gets on with its work: a set of named probes, all of which must be ready.
///
/// Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    draining: bool,
    probes: BTreeMap<String, State>,
}

#[derive(Debug, Clone)]
enum State {
    Ready,
    /// Ready until then (boottime): whoever makes progress says so again in time.
    ReadyUntil(Duration),
    NotReady(String),
}

/// One condition of readiness; not ready until it says otherwise. Whoever owns the work owns the probe.
#[derive(Debug, Clone)]
pub struct Probe {
    name: String,
    readiness: Readiness,
}

/// What `/readyz` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether every probe is ready and the process is not stopping.
    pub ready: bool,
    /// Why each probe that is not ready is not.
    pub waiting: BTreeMap<String, String>,
}

impl Readiness {
    /// Adds a condition under `name`, not ready yet.
    pub fn probe(&self, name: impl Into<String>) -> Probe {
        let name = name.into();
        self.lock().probes.insert(name.clone(), State::NotReady("starting".to_owned()));
        Probe { name, readiness: self.clone() }
    }

    /// The process is stopping: not ready for good.
    pub fn drain(&self) {
        self.lock().draining = true;
    }

    /// The state of all probes.
    pub fn report(&self) -> Report {
        let now = clock::boottime();
        let inner = self.lock();
        let mut waiting = BTreeMap::new();
        if inner.draining {
            waiting.insert("service".to_owned(), "stopping".to_owned());
        } else if inner.probes.is_empty() {
            // Nobody has said anything yet: its work has not begun.
            waiting.insert("service".to_owned(), "starting".to_owned());
        }
        for (name, state) in &inner.probes {
            match state {
                State::Ready => {}
                State::ReadyUntil(until) if *until > now => {}
                State::ReadyUntil(until) => {
                    let since = now.saturating_sub(*until).as_secs();
                    waiting.insert(name.clone(), format!("no progress, overdue for {since} s"));
                }
                State::NotReady(reason) => {
                    waiting.insert(name.clone(), reason.clone());
                }
            }
        }
        Report { ready: waiting.is_empty(), waiting }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probe {
    /// Ready until it says otherwise.
    pub fn ready(&self) {
        self.set(State::Ready);
    }

    /// Ready, for `span` at most: for work that must be seen to go on. Say it again after each round.
    pub fn ready_for(&self, span: Duration) {
        self.set(State::ReadyUntil(clock::boottime() + span));
    }

    /// Not ready, for this reason (shown on `/readyz`: no secret in it).
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.set(State::NotReady(reason.into()));
    }

    fn set(&self, state: State) {
        self.readiness.lock().probes.insert(self.name.clone(), state);
    }
}

/// The three routes, for a service that has a port of its own already.
pub fn router(readiness: Readiness, registry: Registry) -> Router {
    let ready = move || {
        let report = readiness.report();
        let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        async move { (status, Json(report)) }
    };
    let metrics = move || {
        let text = registry.encode();
        async move {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
}

/// Opens the port and serves it until `closed`; gives the address that it got.
///
/// # Errors
/// If the address cannot be bound.
pub async fn serve(
    listen: SocketAddr,
    readiness: Readiness,
    registry: Registry,
    closed: CancellationToken,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let served = axum::serve(listener, router(readiness, registry))
        .with_graceful_shutdown(async move { closed.cancelled().await });
    crate::task::spawn("admin", async move {
        if let Err(error) = served.await {
            tracing::error!(%error, "the admin port broke");
        }
    });
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn ready_means_every_probe_is_ready_and_nothing_stops() {
        let readiness = Readiness::default();
        assert_eq!(readiness.report().waiting["service"], "starting", "no probe is no readiness");
        let (database, kafka) = (readiness.probe("database"), readiness.probe("kafka"));
        database.ready();
        let report = readiness.report();
        assert!(!report.ready);
        assert_eq!(report.waiting, BTreeMap::from([("kafka".to_owned(), "starting".to_owned())]));
        kafka.ready_for(Duration::from_secs(60));
        assert!(readiness.report().ready);
        database.not_ready("refused");
        assert_eq!(readiness.report().waiting["database"], "refused");
        database.ready();
        readiness.drain();
        assert_eq!(readiness.report().waiting["service"], "stopping");
    }

    #[test]
    fn a_probe_without_progress_is_not_ready() {
        let readiness = Readiness::default();
        readiness.probe("relay").ready_for(Duration::ZERO);
        assert!(readiness.report().waiting["relay"].starts_with("no progress"));
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_port_tells_health_readiness_and_metrics() {
        let (readiness, closed) = (Readiness::default(), CancellationToken::new());
        let probe = readiness.probe("database");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let registry = Registry::new("test");
        let address = serve(any, readiness, registry, closed.clone()).await.unwrap();
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let waiting = get(address, "/readyz").await;
        assert!(waiting.starts_with("HTTP/1.1 503"), "{waiting}");
        assert!(waiting.ends_with(r#"{"ready":false,"waiting":{"database":"starting"}}"#));
        probe.ready();
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("application/openmetrics-text"), "{metrics}");
        assert!(metrics.trim_end().ends_with("# EOF"), "{metrics}");
        closed.cancel();
    }
}
