//! Endpoints. Each change raises the routing version in its own transaction, first thing: the version's row is locked
//! until commit, so versions commit in their order and what follows sees every change before it (design section 4).

use crate::idempotency::Work;
use crate::secrets::{Place, SecretsError, SecretsKey};
use crate::stored::stored_as;
use crate::{Error, Pool};
use laneway_wire::signature::Secret;
use laneway_wire::{EndpointId, TenantId, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use std::time::Duration;
use uuid::Uuid;

/// Endpoints of one project that are not deleted, at most.
pub const MAX_ENDPOINTS: u16 = 1_000;

/// What an unknown outcome means to an endpoint (design 5.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// Send again, same ids.
    Resend,
    /// Ask the authority.
    Lookup,
    /// Wait for a person.
    Hold,
}

/// What keeps an endpoint's order when no subscription asks for the total one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// One lane per user key.
    User,
    /// None.
    None,
}

/// Whether an endpoint is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointState {
    /// It is.
    Enabled,
    /// Its lanes wait.
    Disabled,
    /// It is gone, and its open deliveries with it.
    Deleted,
}

stored_as!(OnUnknown { Resend = "resend", Lookup = "lookup", Hold = "hold" });
stored_as!(Ordering { User = "user", None = "none" });
stored_as!(EndpointState { Enabled = "enabled", Disabled = "disabled", Deleted = "deleted" });

/// What a new endpoint is made of; the caller has checked it.
#[derive(Debug, Clone)]
pub struct NewEndpoint {
    /// Where requests go, in the one form that was checked.
    pub url: String,
    /// What signs them.
    pub secret: Secret,
    /// What an unknown outcome means.
    pub on_unknown: OnUnknown,
    /// What keeps the order.
    pub ordering: Ordering,
    /// The deadline of a request, 1 to 60 s, whole milliseconds.
    pub timeout: Duration,
    /// Connections at most, 1 to 1,024.
    pub max_connections: u16,
}

/// An endpoint, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its id.
    pub id: EndpointId,
    /// Where requests go.
    pub url: String,
    /// What an unknown outcome means.
    pub on_unknown: OnUnknown,
    /// What keeps the order.
    pub ordering: Ordering,
    /// The deadline of a request.
    pub timeout: Duration,
    /// Connections at most.
    pub max_connections: u16,
    /// Whether it is sent to.
    pub state: EndpointState,
    /// Why it is not, if it is not.
    pub state_reason: Option<String>,
    /// Since when it exists.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// Makes an endpoint, its secret encrypted. `None` if the project has [`MAX_ENDPOINTS`] already.
pub async fn endpoint_create(
    work: &mut Work,
    secrets: &SecretsKey,
    new: &NewEndpoint,
) -> Result<Option<Endpoint>, Error> {
    let tenant = work.tenant();
    let version = routing_version_raise(work.connection()).await?;
    let id = Uuid::now_v7();
    let sealed =
        secrets.seal(Place::endpoint(tenant, &id.to_string()), new.secret.expose().as_bytes());
    sqlx::query(
        "INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, on_unknown, ordering, timeout_ms, \
           max_connections, secret, since_version) \
         SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9 WHERE (SELECT count(*) FROM laneway_control.endpoints \
           WHERE tenant_id = $1 AND state <> 'deleted') < $10 \
         RETURNING endpoint_id, url, on_unknown, ordering, timeout_ms, max_connections, state, state_reason, \
           (extract(epoch FROM created_at) * 1000)::bigint, (extract(epoch FROM updated_at) * 1000)::bigint",
    )
    .bind(tenant.as_uuid())
    .bind(id)
    .bind(&new.url)
    .bind(new.on_unknown.as_str())
    .bind(new.ordering.as_str())
    .bind(i32::try_from(new.timeout.as_millis()).unwrap_or(i32::MAX))
    .bind(i32::from(new.max_connections))
    .bind(sealed)
    .bind(version)
    .bind(i64::from(MAX_ENDPOINTS))
    .fetch_optional(work.connection())
    .await
    .map_err(Error::doing("making an endpoint"))?
    .map(|row| read(&row))
    .transpose()
}

