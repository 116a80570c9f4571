//! All routes, with the layers around them.

use crate::app::App;
use crate::body::MAX_BODY;
use crate::observe::observe;
use crate::openapi::{self, Base};
use crate::routes::{
    authority, dead_letters, deliveries, endpoints, events, meta, rewinds, subscriptions, unknowns,
};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The public routes and their description.
fn described() -> (Router<App>, OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(Base::openapi())
        .routes(routes!(endpoints::create_endpoint, endpoints::list_endpoints))
        .routes(routes!(endpoints::get_endpoint))
        .routes(routes!(endpoints::enable_endpoint))
        .routes(routes!(
            authority::get_authority,
            authority::set_authority,
            authority::remove_authority
        ))
        .routes(routes!(subscriptions::create_subscription, subscriptions::list_subscriptions))
        .routes(routes!(subscriptions::get_subscription))
        .routes(routes!(events::create_event))
        .routes(routes!(deliveries::list_deliveries))
        .routes(routes!(deliveries::get_delivery))
        .routes(routes!(deliveries::list_attempts))
        .routes(routes!(dead_letters::list_dead_letters))
        .routes(routes!(dead_letters::get_dead_letter))
        .routes(routes!(rewinds::create_rewind, rewinds::list_rewinds))
        .routes(routes!(rewinds::get_rewind))
        .routes(routes!(rewinds::pause_rewind))
        .routes(routes!(rewinds::resume_rewind))
        .routes(routes!(rewinds::cancel_rewind))
        .routes(routes!(unknowns::list_unknowns))
        .routes(routes!(unknowns::resolve_unknown, unknowns::list_resolutions))
        .split_for_parts();
    openapi::finish(&mut document);
    (router, document)
}

/// The OpenAPI document as it is served, pretty-printed, with a line end.
///
/// # Panics
/// Never: it is made of texts and numbers.
pub fn openapi_json() -> String {
    let document = described().1;
    document.to_pretty_json().expect("texts and numbers always serialise") + "\n"
}

pub(crate) fn router(app: App) -> Router {
    let json = openapi_json();
    let openapi = move || {
        let json = json.clone();
        async move { ([(header::CONTENT_TYPE, "application/json")], json) }
    };
    described()
        .0
        .route("/openapi.json", get(openapi))
        .route("/problems/", get(meta::problem_index))
        .route("/problems/{slug}", get(meta::problem_page))
        .fallback(meta::not_found)
        .method_not_allowed_fallback(meta::method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(app.clone(), observe))
        .with_state(app)
}
