//! Who makes a request: the API key, the project in the path, and the scope that the route needs, checked in this
//! order and before anything else is read. A project that is not the key's is not there (C13, I39).

use crate::app::App;
use crate::problem::{self, Problem};
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use laneway_store::keys::{Caller, Scope, key_verify};
use laneway_wire::TenantId;
use std::marker::PhantomData;

/// The scope that a route needs.
pub(crate) trait Needs: Send {
    const SCOPE: Scope;
}

macro_rules! needs {
    ($($name:ident)+) => { $(
        pub(crate) struct $name;
        impl Needs for $name { const SCOPE: Scope = Scope::$name; }
    )+ };
}
needs!(EventsWrite EndpointsRead EndpointsWrite DeliveriesRead DeadLettersWrite);

/// A caller who may do what the route does in the project of its path.
pub(crate) struct Access<N: Needs> {
    pub(crate) tenant: TenantId,
    pub(crate) caller: Caller,
    params: Vec<(String, String)>,
    needs: PhantomData<N>,
}

impl<N: Needs> Access<N> {
    /// Who it is, for the audit log.
    pub(crate) fn actor(&self) -> String {
        format!("key {}", self.caller.key_id)
    }

    /// The id in the path, after the project.
    ///
    /// # Errors
    /// `not_found` if it is no id of this kind.
    pub(crate) fn id<T: std::str::FromStr>(&self) -> Result<T, Problem> {
        self.params
            .iter()
            .find(|(name, _)| name == "id")
            .and_then(|(_, text)| text.parse().ok())
            .ok_or_else(|| problem::NOT_FOUND.problem())
    }
}

impl<N: Needs> FromRequestParts<App> for Access<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let unauthenticated = || problem::UNAUTHENTICATED.problem();
        let key = presented_key(&parts.headers).ok_or_else(unauthenticated)?;
        let caller: Caller = key_verify(app.pool(), key).await?.ok_or_else(unauthenticated)?;
        let not_found = || problem::NOT_FOUND.problem();
        let params: Vec<(String, String)> = RawPathParams::from_request_parts(parts, app)
            .await
            .map_err(|_| not_found())?
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let project = params.iter().find(|(name, _)| name == "project");
        let tenant = project.and_then(|(_, text)| text.parse().ok()).ok_or_else(not_found)?;
        if caller.tenant != tenant {
            return Err(not_found());
        }
        if !caller.has(N::SCOPE) {
            let detail = format!("the key lacks the scope {}", N::SCOPE.as_str());
            return Err(problem::SCOPE_MISSING.detail(detail));
        }
        tracing::Span::current().record("laneway.tenant.id", tracing::field::display(tenant));
        Ok(Self { tenant, caller, params, needs: PhantomData })
    }
}

/// The one key that a request brings; none if there are two.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let mut keys = headers.get_all("x-api-key").iter();
    let mut bearers = headers.get_all(header::AUTHORIZATION).iter();
    match (keys.next(), keys.next(), bearers.next(), bearers.next()) {
        (Some(key), None, None, None) => key.to_str().ok(),
        (None, None, Some(bearer), None) => {
            let (scheme, key) = bearer.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn key(headers: &[(&'static str, &'static str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        presented_key(&map).map(str::to_owned)
    }

    #[test]
    fn one_key_in_one_header_is_a_key() {
        assert_eq!(key(&[("x-api-key", "k")]).as_deref(), Some("k"));
        assert_eq!(key(&[("authorization", "Bearer k")]).as_deref(), Some("k"));
        assert_eq!(key(&[("authorization", "bearer  k")]).as_deref(), Some("k"));
        assert_eq!(key(&[]), None);
        assert_eq!(key(&[("authorization", "Basic k")]), None);
        assert_eq!(key(&[("x-api-key", "a"), ("x-api-key", "b")]), None);
        assert_eq!(key(&[("x-api-key", "a"), ("authorization", "Bearer b")]), None);
    }
}
