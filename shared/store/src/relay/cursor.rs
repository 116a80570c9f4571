//! Where a shard stands, and every way that it moves. Each statement proves the token; what it gives back as `None`
//! or `false` means: fenced, another relay owns the shard.

use super::held::HeldColumns;
use super::{Cursor, EntryAcks, Hold, Lease, Shard, Snapshot, millis};
use crate::topology::{big, db_big};
use crate::{Error, Pool};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::time::Duration;

/// Reads where a shard stands; never trust memory after a lost connection.
pub async fn cursor_load(pool: &Pool, lease: &Lease) -> Result<Option<Cursor>, Error> {
    const DOING: &str = "reading the cursor";
    let row = sqlx::query(
        "SELECT c.s1::text, c.s2::text, c.floor_id, c.last_id, c.entry, \
                greatest(c.entry, (SELECT max(entry) FROM laneway.relay_history h WHERE h.shard = c.shard)), \
                c.generation, c.subscription_version, \
                c.system_id IS DISTINCT FROM (SELECT system_identifier FROM pg_control_system()) \
                    AND c.system_id IS NOT NULL \
                OR pg_snapshot_xmax(c.s2) > pg_snapshot_xmax(pg_current_snapshot()) \
         FROM laneway.relay_cursors c WHERE c.shard = $1 AND c.token = $2",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    row.map(|row| {
        Ok(Cursor {
            s1: row
                .try_get::<Option<String>, _>(0)
                .map_err(Error::doing(DOING))?
                .map(|text| super::snapshot(&text))
                .transpose()?,
            s2: snapshot(&row, 1, DOING)?,
            floor_id: row.try_get(2).map_err(Error::doing(DOING))?,
            last_id: row.try_get(3).map_err(Error::doing(DOING))?,
            entry: big(&row, 4, DOING)?,
            last_entry: big(&row, 5, DOING)?,
            generation: big(&row, 6, DOING)?,
            subscription_version: big(&row, 7, DOING)?,
            restored: row.try_get(8).map_err(Error::doing(DOING))?,
            opened: false,
        })
    })
    .transpose()
}

/// Opens the next batch, from the present `s2` to `s2`, which was taken by [`super::poll`]; commits before anything
/// of it is published, so that every transaction below its end is durable. `version` was read after `s2` was taken.
/// A batch joins the history's last entry if that has the same versions and is younger than `entry_age`.
pub async fn batch_open(
    pool: &Pool,
    lease: &Lease,
    s2: &Snapshot,
    version: u64,
    map_version: u64,
    entry_age: Duration,
) -> Result<Option<Cursor>, Error> {
    const DOING: &str = "opening a batch";
    let row = sqlx::query(
        "WITH c AS ( \
            UPDATE laneway.relay_cursors AS c SET s1 = c.s2, s2 = $3::text::pg_snapshot, last_id = 0, \
                system_id = (SELECT system_identifier FROM pg_control_system()), \
                entry = CASE WHEN EXISTS ( \
                        SELECT FROM laneway.relay_history h WHERE h.shard = c.shard AND h.entry = c.entry \
                        AND h.subscription_version = $4 AND h.map_version = $5 AND h.s1 IS NOT NULL \
                        AND h.opened_at > now() - $6 * interval '1 ms') \
                    THEN c.entry ELSE c.entry + 1 END, \
                subscription_version = $4, map_version = $5, map_confirmed = greatest(c.map_confirmed, $5) \
            WHERE c.shard = $1 AND c.token = $2 \
              AND pg_snapshot_xmax(c.s2) <= pg_snapshot_xmax($3::text::pg_snapshot) \
            RETURNING c.shard, c.s1, c.s2, c.floor_id, c.entry, c.generation), \
         h AS ( \
            INSERT INTO laneway.relay_history \
                (shard, entry, s1, s2, floor_id, subscription_version, map_version) \
            SELECT shard, entry, s1, s2, floor_id, $4, $5 FROM c \
            ON CONFLICT (shard, entry) DO UPDATE SET s2 = excluded.s2) \
         SELECT s1::text, s2::text, floor_id, entry, generation FROM c",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .bind(s2.as_str())
    .bind(db_big(version))
    .bind(db_big(map_version))
    .bind(millis(entry_age))
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    row.map(|row| {
        let entry = big(&row, 3, DOING)?;
        Ok(Cursor {
            s1: Some(snapshot(&row, 0, DOING)?),
            s2: snapshot(&row, 1, DOING)?,
            floor_id: row.try_get(2).map_err(Error::doing(DOING))?,
            last_id: 0,
            entry,
            last_entry: entry,
            generation: big(&row, 4, DOING)?,
            subscription_version: version,
            restored: false,
            opened: true,
        })
    })
    .transpose()
}

/// Opens an entry of the history as one batch, to publish it again as it was routed the first time. False: fenced.
pub async fn batch_reopen(
    pool: &Pool,
    lease: &Lease,
    entry: u64,
    map_version: u64,
) -> Result<bool, Error> {
    sqlx::query(
        "UPDATE laneway.relay_cursors c SET s1 = h.s1, s2 = h.s2, floor_id = h.floor_id, last_id = 0, \
            entry = h.entry, subscription_version = h.subscription_version, map_version = $4, \
            map_confirmed = greatest(c.map_confirmed, $4) \
         FROM laneway.relay_history h \
         WHERE c.shard = $1 AND c.token = $2 AND h.shard = c.shard AND h.entry = $3",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .bind(db_big(entry))
    .bind(db_big(map_version))
    .execute(pool.inner())
    .await
    .map(|done| done.rows_affected() == 1)
    .map_err(Error::doing("opening a batch again"))
}

/// A step within a batch.
#[derive(Debug)]
pub struct Advance<'a> {
    /// Everything up to this row is acknowledged or in `held`.
    pub last_id: i64,
    /// The entry's acknowledged offsets as a whole, this step's included.
    pub acks: &'a EntryAcks,
    /// Deliveries that the cursor passes without having published them.
    pub held: &'a [Hold],
}

/// Moves the cursor within its batch, with the acknowledged offsets and the held rows, in one transaction. The marks
/// were raised before. False: fenced, nothing was written.
pub async fn batch_advance(
    pool: &Pool,
    lease: &Lease,
    advance: &Advance<'_>,
) -> Result<bool, Error> {
    let held = HeldColumns::of(advance.held);
    let row = sqlx::query(
        "WITH c AS (UPDATE laneway.relay_cursors SET last_id = $3 \
                    WHERE shard = $1 AND token = $2 AND entry = $4 RETURNING shard), \
         a AS (INSERT INTO laneway.relay_acks (shard, entry, generation, acked) \
               SELECT shard, $4, $5, $6 FROM c \
               ON CONFLICT (shard, entry, generation) DO UPDATE SET acked = excluded.acked), \
         h AS (INSERT INTO laneway.relay_held (shard, lane, row_id, endpoint, tenant, mode, reason) \
               SELECT c.shard, h.* FROM c, \
                   unnest($7::bytea[], $8::bigint[], $9::uuid[], $10::uuid[], $11::smallint[], $12::text[]) AS h \
               ON CONFLICT DO NOTHING) \
         SELECT count(*) FROM c",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .bind(advance.last_id)
    .bind(db_big(advance.acks.entry))
    .bind(db_big(advance.acks.generation))
    .bind(&advance.acks.acked)
    .bind(&held.lanes)
    .bind(&held.rows)
    .bind(&held.endpoints)
    .bind(&held.tenants)
    .bind(&held.modes)
    .bind(&held.reasons)
    .fetch_one(pool.inner())
    .await;
    row.and_then(|row| row.try_get::<i64, _>(0))
        .map(|moved| moved == 1)
        .map_err(Error::doing("moving the cursor"))
}

/// Acknowledged offsets of one entry in one generation; all empty if there are none.
pub async fn acks_of(
    pool: &Pool,
    shard: Shard,
    entry: u64,
    generation: u64,
    partitions: u32,
) -> Result<EntryAcks, Error> {
    let stored: Option<Vec<Option<i64>>> = sqlx::query_scalar(
        "SELECT acked FROM laneway.relay_acks WHERE shard = $1 AND entry = $2 AND generation = $3",
    )
    .bind(shard.db())
    .bind(db_big(entry))
    .bind(db_big(generation))
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing("reading acknowledged offsets"))?;
    let mut acked = stored.unwrap_or_default();
    acked.resize(partitions as usize, None);
    Ok(EntryAcks { entry, generation, acked })
}

/// Acknowledged offsets of a shard's whole history, in order of (entry, generation).
pub async fn acks_all(pool: &Pool, shard: Shard) -> Result<Vec<EntryAcks>, Error> {
    const DOING: &str = "reading the history";
    let rows = sqlx::query(
        "SELECT a.entry, a.generation, a.acked FROM laneway.relay_acks a \
         JOIN laneway.relay_history h USING (shard, entry) WHERE a.shard = $1 ORDER BY 1, 2",
    )
    .bind(shard.db())
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            Ok(EntryAcks {
                entry: big(row, 0, DOING)?,
                generation: big(row, 1, DOING)?,
                acked: row.try_get(2).map_err(Error::doing(DOING))?,
            })
        })
        .collect()
}

