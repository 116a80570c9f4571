//! Reading parked lanes (design 5.2): ids at assignment, heads that are due or expired, pages of one lane.
//!
//! Every load is bounded in rows by its caller and in bytes by [`MAX_BYTES`]; what does not fit comes with the next. A row
//! that cannot be read is left out and told: its own lane waits, no other does (P3).

use super::value::{
    lane_and_endpoint, loaded, mode_of, parked_event_columns, parked_event_of, readable, stored,
};
use crate::{Error, Pool};
use futures_util::TryStreamExt;
use laneway_lane::{ParkedEvent, Partition, Position};
use laneway_wire::{EndpointId, LaneId, Record, Timestamp};
use sqlx::Row;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes of records in one load at most, but for the first record of it.
pub const MAX_BYTES: i64 = 4 * 1024 * 1024;
/// Lanes in one page of [`parked_lanes_read`].
pub const LANES_PAGE: usize = 4_096;

/// Answer to [`parked_due_load`].
#[derive(Debug)]
pub struct DueLoad {
    /// Heads by (due time, lane).
    pub heads: Vec<ParkedEvent>,
    /// Whether more are due behind the last one.
    pub more: bool,
    /// If nothing more is due: the next due time of a lane of the endpoint in the partition.
    pub next_due: Option<Timestamp>,
}

/// Answer to [`parked_page_load`].
#[derive(Debug)]
pub struct PageLoad {
    /// Events by position.
    pub events: Vec<ParkedEvent>,
    /// Whether more follow.
    pub more: bool,
}

/// Sends lane, endpoint and due time of every parked lane of `partition` to `pages`, at most [`LANES_PAGE`] at a
/// time, in no particular order; gives how many there were. A held unknown is due at the end of time.
///
/// One cursorless scan: the socket is the only buffer, so a million lanes need no memory here. Ends early, without an
/// error, if the receiver is gone.
pub async fn parked_lanes_read(
    pool: &Pool,
    partition: Partition,
    pages: mpsc::Sender<Vec<(LaneId, EndpointId, Timestamp)>>,
) -> Result<u64, Error> {
    const DOING: &str = "reading a partition's parked lanes";
    // The first half is an index-only scan.
    let mut rows = sqlx::query(
        "SELECT lane, endpoint_id, (extract(epoch FROM due) * 1000)::bigint AS due_ms \
         FROM laneway_control.parked_lanes WHERE partition = $1 AND NOT unknown \
         UNION ALL \
         SELECT lane, endpoint_id, $2 FROM laneway_control.parked_lanes WHERE partition = $1 AND unknown",
    )
    .bind(partition.cast_signed())
    .bind(i64::MAX)
    .fetch(pool.inner());
    let (mut page, mut count) = (Vec::with_capacity(LANES_PAGE), 0);
    while let Some(row) = rows.try_next().await.map_err(Error::doing(DOING))? {
        let (lane, endpoint) = lane_and_endpoint(&row)?;
        let due = Timestamp(row.try_get("due_ms").map_err(Error::doing(DOING))?);
        page.push((lane, endpoint, due));
        count += 1;
        if page.len() == LANES_PAGE {
            let full = std::mem::replace(&mut page, Vec::with_capacity(LANES_PAGE));
            if pages.send(full).await.is_err() {
                return Ok(count);
            }
        }
    }
    if !page.is_empty() {
        let _ = pages.send(page).await;
    }
    Ok(count)
}

