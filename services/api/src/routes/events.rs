//! `…/events`: the idempotent intake. The claim of the key, the outbox row and the answer are one transaction, and
//! nothing is acknowledged that is not committed (C1, C2, C5, I52).

use crate::access::{Access, EventsWrite};
use crate::app::App;
use crate::body::{Fields, JsonBody};
use crate::idempotent::{Begun, Operation};
use crate::observe;
use crate::problem::{self, Document, Problem};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use laneway_platform::{failpoint, trace};
use laneway_store::events::{self as store, Emitted, event_emit};
use laneway_wire::EventId;
use laneway_wire::record::{MAX_EVENT_TYPE, MAX_PAYLOAD, MAX_USER_KEY};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

const CREATE: Operation = Operation {
    name: "events.create",
    route: "/api/v1/projects/{project}/events",
    key_required: true,
    secret: false,
    status: StatusCode::ACCEPTED,
    location: "",
};
/// The longest dedupe key, bytes.
const MAX_DEDUPE_KEY: usize = 255;

/// A new event.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct NewEvent {
    /// Its type: words of letters, digits, `_` and `-`, parted by dots.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$",
        example = "order.created"
    )]
    r#type: String,
    /// The user key: events of one key arrive at each endpoint in the order of their commits. At most 255 bytes, no
    /// control characters.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1f\\x7f]+$",
        example = "customer-42"
    )]
    key: Option<String>,
    /// Any JSON, at most 262,144 bytes; sent on byte for byte.
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    /// Names this event within the project: a second event with the same one is refused, whatever its
    /// `Idempotency-Key`. At most 255 bytes, no control characters.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1f\\x7f]+$",
        example = "order-1001-created"
    )]
    dedupe_key: Option<String>,
}

/// An event that is stored and will be delivered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedEvent {
    /// Its id, `webhook-id` and `Idempotency-Key` of the requests to the endpoints.
    #[schema(value_type = String, example = "evt_02K7cS0QmsKsTMhhNhGpJ3")]
    id: EventId,
}

/// Emit an event
///
/// Needs the scope `events:write`, and an `Idempotency-Key`: the same key with the same content gives the first
/// answer again (`Idempotency-Replayed: true`), with another content 422, while the first is worked on 409.
#[utoipa::path(
    post,
    path = "/api/v1/projects/{project}/events",
    tag = "events",
    operation_id = "createEvent",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters, new for each event",
            min_length = 1, max_length = 255, pattern = "^[!#-~]([ !#-~]*[!#-~])?$"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context; the deliveries are in this trace")
    ),
    request_body = NewEvent,
    responses(
        (status = 202, description = "Stored", body = AcceptedEvent,
            headers(("Idempotency-Replayed" = Option<String>, description = "`true` on a repeated answer"))),
        (status = "4XX", description = "Refused; nothing was stored", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn create_event(
    State(app): State<App>,
    access: Access<EventsWrite>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let event = read(&body)?;
    failpoint::hit("A1");
    let mut work = match CREATE.begin(&app, access.tenant, &[], &headers, &body).await? {
        Begun::New(work) => work,
        Begun::Done(response) => return Ok(response),
    };
    let traceparent =
        trace::traceparent(&tracing::Span::current()).or_else(|| observe::traceparent(&headers));
    let new = store::NewEvent {
        event_type: &event.event_type,
        user_key: event.key.as_deref(),
        payload: event.payload.get().as_bytes(),
        dedupe_key: event.dedupe_key.as_deref(),
        traceparent: traceparent.as_deref(),
    };
    failpoint::hit("A2");
    match event_emit(&mut work, &new).await? {
        Emitted::New(id) => {
            failpoint::hit("A3");
            let response = CREATE.finish(&app, work, &AcceptedEvent { id }).await?;
            failpoint::hit("A4");
            app.metrics().accepted.inc();
            Ok(response)
        }
        Emitted::Duplicate(first) => {
            Err(problem::DUPLICATE_EVENT.problem().with_event(first.to_string()))
        }
    }
}

struct Event<'a> {
    event_type: String,
    key: Option<String>,
    payload: &'a RawValue,
    dedupe_key: Option<String>,
}

fn read(body: &[u8]) -> Result<Event<'_>, Problem> {
    let mut fields = Fields::read(body)?;
    let event_type = fields.required_text("type");
    if event_type.as_deref().is_some_and(|event_type| !is_event_type(event_type)) {
        let detail =
            "expected words of letters, digits, `_` and `-`, parted by dots, at most 255 bytes";
        fields.error("type", "event_type_not_valid", detail);
    }
    let key = fields.text("key");
    if key.as_deref().is_some_and(|key| !is_key(key, MAX_USER_KEY)) {
        fields.error("key", "key_not_valid", "expected 1 to 255 bytes, no control characters");
    }
    let dedupe_key = fields.text("dedupeKey");
    if dedupe_key.as_deref().is_some_and(|key| !is_key(key, MAX_DEDUPE_KEY)) {
        fields.error(
            "dedupeKey",
            "key_not_valid",
            "expected 1 to 255 bytes, no control characters",
        );
    }
    let payload = fields.required_raw("payload");
    fields.finish()?;
    let (Some(event_type), Some(payload)) = (event_type, payload) else {
        // `finish` has refused it: a lacking value always comes with an error.
        return Err(problem::BODY_NOT_VALID.problem());
    };
    if payload.get().len() > MAX_PAYLOAD {
        return Err(problem::BODY_TOO_LARGE.detail("a payload has at most 262,144 bytes"));
    }
    Ok(Event { event_type, key, payload, dedupe_key })
}

/// As the outbox checks it: it becomes a header's value.
pub(crate) fn is_event_type(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    text.len() <= MAX_EVENT_TYPE && text.split('.').all(word)
}

fn is_key(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && !text.bytes().any(|byte| byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_words_parted_by_dots() {
        for good in ["a", "order.created", "pull_request.review-1", &"x".repeat(255)] {
            assert!(is_event_type(good), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a\nb", "ä", "a*", &"x".repeat(256)] {
            assert!(!is_event_type(bad), "{bad}");
        }
    }

    #[test]
    fn keys_are_any_text_without_control_characters() {
        assert!(is_key("Zürich/7", 255));
        for bad in ["", "a\u{0}", "a\r\n", "\u{7f}"] {
            assert!(!is_key(bad, 255), "{bad:?}");
        }
        assert!(!is_key(&"x".repeat(256), 255));
    }
}
