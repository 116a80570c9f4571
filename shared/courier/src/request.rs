//! The headers of a request (design 5.7). The body is the payload and nothing else.

use crate::target::{Outgoing, Target};
use http::HeaderMap;
use http::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT,
};
use laneway_wire::DeliveryId;
use laneway_wire::headers::check_custom;
use laneway_wire::signature::{ID_HEADER, SIGNATURE_HEADER, Signer, TIMESTAMP_HEADER};
use std::time::UNIX_EPOCH;

const WEBHOOK_ID: HeaderName = HeaderName::from_static(ID_HEADER);
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static(TIMESTAMP_HEADER);
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static(SIGNATURE_HEADER);
const DELIVERY_ID: HeaderName = HeaderName::from_static("x-delivery-id");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const SEQUENCE_NUMBER: HeaderName = HeaderName::from_static("x-sequence-number");
const ATTEMPT: HeaderName = HeaderName::from_static("x-attempt");
const EVENT_TYPE: HeaderName = HeaderName::from_static("x-event-type");
const REPLAY_OF: HeaderName = HeaderName::from_static("x-replay-of");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("Laneway/", env!("CARGO_PKG_VERSION")));
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
/// Ours (12) and room for a few custom ones before the map grows.
const USUAL_HEADERS: usize = 16;

/// A header that cannot be sent: custom ones are checked here too, since a plain INSERT can bring anything.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadHeader;

impl<E: std::error::Error> From<E> for BadHeader {
    fn from(_: E) -> Self {
        Self
    }
}

/// The headers that every request to an endpoint carries.
pub(crate) fn of_endpoint(target: &Target) -> Result<Vec<(HeaderName, HeaderValue)>, BadHeader> {
    check_custom(&target.headers)?;
    target.headers.iter().map(pair).collect()
}

/// All headers of one attempt; `signer` holds the endpoint's secrets, `fixed` its own headers.
pub(crate) fn headers(
    signer: &Signer,
    fixed: &[(HeaderName, HeaderValue)],
    request: &Outgoing<'_>,
) -> Result<HeaderMap, BadHeader> {
    let head = &request.record.head;
    check_custom(&head.headers)?;
    let mut headers = HeaderMap::with_capacity(USUAL_HEADERS + head.headers.len() + fixed.len());
    for header in &head.headers {
        let (name, value) = pair(header)?;
        headers.append(name, value);
    }
    for (name, value) in fixed {
        headers.insert(name.clone(), value.clone());
    }
    // A clock before 1970 signs as 1970: the receiver refuses it, as it should.
    let at = request.signed_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (id, at) = (head.event_id().to_string(), at.to_string());
    let signature = signer.sign_text(&id, &at, &request.record.payload);
    let id = HeaderValue::try_from(id)?;
    headers.insert(WEBHOOK_SIGNATURE, HeaderValue::try_from(signature)?);
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::try_from(at)?);
    headers.insert(WEBHOOK_ID, id.clone());
    headers.insert(IDEMPOTENCY_KEY, id);
    headers.insert(DELIVERY_ID, HeaderValue::try_from(head.delivery_id().to_string())?);
    headers.insert(SEQUENCE_NUMBER, HeaderValue::from(request.sequence));
    headers.insert(ATTEMPT, HeaderValue::from(request.attempt));
    headers.insert(EVENT_TYPE, HeaderValue::from_bytes(head.event_type.as_bytes())?);
    if let Some(of) = head.replay_of.map(DeliveryId::from_uuid) {
        headers.insert(REPLAY_OF, HeaderValue::try_from(of.to_string())?);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_str(&head.content_type)?);
    // Telemetry never stands in the way of a delivery.
    if let Some(Ok(trace)) = head.traceparent.as_deref().map(HeaderValue::from_str) {
        headers.insert(TRACEPARENT, trace);
    }
    // The client leaves it out of a request without a body, and receivers then wait for one (RFC 9110, 8.6).
    if request.record.payload.is_empty() {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    headers.insert(USER_AGENT, AGENT);
    headers.insert(ACCEPT_ENCODING, IDENTITY);
    Ok(headers)
}

fn pair((name, value): &(String, String)) -> Result<(HeaderName, HeaderValue), BadHeader> {
    Ok((HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(value)?))
}
