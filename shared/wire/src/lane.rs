//! Lanes and buckets (design section 3). Both functions are fixed for ever: every stored row and every partition
//! choice depends on them.

use crate::ids::{DeliveryId, EndpointId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// How many buckets there are. Partitions are made of buckets, so the number of partitions can change and this cannot.
pub const BUCKETS: u16 = 1024;

/// What keeps the order within an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneMode {
    /// One lane per user key (the default).
    User,
    /// One lane per endpoint, no key.
    Total,
    /// No order: every delivery is its own lane, its id the key.
    None,
}

impl LaneMode {
    /// The byte that stands for the mode in the lane id and in stored rows.
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::User => 1,
            Self::Total => 2,
            Self::None => 3,
        }
    }

    /// The inverse of [`LaneMode::as_byte`].
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::User),
            2 => Some(Self::Total),
            3 => Some(Self::None),
            _ => None,
        }
    }
}

/// A lane: the first 16 bytes of SHA-256(`laneway.lane.1` ‖ endpoint ‖ mode ‖ key).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId([u8; 16]);

impl LaneId {
    /// The lane of `key` at `endpoint`. `key` is the user key, empty for total order, the delivery id's bytes for none.
    pub fn derive(endpoint: EndpointId, mode: LaneMode, key: &[u8]) -> Self {
        let digest = Sha256::new()
            .chain_update(b"laneway.lane.1")
            .chain_update(endpoint.as_uuid().as_bytes())
            .chain_update([mode.as_byte()])
            .chain_update(key)
            .finalize();
        let mut id = [0u8; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }

    /// The lane of one delivery, as routing finds it.
    pub fn of(
        endpoint: EndpointId,
        mode: LaneMode,
        user_key: Option<&str>,
        delivery: DeliveryId,
    ) -> Self {
        match (mode, user_key) {
            (LaneMode::User, Some(key)) => Self::derive(endpoint, mode, key.as_bytes()),
            (LaneMode::Total, _) => Self::derive(endpoint, mode, b""),
            (LaneMode::User | LaneMode::None, _) => {
                Self::derive(endpoint, LaneMode::None, delivery.as_uuid().as_bytes())
            }
        }
    }

    /// As stored.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// As stored.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The bucket that the lane is in: its first 8 bytes, big-endian, modulo [`BUCKETS`].
    pub fn bucket(&self) -> Bucket {
        let mut first = [0u8; 8];
        first.copy_from_slice(&self.0[..8]);
        Bucket((u64::from_be_bytes(first) % u64::from(BUCKETS)) as u16)
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a text is no lane id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 hexadecimal digits")]
pub struct LaneIdError;

impl FromStr for LaneId {
    type Err = LaneIdError;

    fn from_str(text: &str) -> Result<Self, LaneIdError> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(LaneIdError);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| LaneIdError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl Serialize for LaneId {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LaneId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One of [`BUCKETS`] groups of lanes; `bucket_map` says which partition it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket(u16);

impl Bucket {
    /// `number` below [`BUCKETS`], else none.
    pub const fn new(number: u16) -> Option<Self> {
        if number < BUCKETS { Some(Self(number)) } else { None }
    }

    /// Its number, below [`BUCKETS`].
    pub const fn number(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_lane_is_read_as_it_is_written() {
        let text = "00112233445566778899aabbccddeeff";
        assert_eq!(text.parse::<LaneId>().unwrap().to_string(), text);
        assert!("+0112233445566778899aabbccddeeff".parse::<LaneId>().is_err());
        assert!("0011".parse::<LaneId>().is_err());
    }

    #[test]
    fn lane_ids_and_buckets_are_fixed_for_ever() {
        let endpoint =
            EndpointId::from_uuid(Uuid::from_u128(0x019a_d2f0_1111_7000_8000_0000_0000_0002));
        let user = LaneId::derive(endpoint, LaneMode::User, b"user_1");
        let total = LaneId::derive(endpoint, LaneMode::Total, b"");
        assert_eq!(
            (user.to_string().as_str(), user.bucket().number()),
            ("96d5687ee2ef797c3fbc771b600c99e6", 380)
        );
        assert_eq!(
            (total.to_string().as_str(), total.bucket().number()),
            ("bfac1563c84cb8dcf9fdc009930ea600", 220)
        );
    }

    #[test]
    fn a_delivery_without_a_user_key_is_a_lane_of_its_own() {
        let endpoint = EndpointId::from_uuid(Uuid::from_u128(1));
        let (a, b) =
            (DeliveryId::from_uuid(Uuid::from_u128(2)), DeliveryId::from_uuid(Uuid::from_u128(3)));
        assert_ne!(
            LaneId::of(endpoint, LaneMode::User, None, a),
            LaneId::of(endpoint, LaneMode::User, None, b)
        );
        assert_eq!(
            LaneId::of(endpoint, LaneMode::User, Some("k"), a),
            LaneId::of(endpoint, LaneMode::User, Some("k"), b)
        );
    }
}
