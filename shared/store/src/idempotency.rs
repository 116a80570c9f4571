//! Operations that happen once (C2, P12): the claim of an `Idempotency-Key`, the rows of the operation and its answer
//! are one transaction. The primary key (tenant, operation, key) decides between two concurrent claims: the second
//! waits a moment for the first to end, and is told that it is in progress if that does not end.

use crate::secrets::{Place, SecretsKey};
use crate::{Error, Pool};
use laneway_wire::TenantId;
use laneway_wire::fingerprint::Fingerprint;
use sqlx::{PgConnection, Postgres, Row, Transaction};
use std::time::Duration;

/// The longest key, in characters.
pub const MAX_KEY: usize = 255;

/// How long a statement of an operation may wait for a row or a lane's lock before it is given up (transient).
const LOCK_TIMEOUT: &str = "5s";

/// What is claimed.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Who claims.
    pub tenant: TenantId,
    /// The type of the operation: the same key may be used once for each.
    pub operation: &'static str,
    /// The client's key: 1 to [`MAX_KEY`] characters.
    pub key: &'a str,
    /// What the request asks for.
    pub fingerprint: Fingerprint,
}

/// Times of a claim.
#[derive(Debug, Clone, Copy)]
pub struct ClaimTimes {
    /// How long a claim waits for a running one of the same key.
    pub wait: Duration,
    /// For how long a key is remembered; after that it is a new one.
    pub retention: Duration,
}

/// What became of a claim.
#[derive(Debug)]
pub enum Claimed {
    /// The key is new: do the operation in this transaction.
    Fresh(Work),
    /// The operation was done: this was its answer.
    Repeated(Answer),
    /// The operation is being done by another request now.
    InProgress,
    /// The key was used for another request.
    Mismatch,
}

