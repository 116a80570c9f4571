//! The OpenAPI 3.1 document, made from the routes themselves, so that neither can drift from the other.
//! `docs/openapi.json` is the same document, checked in; a test compares them.

use utoipa::Modify;
use utoipa::OpenApi;
use utoipa::openapi::schema::{AdditionalProperties, Schema};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{RefOr, SecurityRequirement};

/// Requests: their unknown fields are refused, which serde's own attribute cannot tell here.
const REQUESTS: [&str; 7] = [
    "NewEndpoint",
    "NewSubscription",
    "NewEvent",
    "NewRewindBody",
    "RewindChange",
    "NewAuthority",
    "RuleText",
];

/// The document without its paths.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Laneway",
        description = "Ordered, at-least-once HTTP delivery of committed events. All times are RFC 3339 in UTC; \
                       unknown fields of a request are refused, unknown fields of an answer are to be ignored. \
                       Errors are RFC 9457 problem documents with a stable `code`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "endpoints", description = "Where requests go"),
        (name = "subscriptions", description = "Which events an endpoint gets"),
        (name = "events", description = "What happened"),
        (name = "deliveries", description = "Where an event stands at each endpoint"),
        (name = "dead letters", description = "What was given up on, and commands to send it again")
    ),
    modifiers(&House)
)]
pub(crate) struct Base;

struct House;

impl Modify for House {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
        components.add_security_scheme("apiKey", SecurityScheme::ApiKey(header));
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let scopes: [&str; 0] = [];
        openapi.security = Some(vec![
            SecurityRequirement::new("apiKey", scopes),
            SecurityRequirement::new("bearer", scopes),
        ]);
    }
}

/// What the routes' macros cannot say: requests take no other fields.
pub(crate) fn finish(openapi: &mut utoipa::openapi::OpenApi) {
    let Some(components) = &mut openapi.components else { return };
    for name in REQUESTS {
        if let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(name) {
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}
