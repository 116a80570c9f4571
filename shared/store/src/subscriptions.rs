//! Subscriptions: which event types an endpoint gets. Kept for ever, each with the routing versions that it is valid
//! for (design section 4).

use crate::endpoints::routing_version_raise;
use crate::idempotency::Work;
use crate::{Error, Pool};
use laneway_wire::{EndpointId, SubscriptionId, TenantId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

/// Subscriptions of one project that are valid, at most.
pub const MAX_SUBSCRIPTIONS: u16 = 10_000;

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its id.
    pub id: SubscriptionId,
    /// Whose deliveries it makes.
    pub endpoint: EndpointId,
    /// A type, `prefix.*`, or `*`.
    pub event_type: String,
    /// Whether the endpoint gets its deliveries in one order.
    pub ordering_enabled: bool,
    /// Since when it exists.
    pub created_at: Timestamp,
}

/// What became of a new subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subscribed {
    /// It is valid from the next routing version on.
    Made(Subscription),
    /// The tenant has no such endpoint.
    NoEndpoint,
    /// The tenant has [`MAX_SUBSCRIPTIONS`] already.
    LimitReached,
}

/// Makes a subscription. `event_type` has been checked by the caller.
pub async fn subscription_create(
    work: &mut Work,
    endpoint: EndpointId,
    event_type: &str,
    ordering_enabled: bool,
) -> Result<Subscribed, Error> {
    let tenant = work.tenant();
    // First: a deletion of the endpoint is then either seen by what follows or comes after it.
    let version = routing_version_raise(work.connection()).await?;
    let row = sqlx::query(
        "SELECT EXISTS (SELECT FROM laneway_control.endpoints \
           WHERE tenant_id = $1 AND endpoint_id = $2 AND state <> 'deleted'), \
         (SELECT count(*) FROM laneway_control.subscriptions WHERE tenant_id = $1 AND until_version IS NULL)",
    )
    .bind(tenant.as_uuid())
    .bind(endpoint.as_uuid())
    .fetch_one(work.connection())
    .await
    .map_err(Error::doing("looking an endpoint up"))?;
    let read_checks = || Ok((row.try_get(0)?, row.try_get(1)?));
    let (exists, count): (bool, i64) =
        read_checks().map_err(Error::doing("looking an endpoint up"))?;
    if !exists {
        return Ok(Subscribed::NoEndpoint);
    }
    if count >= i64::from(MAX_SUBSCRIPTIONS) {
        return Ok(Subscribed::LimitReached);
    }
    sqlx::query(
        "INSERT INTO laneway_control.subscriptions (tenant_id, subscription_id, endpoint_id, event_type, \
           ordering_enabled, since_version) VALUES ($1, $2, $3, $4, $5, $6) \
         RETURNING subscription_id, endpoint_id, event_type, ordering_enabled, \
           (extract(epoch FROM created_at) * 1000)::bigint",
    )
    .bind(tenant.as_uuid())
    .bind(Uuid::now_v7())
    .bind(endpoint.as_uuid())
    .bind(event_type)
    .bind(ordering_enabled)
    .bind(version)
    .fetch_one(work.connection())
    .await
    .and_then(|row| read(&row))
    .map(Subscribed::Made)
    .map_err(Error::doing("making a subscription"))
}

/// One valid subscription of `tenant`.
pub async fn subscription_get(
    pool: &Pool,
    tenant: TenantId,
    id: SubscriptionId,
) -> Result<Option<Subscription>, Error> {
    sqlx::query(
        "SELECT subscription_id, endpoint_id, event_type, ordering_enabled, \
           (extract(epoch FROM created_at) * 1000)::bigint \
         FROM laneway_control.subscriptions \
         WHERE tenant_id = $1 AND subscription_id = $2 AND until_version IS NULL",
    )
    .bind(tenant.as_uuid())
    .bind(id.as_uuid())
    .fetch_optional(pool.inner())
    .await
    .and_then(|row| row.map(|row| read(&row)).transpose())
    .map_err(Error::doing("reading a subscription"))
}

/// At most `limit` valid subscriptions of `tenant`, oldest first, those after `after`.
pub async fn subscriptions_list(
    pool: &Pool,
    tenant: TenantId,
    after: Option<SubscriptionId>,
    limit: u16,
) -> Result<Vec<Subscription>, Error> {
    sqlx::query(
        "SELECT subscription_id, endpoint_id, event_type, ordering_enabled, \
           (extract(epoch FROM created_at) * 1000)::bigint \
         FROM laneway_control.subscriptions WHERE tenant_id = $1 AND until_version IS NULL \
           AND ($2::uuid IS NULL OR subscription_id > $2) ORDER BY subscription_id LIMIT $3",
    )
    .bind(tenant.as_uuid())
    .bind(after.map(|id| id.as_uuid()))
    .bind(i32::from(limit))
    .fetch_all(pool.inner())
    .await
    .and_then(|rows| rows.iter().map(read).collect())
    .map_err(Error::doing("listing subscriptions"))
}

fn read(row: &PgRow) -> Result<Subscription, sqlx::Error> {
    Ok(Subscription {
        id: SubscriptionId::from_uuid(row.try_get(0)?),
        endpoint: EndpointId::from_uuid(row.try_get(1)?),
        event_type: row.try_get(2)?,
        ordering_enabled: row.try_get(3)?,
        created_at: Timestamp(row.try_get(4)?),
    })
}