/// Heads of lanes of `endpoint` in `partition` that are due at or before `until`, behind `after`, `limit` at most. None
/// only if none of them can be read.
pub async fn parked_due_load(
    pool: &Pool,
    partition: Partition,
    endpoint: EndpointId,
    after: Option<(Timestamp, LaneId)>,
    until: Timestamp,
    limit: u32,
) -> Result<DueLoad, Error> {
    const DOING: &str = "loading due heads";
    let mut connection = pool.inner().acquire().await.map_err(Error::doing(DOING))?;
    // The last row that was read, whether it could be or not.
    let mut behind = after;
    let heads = loop {
        let (after_due, after_lane) = place(behind);
        // Due times are compared in whole milliseconds, as the core knows them: rounded up when stored they cannot be.
        let rows = sqlx::query(
            concat!(
                "SELECT * FROM (SELECT l.unknown, ", parked_event_columns!(), ", \
               sum(octet_length(e.record)) OVER (ORDER BY l.due, l.lane) - octet_length(e.record) AS before \
             FROM (SELECT * FROM laneway_control.parked_lanes WHERE partition = $1 AND endpoint_id = $2 AND NOT unknown \
               AND due <= $3 AND ($4::timestamptz IS NULL OR (due, lane) > ($4, $5)) ORDER BY due, lane LIMIT $6) l \
             CROSS JOIN LATERAL (SELECT * FROM laneway_control.parked_events e WHERE e.lane = l.lane \
               ORDER BY generation, moves, log_offset LIMIT 1) e \
             LEFT JOIN laneway_control.endpoints p ON p.endpoint_id = l.endpoint_id) sized \
             WHERE before < $7 ORDER BY due, lane"),
        )
        .bind(partition.cast_signed())
        .bind(endpoint.as_uuid())
        .bind(stored(until))
        .bind(after_due)
        .bind(after_lane)
        .bind(i64::from(limit))
        .bind(MAX_BYTES)
        .fetch_all(&mut *connection)
        .await
        .map_err(Error::doing(DOING))?;
        if let Some(last) = rows.last() {
            let (lane, _) = lane_and_endpoint(last)?;
            let due = last.try_get("due").map_err(Error::doing(DOING))?;
            behind = Some((loaded(due), lane));
        }
        let heads = rows.iter().filter_map(|row| readable(row).transpose());
        let heads = heads.collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() || !heads.is_empty() {
            break heads;
        }
    };
    let (behind_due, behind_lane) = place(behind);
    let next = sqlx::query_scalar(
        "SELECT due FROM laneway_control.parked_lanes WHERE partition = $1 AND endpoint_id = $2 AND NOT unknown \
         AND ($3::timestamptz IS NULL OR (due, lane) > ($3, $4)) ORDER BY due, lane LIMIT 1",
    )
    .bind(partition.cast_signed())
    .bind(endpoint.as_uuid())
    .bind(behind_due)
    .bind(behind_lane)
    .fetch_optional(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?
    .map(loaded);
    let more = next.is_some_and(|due| due <= until) && !heads.is_empty();
    Ok(DueLoad { heads, more, next_due: if more { None } else { next } })
}

fn place(
    of: Option<(Timestamp, LaneId)>,
) -> (Option<chrono::DateTime<chrono::Utc>>, Option<Vec<u8>>) {
    of.map_or((None, None), |(due, lane)| (Some(stored(due)), Some(lane.as_bytes().to_vec())))
}

/// Events of `lane` behind `after`, or from its head on, in order of position, `limit` at most. One that cannot
/// be read ends the page. It is given only at the head of a lane whose owner was told to erase it, as a stand-in of which
/// nothing is sent (C17).
pub async fn parked_page_load(
    pool: &Pool,
    lane: LaneId,
    after: Option<Position>,
    limit: u32,
) -> Result<PageLoad, Error> {
    const DOING: &str = "loading a page of a parked lane";
    let after = after.unwrap_or(Position { generation: 0, moves: 0, offset: -1 });
    // One row more than asked for says whether there are more.
    let rows = sqlx::query(
        concat!(
            "SELECT l.unknown AND $4::bigint < 0 AND row_number() OVER \
             (ORDER BY e.generation, e.moves, e.log_offset) = 1 AS unknown, ", parked_event_columns!(), ", \
           sum(octet_length(e.record)) OVER (ORDER BY e.generation, e.moves, e.log_offset) \
             - octet_length(e.record) AS before \
         FROM (SELECT * FROM laneway_control.parked_events WHERE lane = $1 \
           AND (generation, moves, log_offset) > ($2, $3, $4) ORDER BY generation, moves, log_offset LIMIT $5) e \
         JOIN laneway_control.parked_lanes l ON l.lane = e.lane \
         LEFT JOIN laneway_control.endpoints p ON p.endpoint_id = l.endpoint_id \
         ORDER BY e.generation, e.moves, e.log_offset"),
    )
    .bind(lane.as_bytes().as_slice())
    .bind(super::value::big(after.generation))
    .bind(super::value::count(after.moves))
    .bind(after.offset)
    .bind(i64::from(limit) + 1)
    .fetch(pool.inner());
    let mut page = take_page(rows, limit).await.map_err(|error| match error {
        Taking::Driver(source) => Error::Database { doing: DOING, source },
        Taking::Stored(error) => error,
    })?;
    if page.events.is_empty() && page.more && after.offset < 0 {
        page.events.extend(stand_in(pool, lane).await?);
    }
    Ok(page)
}

/// The head of a lane that is to be erased and cannot be read, as its row tells it: erased.
async fn stand_in(pool: &Pool, lane: LaneId) -> Result<Option<ParkedEvent>, Error> {
    const DOING: &str = "reading a head that is to be erased";
    let row = sqlx::query(concat!(
        "SELECT l.unknown, l.mode, l.user_key, l.tenant_id, e.event_id, e.delivery_id, ",
        parked_event_columns!(),
        " FROM laneway_control.parked_lanes l CROSS JOIN LATERAL (SELECT * FROM laneway_control.parked_events e \
             WHERE e.lane = l.lane ORDER BY generation, moves, log_offset LIMIT 1) e \
           LEFT JOIN laneway_control.endpoints p ON p.endpoint_id = l.endpoint_id \
           WHERE l.lane = $1 AND EXISTS (SELECT FROM laneway_control.commands c WHERE c.bucket = l.bucket \
             AND c.lane = l.lane AND c.verdict = 'erase' AND c.applied_at IS NULL)"
    ))
    .bind(lane.as_bytes().as_slice())
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = row else { return Ok(None) };
    let head = || -> Result<_, sqlx::Error> {
        Ok(laneway_wire::record::Head {
            generation: 0,
            delivery: row.try_get("delivery_id")?,
            event: row.try_get("event_id")?,
            endpoint: row.try_get("endpoint_id")?,
            tenant: row.try_get("tenant_id")?,
            mode: mode_of(row.try_get("mode")?),
            user_key: row.try_get("user_key")?,
            event_type: "unreadable".to_owned(),
            content_type: "application/octet-stream".to_owned(),
            headers: Vec::new(),
            traceparent: None,
            source: String::new(),
            row: 0,
            created_at: Timestamp::default(),
            replay: 0,
            replay_of: None,
            erased: true,
        })
    };
    let head = head().map_err(Error::doing(DOING))?;
    let record = Record { head, payload: bytes::Bytes::new() };
    parked_event_of(&row, record.into()).map(Some)
}

enum Taking {
    Driver(sqlx::Error),
    Stored(Error),
}

/// The first rows of `rows` up to `limit` and [`MAX_BYTES`], and whether there were more.
async fn take_page(
    mut rows: impl futures_util::Stream<Item = Result<sqlx::postgres::PgRow, sqlx::Error>> + Unpin,
    limit: u32,
) -> Result<PageLoad, Taking> {
    let mut events = Vec::new();
    let mut more = false;
    while let Some(row) = rows.try_next().await.map_err(Taking::Driver)? {
        let before: i64 = row.try_get("before").map_err(Taking::Driver)?;
        if events.len() == limit as usize || before >= MAX_BYTES {
            more = true;
            break;
        }
        let Some(event) = readable(&row).map_err(Taking::Stored)? else {
            more = true;
            break;
        };
        events.push(event);
    }
    Ok(PageLoad { events, more })
}

/// Heads in `partition` held since before `held_before`, longest first; not held unknowns, not those of disabled
/// endpoints (their clock stands). With them: whether there may be more.
pub async fn parked_expired_load(
    pool: &Pool,
    partition: Partition,
    held_before: Timestamp,
    limit: u32,
) -> Result<(Vec<ParkedEvent>, bool), Error> {
    const DOING: &str = "loading expired heads";
    let mut behind: Option<(chrono::DateTime<chrono::Utc>, Vec<u8>)> = None;
    let (heads, more) = loop {
        let (behind_held, behind_lane) = behind.clone().unzip();
        let rows = sqlx::query(
            concat!(
                "SELECT * FROM (SELECT l.unknown, l.head_held, ", parked_event_columns!(), ", \
               sum(octet_length(e.record)) OVER (ORDER BY l.head_held, l.lane) - octet_length(e.record) AS before \
             FROM (SELECT l.* FROM laneway_control.parked_lanes l \
               LEFT JOIN laneway_control.endpoints p ON p.endpoint_id = l.endpoint_id \
               WHERE l.partition = $1 AND NOT l.unknown AND l.head_held < $2 AND p.state IS DISTINCT FROM 'disabled' \
               AND CASE WHEN l.last_tried IS NULL THEN greatest(l.clock_from, p.enabled_at) < $2 \
                 ELSE l.head_held + coalesce(p.stood_ms - l.stood_ms, 0) * interval '1 ms' < $2 END \
               AND ($5::timestamptz IS NULL OR (l.head_held, l.lane) > ($5, $6)) \
               ORDER BY l.head_held, l.lane LIMIT $3) l \
             CROSS JOIN LATERAL (SELECT * FROM laneway_control.parked_events e WHERE e.lane = l.lane \
               ORDER BY generation, moves, log_offset LIMIT 1) e \
             LEFT JOIN laneway_control.endpoints p ON p.endpoint_id = l.endpoint_id) sized \
             WHERE before < $4 ORDER BY head_held, lane"),
        )
        .bind(partition.cast_signed())
        .bind(stored(held_before))
        .bind(i64::from(limit))
        .bind(MAX_BYTES)
        .bind(behind_held)
        .bind(behind_lane)
        .fetch_all(pool.inner())
        .await
        .map_err(Error::doing(DOING))?;
        if let Some(last) = rows.last() {
            let read = || -> Result<_, sqlx::Error> {
                Ok((last.try_get("head_held")?, last.try_get("lane")?))
            };
            behind = Some(read().map_err(Error::doing(DOING))?);
        }
        let heads = rows.iter().filter_map(|row| readable(row).transpose());
        let heads = heads.collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() || !heads.is_empty() {
            break (heads, rows.len() == limit as usize);
        }
    };
    Ok((heads, more))
}

/// Work of one endpoint that waits in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Held unknowns.
    pub unknowns: u32,
    /// Age of the oldest of them.
    pub unknown_age: Duration,
    /// Age of a head, if it is the oldest of its partition.
    pub head_age: Option<Duration>,
}

