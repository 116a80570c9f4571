//! What the receiver does with a request, and the rules that choose it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::http::Request;

/// What happens to a request after it was fully read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Behaviour {
    /// A complete response.
    Answer {
        /// HTTP status.
        status: u16,
        /// More headers.
        #[serde(default)]
        headers: Vec<(String, String)>,
        /// The response's body.
        #[serde(default)]
        body: String,
        /// Wait before the first byte of the answer.
        #[serde(default)]
        delay_ms: u64,
        /// Close the connection after it (announced by `connection: close`).
        #[serde(default)]
        close: bool,
    },
    /// The connection is reset (RST), nothing is answered.
    Reset,
    /// The connection is closed in order (FIN), nothing is answered.
    Close,
    /// Nothing is ever answered; the connection stays open until the peer closes it.
    Hang,
    /// The answer comes one byte at a time.
    SlowLoris {
        /// HTTP status.
        status: u16,
        /// Between two bytes.
        every_ms: u64,
    },
    /// These bytes instead of an HTTP response, then the connection is closed.
    Raw {
        /// Sent as they are.
        bytes: String,
    },
    /// A status line and headers that announce a body, then a reset before its end.
    ResetMidBody {
        /// HTTP status.
        status: u16,
    },
    /// A status line and headers that announce a body that never comes; the connection stays open.
    StallMidBody {
        /// HTTP status.
        status: u16,
    },
}

impl Behaviour {
    /// A complete answer with this status and an empty body.
    pub fn status(status: u16) -> Self {
        Self::Answer { status, headers: Vec::new(), body: String::new(), delay_ms: 0, close: false }
    }

    /// `200 OK` at once.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// A complete answer with this status after a while.
    pub fn delayed(status: u16, delay: Duration) -> Self {
        Self::Answer {
            status,
            headers: Vec::new(),
            body: String::new(),
            delay_ms: delay.as_millis() as u64,
            close: false,
        }
    }

    /// A complete answer with `Retry-After`.
    pub fn retry_after(status: u16, value: &str) -> Self {
        Self::Answer {
            status,
            headers: vec![("retry-after".to_owned(), value.to_owned())],
            body: String::new(),
            delay_ms: 0,
            close: false,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Answer { .. } => "answer",
            Self::Reset => "reset",
            Self::Close => "close",
            Self::Hang => "hang",
            Self::SlowLoris { .. } => "slow_loris",
            Self::Raw { .. } => "raw",
            Self::ResetMidBody { .. } => "reset_mid_body",
            Self::StallMidBody { .. } => "stall_mid_body",
        }
    }

    /// The status that the sender can read, if any.
    pub(super) fn answered_status(&self) -> Option<u16> {
        match self {
            Self::Answer { status, .. }
            | Self::SlowLoris { status, .. }
            | Self::ResetMidBody { status }
            | Self::StallMidBody { status } => Some(*status),
            Self::Reset | Self::Close | Self::Hang | Self::Raw { .. } => None,
        }
    }
}

/// A condition and what happens when it holds; the first rule that matches decides, without one `200` is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The path (with query) begins with this.
    #[serde(default)]
    pub path: Option<String>,
    /// These headers have these values (names in lower case).
    #[serde(default)]
    pub headers: HashMap<String, String>,
    /// The body contains this text.
    #[serde(default)]
    pub body_contains: Option<String>,
    /// Matches at most this often.
    #[serde(default)]
    pub times: Option<u64>,
    /// Matches only attempts (`x-attempt`) up to this number.
    #[serde(default)]
    pub up_to_attempt: Option<u32>,
    /// What to do.
    pub behaviour: Behaviour,
    #[serde(skip)]
    matched: AtomicU64,
}

impl Rule {
    /// A rule that matches every request.
    pub fn always(behaviour: Behaviour) -> Self {
        Self {
            path: None,
            headers: HashMap::new(),
            body_contains: None,
            times: None,
            up_to_attempt: None,
            behaviour,
            matched: AtomicU64::new(0),
        }
    }

    /// A rule for a path and all below it.
    pub fn path(path: &str, behaviour: Behaviour) -> Self {
        Self { path: Some(path.to_owned()), ..Self::always(behaviour) }
    }

    /// Restricts the rule to requests with this header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_ascii_lowercase(), value.to_owned());
        self
    }

    /// Restricts the rule to bodies that contain `text`.
    #[must_use]
    pub fn body_contains(mut self, text: &str) -> Self {
        self.body_contains = Some(text.to_owned());
        self
    }

    /// Restricts the rule to its first `times` matches.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Restricts the rule to the first attempts of each delivery.
    #[must_use]
    pub fn up_to_attempt(mut self, attempt: u32) -> Self {
        self.up_to_attempt = Some(attempt);
        self
    }

    /// Whether it decides this request; counts when it does.
    pub(super) fn takes(&self, request: &Request) -> bool {
        self.path.as_deref().is_none_or(|path| request.path.starts_with(path))
            && self.headers.iter().all(|(name, value)| request.header(name) == Some(value))
            && self.body_contains.as_deref().is_none_or(|text| contains(&request.body, text))
            && self.up_to_attempt.is_none_or(|attempt| request.attempt() <= attempt)
            && self.times.is_none_or(|times| self.matched.fetch_add(1, Ordering::Relaxed) < times)
    }
}

fn contains(body: &[u8], text: &str) -> bool {
    text.is_empty() || body.windows(text.len()).any(|window| window == text.as_bytes())
}
