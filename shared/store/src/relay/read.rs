//! Reading the outbox by snapshot difference (PgQ's algorithm): what `s2` sees and `s1` does not, in id order.
//!
//! Two parts make a batch: rows of transactions that began after `s1` (`xid >= xmax(s1)`), and rows of transactions
//! that were under way at `s1`. A page takes both in id order, so a catch-up costs what the backlog holds and no more.

use super::{Cursor, Shard, Snapshot};
use crate::topology::big;
use crate::{Error, Pool};
use bytes::Bytes;
use laneway_lane::relay::Window;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, TenantId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

/// One committed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its id in its source.
    pub id: i64,
    /// Its event id.
    pub event: EventId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Its type.
    pub event_type: String,
    /// Its user key, if it has one.
    pub user_key: Option<String>,
    /// Its payload, byte for byte.
    pub payload: Bytes,
    /// What the payload is.
    pub content_type: String,
    /// Custom headers by name.
    pub headers: Vec<(String, String)>,
    /// W3C trace context, if the writer gave one.
    pub traceparent: Option<String>,
    /// When it was written, database time.
    pub created_at: Timestamp,
    /// What it repeats, if it is a rewind.
    pub rewind: Option<Rewind>,
    /// Its payload was erased after it had been published: what is published of it again is not to be sent.
    pub erased: bool,
}

impl OutboxRow {
    /// The id of the row's delivery to `endpoint`.
    pub fn delivery_id(&self, endpoint: EndpointId) -> DeliveryId {
        self.rewind
            .map_or_else(|| DeliveryId::first(self.event, endpoint), |rewind| rewind.delivery)
    }
}

/// A row that sends an event again, to one endpoint (design section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewind {
    /// The id of the new delivery.
    pub delivery: DeliveryId,
    /// Where it goes, whatever is subscribed.
    pub endpoint: EndpointId,
    /// The mode of the delivery that it repeats.
    pub mode: LaneMode,
    /// 1 for the first rewind of this event to this endpoint; 0 for its first delivery, published again by a repair.
    pub number: u32,
    /// The delivery that it repeats.
    pub of: DeliveryId,
}

/// [`Rewind`] as stored in `outbox.rewind`: fields are only added.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct StoredRewind {
    pub(crate) delivery: uuid::Uuid,
    pub(crate) endpoint: uuid::Uuid,
    pub(crate) mode: u8,
    pub(crate) number: u32,
    pub(crate) of: uuid::Uuid,
}

impl From<Rewind> for StoredRewind {
    fn from(rewind: Rewind) -> Self {
        Self {
            delivery: rewind.delivery.as_uuid(),
            endpoint: rewind.endpoint.as_uuid(),
            mode: rewind.mode.as_byte(),
            number: rewind.number,
            of: rewind.of.as_uuid(),
        }
    }
}

/// What a look at the outbox found.
#[derive(Debug, Clone)]
pub struct Poll {
    /// What the look saw: the end of the batches that follow from it.
    pub snapshot: Snapshot,
    /// Shards with rows beyond their `s2`.
    pub fresh: Vec<Shard>,
}

/// Looks which of `shards` have rows beyond their batch, in one round trip that writes nothing. If the server's
/// snapshot is still `known`, nothing can have been committed since and nothing is looked at.
pub async fn poll(pool: &Pool, shards: &[Shard], known: Option<&Snapshot>) -> Result<Poll, Error> {
    const DOING: &str = "polling the outbox";
    let shards: Vec<i16> = shards.iter().map(|shard| shard.db()).collect();
    // `id + 0`: no plan may walk a partition by (shard, id), even one made when the partition was empty.
    let row = sqlx::query(
        "SELECT pg_current_snapshot()::text, CASE WHEN pg_current_snapshot()::text = $2 THEN '{}' ELSE \
            coalesce((SELECT array_agg(c.shard) FROM laneway.relay_cursors c WHERE c.shard = ANY($1) AND ( \
                EXISTS (SELECT FROM laneway.outbox o WHERE o.shard = c.shard \
                        AND o.xid >= pg_snapshot_xmax(c.s2) AND o.id + 0 > c.floor_id) \
                OR EXISTS (SELECT FROM pg_snapshot_xip(c.s2) AS x (xid), LATERAL ( \
                        SELECT FROM laneway.outbox o WHERE o.shard = c.shard AND o.xid = x.xid \
                        AND o.id + 0 > c.floor_id LIMIT 1) AS late))), '{}') END",
    )
    .bind(&shards)
    .bind(known.map(Snapshot::as_str))
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let fresh: Vec<i16> = row.try_get(1).map_err(Error::doing(DOING))?;
    Ok(Poll {
        snapshot: super::snapshot(row.try_get(0).map_err(Error::doing(DOING))?)?,
        fresh: fresh.into_iter().map(Shard::from_db).collect::<Result<_, _>>()?,
    })
}