/// One endpoint of `tenant` that is not deleted.
pub async fn endpoint_get(
    pool: &Pool,
    tenant: TenantId,
    id: EndpointId,
) -> Result<Option<Endpoint>, Error> {
    get(pool.inner(), tenant, id).await
}

/// The same as the work's own transaction sees it.
pub async fn endpoint_get_in(work: &mut Work, id: EndpointId) -> Result<Option<Endpoint>, Error> {
    let tenant = work.tenant();
    get(work.connection(), tenant, id).await
}

async fn get(
    executor: impl sqlx::PgExecutor<'_>,
    tenant: TenantId,
    id: EndpointId,
) -> Result<Option<Endpoint>, Error> {
    sqlx::query(
        "SELECT endpoint_id, url, on_unknown, ordering, timeout_ms, max_connections, state, state_reason, \
           (extract(epoch FROM created_at) * 1000)::bigint, (extract(epoch FROM updated_at) * 1000)::bigint \
         FROM laneway_control.endpoints WHERE tenant_id = $1 AND endpoint_id = $2 AND state <> 'deleted'",
    )
    .bind(tenant.as_uuid())
    .bind(id.as_uuid())
    .fetch_optional(executor)
    .await
    .map_err(Error::doing("reading an endpoint"))?
    .map(|row| read(&row))
    .transpose()
}

/// At most `limit` endpoints of `tenant` that are not deleted, oldest first, those after `after`.
pub async fn endpoints_list(
    pool: &Pool,
    tenant: TenantId,
    after: Option<EndpointId>,
    limit: u16,
) -> Result<Vec<Endpoint>, Error> {
    sqlx::query(
        "SELECT endpoint_id, url, on_unknown, ordering, timeout_ms, max_connections, state, state_reason, \
           (extract(epoch FROM created_at) * 1000)::bigint, (extract(epoch FROM updated_at) * 1000)::bigint \
         FROM laneway_control.endpoints WHERE tenant_id = $1 AND state <> 'deleted' \
           AND ($2::uuid IS NULL OR endpoint_id > $2) ORDER BY endpoint_id LIMIT $3",
    )
    .bind(tenant.as_uuid())
    .bind(after.map(|id| id.as_uuid()))
    .bind(i32::from(limit))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing("listing endpoints"))?
    .iter()
    .map(read)
    .collect()
}

/// Disables an enabled endpoint or enables a disabled one, audited; its lanes wait, without their horizon running, or
/// go on in order. Whether anything changed.
pub async fn endpoint_set_enabled(
    work: &mut Work,
    id: EndpointId,
    enabled: bool,
    actor: &str,
    reason: &str,
) -> Result<bool, Error> {
    let tenant = work.tenant();
    routing_version_raise(work.connection()).await?;
    let (from, to) = if enabled { ("disabled", "enabled") } else { ("enabled", "disabled") };
    let done = sqlx::query(
        "UPDATE laneway_control.endpoints SET state = $4, state_reason = $5, revision = revision + 1, \
           updated_at = now() WHERE tenant_id = $1 AND endpoint_id = $2 AND state = $3",
    )
    .bind(tenant.as_uuid())
    .bind(id.as_uuid())
    .bind(from)
    .bind(to)
    .bind((!enabled).then_some(reason))
    .execute(work.connection())
    .await
    .map_err(Error::doing("changing an endpoint"))?;
    let changed = done.rows_affected() == 1;
    if changed {
        let action = if enabled { "endpoint.enable" } else { "endpoint.disable" };
        audit(work, actor, action, id, reason).await?;
    }
    Ok(changed)
}

