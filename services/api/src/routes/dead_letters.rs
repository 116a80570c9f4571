//! `…/dead-letters`: what was given up on. What is done with it is a command (`…/rewinds`).

use super::{PageOf, page_of, rfc3339};
use crate::access::{Access, DeliveriesRead};
use crate::app::App;
use crate::problem::{self, Document, Problem};
use crate::query::{self, Query};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use laneway_store::dead_letters::{
    self as store, Selection, State as Dead, Unreadable, dead_letter_get, dead_letters_list,
};
use laneway_store::keys::Scope;
use laneway_wire::{DeliveryId, EndpointId, EventId, Record, RewindId};
use serde::Serialize;
use utoipa::ToSchema;

/// A delivery that was given up on.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeadLetter {
    /// The delivery.
    #[schema(value_type = String, example = "dlv_02K7cS0QmsKsTMhhNhGpJ3")]
    id: DeliveryId,
    #[schema(value_type = String, example = "evt_02K7cS0QmsKsTMhhNhGpJ3")]
    event_id: EventId,
    #[schema(value_type = String, example = "ep_02K7cS0QmsKsTMhhNhGpJ3")]
    endpoint_id: EndpointId,
    /// The lane that it was in: 32 hexadecimal digits.
    lane: String,
    /// The event's key, if its lane had one.
    #[schema(required = true)]
    key: Option<String>,
    /// The event's type.
    r#type: String,
    /// `open`, `rewound` (sent again as `rewoundTo`), `discarded`, or `erased`. There may be more later.
    state: &'static str,
    /// Why it was given up: `rejected`, `expired`, `unknown` (nobody could say, and it was given up) or `erased`. There may be more later.
    cause: String,
    attempts: u32,
    /// What went wrong at the first attempt.
    #[schema(required = true)]
    first_error: Option<String>,
    /// What went wrong at the last attempt.
    #[schema(required = true)]
    last_error: Option<String>,
    #[schema(required = true)]
    last_status: Option<u16>,
    #[schema(format = DateTime)]
    dead_at: String,
    /// The delivery that repeats it.
    #[schema(value_type = Option<String>, required = true)]
    rewound_to: Option<DeliveryId>,
    /// The command that closed it.
    #[schema(value_type = Option<String>, required = true)]
    rewind_id: Option<RewindId>,
    #[schema(required = true, format = DateTime)]
    closed_at: Option<String>,
}

/// A dead letter with what could not be delivered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WholeDeadLetter {
    #[serde(flatten)]
    dead_letter: DeadLetter,
    /// The delivery that this one repeated.
    #[schema(value_type = Option<String>, required = true)]
    rewound_from: Option<DeliveryId>,
    content_type: String,
    payload_bytes: usize,
    /// The payload as text; null without the scope `deadletters:write`, and if it cannot be read.
    #[schema(required = true)]
    payload: Option<String>,
    /// What is kept of it cannot be read, and it cannot be sent again: a code that says why. `contentType` and
    /// `payloadBytes` then speak of all that is kept. Null: it can.
    #[schema(required = true, example = "unknown_version")]
    unreadable: Option<&'static str>,
}

