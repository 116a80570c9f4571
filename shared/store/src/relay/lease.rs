//! Which process reads which shard. A lease runs on the source database's clock; what makes a late owner harmless is
//! the token, which every later write proves and which is random, so that none is ever used twice.

use super::{Shard, millis};
use crate::topology::big;
use crate::{Error, Pool};
use sqlx::Row;
use std::time::Duration;
use uuid::Uuid;

/// The right to move a shard's cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The shard.
    pub shard: Shard,
    /// Proves it in every write.
    pub token: Uuid,
}

/// Says that `instance` is alive and gives how many relays are, itself included. Those not heard of for `lease` are
/// forgotten.
pub async fn member_beat(pool: &Pool, instance: &str, lease: Duration) -> Result<u64, Error> {
    const DOING: &str = "saying that this relay is alive";
    let row = sqlx::query(
        "WITH gone AS (DELETE FROM laneway.relay_members \
             WHERE seen_at < now() - $2 * interval '1 ms' AND instance <> $1), \
         here AS (INSERT INTO laneway.relay_members (instance) VALUES ($1) \
             ON CONFLICT (instance) DO UPDATE SET seen_at = now()) \
         SELECT count(*) + 1 FROM laneway.relay_members \
         WHERE instance <> $1 AND seen_at >= now() - $2 * interval '1 ms'",
    )
    .bind(instance)
    .bind(millis(lease))
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    big(&row, 0, DOING)
}

/// Says that `instance` has ended.
pub async fn member_leave(pool: &Pool, instance: &str) -> Result<(), Error> {
    sqlx::query("DELETE FROM laneway.relay_members WHERE instance = $1")
        .bind(instance)
        .execute(pool.inner())
        .await
        .map(|_| ())
        .map_err(Error::doing("saying that this relay has ended"))
}

/// Takes at most `wanted` shards whose lease is free or has ended, or is of an earlier life of this `instance` (it is
/// not among `own`): names are unique among the living, and the token makes the dead harmless.
pub async fn leases_acquire(
    pool: &Pool,
    instance: &str,
    own: &[Lease],
    wanted: u32,
    lease: Duration,
) -> Result<Vec<Lease>, Error> {
    const DOING: &str = "taking shards";
    let own: Vec<Uuid> = own.iter().map(|lease| lease.token).collect();
    let rows = sqlx::query(
        "UPDATE laneway.relay_cursors \
         SET token = gen_random_uuid(), owner = $1, lease_until = now() + $3 * interval '1 ms' \
         WHERE shard IN (SELECT shard FROM laneway.relay_cursors WHERE token IS NULL OR lease_until < now() \
                            OR owner = $1 AND token <> ALL($4) \
                         ORDER BY random() LIMIT $2 FOR UPDATE SKIP LOCKED) \
         RETURNING shard, token",
    )
    .bind(instance)
    .bind(i64::from(wanted))
    .bind(millis(lease))
    .bind(&own)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            Ok(Lease {
                shard: Shard::from_db(row.try_get(0).map_err(Error::doing(DOING))?)?,
                token: row.try_get(1).map_err(Error::doing(DOING))?,
            })
        })
        .collect()
}

/// Prolongs `leases` and gives the shards that are still this process's.
pub async fn leases_renew(
    pool: &Pool,
    leases: &[Lease],
    lease: Duration,
) -> Result<Vec<Shard>, Error> {
    const DOING: &str = "renewing leases";
    let tokens: Vec<Uuid> = leases.iter().map(|lease| lease.token).collect();
    let rows = sqlx::query(
        "UPDATE laneway.relay_cursors SET lease_until = now() + $2 * interval '1 ms' \
         WHERE token = ANY($1) RETURNING shard",
    )
    .bind(&tokens)
    .bind(millis(lease))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter().map(|row| Shard::from_db(row.try_get(0).map_err(Error::doing(DOING))?)).collect()
}

/// Gives shards back: another relay may take them at once.
pub async fn leases_release(pool: &Pool, leases: &[Lease]) -> Result<(), Error> {
    let tokens: Vec<Uuid> = leases.iter().map(|lease| lease.token).collect();
    sqlx::query(
        "UPDATE laneway.relay_cursors SET token = NULL, owner = NULL, lease_until = NULL \
         WHERE token = ANY($1)",
    )
    .bind(&tokens)
    .execute(pool.inner())
    .await
    .map(|_| ())
    .map_err(Error::doing("giving shards back"))
}

/// Whether `instance` holds the lease of `shard` now.
pub async fn shard_is_owned_by(pool: &Pool, shard: Shard, instance: &str) -> Result<bool, Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM laneway.relay_cursors \
            WHERE shard = $1 AND owner = $2 AND token IS NOT NULL AND lease_until > now())",
    )
    .bind(shard.db())
    .bind(instance)
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing("looking who reads a shard"))
}
