//! `…/deliveries`: where the deliveries of an event stand.

use super::{PageOf, after, page_of, rfc3339};
use crate::access::{Access, DeliveriesRead};
use crate::app::App;
use crate::problem::{self, Document, Problem};
use crate::query::{Query, not_valid};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use laneway_store::deliveries::{self as store, attempts_list, deliveries_of_event, delivery_get};
use laneway_wire::{DeliveryId, EndpointId, EventId};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// Characters of an answer's body that are shown.
const MAX_BODY_TEXT: usize = 16 * 1024;

/// One event on its way to one endpoint.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delivery {
    #[schema(value_type = String, example = "dlv_02K7cS0QmsKsTMhhNhGpJ3")]
    id: DeliveryId,
    /// Its event. Null only while nothing but failed attempts is recorded and the event lies in an application's own
    /// database.
    #[schema(value_type = Option<String>, required = true, example = "evt_02K7cS0QmsKsTMhhNhGpJ3")]
    event_id: Option<EventId>,
    #[schema(value_type = String, example = "ep_02K7cS0QmsKsTMhhNhGpJ3")]
    endpoint_id: EndpointId,
    /// `waiting` (nothing recorded yet), `retrying`, `parked` (its lane waits in the database), `unknown` (waits for
    /// a verdict), and the final `delivered`, `dead_lettered`, `discarded`. There may be more later.
    state: &'static str,
    /// Attempts that are recorded.
    attempts: u32,
    /// Status of the last recorded attempt that got one.
    #[schema(required = true)]
    last_status: Option<u16>,
    /// What went wrong at the last recorded attempt.
    #[schema(required = true)]
    last_error: Option<String>,
    /// Why it waits or was given up.
    #[schema(required = true)]
    reason: Option<String>,
    /// When the head of a parked lane is tried next.
    #[schema(required = true, format = DateTime)]
    next_attempt_at: Option<String>,
    /// When it got its final outcome.
    #[schema(required = true, format = DateTime)]
    settled_at: Option<String>,
    /// How long the last request took, milliseconds; for final outcomes.
    #[schema(required = true)]
    took_ms: Option<u64>,
}

/// One request, or the attempt at one.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    /// From 1; a number may stand twice, if a process ended between sending and recording.
    number: u32,
    /// `not_sent`, `responded` or `unknown`.
    result: &'static str,
    /// The status, if there was an answer.
    #[schema(required = true)]
    status: Option<u16>,
    /// What went wrong; null for a success.
    #[schema(required = true)]
    error: Option<String>,
    took_ms: u64,
    #[schema(format = DateTime)]
    ended_at: String,
    /// The first part of the answer's body as text, if it was kept.
    #[schema(required = true)]
    body: Option<String>,
}

/// List the deliveries of an event
///
/// Needs the scope `deliveries:read`.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/deliveries",
    tag = "deliveries",
    operation_id = "listDeliveries",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("eventId" = String, Query, description = "The event's id, `evt_…`", pattern = "^evt_[0-9A-Za-z]{22}$"),
        ("limit" = Option<u16>, Query, description = "Entries at most, 50 if it is left out", minimum = 1, maximum = 250),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", min_length = 1)
    ),
    responses(
        (status = 200, description = "One page", body = PageOf<Delivery>),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_deliveries(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    mut query: Query,
) -> Result<Response, Problem> {
    let event = query
        .take("eventId")?
        .ok_or_else(|| not_valid("eventId", "parameter_missing", "the parameter is required"))?;
    let event: EventId = event
        .parse()
        .map_err(|_| not_valid("eventId", "id_not_valid", "expected an event's id"))?;
    let list = format!("deliveries of {event}");
    let page = query.page(app.cursors(), access.tenant, &list)?;
    query.finish()?;
    let rows = deliveries_of_event(app.pool(), access.tenant, event, after(&page)?, page.limit + 1)
        .await?;
    let rows = rows.ok_or_else(|| problem::NOT_FOUND.detail("the project has no such event"))?;
    page_of(&app, access.tenant, &list, &page, rows, |row| row.id.to_string(), Delivery::from)
}

/// Read a delivery
///
/// Needs the scope `deliveries:read`.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/deliveries/{id}",
    tag = "deliveries",
    operation_id = "getDelivery",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The delivery's id, `dlv_…`")
    ),
    responses(
        (status = 200, description = "The delivery", body = Delivery),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn get_delivery(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let found = delivery_get(app.pool(), access.tenant, access.id()?).await?;
    let found = found.ok_or_else(|| problem::NOT_FOUND.problem())?;
    Ok(Json(Delivery::from(found)).into_response())
}

/// List the attempts of a delivery
///
/// Needs the scope `deliveries:read`. In order; of many failures the first ten and the last twenty.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/deliveries/{id}/attempts",
    tag = "deliveries",
    operation_id = "listAttempts",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The delivery's id, `dlv_…`"),
        ("limit" = Option<u16>, Query, description = "Entries at most, 50 if it is left out", minimum = 1, maximum = 250),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", min_length = 1)
    ),
    responses(
        (status = 200, description = "One page", body = PageOf<Attempt>),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_attempts(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    mut query: Query,
) -> Result<Response, Problem> {
    let id: DeliveryId = access.id()?;
    let list = format!("attempts of {id}");
    let page = query.page(app.cursors(), access.tenant, &list)?;
    query.finish()?;
    let position = page.after.as_deref().map(position).transpose()?;
    let rows = attempts_list(app.pool(), access.tenant, id, position, page.limit + 1).await?;
    if rows.is_empty() && delivery_get(app.pool(), access.tenant, id).await?.is_none() {
        return Err(problem::NOT_FOUND.problem());
    }
    let key = |row: &store::Attempt| format!("{}.{}", row.number, row.row);
    page_of(&app, access.tenant, &list, &page, rows, key, Attempt::from)
}

fn position(text: &str) -> Result<(u32, i64), Problem> {
    text.split_once('.')
        .and_then(|(number, row)| Some((number.parse().ok()?, row.parse().ok()?)))
        .ok_or_else(|| problem::CURSOR_NOT_VALID.problem())
}

impl From<store::Delivery> for Delivery {
    fn from(delivery: store::Delivery) -> Self {
        Self {
            id: delivery.id,
            event_id: delivery.event,
            endpoint_id: delivery.endpoint,
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            last_status: delivery.last_status,
            last_error: delivery.last_class,
            reason: delivery.reason,
            next_attempt_at: delivery.next_attempt_at.map(rfc3339),
            settled_at: delivery.settled_at.map(rfc3339),
            took_ms: delivery.took.map(millis),
        }
    }
}

impl From<store::Attempt> for Attempt {
    fn from(attempt: store::Attempt) -> Self {
        let text = |body: Vec<u8>| {
            String::from_utf8_lossy(&body).chars().take(MAX_BODY_TEXT).collect::<String>()
        };
        Self {
            number: attempt.number,
            result: attempt.kind.as_str(),
            status: attempt.status,
            error: attempt.class,
            took_ms: millis(attempt.took),
            ended_at: rfc3339(attempt.ended_at),
            body: attempt.body.map(text),
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
