//! Query parameters: each known, once, well formed.

use crate::cursor::Cursors;
use crate::problem::{self, FieldError, Problem};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use laneway_wire::TenantId;
use std::convert::Infallible;

/// Parameters of a request that are looked at.
const MAX_PARAMETERS: usize = 16;
/// Entries of a page if the client does not say.
const DEFAULT_LIMIT: u16 = 50;
/// Entries of a page at most.
pub(crate) const MAX_LIMIT: u16 = 250;

/// The parameters as they came.
pub(crate) struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default().as_bytes();
        let pairs = url::form_urlencoded::parse(query)
            .take(MAX_PARAMETERS)
            .map(|(name, value)| (name.into_owned(), value.into_owned()));
        Ok(Self(pairs.collect()))
    }
}

/// A page of a list that is asked for.
pub(crate) struct Page {
    /// Entries at most.
    pub(crate) limit: u16,
    /// The entry after which it begins, as the cursor says.
    pub(crate) after: Option<String>,
}

impl Query {
    /// Takes a parameter.
    pub(crate) fn take(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        let Some(at) = self.0.iter().position(|(known, _)| known == name) else { return Ok(None) };
        let (_, value) = self.0.remove(at);
        if self.0.iter().any(|(known, _)| known == name) {
            return Err(not_valid(
                name,
                "parameter_repeated",
                "the parameter stands more than once",
            ));
        }
        Ok(Some(value))
    }

    /// Takes a parameter as what `parse` makes of it; `code` says what is wrong if it makes nothing.
    pub(crate) fn parsed<T>(
        &mut self,
        name: &'static str,
        code: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let value = parse(&text);
        value.map(Some).ok_or_else(|| not_valid(name, code, "the value is not valid"))
    }

    /// Takes `limit` and `cursor` of the list `list`.
    pub(crate) fn page(
        &mut self,
        cursors: &Cursors,
        tenant: TenantId,
        list: &str,
    ) -> Result<Page, Problem> {
        let limit = match self.take("limit")? {
            None => DEFAULT_LIMIT,
            Some(text) => text
                .parse()
                .ok()
                .filter(|limit| (1..=MAX_LIMIT).contains(limit))
                .ok_or_else(|| not_valid("limit", "out_of_range", "expected 1 to 250"))?,
        };
        let after = match self.take("cursor")? {
            None => None,
            Some(text) => Some(
                cursors
                    .read(tenant, list, &text)
                    .ok_or_else(|| problem::CURSOR_NOT_VALID.problem())?,
            ),
        };
        Ok(Page { limit, after })
    }

    /// # Errors
    /// If there is a parameter that was not taken.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(not_valid(
            "",
            "parameter_unknown",
            "there is a parameter that this route does not have",
        ))
    }
}

/// A problem with the parameter `name`.
pub(crate) fn not_valid(name: &str, code: &'static str, detail: &str) -> Problem {
    problem::PARAMETER_NOT_VALID.problem().with_errors(vec![FieldError {
        pointer: format!("?{name}"),
        code,
        detail: detail.to_owned(),
    }])
}
