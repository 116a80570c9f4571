//! Secrets at rest (security 5.3): AES-256-GCM, and the place a secret stands in is part of what is authenticated, so
//! that no ciphertext can be moved to another row, column or tenant.
//!
//! Version 1: `{version 1, length of the key id, key id, nonce (12 bytes), ciphertext and tag}`. A later version is
//! read beside it.

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit};
use laneway_wire::TenantId;
use sha2::{Digest, Sha256};
use std::fmt;
use uuid::Uuid;
use zeroize::Zeroizing;

const VERSION: u8 = 1;
const NONCE: usize = 12;
const MAX_KEY_ID: usize = 32;

/// The key that secrets are encrypted with. Wiped when dropped; never printed.
#[derive(Clone)]
pub struct SecretsKey {
    id: String,
    key: Zeroizing<[u8; 32]>,
}

/// Where a secret stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// The table, without its schema.
    pub table: &'static str,
    /// The column.
    pub column: &'static str,
    /// Whose row it is.
    pub tenant: TenantId,
    /// The row's key within the tenant, as text.
    pub row: &'a str,
}

/// Why a stored secret cannot be read. Says nothing about the secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretsError {
    /// The process does not have the key that the secret was encrypted with.
    #[error("stored secret needs the key `{0}`")]
    UnknownKey(String),
    /// A version or shape that this build does not read.
    #[error("stored secret has an unknown format")]
    Format,
    /// The bytes were changed, or stand in another place than they were made for.
    #[error("stored secret is damaged or does not belong here")]
    Damaged,
}

impl SecretsKey {
    /// The key `key` under the name `id` (at most 32 bytes; what is longer is cut).
    pub fn new(id: &str, key: [u8; 32]) -> Self {
        let id = id.chars().take_while(char::is_ascii).take(MAX_KEY_ID).collect();
        Self { id, key: Zeroizing::new(key) }
    }

    /// The key's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A key for another purpose, made from this one: nobody learns one from the other.
    pub fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        let mut digest = Sha256::new_with_prefix(b"laneway.derive.1");
        digest.update(self.key.as_slice());
        digest.update(purpose.as_bytes());
        Zeroizing::new(digest.finalize().into())
    }

    /// Encrypts `secret` for `place` under a fresh random nonce.
    pub fn seal(&self, place: Place<'_>, secret: &[u8]) -> Vec<u8> {
        let nonce: [u8; NONCE] = rand::random();
        let sealed = self
            .cipher()
            .encrypt(&nonce.into(), Payload { msg: secret, aad: &place.aad() })
            .expect("a secret is far below the 64 GiB that AES-GCM takes");
        let mut out = Vec::with_capacity(2 + self.id.len() + NONCE + sealed.len());
        out.push(VERSION);
        out.push(u8::try_from(self.id.len()).expect("`new` cuts the name"));
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        out
    }

    /// Decrypts what [`SecretsKey::seal`] made for the same place.
    ///
    /// # Errors
    /// [`SecretsError`].
    pub fn open(
        &self,
        place: Place<'_>,
        stored: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
        let (&[version, length], rest) = stored.split_first_chunk().ok_or(SecretsError::Format)?;
        if version != VERSION {
            return Err(SecretsError::Format);
        }
        let (id, rest) = rest.split_at_checked(length.into()).ok_or(SecretsError::Format)?;
        if id != self.id.as_bytes() {
            return Err(SecretsError::UnknownKey(String::from_utf8_lossy(id).into_owned()));
        }
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>().ok_or(SecretsError::Format)?;
        self.cipher()
            .decrypt(&(*nonce).into(), Payload { msg: sealed, aad: &place.aad() })
            .map(Zeroizing::new)
            .map_err(|_| SecretsError::Damaged)
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new((&*self.key).into())
    }
}

impl fmt::Debug for SecretsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretsKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<'a> Place<'a> {
    /// `endpoints.secret` of an endpoint; `row` is the endpoint's UUID as text.
    pub const fn endpoint(tenant: TenantId, row: &'a str) -> Self {
        Self { table: "endpoints", column: "secret", tenant, row }
    }

    fn aad(&self) -> Vec<u8> {
        let tenant: Uuid = self.tenant.as_uuid();
        format!("{}|{}|{tenant}|{}", self.table, self.column, self.row).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(row: &str) -> Place<'_> {
        Place::endpoint(TenantId::from_uuid(Uuid::from_u128(1)), row)
    }

    #[test]
    fn a_secret_comes_back_and_is_never_stored_plain_or_twice_alike() {
        let key = SecretsKey::new("k1", [7; 32]);
        let secret = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let (a, b) = (key.seal(place("1"), secret), key.seal(place("1"), secret));
        assert_ne!(a, b);
        assert!(!a.windows(8).any(|window| secret.windows(8).any(|part| part == window)));
        assert_eq!(key.open(place("1"), &a).unwrap().as_slice(), secret);
        assert_eq!(key.open(place("1"), &b).unwrap().as_slice(), secret);
    }

    #[test]
    fn a_secret_cannot_be_moved_to_another_place() {
        let key = SecretsKey::new("k1", [7; 32]);
        let here = place("1");
        let stored = key.seal(here, b"s");
        let elsewhere = [
            place("2"),
            Place { tenant: TenantId::from_uuid(Uuid::from_u128(2)), ..here },
            Place { column: "other", ..here },
            Place { table: "other", ..here },
        ];
        for there in elsewhere {
            assert_eq!(key.open(there, &stored), Err(SecretsError::Damaged), "{there:?}");
        }
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_noticed() {
        let key = SecretsKey::new("k1", [7; 32]);
        let stored = key.seal(place("1"), b"secret");
        for bit in 0..stored.len() * 8 {
            let mut changed = stored.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(key.open(place("1"), &changed).is_err(), "bit {bit}");
        }
        for length in 0..stored.len() {
            assert!(key.open(place("1"), &stored[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn another_key_is_named_not_tried() {
        let stored = SecretsKey::new("k1", [7; 32]).seal(place("1"), b"s");
        let other = SecretsKey::new("k2", [7; 32]);
        assert_eq!(other.open(place("1"), &stored), Err(SecretsError::UnknownKey("k1".to_owned())));
        let same_name = SecretsKey::new("k1", [8; 32]);
        assert_eq!(same_name.open(place("1"), &stored), Err(SecretsError::Damaged));
    }

    #[test]
    fn the_key_does_not_show() {
        let shown = format!("{:?}", SecretsKey::new("k1", [0xab; 32]));
        assert_eq!(shown, r#"SecretsKey { id: "k1", .. }"#);
    }
}
