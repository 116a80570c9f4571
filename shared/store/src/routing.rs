//! Who is subscribed to what, at a version (design section 4, routing). Subscriptions are kept for ever with the
//! versions between which they hold, so that publishing again routes as the first time.

use crate::topology::big;
use crate::{Error, Pool};
use laneway_wire::{EndpointId, TenantId};
use sqlx::Row;
use uuid::Uuid;

/// One subscription as routing sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscriber {
    /// Whose it is.
    pub tenant: TenantId,
    /// Where matching events go.
    pub endpoint: EndpointId,
    /// A type, `prefix.*` or `*`.
    pub pattern: String,
    /// Whether it wants the endpoint's total order.
    pub ordered: bool,
    /// Whether the endpoint wants no order at all.
    pub unordered: bool,
}

/// The present version. Every change of version n or lower is committed when this gives n.
pub async fn routing_version(pool: &Pool) -> Result<u64, Error> {
    const DOING: &str = "reading the routing version";
    let row = sqlx::query("SELECT version FROM laneway_control.routing_version")
        .fetch_one(pool.inner())
        .await
        .map_err(Error::doing(DOING))?;
    big(&row, 0, DOING)
}

/// The subscriptions of `tenants` that hold at `version`, in order of (tenant, endpoint).
pub async fn subscribers(
    pool: &Pool,
    tenants: &[TenantId],
    version: u64,
) -> Result<Vec<Subscriber>, Error> {
    const DOING: &str = "reading subscriptions";
    let tenants: Vec<Uuid> = tenants.iter().map(TenantId::as_uuid).collect();
    let rows = sqlx::query(
        "SELECT s.tenant_id, s.endpoint_id, s.event_type, s.ordering_enabled, e.ordering = 'none' \
         FROM laneway_control.subscriptions s \
         JOIN laneway_control.endpoints e USING (tenant_id, endpoint_id) \
         WHERE s.tenant_id = ANY($1) \
           AND s.since_version <= $2 AND (s.until_version IS NULL OR s.until_version > $2) \
           AND e.since_version <= $2 AND (e.until_version IS NULL OR e.until_version > $2) \
         ORDER BY s.tenant_id, s.endpoint_id",
    )
    .bind(tenants)
    .bind(crate::topology::db_big(version))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            Ok(Subscriber {
                tenant: TenantId::from_uuid(row.try_get(0)?),
                endpoint: EndpointId::from_uuid(row.try_get(1)?),
                pattern: row.try_get(2)?,
                ordered: row.try_get(3)?,
                unordered: row.try_get(4)?,
            })
        })
        .collect::<Result<_, sqlx::Error>>()
        .map_err(Error::doing(DOING))
}
