//! `…/unknowns`: outcomes that nobody knows, and the word of somebody who found out.

use super::{PageOf, page_of, rfc3339, timestamp};
use crate::access::{Access, DeadLettersWrite, DeliveriesRead};
use crate::app::App;
use crate::body::{Fields, JsonBody};
use crate::problem::{self, Document, Problem};
use crate::query::Query;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use laneway_store::deliveries::delivery_get;
use laneway_store::inspect::{
    self as store, Filter, Resolve, Verdict, resolutions_list, unknown_resolve, unknowns_list,
};
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneId, TenantId, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

/// Words on one outcome that are shown, the newest.
const MOST_RESOLUTIONS: u16 = 100;

/// A delivery of which nobody knows whether the receiver has applied it. Its lane waits.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Unknown {
    /// The delivery.
    #[schema(value_type = Option<String>, required = true, example = "dlv_02K7cS0QmsKsTMhhNhGpJ3")]
    id: Option<DeliveryId>,
    #[schema(value_type = Option<String>, required = true, example = "evt_02K7cS0QmsKsTMhhNhGpJ3")]
    event_id: Option<EventId>,
    #[schema(value_type = String, example = "ep_02K7cS0QmsKsTMhhNhGpJ3")]
    endpoint_id: EndpointId,
    /// The lane that waits: 32 hexadecimal digits.
    lane: String,
    /// The event's key, if its lane has one.
    #[schema(required = true)]
    key: Option<String>,
    #[schema(required = true, format = DateTime)]
    since: Option<String>,
    attempts: u32,
    /// Events that wait behind it, up to 9,999.
    waiting_behind: u32,
    /// Whether a resolution waits for the owner of the lane.
    decided: bool,
    /// How often the endpoint's authority was asked; null if there is none.
    #[schema(required = true)]
    asked: Option<u32>,
    /// What it said last: `in_progress`, `unknown`, … There may be more later.
    #[schema(required = true)]
    answer: Option<String>,
    /// Why.
    #[schema(required = true)]
    detail: Option<String>,
    /// When it is asked again at the earliest.
    #[schema(required = true, format = DateTime)]
    ask_at: Option<String>,
}

/// What was found out.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct NewResolution {
    /// `delivered`: the receiver has it, nothing is sent. `not_applied`: it does not; it is sent again under the same
    /// ids. `given_up`: nobody can say; it becomes a dead letter with the cause `unknown`. In each case the lane goes on.
    #[schema(inline)]
    verdict: VerdictText,
    /// How you know; stored in the audit log.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "for the schema")]
enum VerdictText {
    Delivered,
    NotApplied,
    GivenUp,
}

/// What somebody, or the endpoint's authority, said of an outcome.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resolution {
    /// Grows with each.
    number: i64,
    /// `delivered`, `not_applied` or `given_up`.
    verdict: &'static str,
    reason: String,
    /// Who said it; `reconciler` for the authority.
    actor: String,
    #[schema(format = DateTime)]
    created_at: String,
    /// When the owner of the lane answered.
    #[schema(required = true, format = DateTime)]
    applied_at: Option<String>,
    /// `applied`, or why it was refused: `not_unknown`. Null while it waits.
    #[schema(required = true)]
    result: Option<String>,
}

/// All that was said of one outcome.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resolutions {
    /// Newest first, at most 100.
    data: Vec<Resolution>,
}

