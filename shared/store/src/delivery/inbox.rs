//! The inbox's daily partitions (design 5.4). Taking old ones away is not done here.

use crate::{Error, Pool};

/// Days before today that get a partition too: what is published again can be as old as the outbox's window.
const DAYS_BEHIND: i32 = 5;
/// Days ahead. Ids from beyond them go to the DEFAULT partition.
const DAYS_AHEAD: i32 = 7;

/// Makes the partitions that are missing around today; gives how many it made.
///
/// A day for which the DEFAULT partition has rows already is left out: they stay there, as unique as elsewhere.
pub async fn inbox_partitions_make(pool: &Pool) -> Result<u32, Error> {
    let made: i32 = sqlx::query_scalar("SELECT laneway_control.inbox_make_partitions($1, $2)")
        .bind(DAYS_BEHIND)
        .bind(DAYS_AHEAD)
        .fetch_one(pool.inner())
        .await
        .map_err(Error::doing("making partitions of the inbox"))?;
    Ok(u32::try_from(made).unwrap_or(0))
}