/// Held unknowns by endpoint, and the oldest head of each of `partitions`: for gauges. Cheap, whatever waits.
pub async fn waiting_read(pool: &Pool, partitions: &[Partition]) -> Result<Vec<Waiting>, Error> {
    const DOING: &str = "counting what waits";
    let own: Vec<i32> = partitions.iter().map(|partition| partition.cast_signed()).collect();
    let rows = sqlx::query(
        "SELECT endpoint_id, count(*)::int AS unknowns, \
           (extract(epoch FROM now() - min(unknown_since)) * 1000)::bigint AS unknown_ms, NULL::bigint AS head_ms \
         FROM laneway_control.parked_lanes WHERE unknown AND partition = ANY($1) GROUP BY endpoint_id \
         UNION ALL \
         SELECT l.endpoint_id, 0, NULL, (extract(epoch FROM now() - l.head_held) * 1000)::bigint \
         FROM unnest($1::int[]) own(partition) CROSS JOIN LATERAL (SELECT endpoint_id, head_held \
           FROM laneway_control.parked_lanes l WHERE l.partition = own.partition AND NOT unknown \
           ORDER BY head_held LIMIT 1) l",
    )
    .bind(&own)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            let (unknown_ms, head_ms): (Option<i64>, Option<i64>) =
                (row.try_get(2)?, row.try_get(3)?);
            let age = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            Ok(Waiting {
                endpoint: EndpointId::from_uuid(row.try_get(0)?),
                unknowns: super::value::uncount(row.try_get(1)?),
                unknown_age: unknown_ms.map(age).unwrap_or_default(),
                head_age: head_ms.map(age),
            })
        })
        .collect::<Result<_, sqlx::Error>>()
        .map_err(Error::doing(DOING))
}

/// Dead letters of one endpoint for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptDead {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// `rejected`, `expired`.
    pub reason: String,
    /// How many are kept.
    pub count: i64,
}

/// Dead letters that are kept, by endpoint and reason: for a gauge. Reads an index of all of them: not often.
pub async fn dead_letters_read(pool: &Pool) -> Result<Vec<KeptDead>, Error> {
    const DOING: &str = "counting dead letters";
    let rows = sqlx::query(
        "SELECT endpoint_id, reason, count(*) FROM laneway_control.dead_letters WHERE state = 'open' \
         GROUP BY endpoint_id, reason",
    )
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            Ok(KeptDead {
                endpoint: EndpointId::from_uuid(row.try_get(0)?),
                reason: row.try_get(1)?,
                count: row.try_get(2)?,
            })
        })
        .collect::<Result<_, sqlx::Error>>()
        .map_err(Error::doing(DOING))
}
