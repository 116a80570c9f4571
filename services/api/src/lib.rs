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
use laneway_platform::admin::Probe;
use laneway_platform::config::Database;
use laneway_platform::service::{Chain, Context};
use laneway_store::secrets::SecretsKey;
use laneway_store::{Options, Pool, migrate};
use metrics::Metrics;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How often the database is asked whether it answers.
const PROBE_PERIOD: Duration = Duration::from_secs(2);
/// How long an answer counts; three periods.
const PROBE_VALIDITY: Duration = Duration::from_secs(6);

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
    let Some(pool) = connect(&settings.database, &probe, &context.shutdown).await? else {
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
    let watch = watch(pool.clone(), probe, context.shutdown.clone());
    let watching = laneway_platform::task::spawn("api readiness", watch);
    let shutdown = context.shutdown.clone();
    serve::serve(listener, router::router(app), &settings.api, metrics, shutdown).await;
    // It ends with the shutdown; a panic in it has ended the process already.
    let _ = watching.await;
    pool.close().await;
    Ok(())
}

/// Connects, and waits for the schema of this build. `None` if it has to stop before that.
async fn connect(
    settings: &Database,
    probe: &Probe,
    shutdown: &CancellationToken,
) -> Result<Option<Pool>, Error> {
    let options = Options {
        application: "laneway-api",
        max_connections: settings.max_connections,
        acquire_timeout: settings.acquire_timeout,
    };
    loop {
        let tried = async {
            let pool = Pool::connect(&settings.url, options.clone()).await?;
            let current = migrate::control_is_current(&pool).await?
                && migrate::source_is_current(&pool).await?;
            Ok::<_, laneway_store::Error>((pool, current))
        };
        match tried.await {
            Ok((pool, true)) => return Ok(Some(pool)),
            Ok((_, false)) => {
                tracing::warn!("waiting for the schema of this build: run `laneway migrate`");
                probe.not_ready("waiting for the schema");
            }
            Err(error) if error.is_transient() => {
                tracing::warn!(error = %Chain(&error), "waiting for the database");
                probe.not_ready("waiting for the database");
            }
            Err(error) => return Err(Error::Database(error)),
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(None),
            () = tokio::time::sleep(PROBE_PERIOD) => {}
        }
    }
}

/// Ready as long as the database answers.
async fn watch(pool: Pool, probe: Probe, shutdown: CancellationToken) {
    loop {
        match pool.now().await {
            Ok(_) => probe.ready_for(PROBE_VALIDITY),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the database does not answer");
                probe.not_ready("the database does not answer");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PROBE_PERIOD) => {}
        }
    }
}
