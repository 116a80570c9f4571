//! The public port: a bounded number of connections, a limit for headers and idleness, and a drain that lets every
//! request that began end. (axum's own `serve` has neither limit.)

use crate::config::Api;
use crate::metrics::Metrics;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// How long to wait when the process has no file descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of headers, and of one read, at most.
const MAX_HEADERS: usize = 32 * 1024;

/// Serves `router` until `shutdown`, then until the last request under way is answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    settings: &Api,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let connections = usize::try_from(settings.max_connections).unwrap_or(usize::MAX);
    let permits = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(MAX_HEADERS)
        .half_close(false);
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = accepted => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are small and written at once.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        let open = metrics.connections.clone();
        open.inc();
        laneway_platform::task::spawn("api connection", async move {
            // Errors are the client's: a connection cut, a head that is no HTTP.
            let _ = connection.await;
            drop(permit);
            open.dec();
        });
    }
    drop(listener);
    graceful.shutdown().await;
}
