//! API keys (security 5.4): `lw_live_<8>_<32>`, 8 characters of public id and 32 of secret, base62. Only the SHA-256
//! of the secret is stored (it has 190 random bits, so nothing slower is needed); the text is shown once, when made.

use crate::{Error, Pool};
use laneway_wire::{TenantId, Timestamp};
use rand::distr::{Alphanumeric, SampleString};
use sha2::{Digest, Sha256};
use sqlx::Row;
use std::time::Duration;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// What a key begins with.
pub const PREFIX: &str = "lw_live_";
const ID: usize = 8;
const SECRET: usize = 32;
const LENGTH: usize = PREFIX.len() + ID + 1 + SECRET;

/// What a key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Emit events.
    EventsWrite,
    /// Read endpoints and subscriptions.
    EndpointsRead,
    /// Make and change endpoints and subscriptions.
    EndpointsWrite,
    /// Read deliveries and their attempts.
    DeliveriesRead,
    /// Send dead letters again, discard them, replay; and see their payloads.
    DeadLettersWrite,
    /// Everything in the project.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 6] = [
        Self::EventsWrite,
        Self::EndpointsRead,
        Self::EndpointsWrite,
        Self::DeliveriesRead,
        Self::DeadLettersWrite,
        Self::Admin,
    ];

    /// As stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EventsWrite => "events:write",
            Self::EndpointsRead => "endpoints:read",
            Self::EndpointsWrite => "endpoints:write",
            Self::DeliveriesRead => "deliveries:read",
            Self::DeadLettersWrite => "deadletters:write",
            Self::Admin => "admin",
        }
    }

    /// The inverse of [`Scope::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A key that was just made.
pub struct IssuedKey {
    /// Its public id, 8 characters.
    pub key_id: String,
    /// The whole key, to be shown once.
    pub text: Zeroizing<String>,
}

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The project that the key belongs to.
    pub tenant: TenantId,
    /// The key's public id.
    pub key_id: String,
    scopes: Vec<Scope>,
}

impl Caller {
    /// Whether the key may be used for `scope`.
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }
}

/// Makes a key of `tenant`, good for `scopes`, for ever or for `lifetime`. `None` if there is no such project.
pub async fn key_create(
    pool: &Pool,
    tenant: TenantId,
    scopes: &[Scope],
    lifetime: Option<Duration>,
) -> Result<Option<IssuedKey>, Error> {
    let key_id = Alphanumeric.sample_string(&mut rand::rng(), ID);
    let secret = Zeroizing::new(Alphanumeric.sample_string(&mut rand::rng(), SECRET));
    let scopes: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
    let made = sqlx::query(
        "INSERT INTO laneway_control.api_keys (tenant_id, key_id, secret_hash, last4, scopes, expires_at) \
         SELECT tenant_id, $2, $3, $4, $5, now() + make_interval(secs => $6) \
         FROM laneway_control.projects WHERE tenant_id = $1",
    )
    .bind(tenant.as_uuid())
    .bind(&key_id)
    .bind(hash(&secret).as_slice())
    .bind(&secret[SECRET - 4..])
    .bind(scopes)
    .bind(lifetime.map(|lifetime| lifetime.as_secs_f64()))
    .execute(pool.inner())
    .await
    .map_err(Error::doing("making a key"))?;
    let text = Zeroizing::new(format!("{PREFIX}{key_id}_{}", &*secret));
    Ok((made.rows_affected() == 1).then_some(IssuedKey { key_id, text }))
}

