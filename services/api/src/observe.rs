//! The layer around every request: its id, its span, its limits, what it is counted as, and the problem document if it
//! failed. A panic in a handler is that request's failure and nobody else's.

use crate::app::App;
use crate::problem::{self, Problem};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use laneway_platform::{clock, trace};
use std::panic::AssertUnwindSafe;
use tracing::Instrument;
use uuid::Uuid;

const REQUEST_ID: &str = "x-request-id";
/// A client's own request id is kept up to this length.
const MAX_REQUEST_ID: usize = 128;

pub(crate) async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = clock::monotonic();
    let method = method_name(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("unmatched", MatchedPath::as_str)
        .to_owned();
    let path = request.uri().path().to_owned();
    let request_id = request_id(request.headers());
    let parent = traceparent(request.headers());
    let span = tracing::info_span!(
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        "http.request.method" = method,
        "http.route" = route,
        "http.response.status_code" = tracing::field::Empty,
        "laneway.request.id" = request_id,
        "laneway.tenant.id" = tracing::field::Empty,
        "error.type" = tracing::field::Empty,
    );
    if let Some(parent) = &parent {
        trace::set_parent(&span, parent);
    }
    let _count = InFlight::new(&app);
    let mut response = limited(&app, request, next).instrument(span.clone()).await;
    let problem = response.extensions_mut().remove::<Problem>();
    if let Some(problem) = &problem {
        let context = trace::traceparent(&span).or(parent);
        let trace_id = context.and_then(|context| trace::trace_id(&context));
        let base = &app.settings().problem_base;
        let rendered = problem.render(base, &path, &request_id, trace_id.as_deref());
        // What the router put there stays, `Allow` above all.
        let allow = response.headers_mut().remove(header::ALLOW);
        response = rendered;
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, id);
    }
    let status = response.status().as_u16();
    let error = problem.as_ref().map_or("", |problem| problem.kind().code);
    span.record("http.response.status_code", status);
    if status >= 500 {
        span.record("error.type", error);
    }
    let took = clock::monotonic().saturating_sub(begun);
    app.metrics().request(method, &route, status, error, took);
    tracing::debug!(parent: &span, status, code = error, ?took, "request answered");
    response
}

/// Runs the request within the limits of number and time.
async fn limited(app: &App, request: Request, next: Next) -> Response {
    let Ok(_permit) = app.in_flight().try_acquire() else {
        return problem::OVERLOADED.problem().into_response();
    };
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(app.settings().request_timeout, handled).await {
        Ok(Ok(response)) => response,
        Ok(Err(_panic)) => {
            tracing::error!("a request handler panicked");
            problem::INTERNAL.problem().into_response()
        }
        Err(_elapsed) => problem::TIMED_OUT.problem().into_response(),
    }
}

struct InFlight<'a>(&'a App);

impl<'a> InFlight<'a> {
    fn new(app: &'a App) -> Self {
        app.metrics().in_flight.inc();
        Self(app)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics().in_flight.dec();
    }
}

/// The client's own id if it can stand in a log and a header, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
    headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|text| !text.is_empty() && text.len() <= MAX_REQUEST_ID)
        .filter(|text| text.bytes().all(allowed))
        .map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// The client's trace context, if it is one of the version that the outbox takes.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    (text.starts_with("00-") && trace::trace_id(text).is_some()).then(|| text.to_owned())
}

/// Methods that a label may have; a client can make others up.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}