/// List unknown outcomes
///
/// Needs the scope `deliveries:read`. Oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/unknowns",
    tag = "unknown outcomes",
    operation_id = "listUnknowns",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("endpointId" = Option<String>, Query, description = "Of this endpoint", pattern = "^ep_[0-9A-Za-z]{22}$"),
        ("limit" = Option<u16>, Query, description = "Entries at most, 50 if it is left out", minimum = 1, maximum = 250),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", min_length = 1)
    ),
    responses(
        (status = 200, description = "One page", body = PageOf<Unknown>),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_unknowns(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    mut query: Query,
) -> Result<Response, Problem> {
    const LIST: &str = "unknowns";
    let endpoint = query.parsed("endpointId", "id_not_valid", |text| text.parse().ok())?;
    let page = query.page(app.cursors(), access.tenant, LIST)?;
    query.finish()?;
    let after = match page.after.as_deref() {
        Some(text) => Some(place(text).ok_or_else(|| problem::CURSOR_NOT_VALID.problem())?),
        None => None,
    };
    let filter = Filter { tenant: Some(access.tenant), endpoint, limit: page.limit + 1 };
    let rows = unknowns_list(app.pool(), filter, after).await?;
    let key = |row: &store::Unknown| {
        let since = row.lane.unknown_since.map(rfc3339).unwrap_or_default();
        format!("{since} {}", row.lane.lane)
    };
    page_of(&app, access.tenant, LIST, &page, rows, key, Unknown::from)
}

/// Where a page ends: since when its last entry is unknown, and its lane.
fn place(text: &str) -> Option<(Timestamp, LaneId)> {
    let (since, lane) = text.split_once(' ')?;
    Some((timestamp(since)?, lane.parse().ok()?))
}

/// Resolve an unknown outcome
///
/// Needs the scope `deadletters:write`. The owner of the lane applies it within seconds: `result` of the list of
/// resolutions says what became of it. There is no undo.
#[utoipa::path(
    post,
    path = "/api/v1/projects/{project}/unknowns/{id}/resolutions",
    tag = "unknown outcomes",
    operation_id = "resolveUnknown",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The delivery's id, `dlv_…`")
    ),
    request_body = NewResolution,
    responses(
        (status = 202, description = "Written; the lane's owner applies it", body = Resolution),
        (status = "4XX", description = "Refused; nothing was stored", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn resolve_unknown(
    State(app): State<App>,
    access: Access<DeadLettersWrite>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let delivery: DeliveryId = access.id()?;
    let mut fields = Fields::read(&body)?;
    let verdict = fields.choice("verdict", "delivered, not_applied, given_up", Verdict::parse);
    if verdict.is_none() {
        fields.missing("verdict");
    }
    let reason = super::reason(&mut fields);
    fields.finish()?;
    let (Some(verdict), Some(reason)) = (verdict, reason) else {
        // `finish` has refused it: a lacking value always comes with an error.
        return Err(problem::BODY_NOT_VALID.problem());
    };
    let tenant = Some(access.tenant);
    let actor = access.actor();
    match unknown_resolve(app.pool(), tenant, delivery, verdict, &reason, &actor).await? {
        Resolve::Written(resolution) => {
            Ok((StatusCode::ACCEPTED, Json(Resolution::from(resolution))).into_response())
        }
        Resolve::Waiting(_) => Err(problem::RESOLUTION_WAITS.problem()),
        Resolve::NotUnknown => {
            is_there(&app, access.tenant, delivery).await?;
            Err(problem::NOT_UNKNOWN.problem())
        }
    }
}

/// Refuses a delivery that the project does not have.
async fn is_there(app: &App, tenant: TenantId, delivery: DeliveryId) -> Result<(), Problem> {
    let found = delivery_get(app.pool(), tenant, delivery).await?;
    found.map(|_| ()).ok_or_else(|| problem::NOT_FOUND.problem())
}

/// List what was said of an outcome
///
/// Needs the scope `deliveries:read`. It is kept as long as commands are (`reconciler.keep`).
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/unknowns/{id}/resolutions",
    tag = "unknown outcomes",
    operation_id = "listResolutions",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The delivery's id, `dlv_…`")
    ),
    responses(
        (status = 200, description = "All of them; none if nothing was said", body = Resolutions),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_resolutions(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let delivery = access.id()?;
    let rows = resolutions_list(app.pool(), access.tenant, delivery, MOST_RESOLUTIONS).await?;
    if rows.is_empty() {
        is_there(&app, access.tenant, delivery).await?;
    }
    let data = rows.into_iter().map(Resolution::from).collect();
    Ok(Json(Resolutions { data }).into_response())
}

impl From<store::Unknown> for Unknown {
    fn from(unknown: store::Unknown) -> Self {
        let lane = unknown.lane;
        let (answer, detail) = unknown.answer.unzip();
        Self {
            id: lane.head.map(|head| head.delivery),
            event_id: lane.head.map(|head| head.event),
            endpoint_id: lane.endpoint,
            lane: lane.lane.to_string(),
            key: lane.user_key,
            since: lane.unknown_since.map(rfc3339),
            attempts: lane.head.map_or(0, |head| head.attempts),
            waiting_behind: lane.waiting.saturating_sub(1),
            decided: unknown.decided,
            asked: unknown.asked,
            answer,
            detail,
            ask_at: unknown.ask_at.map(rfc3339),
        }
    }
}

impl From<store::Resolution> for Resolution {
    fn from(resolution: store::Resolution) -> Self {
        let (applied_at, result) = resolution.answer.unzip();
        Self {
            number: resolution.command,
            verdict: resolution.verdict.as_str(),
            reason: resolution.reason,
            actor: resolution.actor,
            created_at: rfc3339(resolution.created_at),
            applied_at: applied_at.map(rfc3339),
            result,
        }
    }
}
