//! The record of `laneway.deliveries.v1`, version 1: one delivery, all that a sender needs.
//!
//! Value: one byte version (1), the head's length (u32, big-endian), the head (JSON object), the payload (the rest,
//! byte for byte what the application stored). Key: the lane id (16 bytes). The topic is private to Laneway: a
//! reader of version n reads n and n-1; what it cannot read goes to quarantine, never to the floor (I46, I54).
//! Fields of the head are only ever added, and a reader ignores those it does not know.

use crate::ids::{DeliveryId, EndpointId, EventId, TenantId};
use crate::lane::{LaneId, LaneMode};
use crate::time::Timestamp;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The version that this build writes.
pub const VERSION: u8 = 1;
/// The largest payload (design: security 5.7), bytes.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// The largest head, bytes: custom headers (8 KiB), key, type and ids fit many times.
pub const MAX_HEAD: usize = 64 * 1024;
/// The longest user key, bytes (kafka.md 3.3).
pub const MAX_USER_KEY: usize = 255;
/// The longest event type, bytes.
pub const MAX_EVENT_TYPE: usize = 255;

const PREFIX: usize = 5;

/// One delivery on its way from the relay to its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Everything but the payload.
    pub head: Head,
    /// The body to be sent, byte for byte.
    pub payload: Bytes,
}

/// What a record says beside the payload. Short names: it is written once per delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Generation of the topic that the relay published into (design section 4, loss of the log).
    #[serde(rename = "g")]
    pub generation: u64,
    /// The delivery's id; `derive` of the four below.
    #[serde(rename = "d", with = "uuid::serde::simple")]
    pub delivery: Uuid,
    /// Its event.
    #[serde(rename = "e", with = "uuid::serde::simple")]
    pub event: Uuid,
    /// Its endpoint.
    #[serde(rename = "p", with = "uuid::serde::simple")]
    pub endpoint: Uuid,
    /// Whose it is.
    #[serde(rename = "t", with = "uuid::serde::simple")]
    pub tenant: Uuid,
    /// What orders it.
    #[serde(rename = "m")]
    pub mode: LaneMode,
    /// The user key; none for [`LaneMode::Total`] and [`LaneMode::None`].
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub user_key: Option<String>,
    /// Event type, e.g. `order.created`.
    #[serde(rename = "y")]
    pub event_type: String,
    /// Content type of the payload.
    #[serde(rename = "c")]
    pub content_type: String,
    /// Custom headers of the event, in order.
    #[serde(rename = "h", default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// W3C trace context of the writer, if it gave one.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Name of the source database.
    #[serde(rename = "s")]
    pub source: String,
    /// The outbox row's id in its source.
    #[serde(rename = "r")]
    pub row: i64,
    /// When the row was written, database time.
    #[serde(rename = "a")]
    pub created_at: Timestamp,
    /// 0, or the number of the rewind.
    #[serde(rename = "n", default, skip_serializing_if = "is_zero")]
    pub replay: u32,
    /// The delivery that this one repeats; rewinds alone have one.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<Uuid>,
    /// Its payload was erased (C17): it is never sent and ends as a dead letter.
    #[serde(rename = "x", default, skip_serializing_if = "is_false")]
    pub erased: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Why bytes are not a record. Such a record is quarantined with [`RecordError::code`] as its reason.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No bytes at all (a tombstone or an empty value).
    #[error("empty record")]
    Empty,
    /// A version that this build does not read.
    #[error("record version {0} is not readable by this build")]
    Version(u8),
    /// Shorter than its own lengths say, or longer than the limits.
    #[error("record is truncated or over a limit")]
    Length,
    /// The head is not the JSON that version 1 describes.
    #[error("record head is not valid")]
    Head(#[source] serde_json::Error),
    /// The head contradicts itself: lane key beside a mode without one, over-long key or type, foreign delivery id.
    #[error("record head contradicts itself: {0}")]
    Contradiction(&'static str),
}

impl RecordError {
    /// Stable reason code for the quarantine.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Version(_) => "unknown_version",
            Self::Length => "bad_length",
            Self::Head(_) => "bad_head",
            Self::Contradiction(_) => "contradiction",
        }
    }
}

impl Record {
    /// The record's bytes in version [`VERSION`].
    pub fn encode(&self) -> Bytes {
        let head = serde_json::to_vec(&self.head).expect("strings and numbers always serialise");
        let mut out = BytesMut::with_capacity(PREFIX + head.len() + self.payload.len());
        out.put_u8(VERSION);
        out.put_u32(u32::try_from(head.len()).expect("a head is far below 4 GiB"));
        out.put_slice(&head);
        out.put_slice(&self.payload);
        out.freeze()
    }

    /// What is left of it when its payload is erased: who it was for and what became of it, nothing of what it said.
    pub fn erased(&self) -> Self {
        let head =
            Head { headers: Vec::new(), traceparent: None, erased: true, ..self.head.clone() };
        Self { head, payload: Bytes::new() }
    }

    /// Reads a record and checks everything that it says about itself. The payload shares `value`'s memory.
    pub fn decode(value: &Bytes) -> Result<Self, RecordError> {
        let version = *value.first().ok_or(RecordError::Empty)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let length: [u8; 4] = value
            .get(1..PREFIX)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(RecordError::Length)?;
        let head_end = PREFIX + u32::from_be_bytes(length) as usize;
        if head_end > PREFIX + MAX_HEAD
            || head_end > value.len()
            || value.len() - head_end > MAX_PAYLOAD
        {
            return Err(RecordError::Length);
        }
        let head: Head =
            serde_json::from_slice(&value[PREFIX..head_end]).map_err(RecordError::Head)?;
        head.check()?;
        Ok(Self { head, payload: value.slice(head_end..) })
    }
}

