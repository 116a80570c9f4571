//! Deliveries that the cursor has passed without publishing them. They leave in row order within their lane; one that
//! has left is kept as long as its entry's history, so that a cursor that goes back can hold it again.

use super::{EntryAcks, HoldReason, Lease, Shard};
use crate::topology::{big, db_big, db_int};
use crate::{Error, Pool};
use laneway_wire::{EndpointId, LaneId, LaneMode, TenantId};
use sqlx::Row;
use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

/// A delivery to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Its lane.
    pub lane: LaneId,
    /// Its outbox row.
    pub row: i64,
    /// Its endpoint.
    pub endpoint: EndpointId,
    /// Its tenant.
    pub tenant: TenantId,
    /// What orders it, as routing found when the row was read.
    pub mode: LaneMode,
    /// Why.
    pub reason: HoldReason,
}

/// [`Hold`]s as columns, for one statement.
#[derive(Default)]
pub(crate) struct HeldColumns {
    pub(crate) lanes: Vec<Vec<u8>>,
    pub(crate) rows: Vec<i64>,
    pub(crate) endpoints: Vec<Uuid>,
    pub(crate) tenants: Vec<Uuid>,
    pub(crate) modes: Vec<i16>,
    pub(crate) reasons: Vec<&'static str>,
}

impl HeldColumns {
    pub(crate) fn of(held: &[Hold]) -> Self {
        let mut columns = Self::default();
        for hold in held {
            columns.lanes.push(hold.lane.as_bytes().to_vec());
            columns.rows.push(hold.row);
            columns.endpoints.push(hold.endpoint.as_uuid());
            columns.tenants.push(hold.tenant.as_uuid());
            columns.modes.push(i16::from(hold.mode.as_byte()));
            columns.reasons.push(hold.reason.as_str());
        }
        columns
    }
}

/// A held delivery whose turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldRow {
    /// Its lane.
    pub lane: LaneId,
    /// Its outbox row.
    pub row: i64,
    /// Its endpoint.
    pub endpoint: EndpointId,
    /// What orders it.
    pub mode: LaneMode,
}

/// A held delivery that was published.
#[derive(Debug, Clone, Copy)]
pub struct Leave {
    /// The row.
    pub held: HeldRow,
    /// Where its record is.
    pub partition: u32,
    /// Where its record is.
    pub offset: i64,
}

/// Whether anything of a shard is held.
pub async fn held_any(pool: &Pool, shard: Shard) -> Result<bool, Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM laneway.relay_held WHERE shard = $1 AND left_entry IS NULL)",
    )
    .bind(shard.db())
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing("looking for held rows"))
}

/// Those of `lanes` that have held rows: whatever comes later in them is held too.
pub async fn held_lanes(
    pool: &Pool,
    shard: Shard,
    lanes: &[LaneId],
) -> Result<HashSet<LaneId>, Error> {
    const DOING: &str = "looking for held lanes";
    let lanes: Vec<Vec<u8>> = lanes.iter().map(|lane| lane.as_bytes().to_vec()).collect();
    let rows = sqlx::query(
        "SELECT l.lane FROM unnest($2::bytea[]) AS l (lane) WHERE EXISTS ( \
            SELECT FROM laneway.relay_held h \
            WHERE h.shard = $1 AND h.lane = l.lane AND h.left_entry IS NULL)",
    )
    .bind(shard.db())
    .bind(lanes)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter().map(|row| lane(row.try_get(0).map_err(Error::doing(DOING))?)).collect()
}

/// Held rows whose turn has come: of at most `lanes` lanes without a refused row in front, the first `per_lane` of
/// each, in row order within a lane.
pub async fn held_sendable(
    pool: &Pool,
    shard: Shard,
    lanes: u32,
    per_lane: u32,
) -> Result<Vec<HeldRow>, Error> {
    const DOING: &str = "reading held rows";
    let rows = sqlx::query(
        "WITH RECURSIVE heads AS ( \
            (SELECT lane, row_id, reason FROM laneway.relay_held \
             WHERE shard = $1 AND left_entry IS NULL ORDER BY lane, row_id LIMIT 1) \
            UNION ALL \
            SELECT n.* FROM heads, LATERAL ( \
                SELECT h.lane, h.row_id, h.reason FROM laneway.relay_held h \
                WHERE h.shard = $1 AND h.left_entry IS NULL AND h.lane > heads.lane \
                ORDER BY h.lane, h.row_id LIMIT 1) AS n), \
         ready AS (SELECT lane FROM heads WHERE reason IN ('hot', 'behind') LIMIT $2) \
         SELECT r.lane, n.row_id, n.endpoint, n.mode FROM ready r, LATERAL ( \
            SELECT h.row_id, h.endpoint, h.mode, h.reason FROM laneway.relay_held h \
            WHERE h.shard = $1 AND h.lane = r.lane AND h.left_entry IS NULL \
              AND h.row_id < coalesce((SELECT min(b.row_id) FROM laneway.relay_held b \
                    WHERE b.shard = $1 AND b.lane = r.lane AND b.left_entry IS NULL \
                      AND b.reason NOT IN ('hot', 'behind')), 9223372036854775807) \
            ORDER BY h.row_id LIMIT $3) AS n \
         ORDER BY r.lane, n.row_id",
    )
    .bind(shard.db())
    .bind(i64::from(lanes))
    .bind(i64::from(per_lane))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            let mode: i16 = row.try_get(3).map_err(Error::doing(DOING))?;
            Ok(HeldRow {
                lane: lane(row.try_get(0).map_err(Error::doing(DOING))?)?,
                row: row.try_get(1).map_err(Error::doing(DOING))?,
                endpoint: EndpointId::from_uuid(row.try_get(2).map_err(Error::doing(DOING))?),
                mode: u8::try_from(mode)
                    .ok()
                    .and_then(LaneMode::from_byte)
                    .ok_or_else(|| Error::Stored { what: "lane mode", value: mode.to_string() })?,
            })
        })
        .collect()
}

