//! Brings to an end what lanes cannot end by themselves.
//!
//! Who: any number of processes; what one works on is locked or claimed in the control database, so that two do no
//! harm and one that dies is followed by another. What flows: unknown outcomes become questions to the endpoints'
//! authorities, and definite answers commands for the lanes' owners ([`lookups`]). Commands over many deliveries (send dead letters again,
//! discard them, replay) are worked off page by page ([`rewinds`]): dead letters become rows of the outbox, which the
//! relay publishes like any other. No lane's row is ever touched from here (design 5.8).
//!
//! What happens when something fails:
//! * This process dies anywhere: a page that was not committed did not happen, one that was is behind the command's own
//!   position.
//! * It dies between question and answer: the claim ends and somebody asks again; asking changes nothing.
//! * An authority is down, or says nothing definite: the lane waits, visibly, and it is asked again with growing pauses.
//! * The database is away: it is waited for.
//! * Nobody runs this: commands wait, lanes flow.

mod audit;
mod config;
mod error;
mod lookups;
mod metrics;
mod retention;
mod rewinds;

pub use config::{Reconciler, Settings, Windows};
pub use error::Error;

use laneway_courier::Courier;
use laneway_platform::admin::Probe;
use laneway_platform::config::Database;
use laneway_platform::service::{Chain, Context};
use laneway_store::audit::Scope;
use laneway_store::secrets::SecretsKey;
use laneway_store::{Options, Pool, migrate};
use lookups::Asker;
use metrics::Metrics;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the database is asked whether it answers.
const PROBE_PERIOD: Duration = Duration::from_secs(2);
/// How long an answer counts; three periods.
const PROBE_VALIDITY: Duration = Duration::from_secs(6);

/// Runs the service until `context.shutdown` is cancelled and the pages under way have ended.
///
/// # Errors
/// A database that must not be used. One that is away is waited for.
pub async fn run(settings: Settings, context: Context) -> Result<(), Error> {
    let probe = context.readiness.probe("database");
    let metrics = Metrics::new(&context.registry);
    let key = settings.secrets.key_bytes().ok_or(Error::SecretsKey)?;
    let secrets = SecretsKey::new(&settings.secrets.key_id, key);
    let courier = Courier::new(settings.courier.clone())?;
    let Some(pool) = connect(&settings.database, &probe, &context.shutdown).await? else {
        return Ok(());
    };
    let rewinds = rewinds::work(
        pool.clone(),
        metrics.clone(),
        settings.reconciler.poll,
        context.shutdown.clone(),
    );
    let scope = Scope {
        window: settings.reconciler.audit_window,
        settled: settings.reconciler.audit_settled,
    };
    let (every, shutdown) = (settings.reconciler.audit_every, context.shutdown.clone());
    let audits = audit::work(pool.clone(), metrics.clone(), every, scope, shutdown);
    let windows = settings.reconciler.keep.clone();
    let removing =
        retention::work(pool.clone(), metrics.clone(), windows, context.shutdown.clone());
    let asker = Asker {
        pool: pool.clone(),
        courier,
        secrets,
        settings: settings.reconciler.clone(),
        metrics,
    };
    let parts = [
        context.spawn("rewinds", rewinds),
        context.spawn("audit", audits),
        context.spawn("retention", removing),
        context.spawn("lookups", Arc::new(asker).work(context.shutdown.clone())),
    ];
    watch(&pool, &probe, &context.shutdown).await;
    for part in parts {
        // Its error has been logged and has failed the service already.
        let _ = part.await;
    }
    pool.close().await;
    Ok(())
}

/// Connects, and waits for both schemas of this build. `None` if it has to stop before that.
async fn connect(
    settings: &Database,
    probe: &Probe,
    shutdown: &CancellationToken,
) -> Result<Option<Pool>, Error> {
    let options = Options {
        application: "laneway-reconciler",
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
            Err(error) => return Err(Error::Store(error)),
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(None),
            () = tokio::time::sleep(PROBE_PERIOD) => {}
        }
    }
}

/// Ready as long as the database answers; until the service stops.
async fn watch(pool: &Pool, probe: &Probe, shutdown: &CancellationToken) {
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
