//! Schema migrations: `laneway_control` once, `laneway` in every source database; each keeps its own list of applied
//! migrations inside its schema, so both can live in one database. Idempotent, and safe to run from several places at
//! once (an advisory lock of the database orders them).

use crate::{Error, Options, Pool};
use sqlx::Connection;
use sqlx::migrate::Migrator;

/// Name of the control schema.
pub const CONTROL: &str = "laneway_control";
/// Name of the schema in a source database.
pub const SOURCE: &str = "laneway";

/// Brings the control schema up to this build.
pub async fn control_migrate(pool: &Pool) -> Result<(), Error> {
    run(pool, CONTROL, sqlx::migrate!("migrations/control")).await
}

/// Brings the source schema of an application's database up to this build.
pub async fn source_migrate(pool: &Pool) -> Result<(), Error> {
    run(pool, SOURCE, sqlx::migrate!("migrations/source")).await
}

/// Whether the control schema has every migration of this build (for readiness).
pub async fn control_is_current(pool: &Pool) -> Result<bool, Error> {
    is_current(
        pool,
        "SELECT to_regclass('laneway_control.migrations') IS NOT NULL",
        "SELECT version FROM laneway_control.migrations WHERE success",
        &sqlx::migrate!("migrations/control"),
    )
    .await
}

/// Whether the source schema has every migration of this build.
pub async fn source_is_current(pool: &Pool) -> Result<bool, Error> {
    is_current(
        pool,
        "SELECT to_regclass('laneway.migrations') IS NOT NULL",
        "SELECT version FROM laneway.migrations WHERE success",
        &sqlx::migrate!("migrations/source"),
    )
    .await
}

/// Connects to a database that is both the control database and a source; nothing if it lacks a migration of this build.
pub async fn connect_current(
    url: &secrecy::SecretString,
    options: Options,
) -> Result<Option<Pool>, Error> {
    let pool = Pool::connect(url, options).await?;
    let current = control_is_current(&pool).await? && source_is_current(&pool).await?;
    Ok(current.then_some(pool))
}

async fn run(pool: &Pool, schema: &'static str, mut migrator: Migrator) -> Result<(), Error> {
    migrator.create_schema(schema);
    migrator.dangerous_set_table_name(format!("{schema}.migrations"));
    // A connection of its own: it holds a session lock, which must go with it if anything fails.
    let mut connection =
        pool.inner().acquire().await.map_err(Error::doing("connecting to the database"))?.detach();
    let result = migrator.run_direct(None, &mut connection, false).await;
    let _ = connection.close().await;
    result.map_err(|source| Error::Migrate { schema, source })
}

async fn is_current(
    pool: &Pool,
    exists: &'static str,
    applied: &'static str,
    migrator: &Migrator,
) -> Result<bool, Error> {
    const DOING: &str = "reading the applied migrations";
    let exists: bool =
        sqlx::query_scalar(exists).fetch_one(pool.inner()).await.map_err(Error::doing(DOING))?;
    if !exists {
        return Ok(false);
    }
    let applied: Vec<i64> =
        sqlx::query_scalar(applied).fetch_all(pool.inner()).await.map_err(Error::doing(DOING))?;
    Ok(migrator.iter().all(|migration| applied.contains(&migration.version)))
}
