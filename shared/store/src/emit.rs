//! Writing many events into a source database's outbox, as an application would: for `laneway emit`, the demo and tests.

use crate::events::NewEvent;
use crate::{Error, Pool};
use laneway_wire::{EventId, TenantId};
use uuid::Uuid;

/// Emits `events` of `tenant` in their order, in one transaction (`laneway.emit_many`), and gives their ids; with a
/// dedupe key that was used before, the id of the first event.
///
/// # Errors
/// [`Error::is_value_refused`] if the outbox refuses one of them: nothing is written then. If
/// [`Error::is_connection_lost`], all or none may have been.
pub async fn events_emit(
    pool: &Pool,
    tenant: TenantId,
    events: &[NewEvent<'_>],
) -> Result<Vec<EventId>, Error> {
    let types: Vec<&str> = events.iter().map(|event| event.event_type).collect();
    let user_keys: Vec<Option<&str>> = events.iter().map(|event| event.user_key).collect();
    let payloads: Vec<&[u8]> = events.iter().map(|event| event.payload).collect();
    let dedupe_keys: Vec<Option<&str>> = events.iter().map(|event| event.dedupe_key).collect();
    let dedupe_keys = dedupe_keys.iter().any(Option::is_some).then_some(dedupe_keys);
    let traceparents: Vec<Option<&str>> = events.iter().map(|event| event.traceparent).collect();
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "SELECT laneway.emit_many(tenant => $1, types => $2, user_keys => $3, payloads => $4, dedupe_keys => $5, \
         traceparents => $6)",
    )
    .bind(tenant.as_uuid())
    .bind(types)
    .bind(user_keys)
    .bind(payloads)
    .bind(dedupe_keys)
    .bind(traceparents)
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing("emitting events"))?;
    Ok(ids.into_iter().map(EventId::from_uuid).collect())
}
