//! One ownership of one partition as this process believes in it: until when, and how long requests may take.
//!
//! The clock is `CLOCK_BOOTTIME`, read before the renewing statement was sent; no clock of another machine decides
//! (design 5.3). A lease that ran out never comes back: its epoch is over here even if nobody took the partition.

use laneway_lane::Epoch;
use laneway_platform::clock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A request starts only while this much of the lease is left.
pub(crate) const MARGIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) epoch: Epoch,
    length: Duration,
    /// Boot time, nanoseconds.
    until: AtomicU64,
    max_timeout: AtomicU64,
    ended: AtomicBool,
    /// Held by whoever makes a longer timeout durable: the others wait and find it done.
    pub(crate) raising: tokio::sync::Mutex<()>,
    /// Requests still under way are cut when this is cancelled, and recorded as unknown.
    pub(crate) cut: CancellationToken,
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Lease {
    /// A lease that a statement sent at `asked` (boot time) began.
    pub(crate) fn new(
        epoch: Epoch,
        length: Duration,
        asked: Duration,
        max_timeout: Duration,
    ) -> Self {
        Self {
            epoch,
            length,
            until: AtomicU64::new(nanos(asked + length)),
            max_timeout: AtomicU64::new(nanos(max_timeout)),
            ended: AtomicBool::new(false),
            raising: tokio::sync::Mutex::new(()),
            cut: CancellationToken::new(),
        }
    }

    /// Whether a request may start now.
    pub(crate) fn may_start(&self) -> bool {
        self.left() > MARGIN
    }

    /// Whether it runs.
    pub(crate) fn holds(&self) -> bool {
        self.left() > Duration::ZERO
    }

    fn left(&self) -> Duration {
        if self.ended.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        until.saturating_sub(clock::boottime())
    }

    /// How long ago it ran out.
    pub(crate) fn over_for(&self) -> Duration {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        clock::boottime().saturating_sub(until)
    }

    /// A renewal, sent at `asked`, is durable. `false`: the lease had run out meanwhile, or has even so.
    pub(crate) fn extend(&self, asked: Duration) -> bool {
        if !self.holds() {
            self.end();
            return false;
        }
        self.until.fetch_max(nanos(asked + self.length), Ordering::AcqRel);
        true
    }

    /// Nothing starts under it any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// The longest timeout that is durably allowed.
    pub(crate) fn max_timeout(&self) -> Duration {
        Duration::from_nanos(self.max_timeout.load(Ordering::Acquire))
    }

    /// A longer timeout is durable now.
    pub(crate) fn allow(&self, timeout: Duration) {
        self.max_timeout.fetch_max(nanos(timeout), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_request_needs_a_second_of_lease() {
        let now = clock::boottime();
        assert!(Lease::new(1, 3 * S, now, S).may_start());
        let short = Lease::new(1, 3 * S, now - 2 * S - S / 2, S);
        assert!(short.holds() && !short.may_start());
    }

    #[test]
    fn a_lease_that_ran_out_is_not_renewed() {
        let now = clock::boottime();
        let lease = Lease::new(1, 3 * S, now - 4 * S, S);
        assert!(!lease.extend(now));
        assert!(!lease.holds(), "the epoch is over for good");
        let running = Lease::new(1, 3 * S, now - 2 * S, S);
        assert!(running.extend(now) && running.may_start());
        running.end();
        assert!(!running.extend(now));
    }
}
