//! Authorities of endpoints: whom to ask what became of a request (design 5.5). The credential is sealed as an
//! endpoint's secret is, and never read back by the API.

use crate::idempotency::Work;
use crate::secrets::{Place, SecretsError, SecretsKey};
use crate::{Error, Pool};
use laneway_wire::authority::{Authority, Method, Rule};
use laneway_wire::{EndpointId, TenantId};
use sqlx::Row;
use sqlx::postgres::PgRow;
use zeroize::Zeroizing;

/// An authority as stored.
#[derive(Clone)]
pub struct Stored {
    /// Where and how to ask.
    pub authority: Authority,
    /// Name of the header that carries the credential.
    pub header: Option<String>,
    /// The credential, sealed.
    pub(crate) sealed: Option<Vec<u8>>,
    /// Raised by each change, and never used twice: not of an authority that was removed and set again.
    pub revision: i64,
}

impl std::fmt::Debug for Stored {
    /// A URL may hold credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl Stored {
    /// The header that carries the credential, if there is one.
    ///
    /// # Errors
    /// [`SecretsError`].
    pub fn credential(
        &self,
        secrets: &SecretsKey,
        tenant: TenantId,
        endpoint: EndpointId,
    ) -> Result<Option<(String, Zeroizing<String>)>, SecretsError> {
        let (Some(header), Some(sealed)) = (&self.header, &self.sealed) else { return Ok(None) };
        let value = secrets.open(place(tenant, &endpoint.as_uuid().to_string()), sealed)?;
        let value = String::from_utf8(value.to_vec()).map_err(|_| SecretsError::Format)?;
        Ok(Some((header.clone(), Zeroizing::new(value))))
    }
}

/// Sets the authority of an endpoint that is not deleted, audited: the one that it had is gone. Whether there is such an
/// endpoint. The caller has checked URL, rules and header.
pub async fn authority_set(
    work: &mut Work,
    secrets: &SecretsKey,
    endpoint: EndpointId,
    authority: &Authority,
    header: Option<(&str, &str)>,
    actor: &str,
) -> Result<bool, Error> {
    const DOING: &str = "setting an authority";
    let tenant = work.tenant();
    let row = endpoint.as_uuid().to_string();
    let sealed = header.map(|(_, value)| secrets.seal(place(tenant, &row), value.as_bytes()));
    let done = sqlx::query(
        "WITH set AS (INSERT INTO laneway_control.authorities (tenant_id, endpoint_id, url, method, body, \
           header_name, header_value, rules) \
         SELECT tenant_id, endpoint_id, $3, $4, $5, $6, $7, $8 FROM laneway_control.endpoints \
           WHERE tenant_id = $1 AND endpoint_id = $2 AND state <> 'deleted' \
         ON CONFLICT (tenant_id, endpoint_id) DO UPDATE SET url = excluded.url, method = excluded.method, \
           body = excluded.body, header_name = excluded.header_name, header_value = excluded.header_value, \
           rules = excluded.rules, revision = nextval('laneway_control.authority_revisions'), updated_at = now() \
           RETURNING tenant_id) \
         INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object) \
         SELECT tenant_id, $9, 'authority.set', $10 FROM set",
    )
    .bind(tenant.as_uuid())
    .bind(endpoint.as_uuid())
    .bind(&authority.url)
    .bind(authority.method.as_str())
    .bind(&authority.body)
    .bind(header.map(|(name, _)| name))
    .bind(sealed)
    .bind(sqlx::types::Json(&authority.rules))
    .bind(actor)
    .bind(endpoint.to_string())
    .execute(work.connection())
    .await
    .map_err(Error::doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

/// Removes the authority of an endpoint, audited; its unknowns are held for a person then. Whether there was one.
pub async fn authority_remove(
    work: &mut Work,
    endpoint: EndpointId,
    actor: &str,
) -> Result<bool, Error> {
    let tenant = work.tenant();
    let done = sqlx::query(
        "WITH gone AS (DELETE FROM laneway_control.authorities WHERE tenant_id = $1 AND endpoint_id = $2 \
           RETURNING tenant_id) \
         INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object) \
         SELECT tenant_id, $3, 'authority.remove', $4 FROM gone",
    )
    .bind(tenant.as_uuid())
    .bind(endpoint.as_uuid())
    .bind(actor)
    .bind(endpoint.to_string())
    .execute(work.connection())
    .await
    .map_err(Error::doing("removing an authority"))?;
    Ok(done.rows_affected() == 1)
}

/// The authority of an endpoint of `tenant`.
pub async fn authority_get(
    pool: &Pool,
    tenant: TenantId,
    endpoint: EndpointId,
) -> Result<Option<Stored>, Error> {
    sqlx::query(
        "SELECT a.url, a.method, a.body, a.header_name, a.header_value, a.rules, a.revision \
         FROM laneway_control.authorities a JOIN laneway_control.endpoints e USING (tenant_id, endpoint_id) \
         WHERE a.tenant_id = $1 AND a.endpoint_id = $2 AND e.state <> 'deleted'",
    )
    .bind(tenant.as_uuid())
    .bind(endpoint.as_uuid())
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing("reading an authority"))?
    .map(|row| read(&row))
    .transpose()
}

/// From a row with the columns `url`, `method`, `body`, `header_name`, `header_value`, `rules`, `revision`.
pub(crate) fn read(row: &PgRow) -> Result<Stored, Error> {
    const DOING: &str = "reading an authority";
    let method: String = row.try_get("method").map_err(Error::doing(DOING))?;
    let method = Method::parse(&method).ok_or(Error::Stored { what: "method", value: method })?;
    let read = || -> Result<Stored, sqlx::Error> {
        let rules: sqlx::types::Json<Vec<Rule>> = row.try_get("rules")?;
        Ok(Stored {
            authority: Authority {
                url: row.try_get("url")?,
                method,
                body: row.try_get("body")?,
                rules: rules.0,
            },
            header: row.try_get("header_name")?,
            sealed: row.try_get("header_value")?,
            revision: row.try_get("revision")?,
        })
    };
    read().map_err(Error::doing(DOING))
}

const fn place(tenant: TenantId, row: &str) -> Place<'_> {
    Place { table: "authorities", column: "header_value", tenant, row }
}
