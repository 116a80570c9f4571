//! Brings to an end what lanes cannot end by themselves.
//!
//! Who: any number of processes; what one works on is locked or claimed in the control database, so that two do no
//! harm and one that dies is followed by another. What flows: unknown outcomes become questions to the endpoints'
//! authorities, and definite answers commands for the lanes' owners (`lookups`). Commands over many deliveries (send
//! dead letters again, discard them, replay) are worked off page by page (`rewinds`): dead letters become rows of the
//! outbox, which the relay publishes like any other. Erasures go the same way (`erasures`). No lane's row is ever touched from here (design 5.8).
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
mod erasures;
mod error;
mod lookups;
mod metrics;
mod retention;
mod rewinds;

pub use config::{Reconciler, Settings, Windows};
pub use error::Error;

use laneway_courier::Courier;
use laneway_platform::patience;
use laneway_platform::service::Context;
use laneway_store::audit::Scope;
use laneway_store::secrets::SecretsKey;
use laneway_store::{Options, migrate};
use lookups::Asker;
use metrics::Metrics;
use std::sync::Arc;

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
    let database = &settings.database;
    let options = Options::new("laneway-reconciler")
        .max_connections(database.max_connections)
        .acquire_timeout(database.acquire_timeout);
    let connected =
        patience::database(&probe, &context.shutdown, laneway_store::Error::is_transient, || {
            migrate::connect_current(&database.url, options.clone())
        });
    let Some(pool) = connected.await.map_err(Error::Store)? else {
        return Ok(());
    };
    let rewinds = rewinds::work(
        pool.clone(),
        metrics.clone(),
        settings.reconciler.poll,
        context.shutdown.clone(),
    );
    let erasures = erasures::work(
        pool.clone(),
        metrics.clone(),
        settings.reconciler.poll,
        context.shutdown.clone(),
    );
    let scope = Scope {
        window: settings.reconciler.audit_window,
        settled: settings.reconciler.audit_settled,
    };
    let schedule = audit::Schedule {
        every: settings.reconciler.audit_every,
        scope,
        repair: settings.reconciler.audit_repair,
    };
    let audits = audit::work(pool.clone(), metrics.clone(), schedule, context.shutdown.clone());
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
        context.spawn("erasures", erasures),
        context.spawn("audit", audits),
        context.spawn("retention", removing),
        context.spawn("lookups", Arc::new(asker).work(context.shutdown.clone())),
    ];
    patience::watch_database(&probe, &context.shutdown, || async { pool.now().await.map(|_| ()) })
        .await;
    for part in parts {
        // Its error has been logged and has failed the service already.
        let _ = part.await;
    }
    pool.close().await;
    Ok(())
}
