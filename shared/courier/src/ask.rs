//! A question to an authority (design 5.5): under the same address policy, deadline and limits as a delivery, and asked
//! once. Its answer is read whole up to a limit, because here the body says everything.

use crate::request::AGENT;
use crate::send::{Courier, read};
use crate::target::{SendResult, Sent, Target};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Method, Request};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The part of an authority's answer that is read, bytes. One that is longer is not JSON any more and tells nothing.
pub const ANSWER_LIMIT: usize = 256 * 1024;

/// Why a question was not asked: all connections to the authority were in use until its deadline.
pub const CONNECTIONS_BUSY: &str = "connections_busy";

/// One question.
#[derive(Debug, Clone)]
pub struct Question {
    /// The URL, placeholders filled in; it leads to where the target's leads.
    pub url: String,
    /// A JSON body makes it a POST.
    pub body: Option<Bytes>,
    /// Whether it is a POST without a body.
    pub post: bool,
}

impl Courier {
    /// Asks once and is back by `deadline` at the latest. `target` is the authority: its URL, header and limits; it
    /// needs no secrets, because questions are not signed.
    pub async fn ask(&self, target: &Target, question: Question, deadline: Duration) -> Sent {
        let started = Instant::now();
        let result = match self.question(target, question, started, deadline).await {
            Ok(result) => result,
            Err(class) => SendResult::NotSent { class },
        };
        Sent { result, took: started.elapsed() }
    }

    async fn question(
        &self,
        target: &Target,
        question: Question,
        started: Instant,
        deadline: Duration,
    ) -> Result<SendResult, &'static str> {
        let route = self.route(target, deadline)?;
        let url = self.checked(&question.url)?;
        // The route was checked with placeholders: what they stand for must not lead elsewhere.
        if url.url().host_str() != route.url.url().host_str()
            || url.url().port_or_known_default() != route.url.url().port_or_known_default()
        {
            return Err("target_not_allowed");
        }
        let end = started + deadline;
        let Ok(permit) = timeout_at(end, route.connections.acquire()).await else {
            return Err(CONNECTIONS_BUSY);
        };
        let _permit = permit.expect("the semaphore is never closed");
        let post = question.post || question.body.is_some();
        let method = if post { Method::POST } else { Method::GET };
        let mut http = Request::new(method, url.url().clone());
        let headers = http.headers_mut();
        let insert = |(name, value): &(HeaderName, HeaderValue)| {
            headers.insert(name.clone(), value.clone());
        };
        route.headers.iter().for_each(insert);
        let headers = http.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(USER_AGENT, AGENT);
        if let Some(body) = question.body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *http.body_mut() = Some(body.into());
        }
        Ok(match timeout_at(end, route.client.execute(http)).await {
            Err(_) => SendResult::Unknown { class: "timeout" },
            Ok(Err(error)) => crate::classify::classify(&error),
            Ok(Ok(response)) => {
                let status = response.status().as_u16();
                let (body, truncated) = read(response, end, ANSWER_LIMIT).await;
                SendResult::Responded { status, body, truncated }
            }
        })
    }
}