/// Marks held rows as published, with the entry's acknowledged offsets (theirs included), in one transaction. False:
/// fenced, nothing was written.
pub async fn held_leave(
    pool: &Pool,
    lease: &Lease,
    left: &[Leave],
    acks: &EntryAcks,
) -> Result<bool, Error> {
    let (mut lanes, mut rows, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
    let (mut partitions, mut offsets) = (Vec::new(), Vec::new());
    for leave in left {
        lanes.push(leave.held.lane.as_bytes().to_vec());
        rows.push(leave.held.row);
        endpoints.push(leave.held.endpoint.as_uuid());
        partitions.push(db_int(leave.partition));
        offsets.push(leave.offset);
    }
    let row = sqlx::query(
        "WITH c AS (SELECT shard FROM laneway.relay_cursors \
                    WHERE shard = $1 AND token = $2 AND entry = $3 FOR NO KEY UPDATE), \
         a AS (INSERT INTO laneway.relay_acks (shard, entry, generation, acked) \
               SELECT shard, $3, $4, $5 FROM c \
               ON CONFLICT (shard, entry, generation) DO UPDATE SET acked = excluded.acked), \
         h AS (UPDATE laneway.relay_held h SET left_entry = $3, left_generation = $4, \
                    left_partition = l.partition, left_offset = l.log_offset \
               FROM c, unnest($6::bytea[], $7::bigint[], $8::uuid[], $9::int[], $10::bigint[]) \
                    AS l (lane, row_id, endpoint, partition, log_offset) \
               WHERE h.shard = c.shard AND h.lane = l.lane AND h.row_id = l.row_id AND h.endpoint = l.endpoint) \
         SELECT count(*) FROM c",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .bind(db_big(acks.entry))
    .bind(db_big(acks.generation))
    .bind(&acks.acked)
    .bind(lanes)
    .bind(rows)
    .bind(endpoints)
    .bind(partitions)
    .bind(offsets)
    .fetch_one(pool.inner())
    .await;
    row.and_then(|row| row.try_get::<i64, _>(0))
        .map(|moved| moved == 1)
        .map_err(Error::doing("marking held rows as published"))
}

/// Notes that a held row turned out to be refused for itself: what is behind it stays. False: fenced.
pub async fn held_refuse(
    pool: &Pool,
    lease: &Lease,
    held: &HeldRow,
    reason: HoldReason,
) -> Result<bool, Error> {
    sqlx::query(
        "UPDATE laneway.relay_held h SET reason = $6 FROM laneway.relay_cursors c \
         WHERE c.shard = $1 AND c.token = $2 AND h.shard = c.shard AND h.lane = $3 AND h.row_id = $4 \
           AND h.endpoint = $5 AND h.left_entry IS NULL",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .bind(held.lane.as_bytes().as_slice())
    .bind(held.row)
    .bind(held.endpoint.as_uuid())
    .bind(reason.as_str())
    .execute(pool.inner())
    .await
    .map(|done| done.rows_affected() == 1)
    .map_err(Error::doing("holding a refused row"))
}

/// Lets rows be tried again whose reason may be gone: those held for their tenant, if it is among `tenants` (none: all)
/// now, and those that the broker refused for their size, for its limit may have been raised.
pub async fn held_reconsider(
    pool: &Pool,
    lease: &Lease,
    tenants: Option<&[TenantId]>,
) -> Result<u64, Error> {
    let tenants: Option<Vec<Uuid>> =
        tenants.map(|tenants| tenants.iter().map(TenantId::as_uuid).collect());
    sqlx::query(
        "UPDATE laneway.relay_held h SET reason = 'behind' FROM laneway.relay_cursors c \
         WHERE c.shard = $1 AND c.token = $2 AND h.shard = c.shard AND h.left_entry IS NULL \
           AND (h.reason = 'size' OR h.reason = 'tenant' AND ($3::uuid[] IS NULL OR h.tenant = ANY($3)))",
    )
    .bind(lease.shard.db())
    .bind(lease.token)
    .bind(tenants)
    .execute(pool.inner())
    .await
    .map(|done| done.rows_affected())
    .map_err(Error::doing("looking at held rows again"))
}

/// Held rows of one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldCount {
    /// The reason, as [`HoldReason::as_str`].
    pub reason: String,
    /// How many.
    pub rows: u64,
    /// Age of the oldest.
    pub oldest: Duration,
}

/// What is held in a source, by reason.
pub async fn held_counts(pool: &Pool) -> Result<Vec<HeldCount>, Error> {
    const DOING: &str = "counting held rows";
    let rows = sqlx::query(
        "SELECT reason, count(*), greatest((extract(epoch FROM now() - min(held_at)) * 1000)::bigint, 0) \
         FROM laneway.relay_held WHERE left_entry IS NULL GROUP BY reason",
    )
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            Ok(HeldCount {
                reason: row.try_get(0).map_err(Error::doing(DOING))?,
                rows: big(row, 1, DOING)?,
                oldest: Duration::from_millis(big(row, 2, DOING)?),
            })
        })
        .collect()
}

fn lane(bytes: Vec<u8>) -> Result<LaneId, Error> {
    let length = bytes.len();
    <[u8; 16]>::try_from(bytes)
        .map(LaneId::from_bytes)
        .map_err(|_| Error::Stored { what: "lane", value: format!("{length} bytes") })
}
