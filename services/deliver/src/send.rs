//! One request: the lease directly before it, the courier, and what came back.
//!
//! The core bounds how many run at a time (`max_in_flight`), so each is a task of its own.

use crate::endpoints::Sendable;
use crate::lease::Lease;
use crate::metrics::Metrics;
use crate::spans::Attempt;
use laneway_courier::{Courier, Outgoing, SendResult};
use laneway_lane::{AttemptResult, OnUnknown, Ticket};
use laneway_platform::clock::{self, DbClock};
use laneway_platform::failpoint;
use laneway_store::Pool;
use laneway_store::delivery::owner_timeout_raise;
use laneway_wire::Record;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

/// What requests share.
#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) courier: Arc<Courier>,
    pub(crate) clock: Arc<DbClock>,
    pub(crate) pool: Pool,
    pub(crate) metrics: Arc<Metrics>,
}

/// One request to be made.
pub(crate) struct Request {
    pub(crate) ticket: Ticket,
    pub(crate) record: Arc<Record>,
    pub(crate) timeout: Duration,
    pub(crate) sendable: Arc<Sendable>,
    pub(crate) lease: Arc<Lease>,
}

/// A request's end, on its way back to the core.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) ticket: Ticket,
    pub(crate) result: AttemptResult,
    pub(crate) took: Duration,
}

impl Sender {
    /// Makes the request; always gives an end.
    pub(crate) async fn send(&self, request: Request) -> Ended {
        let Request { ticket, record, timeout, sendable, lease } = request;
        let not_started = Ended { ticket, result: AttemptResult::NotStarted, took: Duration::ZERO };
        if timeout > lease.max_timeout() && !self.allow(ticket, timeout, &lease).await {
            return not_started;
        }
        if sendable.on_unknown != OnUnknown::Resend {
            failpoint::hit("C5");
        }
        // Nothing that can wait stands between this and the courier (P13, I10).
        if !lease.may_start() || lease.cut.is_cancelled() {
            return not_started;
        }
        let clear_at = self.clock.now() + timeout;
        let began = clock::monotonic();
        let outgoing = Outgoing {
            record: &record,
            attempt: ticket.attempt,
            sequence: 0,
            signed_at: clock::wall(),
        };
        let spans = Attempt::begin(&record, ticket);
        let sending = self.courier.send(&sendable.target, outgoing, timeout);
        let sent = tokio::select! {
            biased;
            sent = sending.instrument(spans.request.clone()) => Some(sent),
            () = lease.cut.cancelled() => None,
        };
        let took = clock::monotonic().saturating_sub(began);
        let result = match sent.map(|sent| sent.result) {
            None => AttemptResult::Unknown { class: "cut", clear_at },
            Some(SendResult::NotSent { class }) => AttemptResult::NotSent { class },
            Some(SendResult::Unknown { class }) => AttemptResult::Unknown { class, clear_at },
            Some(SendResult::Responded { status, body, .. }) => {
                AttemptResult::Responded { status, body }
            }
        };
        spans.end(&result);
        if matches!(result, AttemptResult::Responded { .. }) {
            failpoint::hit("C7");
        }
        failpoint::hit("C8");
        self.metrics.attempt(record.head.endpoint_id(), &result);
        Ended { ticket, result, took }
    }

    /// Makes a timeout longer than the partition's longest so far durable; `false` if it cannot be.
    async fn allow(&self, ticket: Ticket, timeout: Duration, lease: &Lease) -> bool {
        let _turn = lease.raising.lock().await;
        if timeout <= lease.max_timeout() {
            return true;
        }
        match owner_timeout_raise(&self.pool, ticket.partition, lease.epoch, timeout).await {
            Ok(true) => {
                lease.allow(timeout);
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::warn!(partition = ticket.partition, %error, "longest timeout not raised");
                false
            }
        }
    }
}
