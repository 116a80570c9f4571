//! The one place of time (design 5.3 and 5.6).
//!
//! Leases run on [`boottime`], which goes on while the machine sleeps; durations are measured on [`monotonic`]; only
//! a signature's timestamp and a log line take [`wall`]; everything that is stored or scheduled takes [`DbClock`].

use laneway_wire::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    // Both parts of the clocks read here are never negative.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Time since boot, suspension included (`CLOCK_BOOTTIME`): what a lease runs on, so that a machine that slept does
/// not believe in a lease that others saw end (P13).
pub fn boottime() -> Duration {
    read(ClockId::Boottime)
}

/// Time on a clock that never steps (`CLOCK_MONOTONIC`); only differences mean something.
pub fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

/// The machine's wall clock: for signatures' timestamps and for people, never for a decision.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Database time: read once, carried on by [`boottime`], corrected now and then. While the machine sleeps the database's
/// time goes on: a clock that stood still meanwhile would take an old view for a fresh one (P7) and the end of a request
/// that may travel for an earlier one (P1) until the next correction.
///
/// It never runs backwards and never steps back: when the database turns out to be behind, it runs at half speed
/// until both agree, so that due times keep their order. All methods may be called from any thread.
#[derive(Debug)]
pub struct DbClock {
    course: Mutex<Course>,
}

/// From `from` (boot time) on: database time was `at`, of which `ahead` is still to be given back.
#[derive(Debug, Clone, Copy)]
struct Course {
    from: Duration,
    at: Timestamp,
    ahead: Duration,
}

impl Course {
    fn at(self, boot: Duration) -> Timestamp {
        let passed = boot.saturating_sub(self.from);
        self.at + (passed - (passed / 2).min(self.ahead))
    }
}

impl DbClock {
    /// Starts from `database`, the database's `clock_timestamp()`, just received: the time that the answer took is
    /// left out, so the clock is behind the database by that much and never ahead of it.
    pub fn new(database: Timestamp) -> Self {
        Self::starting(database, boottime())
    }

    fn starting(database: Timestamp, from: Duration) -> Self {
        Self { course: Mutex::new(Course { from, at: database, ahead: Duration::ZERO }) }
    }

    /// Database time now.
    pub fn now(&self) -> Timestamp {
        self.at(boottime())
    }

    fn at(&self, boot: Duration) -> Timestamp {
        self.course.lock().unwrap_or_else(PoisonError::into_inner).at(boot)
    }

    /// Takes a newer reading. A database that is ahead is followed at once, one that is behind is waited for at half
    /// speed.
    pub fn correct(&self, database: Timestamp) {
        self.corrected(database, boottime());
    }

    fn corrected(&self, database: Timestamp, boot: Duration) {
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = course.at(boot);
        *course = Course { from: boot, at: ours.max(database), ahead: ours.since(database) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn boottime_and_monotonic_move_on() {
        let (boot, mono) = (boottime(), monotonic());
        assert!(boot > Duration::ZERO && mono > Duration::ZERO);
        assert!(boottime() >= boot && monotonic() >= mono);
        assert!(boot + s(1) > mono, "boottime includes suspension, so it is never behind");
    }

    #[test]
    fn database_time_goes_on_with_the_time_since_boot() {
        let clock = DbClock::starting(Timestamp(1_000_000), s(50));
        assert_eq!(clock.at(s(50)), Timestamp(1_000_000));
        assert_eq!(clock.at(s(53)), Timestamp(1_003_000));
    }

    #[test]
    fn a_database_that_is_ahead_is_followed_at_once() {
        let clock = DbClock::starting(Timestamp(0), s(0));
        clock.corrected(Timestamp(90_000), s(10));
        assert_eq!(clock.at(s(10)), Timestamp(90_000));
        assert_eq!(clock.at(s(11)), Timestamp(91_000));
    }

    #[test]
    fn a_database_that_is_behind_is_waited_for_and_time_never_goes_back() {
        let clock = DbClock::starting(Timestamp(0), s(0));
        clock.corrected(Timestamp(6_000), s(10));
        let mut last = Timestamp(0);
        for second in 10..40 {
            let now = clock.at(s(second));
            assert!(now > last || second == 10);
            last = now;
        }
        assert_eq!(clock.at(s(14)), Timestamp(12_000), "half speed while ahead");
        assert_eq!(clock.at(s(18)), Timestamp(14_000), "4 s were given back in 8 s");
        assert_eq!(clock.at(s(20)), Timestamp(16_000), "then at full speed");
    }
}
