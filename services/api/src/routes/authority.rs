//! `…/endpoints/{id}/authority`: whom to ask what became of a request, for `onUnknown: lookup`.

use crate::access::{Access, EndpointsRead, EndpointsWrite};
use crate::app::App;
use crate::body::{Fields, JsonBody};
use crate::problem::{self, Document, Problem};
use crate::query::Query;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use laneway_courier::AddressPolicy;
use laneway_store::authorities::{Stored, authority_get, authority_remove, authority_set};
use laneway_store::idempotency::{Answer, Work};
use laneway_wire::authority::{Authority, AuthorityError, MAX_TEXT, Method, Rule};
use laneway_wire::headers::check_custom;
use laneway_wire::{DeliveryId, EndpointId, EventId};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;
use zeroize::Zeroizing;

/// An authority to be set.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request; it is read field by field")]
pub(crate) struct NewAuthority {
    /// Where to ask, under the same rules as an endpoint's URL; `{idempotencyKey}` is the event's id as it was sent,
    /// `{deliveryId}` the delivery's. One of them stands in the URL or in the body.
    #[schema(
        max_length = 2048,
        example = "https://pay.example/v1/charges/by-key/{idempotencyKey}"
    )]
    url: String,
    /// `GET` or `POST`.
    #[schema(default = "GET", pattern = "^(GET|POST)$")]
    method: Option<String>,
    /// A JSON text to post, with the same placeholders.
    #[schema(max_length = 4096)]
    body: Option<String>,
    /// A header that carries a credential, e.g. `Authorization`.
    header_name: Option<String>,
    /// The credential; it is stored encrypted and never shown again.
    #[schema(max_length = 4096)]
    header_value: Option<String>,
    /// What the answers of an existing API mean; the first rule that fits decides. Without rules the answer is
    /// `{"outcome": "applied" | "not_applied" | "in_progress" | "unknown"}` with status 200.
    #[schema(max_items = 16)]
    rules: Option<Vec<RuleText>>,
}

/// If status and value fit, this is the answer.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema of the request and of the answer")]
pub(crate) struct RuleText {
    /// `200`, `2xx` or `any`.
    #[schema(pattern = "^([1-9][0-9][0-9]|[1-9]xx|any)$")]
    status: String,
    /// JSON pointer to a value of the body; with either `equals` or `exists`.
    #[schema(example = "/data/0/status")]
    pointer: Option<String>,
    /// The value there is this one.
    #[schema(value_type = Option<Object>)]
    equals: Option<serde_json::Value>,
    /// There is a value there, or is none.
    exists: Option<bool>,
    /// `applied`, `not_applied`, `in_progress` or `unknown`.
    #[schema(pattern = "^(applied|not_applied|in_progress|unknown)$")]
    answer: String,
}

/// An authority, without its credential.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuthorityView {
    url: String,
    /// `GET` or `POST`.
    method: &'static str,
    #[schema(required = true)]
    body: Option<String>,
    /// The header that carries the credential.
    #[schema(required = true)]
    header_name: Option<String>,
    #[schema(value_type = Vec<RuleText>)]
    rules: Vec<Rule>,
}

