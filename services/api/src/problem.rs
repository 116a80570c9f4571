//! Errors as clients see them: RFC 9457 problem documents, one kind a row of [`KINDS`], each with a stable code that
//! is never given another meaning, and a page under `/problems/` that says what to do.
//!
//! A handler gives a [`Problem`]; the document is written by the outermost layer, which knows the request's id.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_platform::service::Chain;
use serde::Serialize;
use utoipa::ToSchema;

/// Field errors of one document at most.
const MAX_ERRORS: usize = 20;

/// A kind of problem.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) code: &'static str,
    pub(crate) status: u16,
    pub(crate) title: &'static str,
    pub(crate) help: &'static str,
}

macro_rules! kinds {
    ($($name:ident $code:literal $status:literal $title:literal $help:literal;)+) => {
        $(pub(crate) static $name: Kind = Kind { code: $code, status: $status, title: $title, help: $help };)+
        /// Every kind there is.
        pub(crate) static KINDS: &[&Kind] = &[$(&$name),+];
    };
}

kinds! {
    BODY_NOT_JSON "body_not_json" 400 "The body is not JSON"
        "The body could not be read as JSON in UTF-8, or is nested deeper than 128 levels. Nothing was stored.";
    PARAMETER_NOT_VALID "parameter_not_valid" 400 "A query parameter is not valid"
        "A query parameter is unknown, missing, repeated or malformed; `errors` names it.";
    CURSOR_NOT_VALID "cursor_not_valid" 400 "The cursor is not valid"
        "A cursor is good for the list of the project that gave it. Start again without one.";
    KEY_MISSING "idempotency_key_missing" 400 "The Idempotency-Key is missing"
        "This operation needs an `Idempotency-Key` header, so that a repeated request does it once. Send a fresh unique value with each new operation, and the same value with each repetition.";
    KEY_INVALID "idempotency_key_not_valid" 400 "The Idempotency-Key is not valid"
        "Send one `Idempotency-Key` header of 1 to 255 visible ASCII characters, plain or as a quoted string.";
    UNAUTHENTICATED "unauthenticated" 401 "No valid API key"
        "Send a key of the project in `X-API-Key` or `Authorization: Bearer`. The key is missing, malformed, unknown, expired or revoked.";
    SCOPE_MISSING "scope_missing" 403 "The API key may not do this"
        "The key belongs to the project and lacks the scope that `detail` names. Use another key.";
    NOT_FOUND "not_found" 404 "Not found"
        "There is no such route, or the project of the key has no such object.";
    METHOD_NOT_ALLOWED "method_not_allowed" 405 "The method is not allowed"
        "The `Allow` header lists the methods of this route.";
    KEY_IN_USE "idempotency_key_in_use" 409 "The same request is being worked on"
        "Another request with this `Idempotency-Key` has not ended yet. Send it again after `Retry-After`: it will get the answer of the first.";
    DUPLICATE_EVENT "duplicate_event" 409 "The event exists already"
        "An event with this `dedupeKey` was accepted before; `eventId` is its id. Nothing was stored.";
    LIMIT_REACHED "limit_reached" 409 "The project has as many as it may have"
        "Remove what is not needed any more; `detail` says how many are allowed.";
    NOT_UNKNOWN "not_unknown" 409 "The outcome is not a held unknown"
        "Only an outcome that nobody knows and that its lane waits for can be resolved. It has been settled meanwhile, or never was unknown: read the delivery.";
    RESOLUTION_WAITS "resolution_waits" 409 "Something was said already"
        "What was said of this outcome before has not been applied yet. The owner of the lane does that within seconds; the list of resolutions says what became of it.";
    REWIND_ENDED "rewind_ended" 409 "The command has ended"
        "A command that is done or cancelled stays so; `detail` says which. Give a new one if there is more to do.";
    OUTBOX_NOT_READ "outbox_not_read" 409 "No relay reads the control database"
        "What a rewind or a replay sends again is a row of the control database's outbox, and no relay has read that for five minutes. Start one that does: if `sources` are listed in its configuration, the control database has to be among them.";
    NOTHING_TO_REPLAY "nothing_to_replay" 409 "What was delivered is not kept here"
        "A replay reads the control database's outbox. What the endpoint was delivered since then came from other source databases, or is older than the outbox keeps (`relay.window`).";
    BODY_TOO_LARGE "body_too_large" 413 "The body is too large"
        "A payload has at most 262,144 bytes, and the rest of a request little more. Nothing was stored.";
    CONTENT_TYPE "content_type_not_supported" 415 "The content type is not supported"
        "Send `Content-Type: application/json`, not compressed, in UTF-8.";
    BODY_NOT_VALID "body_not_valid" 422 "The body is not valid"
        "The body is JSON, and some of its fields are unknown, missing, repeated, of another type or out of range; `errors` lists them with JSON pointers. Nothing was stored.";
    KEY_REUSED "idempotency_key_reused" 422 "The Idempotency-Key was used for another request"
        "A key stands for one operation with one content. If this is a new operation, send a new key; if it is a repetition, send the request exactly as before.";
    ORDERING "ordering_not_available" 422 "Total order is not available yet"
        "`orderingEnabled: true` is not supported by this version. Leave it out: deliveries are in order for each user key.";
    INTERNAL "internal" 500 "Something went wrong"
        "This is an error of the server, and it was logged under the request's id. Repeat the request with the same `Idempotency-Key`.";
    UNAVAILABLE "unavailable" 503 "The service cannot work now"
        "The database does not answer, or the process is stopping. Whether the operation was done is not known: repeat it with the same `Idempotency-Key` after `Retry-After`.";
    OVERLOADED "overloaded" 503 "Too many requests at once"
        "Nothing was done. Repeat the request after `Retry-After`.";
    TIMED_OUT "timed_out" 503 "The request took too long"
        "Whether the operation was done is not known: repeat it with the same `Idempotency-Key` after `Retry-After`.";
}

