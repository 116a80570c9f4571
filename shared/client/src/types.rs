//! What goes over the wire. Enumerations are texts: the API may add values, and a client must bear them.

use laneway_wire::{DeliveryId, EndpointId, EventId, SubscriptionId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;

/// A new endpoint; what is not set takes the API's default.
#[derive(Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewEndpoint {
    /// Where requests go.
    pub url: String,
    /// `whsec_…`; the API makes one up if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// `resend`, `lookup` or `hold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unknown: Option<String>,
    /// Deadline of a request, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// Connections at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// `user` or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering: Option<String>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Its id.
    pub id: EndpointId,
    /// Where requests go.
    pub url: String,
    /// `resend`, `lookup` or `hold`.
    pub on_unknown: String,
    /// Deadline of a request, milliseconds.
    pub timeout_ms: u64,
    /// Connections at most.
    pub max_connections: u32,
    /// `user` or `none`.
    pub ordering: String,
    /// `enabled` or `disabled`.
    pub state: String,
    /// Why it is disabled.
    pub state_reason: Option<String>,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub updated_at: String,
}

/// An endpoint that was just made.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct CreatedEndpoint {
    /// The endpoint.
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// What signs its requests.
    pub secret: String,
}

/// A new subscription.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSubscription {
    /// The endpoint.
    pub endpoint_id: EndpointId,
    /// A type, `prefix.*` or `*`.
    pub event_type: String,
    /// Total order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_enabled: Option<bool>,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// Its id.
    pub id: SubscriptionId,
    /// The endpoint.
    pub endpoint_id: EndpointId,
    /// A type, `prefix.*` or `*`.
    pub event_type: String,
    /// Total order.
    pub ordering_enabled: bool,
    /// RFC 3339.
    pub created_at: String,
}

/// A new event.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewEvent<'a> {
    /// Its type.
    pub r#type: &'a str,
    /// Its user key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// What is sent, as it is written.
    pub payload: &'a RawValue,
    /// Unique in the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_key: Option<&'a str>,
}

/// A delivery.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Its event, if it is known.
    pub event_id: Option<EventId>,
    /// Its endpoint.
    pub endpoint_id: EndpointId,
    /// `waiting`, `retrying`, `parked`, `unknown`, `delivered`, `dead_lettered`, `discarded`.
    pub state: String,
    /// Recorded attempts.
    pub attempts: u32,
    /// Status of the last attempt that got one.
    pub last_status: Option<u16>,
    /// What went wrong at the last attempt.
    pub last_error: Option<String>,
    /// Why it waits or was given up.
    pub reason: Option<String>,
    /// RFC 3339.
    pub next_attempt_at: Option<String>,
    /// RFC 3339.
    pub settled_at: Option<String>,
    /// Duration of the last request, milliseconds.
    pub took_ms: Option<u64>,
}

/// An attempt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// `not_sent`, `responded` or `unknown`.
    pub result: String,
    /// Status, if there was an answer.
    pub status: Option<u16>,
    /// What went wrong.
    pub error: Option<String>,
    /// Duration, milliseconds.
    pub took_ms: u64,
    /// RFC 3339.
    pub ended_at: String,
    /// First part of the answer's body.
    pub body: Option<String>,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The entries.
    pub data: Vec<T>,
    /// Where the next page begins, if there is one.
    pub next_cursor: Option<String>,
}

/// A problem document (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Stable code.
    pub code: String,
    /// The kind, for people.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// This one, for people.
    pub detail: Option<String>,
    /// The request's id.
    pub request_id: String,
    /// What is wrong with single fields.
    #[serde(default)]
    pub errors: Vec<FieldError>,
    /// `duplicate_event`: the first event.
    pub event_id: Option<EventId>,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FieldError {
    /// JSON pointer, or `?name`.
    pub pointer: String,
    /// Stable code.
    pub code: String,
    /// For people.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.title, self.code)?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        self.errors.iter().try_for_each(|e| write!(f, "; {} {}: {}", e.pointer, e.code, e.detail))
    }
}