/// Notes that losses up to `generation` have been looked at, and goes back to entry `to` if something was lost; what
/// left the held rows in or after that entry is held again. False: fenced.
pub async fn cursor_go_back(
    pool: &Pool,
    lease: &Lease,
    generation: u64,
    to: Option<u64>,
) -> Result<bool, Error> {
    const DOING: &str = "going back";
    let mut tx = pool.begin().await?;
    let noted = sqlx::query(
        "UPDATE laneway.relay_cursors SET generation = $3 WHERE shard = $1 AND token = $2",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .bind(db_big(generation))
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    if noted.rows_affected() != 1 {
        return Ok(false);
    }
    if let Some(to) = to {
        sqlx::query(
            "UPDATE laneway.relay_cursors c SET s1 = h.s1, s2 = h.s2, floor_id = h.floor_id, last_id = 0, \
                entry = h.entry, subscription_version = h.subscription_version, map_version = h.map_version \
             FROM laneway.relay_history h WHERE c.shard = $1 AND h.shard = c.shard AND h.entry = $2",
        )
        .bind(lease.shard.db())
        .bind(db_big(to))
        .execute(&mut *tx)
        .await
        .map_err(Error::doing(DOING))?;
        sqlx::query(
            "UPDATE laneway.relay_held SET left_entry = NULL, left_generation = NULL, \
                left_partition = NULL, left_offset = NULL WHERE shard = $1 AND left_entry >= $2",
        )
        .bind(lease.shard.db())
        .bind(db_big(to))
        .execute(&mut *tx)
        .await
        .map_err(Error::doing(DOING))?;
    }
    tx.commit().await.map_err(Error::doing(DOING))?;
    Ok(true)
}

/// After a logical restore (transactions were begun anew, so the snapshots mean nothing): opens a batch of every row
/// there is, under a lock that no writer is within, and forgets the history. Transient if writers keep the lock busy;
/// false: fenced. `version` is called while the batch is being opened, after its end is fixed.
pub async fn cursor_restore<F, Fut>(
    pool: &Pool,
    lease: &Lease,
    map_version: u64,
    version: F,
) -> Result<bool, Error>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<u64, Error>>,
{
    const DOING: &str = "starting again after a restore";
    let mut tx = pool.begin().await?;
    for statement in ["SET LOCAL lock_timeout = '300ms'", "LOCK TABLE laneway.outbox IN SHARE MODE"]
    {
        sqlx::query(statement).execute(&mut *tx).await.map_err(Error::doing(DOING))?;
    }
    let moved = sqlx::query(
        "UPDATE laneway.relay_cursors c SET s1 = NULL, s2 = pg_current_snapshot(), last_id = 0, \
            floor_id = coalesce((SELECT max(o.id) FROM laneway.outbox o WHERE o.shard = c.shard), 0), \
            entry = 1 + greatest(c.entry, \
                (SELECT max(entry) FROM laneway.relay_history h WHERE h.shard = c.shard)), \
            system_id = (SELECT system_identifier FROM pg_control_system()) \
         WHERE c.shard = $1 AND c.token = $2",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    if moved.rows_affected() != 1 {
        return Ok(false);
    }
    let version = version().await?;
    for statement in [
        "DELETE FROM laneway.relay_history WHERE shard = $1",
        "DELETE FROM laneway.relay_acks WHERE shard = $1",
        "UPDATE laneway.relay_held SET left_entry = NULL, left_generation = NULL, left_partition = NULL, \
         left_offset = NULL WHERE shard = $1 AND left_entry IS NOT NULL",
    ] {
        sqlx::query(statement)
            .bind(lease.shard.db())
            .execute(&mut *tx)
            .await
            .map_err(Error::doing(DOING))?;
    }
    sqlx::query(
        "WITH c AS (UPDATE laneway.relay_cursors SET subscription_version = $2, map_version = $3, \
                        map_confirmed = greatest(map_confirmed, $3) \
                    WHERE shard = $1 RETURNING shard, entry, s1, s2, floor_id) \
         INSERT INTO laneway.relay_history (shard, entry, s1, s2, floor_id, subscription_version, map_version) \
         SELECT shard, entry, s1, s2, floor_id, $2, $3 FROM c",
    )
    .bind(lease.shard.db())
    .bind(db_big(version))
    .bind(db_big(map_version))
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    tx.commit().await.map_err(Error::doing(DOING))?;
    Ok(true)
}

/// The generation up to which every shard has looked at losses: below the present one, some may still go back.
pub async fn generation_looked_at(pool: &Pool) -> Result<u64, Error> {
    const DOING: &str = "reading the cursors";
    let row = sqlx::query("SELECT min(generation) FROM laneway.relay_cursors")
        .fetch_one(pool.inner())
        .await
        .map_err(Error::doing(DOING))?;
    big(&row, 0, DOING)
}

fn snapshot(row: &PgRow, at: usize, doing: &'static str) -> Result<Snapshot, Error> {
    super::snapshot(row.try_get(at).map_err(Error::doing(doing))?)
}