/// Deletes an endpoint with its subscriptions, audited; its open deliveries are discarded by their owners. Its row
/// stays, because publishing again routes as the first time. Whether anything changed.
pub async fn endpoint_delete(
    work: &mut Work,
    id: EndpointId,
    actor: &str,
    reason: &str,
) -> Result<bool, Error> {
    let tenant = work.tenant();
    let version = routing_version_raise(work.connection()).await?;
    let done = sqlx::query(
        "UPDATE laneway_control.endpoints SET state = 'deleted', state_reason = $3, until_version = $4, \
           revision = revision + 1, updated_at = now() \
         WHERE tenant_id = $1 AND endpoint_id = $2 AND state <> 'deleted'",
    )
    .bind(tenant.as_uuid())
    .bind(id.as_uuid())
    .bind(reason)
    .bind(version)
    .execute(work.connection())
    .await
    .map_err(Error::doing("deleting an endpoint"))?;
    let changed = done.rows_affected() == 1;
    if changed {
        sqlx::query(
            "UPDATE laneway_control.subscriptions SET until_version = $3 \
             WHERE tenant_id = $1 AND endpoint_id = $2 AND until_version IS NULL",
        )
        .bind(tenant.as_uuid())
        .bind(id.as_uuid())
        .bind(version)
        .execute(work.connection())
        .await
        .map_err(Error::doing("ending an endpoint's subscriptions"))?;
        audit(work, actor, "endpoint.delete", id, reason).await?;
    }
    Ok(changed)
}

/// Reads the stored form of an endpoint's secret.
///
/// # Errors
/// [`SecretsError`]; also if what was encrypted is no secret.
pub fn endpoint_secret_open(
    secrets: &SecretsKey,
    tenant: TenantId,
    id: EndpointId,
    stored: &[u8],
) -> Result<Secret, SecretsError> {
    let text = secrets.open(Place::endpoint(tenant, &id.as_uuid().to_string()), stored)?;
    std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).ok_or(SecretsError::Format)
}

/// Raises the routing version; its row stays locked until the transaction ends.
pub(crate) async fn routing_version_raise(connection: &mut PgConnection) -> Result<i64, Error> {
    sqlx::query_scalar(
        "UPDATE laneway_control.routing_version SET version = version + 1 RETURNING version",
    )
    .fetch_one(connection)
    .await
    .map_err(Error::doing("raising the routing version"))
}

async fn audit(
    work: &mut Work,
    actor: &str,
    action: &'static str,
    object: EndpointId,
    reason: &str,
) -> Result<(), Error> {
    let tenant = work.tenant();
    sqlx::query(
        "INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
         VALUES ($1, $2, $3, $4, jsonb_build_object('reason', $5::text))",
    )
    .bind(tenant.as_uuid())
    .bind(actor)
    .bind(action)
    .bind(object.to_string())
    .bind(reason)
    .execute(work.connection())
    .await
    .map_err(Error::doing("writing the audit log"))?;
    Ok(())
}

fn read(row: &PgRow) -> Result<Endpoint, Error> {
    type Raw = (Uuid, String, String, String, i32, i32, String, Option<String>, i64, i64);
    let raw = || -> Result<Raw, sqlx::Error> {
        Ok((
            row.try_get(0)?,
            row.try_get(1)?,
            row.try_get(2)?,
            row.try_get(3)?,
            row.try_get(4)?,
            row.try_get(5)?,
            row.try_get(6)?,
            row.try_get(7)?,
            row.try_get(8)?,
            row.try_get(9)?,
        ))
    };
    let (
        id,
        url,
        on_unknown,
        ordering,
        timeout,
        connections,
        state,
        state_reason,
        created,
        updated,
    ) = raw().map_err(Error::doing("reading an endpoint"))?;
    let stored = |what, value: &str| Error::Stored { what, value: value.to_owned() };
    Ok(Endpoint {
        id: EndpointId::from_uuid(id),
        url,
        on_unknown: OnUnknown::parse(&on_unknown)
            .ok_or_else(|| stored("onUnknown", &on_unknown))?,
        ordering: Ordering::parse(&ordering).ok_or_else(|| stored("ordering", &ordering))?,
        timeout: Duration::from_millis(u64::try_from(timeout).unwrap_or(0)),
        max_connections: u16::try_from(connections).unwrap_or(u16::MAX),
        state: EndpointState::parse(&state).ok_or_else(|| stored("endpoint state", &state))?,
        state_reason,
        created_at: Timestamp(created),
        updated_at: Timestamp(updated),
    })
}
