//! The routes: each file one family, handlers thin, SQL in `laneway-store`.

pub(crate) mod authority;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod endpoints;
pub(crate) mod events;
pub(crate) mod meta;
pub(crate) mod rewinds;
pub(crate) mod subscriptions;
pub(crate) mod unknowns;

use crate::app::App;
use crate::body::Fields;
use crate::problem::Problem;
use crate::query::Page;
use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, SecondsFormat};
use laneway_store::reason::reason_is_valid;
use laneway_wire::{TenantId, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageOf<T: ToSchema> {
    /// The entries.
    data: Vec<T>,
    /// What to send as `cursor` for the next page; null at the end.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// Makes the answer of a list from one entry more than was asked for; `key` is where a page can begin after.
fn page_of<T: Serialize + ToSchema, R>(
    app: &App,
    tenant: TenantId,
    list: &str,
    page: &Page,
    mut rows: Vec<R>,
    key: impl Fn(&R) -> String,
    show: impl Fn(R) -> T,
) -> Result<Response, Problem> {
    let limit = usize::from(page.limit);
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next_cursor =
        rows.last().filter(|_| has_more).map(|row| app.cursors().write(tenant, list, &key(row)));
    let link = next_cursor.as_ref().and_then(|cursor| {
        let link = format!("<?limit={limit}&cursor={cursor}>; rel=\"next\"");
        HeaderValue::from_str(&link).ok()
    });
    let data = rows.into_iter().map(show).collect();
    let mut response = Json(PageOf { data, next_cursor }).into_response();
    if let Some(link) = link {
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// RFC 3339 in UTC with milliseconds.
fn rfc3339(at: Timestamp) -> String {
    DateTime::from_timestamp_millis(at.as_millis())
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The inverse of [`rfc3339`], for whatever offset.
fn timestamp(text: &str) -> Option<Timestamp> {
    DateTime::parse_from_rfc3339(text).ok().map(|at| Timestamp(at.timestamp_millis()))
}

/// A text that PostgreSQL can hold.
fn storable(text: &str) -> Option<String> {
    (!text.contains('\0')).then(|| text.to_owned())
}

/// Why somebody does what cannot be undone, for the audit log.
fn reason(fields: &mut Fields<'_>) -> Option<String> {
    let reason = fields.required_text("reason")?;
    if !reason_is_valid(&reason) {
        let expected = "expected 1 to 1,000 characters, no NUL and not only blanks";
        fields.error("reason", "out_of_range", expected);
        return None;
    }
    Some(reason)
}

/// Where the page after this one begins, as an id.
fn after<T: std::str::FromStr>(page: &Page) -> Result<Option<T>, Problem> {
    page.after
        .as_deref()
        .map(|text| text.parse().map_err(|_| crate::problem::CURSOR_NOT_VALID.problem()))
        .transpose()
}