/// Ids between which the batch's rows of new transactions lie, both included; empty if `low` > `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The lowest.
    pub low: i64,
    /// The highest.
    pub high: i64,
    /// How many there are, those that are not visible yet included.
    pub rows: u64,
}

/// Finds a batch's bounds, so that its pages neither walk over older rows nor over newer ones.
pub async fn batch_bounds(pool: &Pool, shard: Shard, cursor: &Cursor) -> Result<Bounds, Error> {
    const DOING: &str = "looking at a batch";
    let Some(s1) = &cursor.s1 else {
        return Ok(Bounds { low: 0, high: cursor.floor_id, rows: 0 });
    };
    let window = Window::between(s1, &cursor.s2);
    let row = sqlx::query(
        "SELECT coalesce(min(id), 1), coalesce(max(id), 0), count(*) FROM laneway.outbox \
         WHERE shard = $1 AND xid >= $2::text::xid8 AND xid < $3::text::xid8 AND id + 0 > $4",
    )
    .bind(shard.db())
    .bind(window.from.to_string())
    .bind(window.until.to_string())
    .bind(cursor.floor_id)
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    Ok(Bounds {
        low: row.try_get(0).map_err(Error::doing(DOING))?,
        high: row.try_get(1).map_err(Error::doing(DOING))?,
        rows: big(&row, 2, DOING)?,
    })
}

/// A page of a batch.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its rows in id order.
    pub rows: Vec<OutboxRow>,
    /// Whether the batch ends with it.
    pub last: bool,
}

/// The batch's rows after `after`, in id order: at most `max_rows`, and not more payload than `max_bytes` and one row.
pub async fn batch_page(
    pool: &Pool,
    shard: Shard,
    cursor: &Cursor,
    bounds: Bounds,
    after: i64,
    max_rows: u32,
    max_bytes: u64,
) -> Result<Page, Error> {
    const DOING: &str = "reading a page";
    let max_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
    let rows = match &cursor.s1 {
        Some(s1) => {
            let window = Window::between(s1, &cursor.s2);
            let late: Vec<String> = window.late.iter().map(u64::to_string).collect();
            sqlx::query(
                "WITH page AS MATERIALIZED (SELECT * FROM ( \
                    (SELECT id, event_id, tenant, type, user_key, payload, content_type, headers, traceparent, \
                            created_at, rewind, erased \
                     FROM laneway.outbox WHERE shard = $1 AND id > $2 AND id BETWEEN $3 AND $4 \
                        AND xid >= $5::text::xid8 AND xid < $6::text::xid8 \
                        AND pg_visible_in_snapshot(xid, $7::text::pg_snapshot) \
                     ORDER BY id LIMIT $8) \
                    UNION ALL \
                    (SELECT late.* FROM unnest($9::text[]) AS x (xid), LATERAL ( \
                        SELECT id, event_id, tenant, type, user_key, payload, content_type, headers, traceparent, \
                               created_at, rewind, erased \
                        FROM laneway.outbox WHERE shard = $1 AND xid <= x.xid::xid8 \
                            AND (xid, id) > (x.xid::xid8, greatest($2, $10)) \
                            AND pg_visible_in_snapshot(xid, $7::text::pg_snapshot) \
                        ORDER BY xid, id LIMIT $8) AS late)) AS rows ORDER BY id LIMIT $8), \
                 sized AS (SELECT *, count(*) OVER () AS total, \
                        sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before \
                    FROM page) \
                 SELECT id, event_id, tenant, type, user_key, payload, content_type, headers, traceparent, \
                        (extract(epoch FROM created_at) * 1000)::bigint, rewind, total, erased \
                 FROM sized WHERE before <= $11 ORDER BY id",
            )
            .bind(shard.db())
            .bind(after)
            .bind(bounds.low)
            .bind(bounds.high)
            .bind(window.from.to_string())
            .bind(window.until.to_string())
            .bind(cursor.s2.as_str())
            .bind(i64::from(max_rows))
            .bind(late)
            .bind(cursor.floor_id)
            .bind(max_bytes)
            .fetch_all(pool.inner())
            .await
        }
        None => {
            sqlx::query(
                "WITH page AS MATERIALIZED ( \
                    SELECT id, event_id, tenant, type, user_key, payload, content_type, headers, traceparent, \
                           created_at, rewind, erased \
                    FROM laneway.outbox WHERE shard = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4), \
                 sized AS (SELECT *, count(*) OVER () AS total, \
                        sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before \
                    FROM page) \
                 SELECT id, event_id, tenant, type, user_key, payload, content_type, headers, traceparent, \
                        (extract(epoch FROM created_at) * 1000)::bigint, rewind, total, erased \
                 FROM sized WHERE before <= $5 ORDER BY id",
            )
            .bind(shard.db())
            .bind(after)
            .bind(cursor.floor_id)
            .bind(i64::from(max_rows))
            .bind(max_bytes)
            .fetch_all(pool.inner())
            .await
        }
    }
    .map_err(Error::doing(DOING))?;
    let total = match rows.first() {
        Some(row) => big(row, 11, DOING)?,
        None => 0,
    };
    let last = total < u64::from(max_rows) && rows.len() as u64 == total;
    Ok(Page { rows: rows.iter().map(outbox_row).collect::<Result<_, _>>()?, last })
}

