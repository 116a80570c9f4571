//! `…/rewinds`: commands over many deliveries: counted (`dryRun`), given, looked at, paused, resumed, cancelled.

use super::{PageOf, after, page_of, rfc3339};
use crate::access::{Access, DeadLettersWrite, DeliveriesRead};
use crate::app::App;
use crate::body::{Fields, JsonBody};
use crate::idempotent::{Begun, Operation};
use crate::problem::{self, Document, FieldError, Problem};
use crate::query::Query;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use laneway_store::dead_letters::{Selection, cause};
use laneway_store::endpoints::endpoint_get;
use laneway_store::idempotency::{Answer, Work};
use laneway_store::rewinds::{
    self as store, Action, MAX_NAMED, NewRewind, Refusal, State as Stage, rewind_change,
    rewind_create, rewind_get, rewind_preview, rewinds_list,
};
use laneway_wire::{DeliveryId, RewindId, TenantId};
use serde::Serialize;
use utoipa::ToSchema;

const CREATE: Operation = Operation {
    name: "rewinds.create",
    route: "/api/v1/projects/{project}/rewinds",
    key_required: true,
    secret: false,
    status: StatusCode::ACCEPTED,
    location: "/api/v1/projects/{project}/rewinds/",
};
/// A count may take this part of a request's time: there are two at most, and the command is to be written after them.
const COUNTS: u32 = 4;

/// A new command. Without a filter it means all open dead letters of the project.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct NewRewindBody {
    /// `rewind` sends dead letters again, at the back of their lanes; `discard` gives them up for good; `replay` sends
    /// an endpoint again what it was delivered since a moment.
    #[schema(inline)]
    action: ActionText,
    /// Why; stored in the audit log.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
    /// Only count what it would mean: nothing is written, and no `Idempotency-Key` is needed.
    #[schema(default = false)]
    dry_run: Option<bool>,
    /// These dead letters alone.
    #[schema(max_items = 1000)]
    delivery_ids: Option<Vec<String>>,
    /// Of this endpoint; required for a replay.
    endpoint_id: Option<String>,
    /// Of this lane: 32 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    lane: Option<String>,
    /// Of this user key.
    key: Option<String>,
    /// Of this type; `order.*` is everything below `order`.
    event_type: Option<String>,
    /// Given up for this: `rejected`, `expired`, `unknown`, `erased`.
    cause: Option<String>,
    /// Given up at this time or later; of a replay, events emitted at this time or later, and required.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// Given up before this time.
    #[schema(format = DateTime)]
    until: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "for the schema")]
enum ActionText {
    Rewind,
    Discard,
    Replay,
}

/// Why a command is changed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct RewindChange {
    /// Stored in the audit log.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

/// A command and how far it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rewind {
    #[schema(value_type = String, example = "rwd_02K7cS0QmsKsTMhhNhGpJ3")]
    id: RewindId,
    /// `rewind`, `discard` or `replay`.
    action: &'static str,
    /// `running`, `paused`, `done` or `cancelled`.
    state: &'static str,
    /// Deliveries that it meant when it was given; null: too many to be counted in time. It is done all the same.
    #[schema(required = true)]
    matched: Option<u64>,
    /// Deliveries that it was done to so far.
    done: u64,
    /// Deliveries that it has left because another command was first.
    skipped: u64,
    /// Dead letters that cannot be sent again, because what is kept of them is not valid. They stay open.
    set_aside: u64,
    /// The first of them, and a code that says why.
    #[schema(required = true, example = "dlv_02K7cS0QmsKsTMhhNhGpJ3: unknown_version")]
    set_aside_example: Option<String>,
    /// What it waits for: `erasure` (of something of the project, until it is done), `command` (an earlier one of the
    /// project), `deliveries` (so many of those sent again have no outcome that no more are sent); null: nothing.
    #[schema(required = true)]
    waits_for: Option<String>,
    /// Why its last page failed, if it did; it is tried again by itself.
    #[schema(required = true)]
    error: Option<String>,
    reason: String,
    /// Who gave it.
    actor: String,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
    #[schema(required = true, format = DateTime)]
    finished_at: Option<String>,
}