/// List dead letters
///
/// Needs the scope `deliveries:read`. Newest first.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/dead-letters",
    tag = "dead letters",
    operation_id = "listDeadLetters",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("endpointId" = Option<String>, Query, description = "Of this endpoint", pattern = "^ep_[0-9A-Za-z]{22}$"),
        ("lane" = Option<String>, Query, description = "Of this lane", pattern = "^[0-9a-f]{32}$"),
        ("key" = Option<String>, Query, description = "Of this user key"),
        ("eventType" = Option<String>, Query, description = "Of this type; `order.*` is everything below `order`"),
        ("cause" = Option<String>, Query, description = "Given up for this: `rejected`, `expired`, `unknown`, `erased`"),
        ("state" = Option<String>, Query, description = "`open`, `rewound`, `discarded` or `erased`", pattern = "^(open|rewound|discarded|erased)$"),
        ("since" = Option<String>, Query, description = "Given up at this time or later, RFC 3339", format = DateTime),
        ("until" = Option<String>, Query, description = "Given up before this time, RFC 3339", format = DateTime),
        ("limit" = Option<u16>, Query, description = "Entries at most, 50 if it is left out", minimum = 1, maximum = 250),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", min_length = 1)
    ),
    responses(
        (status = 200, description = "One page", body = PageOf<DeadLetter>),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_dead_letters(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    mut query: Query,
) -> Result<Response, Problem> {
    let selection = selection(&mut query)?;
    let state = query.parsed("state", "state_not_valid", Dead::parse)?;
    let page = query.page(app.cursors(), access.tenant, "dead letters")?;
    query.finish()?;
    let before = match page.after.as_deref() {
        Some(text) => Some(text.parse().map_err(|_| problem::CURSOR_NOT_VALID.problem())?),
        None => None,
    };
    let tenant = Some(access.tenant);
    let rows =
        dead_letters_list(app.pool(), tenant, &selection, state, before, page.limit + 1).await?;
    let key = |row: &store::DeadLetter| row.place.to_string();
    page_of(&app, access.tenant, "dead letters", &page, rows, key, DeadLetter::from)
}

/// Read a dead letter
///
/// Needs the scope `deliveries:read`; its payload is shown only with `deadletters:write`.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/dead-letters/{id}",
    tag = "dead letters",
    operation_id = "getDeadLetter",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The delivery's id, `dlv_…`")
    ),
    responses(
        (status = 200, description = "The dead letter", body = WholeDeadLetter),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn get_dead_letter(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let found = dead_letter_get(app.pool(), Some(access.tenant), access.id()?).await?;
    let (dead, record) = found.ok_or_else(|| problem::NOT_FOUND.problem())?;
    let shows_payload = access.caller.has(Scope::DeadLettersWrite);
    Ok(Json(whole(dead, &record, shows_payload)).into_response())
}

fn whole(
    dead: store::DeadLetter,
    record: &Result<Record, Unreadable>,
    shows_payload: bool,
) -> WholeDeadLetter {
    let record = match record {
        Ok(record) => record,
        Err(Unreadable { code, bytes }) => {
            return WholeDeadLetter {
                dead_letter: dead.into(),
                rewound_from: None,
                content_type: "application/octet-stream".to_owned(),
                payload_bytes: *bytes,
                payload: None,
                unreadable: Some(*code),
            };
        }
    };
    let payload = || String::from_utf8_lossy(&record.payload).into_owned();
    WholeDeadLetter {
        dead_letter: dead.into(),
        rewound_from: record.head.replay_of.map(DeliveryId::from_uuid),
        content_type: record.head.content_type.clone(),
        payload_bytes: record.payload.len(),
        payload: shows_payload.then(payload),
        unreadable: None,
    }
}

/// The filters of a list.
fn selection(query: &mut Query) -> Result<Selection, Problem> {
    let id = "id_not_valid";
    let selection = Selection {
        deliveries: None,
        endpoint: query.parsed("endpointId", id, |text| text.parse().ok())?,
        lane: query.parsed("lane", id, |text| text.parse().ok())?,
        user_key: query.parsed("key", "text_not_valid", super::storable)?,
        event_type: query.parsed("eventType", "text_not_valid", super::storable)?,
        cause: query.parsed("cause", "text_not_valid", store::cause)?,
        since: query.parsed("since", "time_not_valid", super::timestamp)?,
        until: query.parsed("until", "time_not_valid", super::timestamp)?,
    };
    match selection.is_backwards() {
        true => Err(query::not_valid("until", "time_not_valid", "it is not after `since`")),
        false => Ok(selection),
    }
}

impl From<store::DeadLetter> for DeadLetter {
    fn from(dead: store::DeadLetter) -> Self {
        Self {
            id: dead.delivery,
            event_id: dead.event,
            endpoint_id: dead.endpoint,
            lane: dead.lane.to_string(),
            key: dead.user_key,
            r#type: dead.event_type,
            state: dead.state.as_str(),
            cause: dead.cause,
            attempts: dead.attempts,
            first_error: dead.first_class,
            last_error: dead.last_class,
            last_status: dead.last_status,
            dead_at: rfc3339(dead.dead_at),
            rewound_to: dead.rewound_to,
            rewind_id: dead.rewind,
            closed_at: dead.closed_at.map(rfc3339),
        }
    }
}