impl Kind {
    /// What stands in the problem's URL.
    pub(crate) fn slug(&self) -> String {
        self.code.replace('_', "-")
    }

    /// A problem of this kind.
    pub(crate) fn problem(&'static self) -> Problem {
        Problem(Box::new(Inner {
            kind: self,
            detail: None,
            errors: Vec::new(),
            event_id: None,
            headers: Vec::new(),
        }))
    }

    pub(crate) fn detail(&'static self, detail: impl Into<String>) -> Problem {
        let mut problem = self.problem();
        problem.0.detail = Some(detail.into());
        problem
    }
}

/// What a request came to if it failed.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: &'static Kind,
    detail: Option<String>,
    errors: Vec<FieldError>,
    event_id: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// What is wrong with one field or parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// JSON pointer to the field in the body, or `?name` for a query parameter.
    #[schema(example = "/url")]
    pub(crate) pointer: String,
    /// Stable code of the error.
    #[schema(example = "url_has_credentials")]
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) detail: String,
}

/// RFC 9457 problem document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Problem)]
pub(crate) struct Document<'a> {
    /// URI of the kind of problem; the page there says what to do.
    #[schema(example = "/problems/body-not-valid")]
    r#type: String,
    /// The kind of problem, for people.
    title: &'a str,
    /// The HTTP status.
    status: u16,
    /// This problem, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    /// The request's path.
    instance: &'a str,
    /// Stable code of the kind.
    #[schema(example = "body_not_valid")]
    code: &'a str,
    /// The request's id, as in `X-Request-Id` and in the logs.
    request_id: &'a str,
    /// The trace that the request is in, if it is traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    /// What is wrong with single fields.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
    /// `duplicate_event` only: the id of the first event.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<&'a str>,
}

impl Problem {
    pub(crate) fn kind(&self) -> &'static Kind {
        self.0.kind
    }

    pub(crate) fn with_errors(mut self, mut errors: Vec<FieldError>) -> Self {
        errors.truncate(MAX_ERRORS);
        self.0.errors = errors;
        self
    }

    pub(crate) fn with_event(mut self, id: String) -> Self {
        self.0.event_id = Some(id);
        self
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.0.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    /// The finished answer.
    pub(crate) fn render(
        &self,
        base: &str,
        instance: &str,
        request_id: &str,
        trace_id: Option<&str>,
    ) -> Response {
        let Inner { kind, detail, errors, event_id, headers } = &*self.0;
        let document = Document {
            r#type: format!("{base}{}", kind.slug()),
            title: kind.title,
            status: kind.status,
            detail: detail.as_deref(),
            instance,
            code: kind.code,
            request_id,
            trace_id,
            errors,
            event_id: event_id.as_deref(),
        };
        let body = serde_json::to_vec(&document).expect("texts and numbers always serialise");
        let kind_header = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status(), kind_header, body).into_response();
        for (name, value) in headers {
            response.headers_mut().insert(name, value.clone());
        }
        match kind.status {
            401 => {
                let bearer = HeaderValue::from_static("Bearer realm=\"laneway\"");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
            }
            503 => {
                let soon = HeaderValue::from_static("1");
                response.headers_mut().insert(header::RETRY_AFTER, soon);
            }
            _ => {}
        }
        response
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.kind.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// A body-less response that carries the problem; the outermost layer writes the document.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<laneway_store::Error> for Problem {
    /// The one place where a database error of a request is handled: logged with its causes, told without.
    fn from(error: laneway_store::Error) -> Self {
        let chain = Chain(&error).to_string();
        if error.is_transient() || error.is_connection_lost() {
            tracing::warn!(error = chain, "the database could not do it");
            UNAVAILABLE.problem()
        } else {
            tracing::error!(error = chain, "a request failed");
            INTERNAL.problem()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_unique_and_statuses_are_errors() {
        let codes: BTreeSet<_> = KINDS.iter().map(|kind| kind.code).collect();
        assert_eq!(codes.len(), KINDS.len());
        assert!(KINDS.iter().all(|kind| (400..600).contains(&kind.status)));
    }
}
