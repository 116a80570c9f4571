//! Endpoints as deliver needs them: by id, and what changed since it last looked. (The API's own queries are beside.)

use super::value::{loaded, span, stored};
use crate::{Error, Pool};
use laneway_lane::{EndpointState, OnUnknown};
use laneway_wire::{EndpointId, TenantId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::time::Duration;
use uuid::Uuid;

/// An endpoint's settings.
#[derive(Clone)]
pub struct EndpointRow {
    /// Its id.
    pub id: EndpointId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Where requests go.
    pub url: String,
    /// What to do with an unknown outcome.
    pub on_unknown: OnUnknown,
    /// Hard deadline of a request.
    pub timeout: Duration,
    /// Requests in flight at most, per instance.
    pub max_connections: u32,
    /// Whether it takes requests.
    pub state: EndpointState,
    /// Its signing secret, sealed.
    pub sealed_secret: Vec<u8>,
    /// Raised by each change.
    pub revision: i64,
}

impl std::fmt::Debug for EndpointRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointRow")
            .field("id", &self.id)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

/// The endpoints of `ids`; one that is not in the answer does not exist.
pub async fn endpoints_load(pool: &Pool, ids: &[EndpointId]) -> Result<Vec<EndpointRow>, Error> {
    let ids: Vec<Uuid> = ids.iter().map(EndpointId::as_uuid).collect();
    let rows = sqlx::query(
        "SELECT endpoint_id, tenant_id, url, on_unknown, timeout_ms, max_connections, state, secret, revision \
         FROM laneway_control.endpoints WHERE endpoint_id = ANY($1)",
    )
    .bind(&ids)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing("loading endpoints"))?;
    rows.iter().map(read).collect()
}

/// Endpoints changed at or after `since`, and the database's clock now.
///
/// A change carries the time its transaction began, so callers ask with a `since` that lies some time before the
/// clock of the last answer, and tell what they know already by `revision`.
pub async fn endpoints_changed(
    pool: &Pool,
    since: Timestamp,
) -> Result<(Timestamp, Vec<EndpointRow>), Error> {
    const DOING: &str = "looking for changed endpoints";
    let mut connection = pool.inner().acquire().await.map_err(Error::doing(DOING))?;
    let now = sqlx::query_scalar("SELECT now()")
        .fetch_one(&mut *connection)
        .await
        .map_err(Error::doing(DOING))?;
    let rows = sqlx::query(
        "SELECT endpoint_id, tenant_id, url, on_unknown, timeout_ms, max_connections, state, secret, revision \
         FROM laneway_control.endpoints WHERE updated_at >= $1",
    )
    .bind(stored(since))
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    Ok((loaded(now), rows.iter().map(read).collect::<Result<_, _>>()?))
}

/// Disables `endpoint` for `reason` (a stable code), with an audit entry by `actor`. `false`: it was not enabled.
pub async fn endpoint_disable(
    pool: &Pool,
    endpoint: EndpointId,
    reason: &'static str,
    actor: &str,
) -> Result<bool, Error> {
    let done = sqlx::query(
        "WITH changed AS (UPDATE laneway_control.endpoints SET state = 'disabled', state_reason = $2, \
           revision = revision + 1, updated_at = now() WHERE endpoint_id = $1 AND state = 'enabled' \
           RETURNING tenant_id, endpoint_id) \
         INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
         SELECT tenant_id, $3, 'endpoint.disable', endpoint_id::text, jsonb_build_object('reason', $2::text) FROM changed",
    )
    .bind(endpoint.as_uuid())
    .bind(reason)
    .bind(actor)
    .execute(pool.inner())
    .await
    .map_err(Error::doing("disabling an endpoint"))?;
    Ok(done.rows_affected() > 0)
}

fn read(row: &PgRow) -> Result<EndpointRow, Error> {
    const DOING: &str = "reading an endpoint";
    let state: &str = row.try_get("state").map_err(Error::doing(DOING))?;
    let state = match state {
        "enabled" => EndpointState::Enabled,
        "disabled" => EndpointState::Disabled,
        "deleted" => EndpointState::Deleted,
        other => return Err(Error::Stored { what: "endpoint state", value: other.to_owned() }),
    };
    let on_unknown: &str = row.try_get("on_unknown").map_err(Error::doing(DOING))?;
    let on_unknown = match on_unknown {
        "resend" => OnUnknown::Resend,
        "lookup" => OnUnknown::Lookup,
        "hold" => OnUnknown::Hold,
        other => return Err(Error::Stored { what: "onUnknown", value: other.to_owned() }),
    };
    let rest = || -> Result<_, sqlx::Error> {
        let connections: i32 = row.try_get("max_connections")?;
        Ok(EndpointRow {
            id: EndpointId::from_uuid(row.try_get("endpoint_id")?),
            tenant: TenantId::from_uuid(row.try_get("tenant_id")?),
            url: row.try_get("url")?,
            on_unknown,
            timeout: span(row.try_get("timeout_ms")?),
            max_connections: u32::try_from(connections).unwrap_or(1),
            state,
            sealed_secret: row.try_get("secret")?,
            revision: row.try_get("revision")?,
        })
    };
    rest().map_err(Error::doing(DOING))
}
