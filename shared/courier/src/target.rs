//! What goes into a send and what comes out of it.

use bytes::Bytes;
use laneway_wire::signature::Secret;
use laneway_wire::{EndpointId, Record, TenantId};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The most connections that an endpoint can be given (security 5.7).
pub const MAX_CONNECTIONS: u32 = 1_024;

/// An endpoint as far as requests to it care.
#[derive(Clone)]
pub struct Target {
    /// Whose it is.
    pub tenant: TenantId,
    /// Which one.
    pub endpoint: EndpointId,
    /// Changes whenever anything below does; what was prepared for another version is not used again.
    pub version: i64,
    /// Where to send.
    pub url: String,
    /// Its active secrets, 1 to 3; none for an authority.
    pub secrets: Vec<Secret>,
    /// Connections to it from this process at most; 1 to [`MAX_CONNECTIONS`], clamped.
    pub max_connections: u32,
    /// Headers that every request to it carries; they go before an event's own of the same name.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for Target {
    /// Ids only: URL and headers may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("endpoint", &self.endpoint)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// One attempt of a delivery.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The delivery; its payload is the body, byte for byte.
    pub record: &'a Record,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Its place in the endpoint's total order, from 1; 0 when ordering is off (B2).
    pub sequence: u64,
    /// The wall clock, for the signature's timestamp and nothing else.
    pub signed_at: SystemTime,
}

/// What a send came to, and how long it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// What came back.
    pub result: SendResult,
    /// From the call to the result, waiting for a free connection included.
    pub took: Duration,
}

/// What came back (design 5.5, I11). What it means for the delivery is not judged here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendResult {
    /// It is certain that no byte of the request left, or that none was read.
    NotSent {
        /// `refused`, `dns`, `tls`, `certificate_expired`, `certificate_name` (it is another name's),
        /// `certificate_untrusted`, `client_certificate` (the receiver wants one), `connect_timeout`, `connect`, `connections_busy`, `target_not_allowed`,
        /// `bad_header`, `bad_secrets`, `bad_request`, or the code of a [`crate::UrlProblem`].
        class: &'static str,
    },
    /// A status line was read, whatever became of the body (I15).
    Responded {
        /// The status, 100 to 999.
        status: u16,
        /// The first part of the body, at most [`crate::BODY_LIMIT`] bytes.
        body: Bytes,
        /// Whether there is more of the body, or may be: it was too long, too slow or broken off.
        truncated: bool,
    },
    /// A byte may have left and no status line came back.
    Unknown {
        /// `timeout`, `reset` or `broken_reply`.
        class: &'static str,
    },
}

impl SendResult {
    /// Whether the receiver may have seen the request.
    pub const fn was_sent(&self) -> bool {
        !matches!(self, Self::NotSent { .. })
    }
}
