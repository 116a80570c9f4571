//! `…/endpoints`: where requests go.

use super::{PageOf, after, page_of, rfc3339};
use crate::access::{Access, EndpointsRead, EndpointsWrite};
use crate::app::App;
use crate::body::{Fields, JsonBody};
use crate::idempotent::{Begun, Operation};
use crate::problem::{self, Document, Problem};
use crate::query::Query;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use laneway_courier::AddressPolicy;
use laneway_store::endpoints::{
    self as store, MAX_ENDPOINTS, OnUnknown, Ordering, endpoint_create, endpoint_get,
    endpoint_get_in, endpoint_set_enabled, endpoints_list,
};
use laneway_store::reason::reason_is_line;
use laneway_wire::EndpointId;
use laneway_wire::signature::Secret;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;
use zeroize::Zeroizing;

const CREATE: Operation = Operation {
    name: "endpoints.create",
    route: "/api/v1/projects/{project}/endpoints",
    key_required: false,
    secret: true,
    status: StatusCode::CREATED,
    location: "/api/v1/projects/{project}/endpoints/",
};
const ENABLE: Operation = Operation {
    name: "endpoints.enable",
    route: "/api/v1/projects/{project}/endpoints/{id}/enable",
    key_required: false,
    secret: false,
    status: StatusCode::OK,
    location: "",
};
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
const DEFAULT_CONNECTIONS: u16 = 16;

/// A new endpoint.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct NewEndpoint {
    /// Where requests go: https, no credentials, no fragment, a public host.
    #[schema(format = Uri, max_length = 2048, example = "https://shop.example/webhooks")]
    url: String,
    /// What signs the requests (Standard Webhooks): `whsec_` and 24 to 64 bytes in base64. Made up if it is left out.
    #[schema(pattern = "^whsec_[A-Za-z0-9+/]{32,87}={0,2}$")]
    secret: Option<String>,
    /// What an unknown outcome (a timeout, a connection cut after something was sent) means: send again with the
    /// same ids, ask an authority, or wait for a person.
    #[schema(inline, default = "resend")]
    on_unknown: Option<OnUnknownText>,
    /// Deadline of a request, milliseconds.
    #[schema(minimum = 1000, maximum = 60000, default = 15000)]
    timeout_ms: Option<u32>,
    /// Connections at most, for each process that delivers.
    #[schema(minimum = 1, maximum = 1024, default = 16)]
    max_connections: Option<u32>,
    /// What keeps the order: the event's `key`, or nothing.
    #[schema(inline, default = "user")]
    ordering: Option<OrderingText>,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "for the schema")]
enum OnUnknownText {
    Resend,
    Lookup,
    Hold,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "for the schema")]
enum OrderingText {
    User,
    None,
}

/// An endpoint. Its secret is shown when it is made and never again.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint {
    #[schema(value_type = String, example = "ep_02K7cS0QmsKsTMhhNhGpJ3")]
    id: EndpointId,
    url: String,
    /// `resend`, `lookup` or `hold`.
    on_unknown: &'static str,
    timeout_ms: u64,
    max_connections: u16,
    /// `user` or `none`.
    ordering: &'static str,
    /// `enabled` or `disabled`.
    state: &'static str,
    /// Why it is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_reason: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
}

/// An endpoint that was just made.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedEndpoint {
    #[serde(flatten)]
    endpoint: Endpoint,
    /// The signing secret; keep it.
    #[schema(value_type = String, example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    secret: Zeroizing<String>,
}

