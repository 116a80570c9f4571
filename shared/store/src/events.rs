//! Intake of events over the API: rows of the control database's own outbox, written by `laneway.emit` in the
//! transaction that also holds the idempotency claim (C5).

use crate::deliveries::KnownEvent;
use crate::idempotency::Work;
use crate::{Error, Pool};
use laneway_wire::{DeliveryId, EventId, TenantId, Timestamp};
use sqlx::Row;
use uuid::Uuid;

/// An event as it comes in; the caller has checked it.
#[derive(Debug, Clone, Copy)]
pub struct NewEvent<'a> {
    /// Its type.
    pub event_type: &'a str,
    /// Whose lane it is in, at each endpoint.
    pub user_key: Option<&'a str>,
    /// What is sent, byte for byte.
    pub payload: &'a [u8],
    /// Unique per tenant, if there is one.
    pub dedupe_key: Option<&'a str>,
    /// W3C trace context of the request.
    pub traceparent: Option<&'a str>,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emitted {
    /// It is in the outbox as soon as the transaction commits.
    New(EventId),
    /// An event with the same dedupe key was emitted before: this one. Nothing was written.
    Duplicate(EventId),
}

/// Emits an event within `work`.
///
/// # Errors
/// A lane's lock that is held for long by another writer is transient; [`Error::is_check_violation`] if the outbox
/// refuses what the caller should have refused.
pub async fn event_emit(work: &mut Work, event: &NewEvent<'_>) -> Result<Emitted, Error> {
    let tenant = work.tenant();
    let doing = "emitting an event";
    let id: Uuid = sqlx::query_scalar(
        "SELECT laneway.emit(tenant => $1, type => $2, user_key => $3, payload => $4, dedupe_key => $5, \
         traceparent => $6)",
    )
    .bind(tenant.as_uuid())
    .bind(event.event_type)
    .bind(event.user_key)
    .bind(event.payload)
    .bind(event.dedupe_key)
    .bind(event.traceparent)
    .fetch_one(work.connection())
    .await
    .map_err(Error::doing(doing))?;
    let id = EventId::from_uuid(id);
    let Some(dedupe_key) = event.dedupe_key else { return Ok(Emitted::New(id)) };
    // `emit` gives the first event's id either way; whose row it is tells them apart.
    let is_ours: bool = sqlx::query_scalar(
        "SELECT xmin = pg_current_xact_id()::xid FROM laneway.outbox_dedupe \
         WHERE tenant = $1 AND dedupe_key = $2",
    )
    .bind(tenant.as_uuid())
    .bind(dedupe_key)
    .fetch_one(work.connection())
    .await
    .map_err(Error::doing(doing))?;
    Ok(if is_ours { Emitted::New(id) } else { Emitted::Duplicate(id) })
}

/// How long before its row's time an event's id may have been made, by clocks and by waiting for the lane's lock.
const ID_BEFORE_ROW: i64 = 15_000;
/// How long after, by clocks.
const ID_AFTER_ROW: i64 = 1_000;
/// Events of one tenant and millisecond that are looked at.
const MAX_SAME_TIME: i64 = 100;

/// An event of the control database's outbox. Its id's own time leads to its place there; an id that was not made by
/// `emit` is not found.
pub(crate) async fn event_find(
    pool: &Pool,
    tenant: TenantId,
    event: EventId,
) -> Result<Option<KnownEvent>, Error> {
    let found = between(pool, tenant, event.as_uuid(), event.as_uuid()).await?;
    Ok(found.into_iter().next())
}

/// The events whose deliveries' ids begin like `delivery`.
pub(crate) async fn events_of_millisecond(
    pool: &Pool,
    tenant: TenantId,
    delivery: DeliveryId,
) -> Result<Vec<KnownEvent>, Error> {
    const REST: u128 = (1 << 80) - 1;
    let id = delivery.as_uuid().as_u128();
    between(pool, tenant, Uuid::from_u128(id & !REST), Uuid::from_u128(id | REST)).await
}

async fn between(
    pool: &Pool,
    tenant: TenantId,
    first: Uuid,
    last: Uuid,
) -> Result<Vec<KnownEvent>, Error> {
    let millis = i64::try_from(first.as_u128() >> 80).unwrap_or(0);
    sqlx::query(
        "SELECT event_id, type, (extract(epoch FROM created_at) * 1000)::bigint FROM laneway.outbox \
         WHERE event_id BETWEEN $2 AND $3 AND tenant = $1 AND rewind IS NULL \
           AND created_at >= to_timestamp($4::double precision / 1000) \
           AND created_at < to_timestamp($5::double precision / 1000) \
         ORDER BY event_id LIMIT $6",
    )
    .bind(tenant.as_uuid())
    .bind(first)
    .bind(last)
    .bind((millis - ID_AFTER_ROW) as f64)
    .bind((millis + ID_BEFORE_ROW) as f64)
    .bind(MAX_SAME_TIME)
    .fetch_all(pool.inner())
    .await
    .and_then(|rows| {
        rows.iter()
            .map(|row| {
                Ok(KnownEvent {
                    id: EventId::from_uuid(row.try_get(0)?),
                    event_type: row.try_get(1)?,
                    created_at: Timestamp(row.try_get(2)?),
                })
            })
            .collect()
    })
    .map_err(Error::doing("looking an event up"))
}