/// Rows of a shard by id, in id order; ids that are not there are left out.
pub async fn rows_by_id(pool: &Pool, shard: Shard, ids: &[i64]) -> Result<Vec<OutboxRow>, Error> {
    const DOING: &str = "reading held rows";
    let rows = sqlx::query(
        "SELECT o.id, o.event_id, o.tenant, o.type, o.user_key, o.payload, o.content_type, o.headers, \
                o.traceparent, (extract(epoch FROM o.created_at) * 1000)::bigint, o.rewind, o.erased \
         FROM unnest($2::bigint[]) AS i (id), LATERAL ( \
            SELECT * FROM laneway.outbox WHERE shard = $1 AND id = i.id) AS o ORDER BY o.id",
    )
    .bind(shard.db())
    .bind(ids)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter().map(outbox_row).collect()
}

/// How far behind a source's shards are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Visible rows that no cursor has passed, counted up to the caller's limit a shard.
    pub rows: u64,
    /// When the oldest of them was written.
    pub oldest: Option<Timestamp>,
}

/// Counts what waits in `shards`, at most `limit` rows a shard.
pub async fn pending(pool: &Pool, shards: &[Shard], limit: u32) -> Result<Pending, Error> {
    const DOING: &str = "counting what waits";
    let shards: Vec<i16> = shards.iter().map(|shard| shard.db()).collect();
    let row = sqlx::query(
        "SELECT coalesce(sum(w.rows), 0)::bigint, (extract(epoch FROM min(w.oldest)) * 1000)::bigint \
         FROM laneway.relay_cursors c, LATERAL ( \
            SELECT count(*) AS rows, min(r.created_at) AS oldest FROM ( \
                (SELECT created_at FROM laneway.outbox o \
                 WHERE o.shard = c.shard AND o.xid >= pg_snapshot_xmax(coalesce(c.s1, c.s2)) AND o.id > c.floor_id \
                    AND (o.id > c.last_id OR NOT pg_visible_in_snapshot(o.xid, c.s2)) \
                 LIMIT $2) \
                UNION ALL \
                (SELECT created_at FROM pg_snapshot_xip(coalesce(c.s1, c.s2)) AS x (xid), LATERAL ( \
                    SELECT created_at FROM laneway.outbox o \
                    WHERE o.shard = c.shard AND o.xid = x.xid AND o.id > c.floor_id \
                        AND (o.id > c.last_id OR NOT pg_visible_in_snapshot(o.xid, c.s2)) LIMIT $2) AS late)) AS r \
         ) AS w WHERE c.shard = ANY($1)",
    )
    .bind(&shards)
    .bind(i64::from(limit))
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    Ok(Pending {
        rows: big(&row, 0, DOING)?,
        oldest: row.try_get::<Option<i64>, _>(1).map_err(Error::doing(DOING))?.map(Timestamp),
    })
}

fn outbox_row(row: &PgRow) -> Result<OutboxRow, Error> {
    const DOING: &str = "reading an outbox row";
    fn read(row: &PgRow) -> Result<OutboxRow, sqlx::Error> {
        let headers: Option<serde_json::Map<String, serde_json::Value>> =
            row.try_get::<Option<sqlx::types::Json<_>>, _>(7)?.map(|json| json.0);
        let rewind: Option<StoredRewind> =
            row.try_get::<Option<sqlx::types::Json<_>>, _>(10)?.map(|json| json.0);
        Ok(OutboxRow {
            id: row.try_get(0)?,
            event: EventId::from_uuid(row.try_get(1)?),
            tenant: TenantId::from_uuid(row.try_get(2)?),
            event_type: row.try_get(3)?,
            user_key: row.try_get(4)?,
            payload: Bytes::from(row.try_get::<Vec<u8>, _>(5)?),
            content_type: row.try_get(6)?,
            // The outbox's CHECK lets only texts in.
            headers: headers
                .unwrap_or_default()
                .into_iter()
                .filter_map(|(name, value)| Some((name, value.as_str()?.to_owned())))
                .collect(),
            traceparent: row.try_get(8)?,
            created_at: Timestamp(row.try_get(9)?),
            rewind: rewind.map(|stored| Rewind {
                delivery: DeliveryId::from_uuid(stored.delivery),
                endpoint: EndpointId::from_uuid(stored.endpoint),
                mode: LaneMode::from_byte(stored.mode).unwrap_or(LaneMode::User),
                number: stored.number,
                of: DeliveryId::from_uuid(stored.of),
            }),
            erased: row.try_get("erased")?,
        })
    }
    read(row).map_err(Error::doing(DOING))
}
