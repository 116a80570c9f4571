//! Keeping a source database in order: rights of writers, partitions ahead, removal of old ones, old dedupe keys
//! (design section 4, "Retention"; C17).

use crate::partitions::OUTBOX;
use crate::relay::{SHARDS, Shard};
use crate::topology::big;
use crate::{Error, Pool};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use std::time::Duration;

/// A day in UTC: what a partition holds.
pub type Day = chrono::NaiveDate;

/// Days for which partitions are made ahead.
pub const DAYS_AHEAD: u32 = 14;

/// Gives `role` what it needs to write events and nothing more.
pub async fn source_grant(pool: &Pool, role: &str) -> Result<(), Error> {
    sqlx::query("SELECT laneway.grant_writer($1)")
        .bind(role)
        .execute(pool.inner())
        .await
        .map(|_| ())
        .map_err(Error::doing("granting the right to write events"))
}

/// Makes the daily partitions from today to [`DAYS_AHEAD`] that are missing, each in a transaction of its own that
/// gives up rather than wait for a lock, and gives how many it made.
///
/// # Errors
/// The first that was refused; those before it stay.
pub async fn partitions_ensure(pool: &Pool) -> Result<u32, Error> {
    const DOING: &str = "making partitions ahead";
    let missing: Vec<Day> = sqlx::query_scalar(
        "SELECT d.day FROM (SELECT (now() AT TIME ZONE 'UTC')::date + n AS day FROM generate_series(0, $1) AS n) d \
         WHERE NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
            WHERE i.inhparent = 'laneway.outbox'::regclass AND c.relname = 'outbox_' || to_char(d.day, 'YYYYMMDD')) \
         ORDER BY d.day",
    )
    .bind(i32::try_from(DAYS_AHEAD).unwrap_or(i32::MAX))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let mut made = 0;
    for day in missing {
        let mut tx = pool.begin().await?;
        sqlx::query("SET LOCAL lock_timeout = '200ms'")
            .execute(&mut *tx)
            .await
            .map_err(Error::doing(DOING))?;
        let new: bool = sqlx::query_scalar("SELECT laneway.outbox_partition_create($1)")
            .bind(day)
            .fetch_one(&mut *tx)
            .await
            .map_err(Error::doing(DOING))?;
        tx.commit().await.map_err(Error::doing(DOING))?;
        made += u32::from(new);
    }
    Ok(made)
}

/// Rows in the DEFAULT partition, counted up to `limit`: their day had no partition, a person has to look.
pub async fn default_rows(pool: &Pool, limit: u32) -> Result<u64, Error> {
    const DOING: &str = "counting rows in the default partition";
    let row =
        sqlx::query("SELECT count(*) FROM (SELECT FROM laneway.outbox_default LIMIT $1) AS r")
            .bind(i64::from(limit))
            .fetch_one(pool.inner())
            .await
            .map_err(Error::doing(DOING))?;
    big(&row, 0, DOING)
}

/// Days whose partition ended more than `window` ago, oldest first, each with how long beyond it.
pub async fn partitions_expired(
    pool: &Pool,
    window: Duration,
) -> Result<Vec<(Day, Duration)>, Error> {
    const DOING: &str = "looking for old partitions";
    let rows = sqlx::query(
        "SELECT day, (extract(epoch FROM now() - until) * 1000)::bigint FROM ( \
            SELECT day, (day + 1)::timestamp AT TIME ZONE 'UTC' + $1 * interval '1 ms' AS until FROM ( \
                SELECT to_date(substr(c.relname, 8), 'YYYYMMDD') AS day \
                FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
                WHERE i.inhparent = 'laneway.outbox'::regclass AND c.relname ~ '^outbox_[0-9]{8}$') AS names) AS days \
         WHERE until <= now() ORDER BY day",
    )
    .bind(crate::relay::millis(window))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            let day = row.try_get(0).map_err(Error::doing(DOING))?;
            Ok((day, Duration::from_millis(big(row, 1, DOING)?)))
        })
        .collect()
}