impl Head {
    /// The delivery's id.
    pub const fn delivery_id(&self) -> DeliveryId {
        DeliveryId::from_uuid(self.delivery)
    }

    /// The event's id.
    pub const fn event_id(&self) -> EventId {
        EventId::from_uuid(self.event)
    }

    /// The endpoint's id.
    pub const fn endpoint_id(&self) -> EndpointId {
        EndpointId::from_uuid(self.endpoint)
    }

    /// The tenant's id.
    pub const fn tenant_id(&self) -> TenantId {
        TenantId::from_uuid(self.tenant)
    }

    /// The lane that the delivery is in.
    pub fn lane(&self) -> LaneId {
        LaneId::of(self.endpoint_id(), self.mode, self.user_key.as_deref(), self.delivery_id())
    }

    fn check(&self) -> Result<(), RecordError> {
        if self.user_key.is_some() != (self.mode == LaneMode::User) {
            return Err(RecordError::Contradiction("user key and lane mode"));
        }
        if self.user_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > MAX_USER_KEY) {
            return Err(RecordError::Contradiction("length of the user key"));
        }
        if self.event_type.is_empty() || self.event_type.len() > MAX_EVENT_TYPE {
            return Err(RecordError::Contradiction("length of the event type"));
        }
        if self.replay == 0
            && self.delivery_id() != DeliveryId::first(self.event_id(), self.endpoint_id())
        {
            return Err(RecordError::Contradiction("delivery id"));
        }
        if self.replay == 0 && self.replay_of.is_some() {
            return Err(RecordError::Contradiction("rewind without a number"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(key: Option<&str>, payload: &[u8]) -> Record {
        let event = EventId::from_uuid(Uuid::from_u128(0x019a_d2f0_0000_7000_8000_0000_0000_0001));
        let endpoint = EndpointId::from_uuid(Uuid::from_u128(2));
        Record {
            head: Head {
                generation: 1,
                delivery: DeliveryId::first(event, endpoint).as_uuid(),
                event: event.as_uuid(),
                endpoint: endpoint.as_uuid(),
                tenant: Uuid::from_u128(3),
                mode: if key.is_some() { LaneMode::User } else { LaneMode::None },
                user_key: key.map(str::to_owned),
                event_type: "order.created".into(),
                content_type: "application/json".into(),
                headers: vec![("x-shop".into(), "7".into())],
                traceparent: None,
                source: "app".into(),
                row: 42,
                created_at: Timestamp(1_796_000_000_000),
                replay: 0,
                replay_of: None,
                erased: false,
            },
            payload: Bytes::copy_from_slice(payload),
        }
    }

    #[test]
    fn a_record_comes_back_whole() {
        let record = record(Some("user_1"), br#"{"a": 1.0}"#);
        assert_eq!(Record::decode(&record.encode()).unwrap(), record);
    }

    #[test]
    fn a_rewind_says_what_it_repeats() {
        let mut rewind = record(Some("user_1"), b"{}");
        rewind.head.replay_of = Some(rewind.head.delivery);
        rewind.head.replay = 1;
        rewind.head.delivery = Uuid::from_u128(77);
        assert_eq!(Record::decode(&rewind.encode()).unwrap(), rewind);
    }

    #[test]
    fn an_erased_record_says_so_and_nothing_of_what_was_sent() {
        let whole = record(Some("user_1"), b"{}");
        let erased = Record::decode(&whole.erased().encode()).unwrap();
        assert!(erased.head.erased && erased.payload.is_empty() && erased.head.headers.is_empty());
        assert_eq!(erased.head.lane(), whole.head.lane());
        assert_eq!(erased.head.delivery, whole.head.delivery);
    }

    #[test]
    fn unknown_fields_of_a_later_minor_version_are_ignored() {
        let encoded = record(None, b"x").encode();
        let head_len = u32::from_be_bytes(encoded[1..5].try_into().unwrap()) as usize;
        let mut head: serde_json::Value =
            serde_json::from_slice(&encoded[5..5 + head_len]).unwrap();
        head["new"] = 1.into();
        let head = serde_json::to_vec(&head).unwrap();
        let mut bytes = vec![1];
        bytes.extend((head.len() as u32).to_be_bytes());
        bytes.extend(&head);
        bytes.push(b'x');
        assert_eq!(Record::decode(&bytes.into()).unwrap(), record(None, b"x"));
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_its_code() {
        let mut foreign = record(Some("k"), b"");
        foreign.head.event = Uuid::from_u128(9);
        assert_eq!(Record::decode(&foreign.encode()).unwrap_err().code(), "contradiction");
        let mut numberless = record(Some("k"), b"");
        numberless.head.replay_of = Some(Uuid::from_u128(5));
        assert_eq!(Record::decode(&numberless.encode()).unwrap_err().code(), "contradiction");
        let mut keyless = record(Some("k"), b"");
        keyless.head.user_key = None;
        assert_eq!(Record::decode(&keyless.encode()).unwrap_err().code(), "contradiction");
        assert_eq!(Record::decode(&Bytes::new()).unwrap_err().code(), "empty");
        assert_eq!(
            Record::decode(&Bytes::from_static(b"\x07abc")).unwrap_err().code(),
            "unknown_version"
        );
        assert_eq!(
            Record::decode(&Bytes::from_static(b"\x01\xff\xff\xff\xff{}")).unwrap_err().code(),
            "bad_length"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(&bytes.into());
        }

        #[test]
        fn payloads_are_carried_byte_for_byte(payload in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let record = record(Some("k"), &payload);
            prop_assert_eq!(Record::decode(&record.encode()).unwrap().payload, record.payload);
        }
    }
}
