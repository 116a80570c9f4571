//! Schemas: `source install` for an application's database, `migrate` for the control database.

use super::connect;
use crate::args::{Database, Source};
use crate::failure::Result;
use crate::output::Output;
use laneway_platform::config::Origins;
use laneway_store::migrate;

/// `laneway source …`
pub(super) async fn source(command: Source, origins: &Origins, output: Output) -> Result {
    let Source::Install(database) = command;
    let pool = connect(&database, origins).await?;
    migrate::source_migrate(&pool).await?;
    output.say("schema laneway is up to date");
    Ok(())
}

/// `laneway migrate`
pub(super) async fn migrate(database: &Database, origins: &Origins, output: Output) -> Result {
    let pool = connect(database, origins).await?;
    migrate::control_migrate(&pool).await?;
    output.say("schema laneway_control is up to date");
    Ok(())
}