/// What a partition still waits for before it can go, as far as the source database knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeps {
    /// A shard has not passed one of its rows.
    Unread(Shard),
    /// A held row points into it.
    Held(Shard),
}

/// Of each shard, the last entry of the history that holds a row of `day`; no element for a shard that has none.
/// Their acknowledged offsets must have been passed by the owners before the partition goes.
pub async fn partition_entries(pool: &Pool, day: Day) -> Result<Vec<(Shard, u64)>, Error> {
    const DOING: &str = "looking where a partition was published";
    let table = OUTBOX.of(day);
    // A row of `day` is in the first entry whose end sees it; entries that end before the last one began cannot hold
    // it. The latest entry that began before some row of the day was visible is the last that can.
    let text = format!(
        "SELECT h.shard, max(h.entry) FROM laneway.relay_history h \
         WHERE EXISTS (SELECT FROM {table} o WHERE o.shard = h.shard \
                AND o.xid >= pg_snapshot_xmax(coalesce(h.s1, '1:1:'::pg_snapshot))) \
            OR EXISTS (SELECT FROM pg_snapshot_xip(h.s1) AS x (xid), LATERAL ( \
                SELECT FROM {table} o WHERE o.shard = h.shard AND o.xid = x.xid LIMIT 1) AS late) \
         GROUP BY h.shard"
    );
    let rows = sqlx::query(AssertSqlSafe(text))
        .fetch_all(pool.inner())
        .await
        .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            let shard = Shard::from_db(row.try_get(0).map_err(Error::doing(DOING))?)?;
            Ok((shard, big(row, 1, DOING)?))
        })
        .collect()
}

/// Looks, without locks, whether `day` could be removed as far as this database knows.
pub async fn partition_keeps(pool: &Pool, day: Day) -> Result<Option<Keeps>, Error> {
    let mut connection =
        pool.inner().acquire().await.map_err(Error::doing("looking at an old partition"))?;
    keeps(&mut connection, day).await
}

/// Removes `day`'s partition: takes the locks without waiting, looks again under them, detaches; then drops, with no lock
/// that a writer needs.
///
/// # Errors
/// [`Error::is_lock_not_available`] while any writer or reader is within the outbox: try again later.
pub async fn partition_remove(pool: &Pool, day: Day) -> Result<Option<Keeps>, Error> {
    const DOING: &str = "removing an old partition";
    let mut tx = pool.begin().await?;
    sqlx::query("SET LOCAL lock_timeout = '100ms'")
        .execute(&mut *tx)
        .await
        .map_err(Error::doing(DOING))?;
    // NOWAIT: a waiting lock on the parent would stop every writer.
    OUTBOX.lock(&mut tx, day, "NOWAIT").await?;
    if let Some(keeps) = keeps(&mut tx, day).await? {
        tx.rollback().await.map_err(Error::doing(DOING))?;
        return Ok(Some(keeps));
    }
    OUTBOX.detach(&mut tx, day).await?;
    tx.commit().await.map_err(Error::doing(DOING))?;
    partitions_drop_detached(pool).await?;
    Ok(None)
}

/// Drops what [`partition_remove`] has detached and did not live to drop.
pub async fn partitions_drop_detached(pool: &Pool) -> Result<(), Error> {
    OUTBOX.drop_detached(pool).await
}