/// Make an endpoint
///
/// Needs the scope `endpoints:write`. `Idempotency-Key` is optional.
#[utoipa::path(
    post,
    path = "/api/v1/projects/{project}/endpoints",
    tag = "endpoints",
    operation_id = "createEndpoint",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters",
            min_length = 1, max_length = 255, pattern = "^[!#-~]([ !#-~]*[!#-~])?$")
    ),
    request_body = NewEndpoint,
    responses(
        (status = 201, description = "Made", body = CreatedEndpoint,
            headers(("Location" = String, description = "The endpoint"))),
        (status = "4XX", description = "Refused; nothing was stored", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn create_endpoint(
    State(app): State<App>,
    access: Access<EndpointsWrite>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let new = read(app.addresses(), &body)?;
    let mut work = match CREATE.begin(&app, access.tenant, &[], &headers, &body).await? {
        Begun::New(work) => work,
        Begun::Done(response) => return Ok(response),
    };
    let Some(made) = endpoint_create(&mut work, app.secrets(), &new).await? else {
        let detail = format!("a project has at most {MAX_ENDPOINTS} endpoints");
        return Err(problem::LIMIT_REACHED.detail(detail));
    };
    let created = CreatedEndpoint { endpoint: made.into(), secret: new.secret.expose() };
    CREATE.finish(&app, work, &created).await
}

/// List endpoints
///
/// Needs the scope `endpoints:read`. Oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/endpoints",
    tag = "endpoints",
    operation_id = "listEndpoints",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("limit" = Option<u16>, Query, description = "Entries at most, 50 if it is left out", minimum = 1, maximum = 250),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", min_length = 1)
    ),
    responses(
        (status = 200, description = "One page", body = PageOf<Endpoint>),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_endpoints(
    State(app): State<App>,
    access: Access<EndpointsRead>,
    mut query: Query,
) -> Result<Response, Problem> {
    let page = query.page(app.cursors(), access.tenant, "endpoints")?;
    query.finish()?;
    let rows = endpoints_list(app.pool(), access.tenant, after(&page)?, page.limit + 1).await?;
    page_of(&app, access.tenant, "endpoints", &page, rows, |row| row.id.to_string(), Endpoint::from)
}

/// Read an endpoint
///
/// Needs the scope `endpoints:read`.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/endpoints/{id}",
    tag = "endpoints",
    operation_id = "getEndpoint",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The endpoint's id, `ep_…`")
    ),
    responses(
        (status = 200, description = "The endpoint", body = Endpoint),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn get_endpoint(
    State(app): State<App>,
    access: Access<EndpointsRead>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let found = endpoint_get(app.pool(), access.tenant, access.id()?).await?;
    let found = found.ok_or_else(|| problem::NOT_FOUND.problem())?;
    Ok(Json(Endpoint::from(found)).into_response())
}

/// Why an endpoint is enabled.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct EnableEndpoint {
    /// For the audit log. No control characters.
    #[schema(min_length = 1, max_length = 1000, example = "the receiver has moved back")]
    reason: String,
}

/// Enable an endpoint
///
/// Of one that is disabled, because it answered 410: what waits goes on in order, and the time it was disabled does not
/// count. Nothing happens if it is enabled. Needs the scope `endpoints:write`. `Idempotency-Key` is optional.
#[utoipa::path(
    post,
    path = "/api/v1/projects/{project}/endpoints/{id}/enable",
    tag = "endpoints",
    operation_id = "enableEndpoint",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The endpoint's id, `ep_…`"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters",
            min_length = 1, max_length = 255, pattern = "^[!#-~]([ !#-~]*[!#-~])?$")
    ),
    request_body = EnableEndpoint,
    responses(
        (status = 200, description = "The endpoint, enabled", body = Endpoint),
        (status = "4XX", description = "Refused; nothing was stored", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn enable_endpoint(
    State(app): State<App>,
    access: Access<EndpointsWrite>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let id: EndpointId = access.id()?;
    let reason = read_reason(&body)?;
    let begun = ENABLE.begin(&app, access.tenant, &[&id.to_string()], &headers, &body).await?;
    let mut work = match begun {
        Begun::New(work) => work,
        Begun::Done(response) => return Ok(response),
    };
    endpoint_set_enabled(&mut work, id, true, &access.actor(), &reason).await?;
    let found = endpoint_get_in(&mut work, id).await?;
    let enabled = Endpoint::from(found.ok_or_else(|| problem::NOT_FOUND.problem())?);
    ENABLE.finish(&app, work, &enabled).await
}

fn read_reason(body: &[u8]) -> Result<String, Problem> {
    let mut fields = Fields::read(body)?;
    let reason = fields.required_text("reason");
    if reason.as_deref().is_some_and(|text| !reason_is_line(text)) {
        let expected = "expected 1 to 1,000 characters, no control characters";
        fields.error("reason", "reason_not_valid", expected);
    }
    fields.finish()?;
    reason.ok_or_else(|| problem::BODY_NOT_VALID.problem())
}

impl From<store::Endpoint> for Endpoint {
    fn from(endpoint: store::Endpoint) -> Self {
        Self {
            id: endpoint.id,
            url: endpoint.url,
            on_unknown: endpoint.on_unknown.as_str(),
            timeout_ms: u64::try_from(endpoint.timeout.as_millis()).unwrap_or(u64::MAX),
            max_connections: endpoint.max_connections,
            ordering: endpoint.ordering.as_str(),
            state: endpoint.state.as_str(),
            state_reason: endpoint.state_reason,
            created_at: rfc3339(endpoint.created_at),
            updated_at: rfc3339(endpoint.updated_at),
        }
    }
}

fn read(addresses: &AddressPolicy, body: &[u8]) -> Result<store::NewEndpoint, Problem> {
    let mut fields = Fields::read(body)?;
    let url = match fields.required_text("url").map(|url| addresses.check_url(&url)) {
        Some(Ok(url)) => Some(url.as_str().to_owned()),
        Some(Err(refused)) => {
            fields.error("url", refused.code(), refused.to_string());
            None
        }
        None => None,
    };
    let secret = match fields.text("secret").map(Zeroizing::new) {
        Some(text) => match text.parse::<Secret>() {
            Ok(secret) => Some(secret),
            Err(refused) => {
                fields.error("secret", "secret_not_valid", refused.to_string());
                None
            }
        },
        None => Some(random_secret()),
    };
    let on_unknown = fields.choice("onUnknown", "resend, lookup, hold", OnUnknown::parse);
    let timeout = fields.number("timeoutMs", 1_000..=60_000);
    let connections = fields.number("maxConnections", 1..=1_024);
    let ordering = fields.choice("ordering", "user, none", Ordering::parse);
    fields.finish()?;
    let (Some(url), Some(secret)) = (url, secret) else {
        // `finish` has refused it: a lacking value always comes with an error.
        return Err(problem::BODY_NOT_VALID.problem());
    };
    Ok(store::NewEndpoint {
        url,
        secret,
        on_unknown: on_unknown.unwrap_or(OnUnknown::Resend),
        ordering: ordering.unwrap_or(Ordering::User),
        timeout: timeout.map_or(DEFAULT_TIMEOUT, |ms| Duration::from_millis(ms.into())),
        max_connections: connections
            .and_then(|connections| u16::try_from(connections).ok())
            .unwrap_or(DEFAULT_CONNECTIONS),
    })
}

fn random_secret() -> Secret {
    let bytes = Zeroizing::new(rand::random::<[u8; 32]>());
    Secret::from_bytes(bytes.as_slice()).expect("32 bytes are a secret's length")
}
