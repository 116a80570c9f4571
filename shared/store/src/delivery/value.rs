//! Between the product's values and the driver's.

use crate::Error;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use laneway_lane::{ParkedEvent, Position};
use laneway_wire::{EndpointId, LaneId, LaneMode, Record, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::sync::Arc;
use std::time::Duration;

/// A point of time as stored; beyond what the driver can hold, the nearest that it can.
pub(crate) fn stored(at: Timestamp) -> DateTime<Utc> {
    // Year 9999: PostgreSQL and chrono both hold it, and nothing that is stored is later.
    const LAST: i64 = 253_402_300_799_000;
    DateTime::from_timestamp_millis(at.as_millis().clamp(0, LAST)).unwrap_or(DateTime::UNIX_EPOCH)
}

/// The inverse of [`stored`]; microseconds are cut off.
pub(crate) fn loaded(at: DateTime<Utc>) -> Timestamp {
    Timestamp(at.timestamp_millis())
}

/// A span in whole milliseconds, at most what an `integer` holds.
pub(crate) fn millis(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX)
}

/// The inverse of [`millis`].
pub(crate) fn span(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// A count as an `integer`.
pub(crate) fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The inverse of [`count`].
pub(crate) fn uncount(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A generation, an epoch or a renewal as a `bigint`.
pub(crate) fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The inverse of [`big`].
pub(crate) fn unbig(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A bucket as a `smallint`.
pub(crate) fn bucket(lane: LaneId) -> i16 {
    i16::try_from(lane.bucket().number()).expect("buckets are below 1024")
}

/// A lane mode as a `smallint`.
pub(crate) fn mode(mode: LaneMode) -> i16 {
    i16::from(mode.as_byte())
}

/// The inverse of [`mode`]; a mode that nobody has written orders nothing.
pub(crate) fn mode_of(stored: i16) -> LaneMode {
    u8::try_from(stored).ok().and_then(LaneMode::from_byte).unwrap_or(LaneMode::None)
}

/// A lane id as stored.
pub(crate) fn lane(bytes: &[u8]) -> Result<LaneId, Error> {
    <[u8; 16]>::try_from(bytes)
        .map(LaneId::from_bytes)
        .map_err(|_| Error::Stored { what: "lane id", value: format!("{} bytes", bytes.len()) })
}

/// A record as stored in a parked row.
pub(crate) fn record(bytes: Vec<u8>) -> Result<Arc<Record>, Error> {
    Record::decode(&Bytes::from(bytes))
        .map(Arc::new)
        .map_err(|error| Error::Stored { what: "parked record", value: error.code().to_owned() })
}

/// The endpoint and lane of a row, by column names.
pub(crate) fn lane_and_endpoint(row: &PgRow) -> Result<(LaneId, EndpointId), Error> {
    const DOING: &str = "reading a parked lane";
    let id: &[u8] = row.try_get("lane").map_err(Error::doing(DOING))?;
    let endpoint = row.try_get("endpoint_id").map_err(Error::doing(DOING))?;
    Ok((lane(id)?, EndpointId::from_uuid(endpoint)))
}

/// What [`parked_event`] reads but for `unknown`, of the rows `l` of `parked_lanes`, `e` of `parked_events` and, if there
/// is one, `p` of `endpoints`. Both begins of the horizon are told as they are now: while the endpoint is disabled it
/// stands (I22).
macro_rules! parked_event_columns {
    () => {
        "e.lane, e.endpoint_id, l.due, greatest(l.clock_from, p.enabled_at, 'epoch') AS clock_from, e.generation, \
           e.moves, e.log_offset, e.attempts, e.record, \
           e.first_held + coalesce(CASE WHEN e.attempts > 0 THEN p.stood_ms - l.stood_ms END, 0) * interval '1 ms' \
             AS first_held, \
           EXISTS (SELECT FROM laneway_control.intents i WHERE i.delivery_id = e.delivery_id) AS open_intent, \
           EXISTS (SELECT FROM laneway_control.inbox b WHERE b.delivery_id = e.delivery_id) AS settled"
    };
}
pub(crate) use parked_event_columns;

/// A parked event as [`parked_event`] reads it; `None` if the row cannot be read, which is told: its lane waits, and
/// nobody else does.
pub(crate) fn readable(row: &PgRow) -> Result<Option<ParkedEvent>, Error> {
    match parked_event(row) {
        Ok(event) => Ok(Some(event)),
        Err(error @ Error::Stored { .. }) => {
            let of = lane_and_endpoint(row).map(|(lane, _)| lane.to_string()).unwrap_or_default();
            tracing::error!(lane = of, %error, "a parked event cannot be read: its lane waits");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A parked event from a row with [`parked_event_columns`].
pub(crate) fn parked_event(row: &PgRow) -> Result<ParkedEvent, Error> {
    let bytes: Vec<u8> = row.try_get("record").map_err(Error::doing("reading a parked event"))?;
    parked_event_of(row, record(bytes)?)
}

/// The same with this record.
pub(crate) fn parked_event_of(row: &PgRow, record: Arc<Record>) -> Result<ParkedEvent, Error> {
    let read = || -> Result<_, sqlx::Error> {
        let position = Position {
            generation: unbig(row.try_get("generation")?),
            moves: uncount(row.try_get("moves")?),
            offset: row.try_get("log_offset")?,
        };
        let first_held = loaded(row.try_get("first_held")?);
        let clock_from = loaded(row.try_get("clock_from")?);
        let due = loaded(row.try_get("due")?);
        Ok((position, first_held, clock_from, due))
    };
    let flags = || -> Result<(bool, bool, bool, i32), sqlx::Error> {
        Ok((
            row.try_get("unknown")?,
            row.try_get("open_intent")?,
            row.try_get("settled")?,
            row.try_get("attempts")?,
        ))
    };
    const DOING: &str = "reading a parked event";
    let (position, first_held, clock_from, due) = read().map_err(Error::doing(DOING))?;
    let (unknown, open_intent, settled, attempts) = flags().map_err(Error::doing(DOING))?;
    let (lane, _) = lane_and_endpoint(row)?;
    Ok(ParkedEvent {
        lane,
        position,
        record,
        first_held,
        clock_from,
        attempts: uncount(attempts),
        due,
        unknown,
        open_intent,
        settled,
    })
}
