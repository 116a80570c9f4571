//! Operations under an `Idempotency-Key` (C2, P12, I34–I37): claim, work and answer in one transaction, and the same
//! answer for every repetition.

use crate::app::App;
use crate::problem::{self, Problem};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_store::idempotency::{
    Answer, Claim, ClaimTimes, Claimed, MAX_KEY, Work, idempotency_claim,
};
use laneway_wire::TenantId;
use laneway_wire::fingerprint::{FingerprintError, Request, fingerprint};
use serde::Serialize;

/// A kind of operation.
pub(crate) struct Operation {
    /// Its name: keys of one are not keys of another.
    pub(crate) name: &'static str,
    /// The route's template.
    pub(crate) route: &'static str,
    /// Whether a key must be sent.
    pub(crate) key_required: bool,
    /// Whether the answer has a secret in it, so that it is stored encrypted.
    pub(crate) secret: bool,
    /// The answer of a success.
    pub(crate) status: StatusCode,
    /// Where the made object is, without its id at the end and with the project to be put in; empty if nowhere.
    pub(crate) location: &'static str,
}

/// What to do with a request.
pub(crate) enum Begun {
    /// It is new: do it in this transaction.
    New(Box<Work>),
    /// It was done: this is the answer.
    Done(Response),
}

impl Operation {
    /// Claims the request's key, if it has one. `ids` are those in the path, after the project.
    ///
    /// # Errors
    /// If the key is missing, malformed, in use, or was used for another request.
    pub(crate) async fn begin(
        &self,
        app: &App,
        tenant: TenantId,
        ids: &[&str],
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Begun, Problem> {
        let count = |result| app.metrics().idempotency(self.name, result);
        let Some(key) = key(headers)? else {
            if self.key_required {
                count("missing_400");
                let docs = "</problems/idempotency-key-missing>; rel=\"describedby\"";
                return Err(problem::KEY_MISSING.problem().with_header(header::LINK, docs));
            }
            return Ok(Begun::New(Box::new(Work::begin(app.pool(), tenant).await?)));
        };
        let project = tenant.to_string();
        let params: Vec<&str> =
            std::iter::once(project.as_str()).chain(ids.iter().copied()).collect();
        let fingerprint = fingerprint(&Request {
            method: "POST",
            route: self.route,
            params: &params,
            content_type: "application/json",
            body,
        })
        .map_err(|error| match error {
            FingerprintError::NotJson | FingerprintError::TooDeep => {
                problem::BODY_NOT_JSON.detail(error.to_string())
            }
        })?;
        let claim = Claim { tenant, operation: self.name, key: &key, fingerprint };
        let times = ClaimTimes {
            wait: app.settings().idempotency_wait,
            retention: app.settings().idempotency_retention,
        };
        match idempotency_claim(app.pool(), app.secrets(), claim, times).await? {
            Claimed::Fresh(work) => {
                count("new");
                Ok(Begun::New(Box::new(work)))
            }
            Claimed::Repeated(answer) => {
                count("replayed");
                let mut response = self.response(tenant, &answer)?;
                response
                    .headers_mut()
                    .insert("idempotency-replayed", HeaderValue::from_static("true"));
                Ok(Begun::Done(response))
            }
            Claimed::InProgress => {
                count("in_flight_409");
                Err(problem::KEY_IN_USE.problem().with_header(header::RETRY_AFTER, "1"))
            }
            Claimed::Mismatch => {
                count("mismatch_422");
                Err(problem::KEY_REUSED.problem())
            }
        }
    }

    /// Makes the work durable and gives its answer: nothing is answered that is not committed (I52).
    pub(crate) async fn finish(
        &self,
        app: &App,
        work: Box<Work>,
        body: &impl Serialize,
    ) -> Result<Response, Problem> {
        let tenant = work.tenant();
        let body = serde_json::to_vec(body).expect("texts and numbers always serialise");
        let answer = Answer { status: self.status.as_u16(), body };
        work.commit(&answer, self.secret.then(|| app.secrets())).await?;
        self.response(tenant, &answer)
    }

    fn response(&self, tenant: TenantId, answer: &Answer) -> Result<Response, Problem> {
        #[derive(serde::Deserialize)]
        struct Made {
            id: String,
        }
        let status =
            StatusCode::from_u16(answer.status).map_err(|_| problem::INTERNAL.problem())?;
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (status, json, answer.body.clone()).into_response();
        if !self.location.is_empty()
            && let Ok(made) = serde_json::from_slice::<Made>(&answer.body)
            && let Ok(location) = HeaderValue::from_str(&format!(
                "{}{}",
                self.location.replace("{project}", &tenant.to_string()),
                made.id
            ))
        {
            response.headers_mut().insert(header::LOCATION, location);
        }
        Ok(response)
    }
}

/// The key that a request brings: visible ASCII, plain or as a quoted string (the draft's structured field).
fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let not_valid = |detail| problem::KEY_INVALID.detail(detail);
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(not_valid("the header stands more than once"));
    }
    let text = value.to_str().map_err(|_| not_valid("the key is not visible ASCII"))?.trim();
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let is_plain = inner.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"');
    if !is_plain {
        return Err(not_valid("the key is not visible ASCII"));
    }
    if inner.is_empty() || inner.len() > MAX_KEY {
        return Err(not_valid("the key has 1 to 255 characters"));
    }
    Ok(Some(inner.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&[u8]]) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("idempotency-key", HeaderValue::from_bytes(value).unwrap());
        }
        key(&headers).map_err(|problem| problem.kind().code)
    }

    #[test]
    fn a_key_is_read_plain_and_quoted() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"a-1"]), Ok(Some("a-1".to_owned())));
        assert_eq!(read(&[b"\"a-1\""]), Ok(Some("a-1".to_owned())));
        assert_eq!(read(&[&[b'k'; 255]]), Ok(Some("k".repeat(255))));
    }

    #[test]
    fn a_malformed_key_is_refused() {
        let long = [b'k'; 256];
        for refused in
            [&[b"".as_slice()][..], &[b"\"\""], &[b"\""], &[&long], &[b"a\tb"], &[b"\xff"]]
        {
            assert_eq!(read(refused), Err("idempotency_key_not_valid"), "{refused:?}");
        }
        assert_eq!(read(&[b"a", b"a"]), Err("idempotency_key_not_valid"));
    }
}