/// What a command would mean now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RewindPreview {
    /// Deliveries. This and all that follow: null if they are too many to be counted in time; the command can be given
    /// all the same.
    #[schema(required = true)]
    matched: Option<u64>,
    /// Of them, those in lanes of a user key: what came after them there may have been delivered, and they arrive
    /// behind it.
    #[schema(required = true)]
    in_ordered_lanes: Option<u64>,
    /// Null of a replay.
    #[schema(required = true)]
    lanes: Option<u64>,
    #[schema(required = true)]
    endpoints: Option<u64>,
    /// Bytes that would be sent at least; null of a replay.
    #[schema(required = true)]
    bytes: Option<u64>,
    #[schema(required = true, format = DateTime)]
    oldest: Option<String>,
    #[schema(required = true, format = DateTime)]
    newest: Option<String>,
    /// Of a replay: deliveries since then that cannot be sent again, because their events came from another source
    /// database or are older than what the outbox keeps.
    #[schema(required = true)]
    unavailable: Option<u64>,
}

/// Send again or discard
///
/// Needs the scope `deadletters:write`. `Idempotency-Key` is required, but for a dry run. The command is worked off by
/// a reconciler; a second, identical command finds nothing left to do.
#[utoipa::path(
    post,
    path = "/api/v1/projects/{project}/rewinds",
    tag = "dead letters",
    operation_id = "createRewind",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters",
            min_length = 1, max_length = 255, pattern = "^[!#-~]([ !#-~]*[!#-~])?$")
    ),
    request_body = NewRewindBody,
    responses(
        (status = 200, description = "Counted (`dryRun`)", body = RewindPreview),
        (status = 202, description = "Written; it will be worked off", body = Rewind,
            headers(("Location" = String, description = "The command"))),
        (status = "4XX", description = "Refused; nothing was stored", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn create_rewind(
    State(app): State<App>,
    access: Access<DeadLettersWrite>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let new = read(&body)?;
    // Before the claim: its transaction must not wait for a count, the server ends one that is silent.
    let within = app.settings().request_timeout / COUNTS;
    let preview =
        rewind_preview(app.pool(), access.tenant, new.action, &new.selection, within).await?;
    let senseless = senseless(&app, access.tenant, &new).await?;
    if new.dry_run {
        if let Some(problem) = senseless {
            return Err(problem);
        }
        return Ok(Json(RewindPreview::of(new.action, &preview)).into_response());
    }
    let mut work = match CREATE.begin(&app, access.tenant, &[], &headers, &body).await? {
        Begun::New(work) => work,
        Begun::Done(response) => return Ok(response),
    };
    if let Some(problem) = senseless {
        return Err(problem);
    }
    let actor = access.actor();
    let made = rewind_create(
        &mut work,
        NewRewind {
            action: new.action,
            selection: &new.selection,
            reason: &new.reason,
            actor: &actor,
        },
        &preview,
    )
    .await?
    .map_err(|refusal| match refusal {
        Refusal::OutboxNotRead => problem::OUTBOX_NOT_READ.problem(),
        Refusal::NothingToReplay => problem::NOTHING_TO_REPLAY.problem(),
    })?;
    CREATE.finish(&app, work, &Rewind::from(made)).await
}

/// List commands
///
/// Needs the scope `deliveries:read`. Newest first.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/rewinds",
    tag = "dead letters",
    operation_id = "listRewinds",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("limit" = Option<u16>, Query, description = "Entries at most, 50 if it is left out", minimum = 1, maximum = 250),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", min_length = 1)
    ),
    responses(
        (status = 200, description = "One page", body = PageOf<Rewind>),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_rewinds(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    mut query: Query,
) -> Result<Response, Problem> {
    let page = query.page(app.cursors(), access.tenant, "rewinds")?;
    query.finish()?;
    let rows = rewinds_list(app.pool(), Some(access.tenant), after(&page)?, page.limit + 1).await?;
    page_of(&app, access.tenant, "rewinds", &page, rows, |row| row.id.to_string(), Rewind::from)
}

/// Read a command
///
/// Needs the scope `deliveries:read`.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/rewinds/{id}",
    tag = "dead letters",
    operation_id = "getRewind",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The command's id, `rwd_…`")
    ),
    responses(
        (status = 200, description = "The command", body = Rewind),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn get_rewind(
    State(app): State<App>,
    access: Access<DeliveriesRead>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let found = rewind_get(app.pool(), Some(access.tenant), access.id()?).await?;
    let found = found.ok_or_else(|| problem::NOT_FOUND.problem())?;
    Ok(Json(Rewind::from(found)).into_response())
}

macro_rules! change {
    ($name:ident, $verb:literal, $id:literal, $to:expr, $title:literal) => {
        #[doc = $title]
        ///
        /// Needs the scope `deadletters:write`. Doing it twice is the same as once.
        #[utoipa::path(
            post,
            path = concat!("/api/v1/projects/{project}/rewinds/{id}/", $verb),
            tag = "dead letters",
            operation_id = $id,
            params(
                ("project" = String, Path, description = "The project's id, `prj_…`"),
                ("id" = String, Path, description = "The command's id, `rwd_…`")
            ),
            request_body = RewindChange,
            responses(
                (status = 200, description = "The command as it is now", body = Rewind),
                (status = "4XX", description = "Refused; nothing was changed", body = Document<'_>, content_type = "application/problem+json"),
                (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
            )
        )]
        pub(crate) async fn $name(
            State(app): State<App>,
            access: Access<DeadLettersWrite>,
            JsonBody(body): JsonBody,
        ) -> Result<Response, Problem> {
            change(&app, &access, &body, $to).await
        }
    };
}
change!(pause_rewind, "pause", "pauseRewind", Stage::Paused, "Pause a command");
change!(resume_rewind, "resume", "resumeRewind", Stage::Running, "Let a paused command go on");
change!(cancel_rewind, "cancel", "cancelRewind", Stage::Cancelled, "End a command where it is");

async fn change(
    app: &App,
    access: &Access<DeadLettersWrite>,
    body: &[u8],
    to: Stage,
) -> Result<Response, Problem> {
    let id: RewindId = access.id()?;
    let mut fields = Fields::read(body)?;
    let reason = super::reason(&mut fields);
    fields.finish()?;
    let mut work = Work::begin(app.pool(), access.tenant).await?;
    let now =
        rewind_change(&mut work, id, to, &access.actor(), &reason.unwrap_or_default()).await?;
    let now = now.ok_or_else(|| problem::NOT_FOUND.problem())?;
    if now.state != to {
        let detail = format!("the command is {}", now.state.as_str());
        return Err(problem::REWIND_ENDED.detail(detail));
    }
    work.commit(&Answer { status: 200, body: Vec::new() }, None).await?;
    Ok(Json(Rewind::from(now)).into_response())
}

/// Why a replay can mean nothing, whatever was delivered: it would be done at once and look like a success.
async fn senseless(app: &App, tenant: TenantId, new: &Asked) -> Result<Option<Problem>, Problem> {
    let (Action::Replay, Some(endpoint), Some(since)) =
        (new.action, new.selection.endpoint, new.selection.since)
    else {
        return Ok(None);
    };
    if endpoint_get(app.pool(), tenant, endpoint).await?.is_none() {
        return Ok(Some(problem::NOT_FOUND.detail("the project has no such endpoint")));
    }
    if since > app.pool().now().await? {
        return Ok(Some(problem::BODY_NOT_VALID.problem().with_errors(vec![FieldError {
            pointer: "/since".to_owned(),
            code: "out_of_range",
            detail: "the time lies in the future".to_owned(),
        }])));
    }
    Ok(None)
}

/// A command as it was asked for.
struct Asked {
    action: Action,
    selection: Selection,
    reason: String,
    dry_run: bool,
}

fn read(body: &[u8]) -> Result<Asked, Problem> {
    let mut fields = Fields::read(body)?;
    let action = fields.choice("action", "rewind, discard, replay", Action::parse);
    let dry_run = fields.boolean("dryRun").unwrap_or(false);
    let reason = super::reason(&mut fields);
    let selection = Selection {
        deliveries: deliveries(&mut fields),
        endpoint: fields.choice("endpointId", "endpoints' ids", |text| text.parse().ok()),
        lane: fields.choice("lane", "lanes' ids", |text| text.parse().ok()),
        user_key: fields.choice("key", "texts without NUL", super::storable),
        event_type: fields.choice("eventType", "event types", super::storable),
        cause: fields.choice("cause", "rejected, expired, unknown, erased", cause),
        since: fields.choice("since", "RFC 3339 times", super::timestamp),
        until: fields.choice("until", "RFC 3339 times", super::timestamp),
    };
    if action.is_none() {
        fields.missing("action");
    }
    if selection.is_backwards() {
        fields.error("until", "out_of_range", "it is not after `since`: nothing can be meant");
    }
    if action == Some(Action::Replay) {
        let Selection { deliveries, endpoint, lane, user_key, event_type: _, cause, since, until } =
            &selection;
        for (name, is_there) in [("endpointId", endpoint.is_some()), ("since", since.is_some())] {
            if !is_there {
                fields.missing(name);
            }
        }
        for (name, is_there) in [
            ("deliveryIds", deliveries.is_some()),
            ("lane", lane.is_some()),
            ("key", user_key.is_some()),
            ("cause", cause.is_some()),
            ("until", until.is_some()),
        ] {
            if is_there {
                fields.error(name, "field_not_for_replay", "a replay does not take this filter");
            }
        }
    }
    fields.finish()?;
    let (Some(action), Some(reason)) = (action, reason) else {
        // `finish` has refused it: a lacking value always comes with an error.
        return Err(problem::BODY_NOT_VALID.problem());
    };
    Ok(Asked { action, selection, reason, dry_run })
}

fn deliveries(fields: &mut Fields<'_>) -> Option<Vec<DeliveryId>> {
    let value = fields.raw("deliveryIds")?;
    match serde_json::from_str::<Option<Vec<DeliveryId>>>(value.get()) {
        Ok(Some(ids)) if ids.is_empty() || ids.len() > MAX_NAMED => {
            fields.error("deliveryIds", "out_of_range", "expected 1 to 1,000 ids");
            None
        }
        Ok(ids) => ids,
        Err(_) => {
            fields.error("deliveryIds", "wrong_type", "expected a list of deliveries' ids");
            None
        }
    }
}

impl From<store::Rewind> for Rewind {
    fn from(rewind: store::Rewind) -> Self {
        Self {
            id: rewind.id,
            action: rewind.action.as_str(),
            state: rewind.state.as_str(),
            matched: rewind.matched,
            done: rewind.done,
            skipped: rewind.skipped,
            set_aside: rewind.set_aside,
            set_aside_example: rewind.example,
            waits_for: rewind.waits,
            error: rewind.error,
            reason: rewind.reason,
            actor: rewind.actor,
            created_at: rfc3339(rewind.created_at),
            updated_at: rfc3339(rewind.updated_at),
            finished_at: rewind.finished_at.map(rfc3339),
        }
    }
}

impl RewindPreview {
    fn of(action: Action, preview: &store::Preview) -> Self {
        let counted = preview.counted;
        // A replay's lanes and bytes are not counted: no number is not 0.
        let all = counted.filter(|_| action != Action::Replay);
        Self {
            matched: preview.matched(),
            in_ordered_lanes: counted.map(|counted| counted.ordered),
            lanes: all.map(|counted| counted.lanes),
            endpoints: counted.map(|counted| counted.endpoints),
            bytes: all.map(|counted| counted.bytes),
            oldest: counted.and_then(|counted| counted.oldest).map(rfc3339),
            newest: counted.and_then(|counted| counted.newest).map(rfc3339),
            unavailable: preview.unavailable,
        }
    }
}