/// Set an endpoint's authority
///
/// Needs the scope `endpoints:write`. The one that it had is replaced, credential and all. Setting it twice is the same
/// as once.
#[utoipa::path(
    put,
    path = "/api/v1/projects/{project}/endpoints/{id}/authority",
    tag = "endpoints",
    operation_id = "setAuthority",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The endpoint's id, `ep_…`")
    ),
    request_body = NewAuthority,
    responses(
        (status = 200, description = "Set", body = AuthorityView),
        (status = "4XX", description = "Refused; nothing was stored", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn set_authority(
    State(app): State<App>,
    access: Access<EndpointsWrite>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let id: EndpointId = access.id()?;
    let (authority, header) = read(app.addresses(), &body)?;
    let header = header.as_ref().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut work = Work::begin(app.pool(), access.tenant).await?;
    let actor = access.actor();
    if !authority_set(&mut work, app.secrets(), id, &authority, header, &actor).await? {
        return Err(problem::NOT_FOUND.problem());
    }
    work.commit(&Answer { status: 200, body: Vec::new() }, None).await?;
    let header = header.map(|(name, _)| name.to_owned());
    Ok(Json(view(authority, header)).into_response())
}

/// Read an endpoint's authority
///
/// Needs the scope `endpoints:read`. Its credential is not shown.
#[utoipa::path(
    get,
    path = "/api/v1/projects/{project}/endpoints/{id}/authority",
    tag = "endpoints",
    operation_id = "getAuthority",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The endpoint's id, `ep_…`")
    ),
    responses(
        (status = 200, description = "The authority", body = AuthorityView),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Try again", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn get_authority(
    State(app): State<App>,
    access: Access<EndpointsRead>,
    query: Query,
) -> Result<Response, Problem> {
    query.finish()?;
    let found = authority_get(app.pool(), access.tenant, access.id()?).await?;
    let Stored { authority, header, .. } = found.ok_or_else(|| problem::NOT_FOUND.problem())?;
    Ok(Json(view(authority, header)).into_response())
}

/// Remove an endpoint's authority
///
/// Needs the scope `endpoints:write`. Unknown outcomes of the endpoint then wait for a person.
#[utoipa::path(
    delete,
    path = "/api/v1/projects/{project}/endpoints/{id}/authority",
    tag = "endpoints",
    operation_id = "removeAuthority",
    params(
        ("project" = String, Path, description = "The project's id, `prj_…`"),
        ("id" = String, Path, description = "The endpoint's id, `ep_…`")
    ),
    responses(
        (status = 204, description = "Removed"),
        (status = "4XX", description = "Refused", body = Document<'_>, content_type = "application/problem+json"),
        (status = "5XX", description = "Not known whether it was done", body = Document<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn remove_authority(
    State(app): State<App>,
    access: Access<EndpointsWrite>,
) -> Result<Response, Problem> {
    let id: EndpointId = access.id()?;
    let mut work = Work::begin(app.pool(), access.tenant).await?;
    if !authority_remove(&mut work, id, &access.actor()).await? {
        return Err(problem::NOT_FOUND.problem());
    }
    work.commit(&Answer { status: 204, body: Vec::new() }, None).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn view(authority: Authority, header_name: Option<String>) -> AuthorityView {
    let Authority { url, method, body, rules } = authority;
    AuthorityView { url, method: method.as_str(), body, header_name, rules }
}

type Credential = (String, Zeroizing<String>);

fn read(
    addresses: &AddressPolicy,
    body: &[u8],
) -> Result<(Authority, Option<Credential>), Problem> {
    let mut fields = Fields::read(body)?;
    let url = fields.required_text("url");
    let method = fields.choice("method", "GET, POST", Method::parse).unwrap_or(Method::Get);
    let body = fields.choice("body", "texts without NUL", super::storable);
    let name = fields.text("headerName");
    let value = fields.text("headerValue").map(Zeroizing::new);
    let rules =
        match fields.raw("rules").map(|raw| serde_json::from_str::<Option<Vec<Rule>>>(raw.get())) {
            None => Vec::new(),
            Some(Ok(rules)) => rules.unwrap_or_default(),
            Some(Err(error)) => {
                fields.error("rules", "rules_not_valid", error.to_string());
                Vec::new()
            }
        };
    let header = match (name, value) {
        (None, None) => None,
        (Some(name), Some(value)) => {
            let pair = [(name.clone(), value.as_str().to_owned())];
            if value.len() > MAX_TEXT || check_custom(&pair).is_err() {
                fields.error("headerName", "header_not_valid", "the header cannot be sent");
            }
            Some((name, value))
        }
        (None, Some(_)) => {
            fields.missing("headerName");
            None
        }
        (Some(_), None) => {
            fields.missing("headerValue");
            None
        }
    };
    let authority = Authority { url: url.clone().unwrap_or_default(), method, body, rules };
    if url.is_some() {
        // As it will be asked: placeholders are no part of a URL.
        let some = Uuid::from_u128(1);
        let (asked, _) = authority.question(EventId::from_uuid(some), DeliveryId::from_uuid(some));
        if let Err(refused) = addresses.check_url(&asked) {
            fields.error("url", refused.code(), refused.to_string());
        }
        if let Err(wrong) = authority.check() {
            let name = match wrong {
                AuthorityError::NoPlaceholder => "url",
                AuthorityError::Body | AuthorityError::BodyNotJson => "body",
                AuthorityError::TooLarge
                | AuthorityError::Status(_)
                | AuthorityError::Anything(_)
                | AuthorityError::Test(_) => "rules",
            };
            fields.error(name, "authority_not_valid", wrong.to_string());
        }
    }
    fields.finish()?;
    Ok((authority, header))
}
