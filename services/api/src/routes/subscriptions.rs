//! `…/subscriptions`: which event types an endpoint gets.

use super::{PageOf, after, page_of, rfc3339};
use crate::access::{Access, EndpointsRead, EndpointsWrite};
use crate::app::App;
use crate::body::{Fields, JsonBody};
use crate::idempotent::{Begun, Operation};
use crate::problem::{self, Document, FieldError, Problem};
use crate::query::Query;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use laneway_store::subscriptions::{
    self as store, MAX_SUBSCRIPTIONS, Subscribed, subscription_create, subscription_get,
    subscriptions_list,
};
use laneway_wire::{EndpointId, SubscriptionId};
use serde::Serialize;
use utoipa::ToSchema;

const CREATE: Operation = Operation {
    name: "subscriptions.create",
    route: "/api/v1/projects/{project}/subscriptions",
    key_required: false,
    secret: false,
    status: StatusCode::CREATED,
    location: "/api/v1/projects/{project}/subscriptions/",
};

/// A new subscription.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct NewSubscription {
    /// The endpoint that gets the events.
    #[schema(example = "ep_02K7cS0QmsKsTMhhNhGpJ3")]
    endpoint_id: String,
    /// An event type, `prefix.*` for all types that begin with `prefix.`, or `*` for all.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^(\\*|[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*(\\.\\*)?)$",
        example = "order.*"
    )]
    event_type: String,
    /// Total order over all deliveries of the endpoint: not available in this version, `true` is refused.
    #[schema(default = false)]
    ordering_enabled: Option<bool>,
}

/// A subscription.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subscription {
    #[schema(value_type = String, example = "sub_02K7cS0QmsKsTMhhNhGpJ3")]
    id: SubscriptionId,
    #[schema(value_type = String, example = "ep_02K7cS0QmsKsTMhhNhGpJ3")]
    endpoint_id: EndpointId,
    event_type: String,
    ordering_enabled: bool,
    #[schema(format = DateTime)]
    created_at: String,
}

/// Make a subscription
///
/// Needs the scope `endpoints:write`. `Idempotency-Key` is optional. Every event that is committed after the answer
/// is delivered to the endpoint if its type matches; several matching subscriptions of an endpoint make one delivery.
#[utoipa::path(
    post,
    path = "/api/v1/projects/{project}/subscriptions",
    tag = "subscriptions",
    operation_id = "createSubscription",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters",
            min_length = 1, max_length = 255, pattern = "^[!#-~]([ !#-~]*[!#-~])?$")
    ),
    request_body = NewSubscription,
    responses(
        (status = 201, description = "Made", body = Subscription,
            headers(("Location" = String, description = "The subscription"))),
        (status = "4XX", description = "Refused; nothing was stored", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn create_subscription(
    State(app): State<App>,
    access: Access<EndpointsWrite>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let (endpoint, event_type) = read(&body)?;
    let mut work = match CREATE.begin(&app, access.tenant, &[], &headers, &body).await? {
        Begun::New(work) => work,
        Begun::Done(response) => return Ok(response),
    };
    match subscription_create(&mut work, endpoint, &event_type, false).await? {
        Subscribed::Made(made) => CREATE.finish(&app, work, &Subscription::from(made)).await,
        Subscribed::NoEndpoint => {
            Err(problem::NOT_FOUND.detail("the project has no such endpoint"))
        }
        Subscribed::LimitReached => Err(problem::LIMIT_REACHED
            .detail(format!("a project has at most {MAX_SUBSCRIPTIONS} subscriptions"))),
    }
}

/// List subscriptions
///
/// Needs the scope `endpoints:read`. Oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/subscriptions",
    tag = "subscriptions",
    operation_id = "listSubscriptions",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("limit" = Option<u16>, Query, description = "Entries at most, 50 if it is left out", minimum = 1, maximum = 250),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", min_length = 1)
    ),
    responses(
        (status = 200, description = "One page", body = PageOf<Subscription>),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_subscriptions(
    State(app): State<App>,
    access: Access<EndpointsRead>,
    mut query: Query,
) -> Result<Response, Problem> {
    let page = query.page(app.cursors(), access.tenant, "subscriptions")?;
    query.finish()?;
    let rows = subscriptions_list(app.pool(), access.tenant, after(&page)?, page.limit + 1).await?;
    page_of(
        &app,
        access.tenant,
        "subscriptions",
        &page,
        rows,
        |row| row.id.to_string(),
        Subscription::from,
    )
}

/// Read a subscription
///
/// Needs the scope `endpoints:read`.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/subscriptions/{id}",
    tag = "subscriptions",
    operation_id = "getSubscription",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The subscription's id, `sub_…`")
    ),
    responses(
        (status = 200, description = "The subscription", body = Subscription),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn get_subscription(
    State(app): State<App>,
    access: Access<EndpointsRead>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let found = subscription_get(app.pool(), access.tenant, access.id()?).await?;
    let found = found.ok_or_else(|| problem::NOT_FOUND.problem())?;
    Ok(Json(Subscription::from(found)).into_response())
}

impl From<store::Subscription> for Subscription {
    fn from(subscription: store::Subscription) -> Self {
        Self {
            id: subscription.id,
            endpoint_id: subscription.endpoint,
            event_type: subscription.event_type,
            ordering_enabled: subscription.ordering_enabled,
            created_at: rfc3339(subscription.created_at),
        }
    }
}

fn read(body: &[u8]) -> Result<(EndpointId, String), Problem> {
    let mut fields = Fields::read(body)?;
    let endpoint = fields.required_text("endpointId").and_then(|text| {
        let id = text.parse::<EndpointId>();
        if let Err(refused) = &id {
            fields.error("endpointId", "id_not_valid", refused.to_string());
        }
        id.ok()
    });
    let event_type = fields.required_text("eventType");
    if event_type.as_deref().is_some_and(|pattern| !is_pattern(pattern)) {
        let detail = "expected a type, `prefix.*` or `*`, at most 255 characters";
        fields.error("eventType", "event_type_not_valid", detail);
    }
    let ordering_enabled = fields.boolean("orderingEnabled");
    fields.finish()?;
    if ordering_enabled == Some(true) {
        return Err(problem::ORDERING
            .detail("leave orderingEnabled out, or send false")
            .with_errors(vec![FieldError {
                pointer: "/orderingEnabled".to_owned(),
                code: "not_available",
                detail: "this version keeps order for each user key only".to_owned(),
            }]));
    }
    match (endpoint, event_type) {
        (Some(endpoint), Some(event_type)) => Ok((endpoint, event_type)),
        // `finish` has refused it: a lacking value always comes with an error.
        _ => Err(problem::BODY_NOT_VALID.problem()),
    }
}

fn is_pattern(text: &str) -> bool {
    text == "*"
        || (text.len() <= laneway_wire::record::MAX_EVENT_TYPE
            && super::events::is_event_type(text.strip_suffix(".*").unwrap_or(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_a_type_a_prefix_or_everything() {
        for good in ["*", "order.*", "order.created", "order.item.*", "push"] {
            assert!(is_pattern(good), "{good}");
        }
        for bad in ["", "**", "*.created", "order*", "order.", ".*", "order.*.created", "a b"] {
            assert!(!is_pattern(bad), "{bad}");
        }
    }
}