/// Whose key `text` is; `None` if it is no key, or one that is unknown, revoked or expired. The comparison takes the
/// same time wherever the first difference lies. Notes the use, once a minute at most.
pub async fn key_verify(pool: &Pool, text: &str) -> Result<Option<Caller>, Error> {
    let Some((key_id, secret)) = split(text) else { return Ok(None) };
    let row = sqlx::query(
        "SELECT tenant_id, secret_hash, scopes, \
         coalesce(last_used_at < now() - interval '1 minute', true) \
         FROM laneway_control.api_keys \
         WHERE key_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())",
    )
    .bind(key_id)
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing("looking a key up"))?;
    let Some(row) = row else { return Ok(None) };
    let read = || -> Result<_, sqlx::Error> {
        let hash: Vec<u8> = row.try_get(1)?;
        let scopes: Vec<String> = row.try_get(2)?;
        Ok((TenantId::from_uuid(row.try_get(0)?), hash, scopes, row.try_get::<bool, _>(3)?))
    };
    let (tenant, stored, scopes, note_use) = read().map_err(Error::doing("reading a key"))?;
    if !bool::from(stored.ct_eq(hash(secret).as_slice())) {
        return Ok(None);
    }
    if note_use {
        // Locked by another request that does the same: then it is noted there.
        sqlx::query(
            "UPDATE laneway_control.api_keys SET last_used_at = now() WHERE (tenant_id, key_id) IN \
             (SELECT tenant_id, key_id FROM laneway_control.api_keys \
              WHERE tenant_id = $1 AND key_id = $2 FOR NO KEY UPDATE SKIP LOCKED)",
        )
        .bind(tenant.as_uuid())
        .bind(key_id)
        .execute(pool.inner())
        .await
        .map_err(Error::doing("noting the use of a key"))?;
    }
    // A scope of a later version gives nothing to this one.
    let scopes = scopes.iter().filter_map(|scope| Scope::parse(scope)).collect();
    Ok(Some(Caller { tenant, key_id: key_id.to_owned(), scopes }))
}

/// What is known of a key, but for its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its public id.
    pub key_id: String,
    /// The last four characters of its secret.
    pub last4: String,
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// Since when it exists.
    pub created_at: Timestamp,
    /// Until when it is good, if it is not for ever.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
}

/// At most `limit` keys of `tenant`, oldest first.
pub async fn keys_list(pool: &Pool, tenant: TenantId, limit: u16) -> Result<Vec<Key>, Error> {
    let read = |row: &sqlx::postgres::PgRow| -> Result<Key, sqlx::Error> {
        let scopes: Vec<String> = row.try_get(2)?;
        Ok(Key {
            key_id: row.try_get(0)?,
            last4: row.try_get(1)?,
            scopes: scopes.iter().filter_map(|scope| Scope::parse(scope)).collect(),
            created_at: Timestamp(row.try_get(3)?),
            expires_at: row.try_get::<Option<i64>, _>(4)?.map(Timestamp),
            revoked_at: row.try_get::<Option<i64>, _>(5)?.map(Timestamp),
            last_used_at: row.try_get::<Option<i64>, _>(6)?.map(Timestamp),
        })
    };
    sqlx::query(
        "SELECT key_id, last4, scopes, (extract(epoch FROM created_at) * 1000)::bigint, \
         (extract(epoch FROM expires_at) * 1000)::bigint, (extract(epoch FROM revoked_at) * 1000)::bigint, \
         (extract(epoch FROM last_used_at) * 1000)::bigint \
         FROM laneway_control.api_keys WHERE tenant_id = $1 ORDER BY created_at, key_id LIMIT $2",
    )
    .bind(tenant.as_uuid())
    .bind(i32::from(limit))
    .fetch_all(pool.inner())
    .await
    .and_then(|rows| rows.iter().map(read).collect())
    .map_err(Error::doing("listing keys"))
}

/// Ends a key at once; whether there was one that was good until now.
pub async fn key_revoke(pool: &Pool, tenant: TenantId, key_id: &str) -> Result<bool, Error> {
    sqlx::query(
        "UPDATE laneway_control.api_keys SET revoked_at = now() \
         WHERE tenant_id = $1 AND key_id = $2 AND revoked_at IS NULL",
    )
    .bind(tenant.as_uuid())
    .bind(key_id)
    .execute(pool.inner())
    .await
    .map(|done| done.rows_affected() == 1)
    .map_err(Error::doing("revoking a key"))
}

/// The public id and the secret of a text that looks like a key.
fn split(text: &str) -> Option<(&str, &str)> {
    let base62 = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if text.len() != LENGTH {
        return None;
    }
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    (id.len() == ID && base62(id) && base62(secret)).then_some((id, secret))
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_of_a_keys_shape_are_looked_up() {
        let key = format!("lw_live_{}_{}", "a".repeat(8), "B".repeat(32));
        assert_eq!(split(&key), Some(("aaaaaaaa", "B".repeat(32).as_str())));
        for text in [
            "",
            "lw_live_",
            &key[1..],
            &format!("{key}x"),
            &key.replace("live", "test"),
            &key.replace('B', "-"),
            &key.replace("a_B", "_aB"),
            &"é".repeat(LENGTH / 2),
        ] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn scopes_have_one_text_each() {
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(scope));
        }
        assert_eq!(Scope::parse("root"), None);
    }
}
