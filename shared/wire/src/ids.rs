//! Identifiers: a UUID inside, a prefixed base62 text outside (`ep_…`), so that a log line says what an id is.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("want `{prefix}` followed by 22 base62 characters, or a UUID")]
pub struct IdError {
    /// The prefix that the wanted kind of id has, with its underscore.
    pub prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// What the text form begins with.
            pub const PREFIX: &'static str = $prefix;

            /// Wraps a UUID as it is stored.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID as it is stored.
            pub const fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", Self::PREFIX, crate::base62::encode(self.0.as_u128()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            /// Takes the prefixed form and, for people with a database at hand, a plain UUID.
            fn from_str(text: &str) -> Result<Self, IdError> {
                match text.strip_prefix(Self::PREFIX) {
                    Some(rest) => crate::base62::decode(rest).map(Uuid::from_u128),
                    None => Uuid::try_parse(text).ok(),
                }
                .map(Self)
                .ok_or(IdError { prefix: Self::PREFIX })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// A tenant, called project in the API's paths.
    TenantId,
    "prj_"
);
id!(
    /// A destination of HTTP requests.
    EndpointId,
    "ep_"
);
id!(
    /// A subscription of one endpoint to a pattern of event types.
    SubscriptionId,
    "sub_"
);
id!(
    /// One committed outbox row. A UUIDv7, made with the row; `webhook-id` and `Idempotency-Key` on the wire.
    EventId,
    "evt_"
);
id!(
    /// One event for one endpoint (`X-Delivery-Id`); see [`DeliveryId::derive`].
    DeliveryId,
    "dlv_"
);

id!(
    /// One command over many deliveries: a rewind, a discard, a replay. A UUIDv7.
    RewindId,
    "rwd_"
);
id!(
    /// One erasure of a tenant's or a user key's payloads. A UUIDv7.
    ErasureId,
    "era_"
);

impl DeliveryId {
    /// The id of the delivery of `event` to `endpoint`; `replay` is 0 for the first and n for the n-th rewind.
    ///
    /// Equal inputs give equal ids in every process and for ever, so a republished record finds its inbox row (P5).
    /// The first 48 bits are `time_from`'s (the event's own for replay 0, the rewind command's otherwise): ids sort
    /// by time and the inbox can be partitioned by its key. The rest is a hash; version 8 marks the layout as our own.
    pub fn derive(event: EventId, endpoint: EndpointId, replay: u32, time_from: Uuid) -> Self {
        let digest = Sha256::new()
            .chain_update(b"laneway.delivery.1")
            .chain_update(event.as_uuid().as_bytes())
            .chain_update(endpoint.as_uuid().as_bytes())
            .chain_update(replay.to_be_bytes())
            .finalize();
        let mut bytes = [0u8; 16];
        bytes[..6].copy_from_slice(&time_from.as_bytes()[..6]);
        bytes[6..].copy_from_slice(&digest[..10]);
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(Uuid::from_bytes(bytes))
    }

    /// The id of the first delivery (replay 0) of `event` to `endpoint`.
    pub fn first(event: EventId, endpoint: EndpointId) -> Self {
        Self::derive(event, endpoint, 0, event.as_uuid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uuid(text: &str) -> Uuid {
        Uuid::parse_str(text).unwrap()
    }

    #[test]
    fn the_delivery_id_is_fixed_for_ever() {
        let event = EventId::from_uuid(uuid("019ad2f0-0000-7000-8000-000000000001"));
        let endpoint = EndpointId::from_uuid(uuid("019ad2f0-1111-7000-8000-000000000002"));
        let first = DeliveryId::first(event, endpoint);
        assert_eq!(first.as_uuid().as_bytes()[..6], event.as_uuid().as_bytes()[..6]);
        assert_eq!(first.as_uuid().get_version_num(), 8);
        assert_eq!(first.as_uuid().to_string(), GOLDEN_DELIVERY);
        let rewind = DeliveryId::derive(event, endpoint, 1, event.as_uuid());
        assert_ne!(first, rewind);
    }

    const GOLDEN_DELIVERY: &str = "019ad2f0-0000-860a-b408-17c36fcb57e0";

    #[test]
    fn both_text_forms_are_read_and_other_prefixes_refused() {
        let id = EndpointId::from_uuid(uuid("019ad2f0-1111-7000-8000-000000000002"));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.as_uuid().to_string().parse(), Ok(id));
        assert!(id.to_string().replace("ep_", "evt_").parse::<EndpointId>().is_err());
        assert!("ep_".parse::<EndpointId>().is_err());
    }

    proptest! {
        #[test]
        fn every_id_survives_its_text_and_its_json(number: u128) {
            let id = EventId::from_uuid(Uuid::from_u128(number));
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(serde_json::from_str::<EventId>(&json).unwrap(), id);
        }
    }
}
