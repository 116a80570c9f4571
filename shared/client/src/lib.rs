//! Typed client of Laneway's own API: for the command line, applications and tests.
//!
//! One request a call and no retries: whoever calls knows whether it is worth repeating
//! ([`Error::is_transient`]), and repeats [`Client::event_create`] with the same key.

mod types;

pub use types::{
    Attempt, CreatedEndpoint, Delivery, Endpoint, FieldError, NewEndpoint, NewEvent,
    NewSubscription, Page, Problem, Subscription,
};

use laneway_wire::{DeliveryId, EndpointId, EventId, SubscriptionId, TenantId};
use reqwest::{Method, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use std::time::Duration;
use url::Url;

/// The largest answer that is read, bytes.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

/// One project of one installation, spoken to with one key. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    key: String,
}

/// Why a call gave nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The base URL cannot be used.
    #[error("`{0}` is not the URL of an API")]
    Base(String),
    /// The request was not sent, or its answer was not read: it may have been done.
    #[error("the API could not be reached")]
    Transport(#[source] reqwest::Error),
    /// The API refused.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The answer is not one of this API.
    #[error("the API gave an answer that this client does not know, status {status}")]
    Answer {
        /// Its status.
        status: u16,
    },
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Transport(_) => true,
            Self::Refused(problem) => {
                matches!(problem.status, 429 | 500..) || problem.code == "idempotency_key_in_use"
            }
            Self::Base(_) | Self::Answer { .. } => false,
        }
    }

    /// The stable code of the API's refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => Some(&problem.code),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of `project` at `url` (`https://laneway.example`, or with a path before `/api`).
    ///
    /// # Errors
    /// [`Error::Base`]; [`Error::Transport`] if no TLS can be set up.
    pub fn new(url: &str, project: TenantId, key: &str) -> Result<Self, Error> {
        let wrong = || Error::Base(url.to_owned());
        let mut base = Url::parse(url).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(wrong());
        }
        base.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend([
            "api",
            "v1",
            "projects",
            &project.to_string(),
        ]);
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .user_agent(concat!("laneway-client/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(Error::Transport)?;
        Ok(Self { http, base, key: key.to_owned() })
    }

    /// Makes an endpoint; its secret is in the answer and never again.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn endpoint_create(&self, new: &NewEndpoint) -> Result<CreatedEndpoint, Error> {
        read(self.request(Method::POST, &["endpoints"], &[]).json(new)).await
    }

    /// Reads an endpoint.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn endpoint_get(&self, id: EndpointId) -> Result<Endpoint, Error> {
        read(self.request(Method::GET, &["endpoints", &id.to_string()], &[])).await
    }

    /// Sets an endpoint's authority (docs/unknowns.md says what is in it).
    ///
    /// # Errors
    /// [`Error`].
    pub async fn authority_set(
        &self,
        id: EndpointId,
        authority: &serde_json::Value,
    ) -> Result<serde_json::Value, Error> {
        let path = ["endpoints", &id.to_string(), "authority"];
        read(self.request(Method::PUT, &path, &[]).json(authority)).await
    }

    /// One page of endpoints, the first or the one that `cursor` leads to.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn endpoints_list(&self, cursor: Option<&str>) -> Result<Page<Endpoint>, Error> {
        read(self.request(Method::GET, &["endpoints"], &cursor_pair(cursor))).await
    }

    /// Makes a subscription.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn subscription_create(&self, new: &NewSubscription) -> Result<Subscription, Error> {
        read(self.request(Method::POST, &["subscriptions"], &[]).json(new)).await
    }

    /// Reads a subscription.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn subscription_get(&self, id: SubscriptionId) -> Result<Subscription, Error> {
        read(self.request(Method::GET, &["subscriptions", &id.to_string()], &[])).await
    }

    /// One page of subscriptions, the first or the one that `cursor` leads to.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn subscriptions_list(
        &self,
        cursor: Option<&str>,
    ) -> Result<Page<Subscription>, Error> {
        read(self.request(Method::GET, &["subscriptions"], &cursor_pair(cursor))).await
    }

    /// Emits an event under `idempotency_key`; the same key with the same event gives the same id.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn event_create(
        &self,
        idempotency_key: &str,
        new: &NewEvent<'_>,
    ) -> Result<EventId, Error> {
        #[derive(serde::Deserialize)]
        struct Accepted {
            id: EventId,
        }
        let request = self
            .request(Method::POST, &["events"], &[])
            .header("idempotency-key", idempotency_key)
            .json(new);
        read::<Accepted>(request).await.map(|accepted| accepted.id)
    }

    /// Sends dead letters, or what an endpoint was delivered, again, or discards (docs/openapi.json says what is in it),
    /// under `idempotency_key`; the same key gives the same command.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn rewind_create(
        &self,
        idempotency_key: &str,
        new: &serde_json::Value,
    ) -> Result<serde_json::Value, Error> {
        let request = self.request(Method::POST, &["rewinds"], &[]);
        read(request.header("idempotency-key", idempotency_key).json(new)).await
    }

    /// One page of an event's deliveries, the first or the one that `cursor` leads to.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn deliveries_of_event(
        &self,
        event: EventId,
        cursor: Option<&str>,
    ) -> Result<Page<Delivery>, Error> {
        let event = event.to_string();
        let mut query = cursor_pair(cursor);
        query.push(("eventId", &event));
        read(self.request(Method::GET, &["deliveries"], &query)).await
    }

    /// Reads a delivery.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn delivery_get(&self, id: DeliveryId) -> Result<Delivery, Error> {
        read(self.request(Method::GET, &["deliveries", &id.to_string()], &[])).await
    }

    /// One page of a delivery's attempts, the first or the one that `cursor` leads to.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn attempts_list(
        &self,
        id: DeliveryId,
        cursor: Option<&str>,
    ) -> Result<Page<Attempt>, Error> {
        let path = ["deliveries", &id.to_string(), "attempts"];
        read(self.request(Method::GET, &path, &cursor_pair(cursor))).await
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        let mut url = self.base.clone();
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        self.http.request(method, url).header("x-api-key", &self.key)
    }
}

fn cursor_pair(cursor: Option<&str>) -> Vec<(&'static str, &str)> {
    cursor.map(|cursor| ("cursor", cursor)).into_iter().collect()
}

async fn read<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, Error> {
    let response = request.send().await.map_err(Error::Transport)?;
    let status = response.status();
    let body = bounded(response).await?;
    if status.is_success() {
        return serde_json::from_slice(&body)
            .map_err(|_| Error::Answer { status: status.as_u16() });
    }
    Err(match serde_json::from_slice(&body) {
        Ok(problem) => Error::Refused(problem),
        Err(_) => Error::Answer { status: status.as_u16() },
    })
}

async fn bounded(mut response: Response) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Error::Transport)? {
        if body.len() as u64 + chunk.len() as u64 > MAX_ANSWER {
            return Err(Error::Answer { status: response.status().as_u16() });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
