//! One attempt, from the endpoint's settings to what came back.

use crate::address::{AddressPolicy, CheckedUrl};
use crate::classify::classify;
use crate::request;
use crate::resolver::Resolver;
use crate::routes::{Route, Routes};
use crate::settings::{Settings, SettingsError};
use crate::target::{Outgoing, SendResult, Sent, Target};
use crate::tls;
use bytes::{Bytes, BytesMut};
use reqwest::{Method, Request, Response};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The part of a response body that is kept, bytes.
pub const BODY_LIMIT: usize = 16 * 1024;
/// How long a body is read for after its status line; the lane waits that long and the body can change nothing.
pub const BODY_WAIT: Duration = Duration::from_secs(1);
/// The part of the deadline (1/n) in which a connection must become free. With connecting, which may take half,
/// three quarters: the deadline itself only ever cuts a request that may have been sent.
const WAIT_PART: u32 = 4;

/// Sends deliveries to endpoints. Cheap to share behind an `Arc`; holds the connection pools of all endpoints.
pub struct Courier {
    policy: Arc<AddressPolicy>,
    routes: Routes,
}

impl Courier {
    /// A courier with these settings. Reads the root certificates once.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let policy = Arc::new(settings.address.clone());
        let tls = tls::config(&settings)?;
        let routes = Routes::new(settings, tls, Resolver::new(Arc::clone(&policy)))?;
        Ok(Self { policy, routes })
    }

    /// Makes one attempt and is back by `deadline` at the latest, whatever the receiver does.
    ///
    /// Dropping the future closes the connection; whether the request was received is then unknown.
    pub async fn send(&self, target: &Target, request: Outgoing<'_>, deadline: Duration) -> Sent {
        let started = Instant::now();
        let result = match self.attempt(target, request, started, deadline).await {
            Ok(result) => result,
            Err(class) => SendResult::NotSent { class },
        };
        Sent { result, took: started.elapsed() }
    }

    /// Endpoints that a client is kept for now.
    pub fn clients(&self) -> usize {
        self.routes.len()
    }

    /// The target's route, if it may be gone.
    pub(crate) fn route(
        &self,
        target: &Target,
        deadline: Duration,
    ) -> Result<Arc<Route>, &'static str> {
        let route = self.routes.get(target, deadline)?;
        self.check_literal(&route.url)?;
        Ok(route)
    }

    /// Another URL of a target.
    pub(crate) fn checked(&self, url: &str) -> Result<CheckedUrl, &'static str> {
        let url = self.policy.check_url(url).map_err(|problem| problem.code())?;
        self.check_literal(&url)?;
        Ok(url)
    }

    /// A host that is an address never comes to the resolver, so it is judged here, each time.
    fn check_literal(&self, url: &CheckedUrl) -> Result<(), &'static str> {
        if url.literal().is_some_and(|ip| !self.policy.check_ip(ip)) {
            return Err("target_not_allowed");
        }
        Ok(())
    }

    /// The attempt's result; an error is the class of a request that never left.
    async fn attempt(
        &self,
        target: &Target,
        request: Outgoing<'_>,
        started: Instant,
        deadline: Duration,
    ) -> Result<SendResult, &'static str> {
        let route = self.route(target, deadline)?;
        let signer = route.signer.as_ref().ok_or("bad_secrets")?;
        let headers =
            request::headers(signer, &route.headers, &request).map_err(|_| "bad_header")?;
        let Ok(permit) =
            timeout_at(started + deadline / WAIT_PART, route.connections.acquire()).await
        else {
            return Err("connections_busy");
        };
        let _permit = permit.expect("the semaphore is never closed");
        let mut http = Request::new(Method::POST, route.url.url().clone());
        *http.headers_mut() = headers;
        *http.body_mut() = Some(request.record.payload.clone().into());
        let end = started + deadline;
        Ok(match timeout_at(end, route.client.execute(http)).await {
            Err(_) => SendResult::Unknown { class: "timeout" },
            Ok(Err(error)) => classify(&error),
            Ok(Ok(response)) => {
                let status = response.status().as_u16();
                let until = end.min(Instant::now() + BODY_WAIT);
                let (body, truncated) = read(response, until, BODY_LIMIT).await;
                SendResult::Responded { status, body, truncated }
            }
        })
    }
}

/// The first part of a body, and whether anything of it is missing. A body that is not read to its end closes its
/// connection.
pub(crate) async fn read(mut response: Response, until: Instant, limit: usize) -> (Bytes, bool) {
    let mut body = BytesMut::new();
    while let Ok(Ok(chunk)) = timeout_at(until, response.chunk()).await {
        let Some(chunk) = chunk else { return (body.freeze(), false) };
        let room = limit - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            break;
        }
    }
    (body.freeze(), true)
}
