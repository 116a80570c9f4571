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
    .map_err(Error::doing("emitting an event"))?;
    Ok(Emitted::New(EventId::from_uuid(id)))
}

pub(crate) async fn event_find(
    _pool: &Pool,
    _tenant: TenantId,
    _event: EventId,
) -> Result<Option<KnownEvent>, Error> {
    Ok(None)
}

pub(crate) async fn events_of_millisecond(
    _pool: &Pool,
    _tenant: TenantId,
    _delivery: DeliveryId,
) -> Result<Vec<KnownEvent>, Error> {
    Ok(Vec::new())
}
