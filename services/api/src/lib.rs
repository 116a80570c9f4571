//! The control plane and the idempotent intake: endpoints, subscriptions, events, and where deliveries stand.
//!
//! A request passes one layer (`observe`: id, span, limits, problem document), then the check of its key, project and
//! scope (`access`), then a thin handler (`routes`) that reads the body field by field (`body`), claims the
//! `Idempotency-Key` (`idempotent`) and calls the store. The claim, the rows and the answer of a request are one
//! transaction.
//!
//! What happens when things fail:
//! - PostgreSQL is down or slow: 503 with `Retry-After`; nothing is acknowledged that is not committed (I52).
//! - The process dies or the client leaves between commit and answer: the same key gets the stored answer (I36).
//! - A handler panics: that request gets 500, the process goes on; a panic elsewhere ends the process.
//! - Too many requests: 503 at once; too many connections: they wait in the operating system's queue.
//! - Kafka is down: nothing here notices; events wait in the outbox.

mod access;
mod app;
mod body;
mod config;
mod cursor;
mod error;
mod idempotent;
mod metrics;
mod observe;
mod openapi;
mod problem;
mod query;
mod router;
mod routes;
mod serve;

pub use config::{Api, Settings};
pub use error::Error;
pub use router::openapi_json;

use app::App;
use laneway_platform::patience;
use laneway_platform::service::Context;
use laneway_store::secrets::SecretsKey;
use laneway_store::{Options, migrate};
use metrics::Metrics;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Runs the API until `context.shutdown`, then until the last request under way is answered.
///
/// Waits for the database and for its schema to be there before it opens the port.
///
/// # Errors
/// [`Error`].
pub async fn run(settings: Settings, context: Context) -> Result<(), Error> {
    run_on(settings, context, |_| {}).await
}

/// As [`run`]; tells the address that the port got (for port 0).
///
/// # Errors
/// [`Error`].
pub async fn run_on(
    settings: Settings,
    context: Context,
    listening: impl FnOnce(SocketAddr) + Send,
) -> Result<(), Error> {
    let probe = context.readiness.probe("database");
    let metrics = Metrics::new(&context.registry);
    let key = settings.secrets.key_bytes().ok_or(Error::SecretsKey)?;
    let secrets = SecretsKey::new(&settings.secrets.key_id, key);
    let database = &settings.database;
    let options = Options::new("laneway-api")
        .max_connections(database.max_connections)
        .acquire_timeout(database.acquire_timeout);
    let connected =
        patience::database(&probe, &context.shutdown, laneway_store::Error::is_transient, || {
            migrate::connect_current(&database.url, options.clone())
        });
    let Some(pool) = connected.await.map_err(Error::Database)? else {
        return Ok(());
    };
    let app = App::new(pool.clone(), secrets, &settings, metrics.clone());
    let listen = settings.api.listen;
    let bound = async {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let (listener, address) = bound.await.map_err(|source| Error::Listen { listen, source })?;
    tracing::info!(listen = %address, "api is listening");
    listening(address);
    let (asked, stopped) = (pool.clone(), context.shutdown.clone());
    let watching = laneway_platform::task::spawn("api readiness", async move {
        patience::watch_database(&probe, &stopped, || async { asked.now().await.map(|_| ()) })
            .await;
    });
    let shutdown = context.shutdown.clone();
    serve::serve(listener, router::router(app), &settings.api, metrics, shutdown).await;
    // It ends with the shutdown; a panic in it has ended the process already.
    let _ = watching.await;
    pool.close().await;
    Ok(())
}