/// Forgets the history that no row of a remaining partition can be in: entries opened more than an hour before the
/// oldest remaining day began, their acknowledged offsets, and held rows that left in them.
pub async fn history_prune(pool: &Pool) -> Result<u64, Error> {
    const DOING: &str = "forgetting old history";
    let row = sqlx::query(
        "WITH oldest AS (SELECT min(to_date(substr(c.relname, 8), 'YYYYMMDD'))::timestamp AT TIME ZONE 'UTC' \
                - interval '1 hour' AS at \
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
            WHERE i.inhparent = 'laneway.outbox'::regclass AND c.relname ~ '^outbox_[0-9]{8}$'), \
         gone AS (DELETE FROM laneway.relay_history h USING oldest, laneway.relay_cursors c \
            WHERE c.shard = h.shard AND h.entry < c.entry AND h.opened_at < oldest.at \
            RETURNING h.shard, h.entry), \
         acks AS (DELETE FROM laneway.relay_acks a USING gone \
            WHERE a.shard = gone.shard AND a.entry = gone.entry), \
         held AS (DELETE FROM laneway.relay_held h USING gone \
            WHERE h.shard = gone.shard AND h.left_entry = gone.entry) \
         SELECT count(*) FROM gone",
    )
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    big(&row, 0, DOING)
}

/// Forgets at most `limit` dedupe keys older than `window` and gives how many went.
pub async fn dedupe_prune(pool: &Pool, window: Duration, limit: u32) -> Result<u64, Error> {
    sqlx::query(
        "DELETE FROM laneway.outbox_dedupe d USING ( \
            SELECT tenant, dedupe_key FROM laneway.outbox_dedupe \
            WHERE created_at < now() - $1 * interval '1 ms' ORDER BY created_at LIMIT $2) AS old \
         WHERE d.tenant = old.tenant AND d.dedupe_key = old.dedupe_key",
    )
    .bind(crate::relay::millis(window))
    .bind(i64::from(limit))
    .execute(pool.inner())
    .await
    .map(|done| done.rows_affected())
    .map_err(Error::doing("forgetting old dedupe keys"))
}

/// A row is passed if its shard's `s1` sees it, or its `s2` does and it is not behind `last_id`. Only rows of
/// transactions that `s1` does not see are looked at, by index: the locks are held for no longer than that.
async fn keeps(connection: &mut PgConnection, day: Day) -> Result<Option<Keeps>, Error> {
    const DOING: &str = "looking at an old partition";
    let table = OUTBOX.of(day);
    let unread = format!(
        "SELECT s.shard::smallint FROM generate_series(0, {last}) AS s (shard) \
         LEFT JOIN laneway.relay_cursors c ON c.shard = s.shard \
         WHERE (c.shard IS NULL OR c.s1 IS NULL) AND EXISTS (SELECT FROM {table} o WHERE o.shard = s.shard) \
            OR EXISTS (SELECT FROM {table} o WHERE o.shard = c.shard AND o.xid >= pg_snapshot_xmax(c.s1) \
                AND o.id > c.floor_id AND (o.id > c.last_id OR NOT pg_visible_in_snapshot(o.xid, c.s2))) \
            OR EXISTS (SELECT FROM pg_snapshot_xip(c.s1) AS x (xid), LATERAL ( \
                SELECT FROM {table} o WHERE o.shard = c.shard AND o.xid = x.xid AND o.id > c.floor_id \
                AND (o.id > c.last_id OR NOT pg_visible_in_snapshot(o.xid, c.s2)) LIMIT 1) AS late) \
         LIMIT 1",
        last = SHARDS - 1
    );
    let shard: Option<i16> = sqlx::query_scalar(AssertSqlSafe(unread))
        .fetch_optional(&mut *connection)
        .await
        .map_err(Error::doing(DOING))?;
    if let Some(shard) = shard {
        return Ok(Some(Keeps::Unread(Shard::from_db(shard)?)));
    }
    let held = format!(
        "SELECT h.shard FROM laneway.relay_held h WHERE h.left_entry IS NULL AND EXISTS ( \
            SELECT FROM {table} o WHERE o.shard = h.shard AND o.id = h.row_id) LIMIT 1"
    );
    let shard: Option<i16> = sqlx::query_scalar(AssertSqlSafe(held))
        .fetch_optional(connection)
        .await
        .map_err(Error::doing(DOING))?;
    shard.map(|shard| Ok(Keeps::Held(Shard::from_db(shard)?))).transpose()
}
