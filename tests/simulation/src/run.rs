//! Many schedules on all processors, replay of one, shrinking of a failing one.

use crate::event::{Event, Time};
use crate::journal::Breach;
use crate::mutants::Planted;
use crate::plan::{Fault, Spec};
use crate::relay;
use crate::world::{Report, World};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What many schedules came to.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Schedules that ran.
    pub schedules: u64,
    /// Those that broke something, with the first thing that each broke, by seed.
    pub breaches: Vec<(u64, Breach)>,
    /// Records that were no repeats.
    pub deliveries: u64,
    /// Requests.
    pub requests: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Virtual time, ms.
    pub virtual_ms: u64,
}

impl Summary {
    /// Takes another in.
    pub fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.breaches.extend(other.breaches);
        self.deliveries += other.deliveries;
        self.requests += other.requests;
        self.faults += other.faults;
        self.virtual_ms += other.virtual_ms;
    }
}

/// Runs one schedule; a panic of the core is a breach too.
pub fn one(spec: Spec, keep: bool, planted: Option<Planted>) -> Report {
    catch_unwind(AssertUnwindSafe(|| World::run(spec, keep, planted))).unwrap_or_else(|panic| {
        let breach = Breach { checker: "panic", at: 0, what: message(panic.as_ref()) };
        Report {
            breach: Some(breach),
            deliveries: 0,
            faults: 0,
            virtual_ms: 0,
            requests: 0,
            hash: 0,
            log: Vec::new(),
        }
    })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
}

/// Runs seeds `from..from + count` on `threads` threads, stopping early after `stop_after` breaches.
pub fn many(
    from: u64,
    count: u64,
    threads: usize,
    stop_after: usize,
    planted: Option<Planted>,
) -> Summary {
    spread(from, count, threads, stop_after, |seed| {
        let report = one(Spec::of(seed), false, planted);
        Summary {
            schedules: 1,
            breaches: report.breach.map(|breach| (seed, breach)).into_iter().collect(),
            deliveries: report.deliveries,
            requests: report.requests,
            faults: report.faults,
            virtual_ms: report.virtual_ms,
        }
    })
}

/// The same of the relay.
pub fn many_relay(from: u64, count: u64, threads: usize, stop_after: usize) -> Summary {
    spread(from, count, threads, stop_after, |seed| {
        let report = relay::one(seed, false, None);
        Summary {
            schedules: 1,
            breaches: report.breach.map(|breach| (seed, breach)).into_iter().collect(),
            deliveries: report.deliveries,
            requests: 0,
            faults: report.faults,
            virtual_ms: report.virtual_ms,
        }
    })
}

fn spread(
    from: u64,
    count: u64,
    threads: usize,
    stop_after: usize,
    run: impl Fn(u64) -> Summary + Sync,
) -> Summary {
    let next = AtomicU64::new(from);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from.saturating_add(count) {
                        break;
                    }
                    let one = run(seed);
                    let mut total = total.lock().unwrap_or_else(|poison| poison.into_inner());
                    total.add(one);
                    if total.breaches.len() >= stop_after {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut total = total.into_inner().unwrap_or_else(|poison| poison.into_inner());
    total.breaches.sort_by_key(|(seed, _)| *seed);
    total
}

/// A smaller schedule that still breaks the same: fewer kinds of faults, fewer deliveries.
pub fn shrink(spec: Spec, planted: Option<Planted>) -> Spec {
    let Some(breach) = one(spec, false, planted).breach else { return spec };
    let still = |spec: Spec| {
        one(spec, false, planted).breach.is_some_and(|smaller| smaller.checker == breach.checker)
    };
    let mut best = spec;
    for fault in Fault::ALL {
        let fewer = best.without(fault);
        if fewer != best && still(fewer) {
            best = fewer;
        }
    }
    let mut most = best.deliveries.min(128);
    while most > 1 {
        most -= most.div_ceil(4);
        let fewer = Spec { deliveries: most, ..best };
        if still(fewer) {
            best = fewer;
        }
    }
    best
}

/// The lines of the log that have to do with the breach, at most `most`, oldest first: those of its deliveries, its
/// lanes' neighbours and what happened to processes and partitions.
pub fn around(report: &Report, most: usize) -> Vec<&(Time, Event)> {
    let Some(breach) = &report.breach else {
        return report.log[report.log.len().saturating_sub(most)..].iter().collect();
    };
    let until = report.log.partition_point(|(at, _)| *at <= breach.at);
    let end = if breach.at == 0 { report.log.len() } else { until };
    let wanted = |event: &Event| !matches!(event, Event::Gauge { .. });
    let mut lines: Vec<_> =
        report.log[..end].iter().rev().filter(|(_, event)| wanted(event)).take(most).collect();
    lines.reverse();
    lines
}