/// The answer to a request, as stored and given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// A transaction that does one operation, with or without a claim. Dropped without [`Work::commit`], nothing of it
/// happened, the claim neither.
#[derive(Debug)]
pub struct Work {
    tx: Transaction<'static, Postgres>,
    tenant: TenantId,
    claim: Option<(&'static str, String)>,
}

/// Claims a key. `secrets` reads answers that were stored encrypted.
pub async fn idempotency_claim(
    pool: &Pool,
    secrets: &SecretsKey,
    claim: Claim<'_>,
    times: ClaimTimes,
) -> Result<Claimed, Error> {
    let mut tx = pool.begin().await?;
    // The settings are made by the same statement, the short wait before its insert and the long one after it: no
    // further round trip. A record whose time is over is overwritten.
    let inserted = sqlx::query(
        "WITH settings AS MATERIALIZED \
           (SELECT set_config('lock_timeout', $6, true), set_config('app.tenant', $1::text, true)) \
         INSERT INTO laneway_control.idempotency_keys AS known \
           (tenant_id, operation, key, fingerprint, status, body) \
         SELECT $1, $2, $3, $4, 0, '' FROM settings \
         ON CONFLICT (tenant_id, operation, key) DO UPDATE \
           SET fingerprint = excluded.fingerprint, status = 0, body = '', sealed = false, created_at = now() \
           WHERE known.created_at < now() - make_interval(secs => $5) \
         RETURNING set_config('lock_timeout', $7, true)",
    )
    .bind(claim.tenant.as_uuid())
    .bind(claim.operation)
    .bind(claim.key)
    .bind(claim.fingerprint.as_slice())
    .bind(times.retention.as_secs_f64())
    .bind(format!("{}ms", times.wait.as_millis().max(1)))
    .bind(LOCK_TIMEOUT)
    .fetch_optional(&mut *tx)
    .await
    .map_err(Error::doing("claiming an idempotency key"));
    match inserted {
        Ok(Some(_)) => {
            let key = Some((claim.operation, claim.key.to_owned()));
            return Ok(Claimed::Fresh(Work { tx, tenant: claim.tenant, claim: key }));
        }
        Ok(None) => {}
        Err(error) if error.is_lock_not_available() => return Ok(Claimed::InProgress),
        Err(error) => return Err(error),
    }
    // A statement of its own sees what the winner committed while the insert waited for it.
    let row = sqlx::query(
        "SELECT fingerprint, status, body, sealed FROM laneway_control.idempotency_keys \
         WHERE tenant_id = $1 AND operation = $2 AND key = $3",
    )
    .bind(claim.tenant.as_uuid())
    .bind(claim.operation)
    .bind(claim.key)
    .fetch_optional(&mut *tx)
    .await
    .map_err(Error::doing("reading an idempotency key"))?;
    // Removed between the two statements, because its time was over: the client's next try finds a new key.
    let Some(row) = row else { return Ok(Claimed::InProgress) };
    let read = || -> Result<_, sqlx::Error> {
        Ok((
            row.try_get::<Vec<u8>, _>(0)?,
            row.try_get::<i16, _>(1)?,
            row.try_get::<Vec<u8>, _>(2)?,
            row.try_get::<bool, _>(3)?,
        ))
    };
    let (fingerprint, status, body, sealed) =
        read().map_err(Error::doing("reading an idempotency key"))?;
    if fingerprint != claim.fingerprint {
        return Ok(Claimed::Mismatch);
    }
    let body = if sealed {
        let row = row_key(claim.operation, claim.key);
        let opened = secrets.open(answer_place(claim.tenant, &row), &body);
        opened.map_err(|error| Error::Stored { what: "answer", value: error.to_string() })?.to_vec()
    } else {
        body
    };
    let status = u16::try_from(status)
        .map_err(|_| Error::Stored { what: "status of an answer", value: status.to_string() })?;
    Ok(Claimed::Repeated(Answer { status, body }))
}

impl Work {
    /// A transaction of `tenant` without a claim: for requests that bring no key.
    pub async fn begin(pool: &Pool, tenant: TenantId) -> Result<Self, Error> {
        let mut tx = pool.begin().await?;
        sqlx::query(
            "SELECT set_config('lock_timeout', $1, true), set_config('app.tenant', $2::text, true)",
        )
        .bind(LOCK_TIMEOUT)
        .bind(tenant.as_uuid())
        .execute(&mut *tx)
        .await
        .map_err(Error::doing("beginning an operation"))?;
        Ok(Self { tx, tenant, claim: None })
    }

    /// Whose work it is.
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Makes the operation durable together with `answer`, which every later request of the same claim gets.
    /// `seal` encrypts the stored answer: for one that contains a secret.
    ///
    /// After an error with [`Error::is_connection_lost`] it is unknown whether it happened: the same claim again
    /// tells.
    pub async fn commit(mut self, answer: &Answer, seal: Option<&SecretsKey>) -> Result<(), Error> {
        if let Some((operation, key)) = &self.claim {
            let row = row_key(operation, key);
            let sealed =
                seal.map(|secrets| secrets.seal(answer_place(self.tenant, &row), &answer.body));
            let status = i16::try_from(answer.status)
                .map_err(|_| Error::Stored { what: "status", value: answer.status.to_string() })?;
            sqlx::query(
                "UPDATE laneway_control.idempotency_keys SET status = $4, body = $5, sealed = $6 \
                 WHERE tenant_id = $1 AND operation = $2 AND key = $3",
            )
            .bind(self.tenant.as_uuid())
            .bind(operation)
            .bind(key)
            .bind(status)
            .bind(sealed.as_deref().unwrap_or(&answer.body))
            .bind(sealed.is_some())
            .execute(&mut *self.tx)
            .await
            .map_err(Error::doing("storing an answer"))?;
        }
        self.tx.commit().await.map_err(Error::doing("committing an operation"))
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

fn row_key(operation: &str, key: &str) -> String {
    format!("{operation}|{key}")
}

const fn answer_place(tenant: TenantId, row: &str) -> Place<'_> {
    Place { table: "idempotency_keys", column: "body", tenant, row }
}
