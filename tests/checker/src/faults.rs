//! Which faults explain that something was sent again, or late (P5, I3). An excuse holds for what its fault can have
//! touched and for the time in which it can have done so, and for nothing else.

use crate::Options;
use crate::ids;
use crate::input::FaultLine;
use crate::world::{NS_PER_MS, World, near, ns_of_ms};
use anyhow::{Result, bail};
use std::collections::HashSet;
use std::time::Duration;

/// A fault on the wall clock, in ns.
struct Fault {
    start: i64,
    end: i64,
    effect: Effect,
    /// The process that it was done to.
    target: String,
    /// Endpoint and key of the lanes whose owner lost its lease.
    lanes: HashSet<Lane>,
    /// The endpoint, and the key if it is one key's, that it was aimed at.
    endpoint: Option<u16>,
    key: Option<u32>,
    /// Of a process that stood still: connections that carried requests meanwhile, so they are not its own.
    others: HashSet<Connection>,
}

/// Endpoint and key.
pub(crate) type Lane = (u16, u32);
/// Journal and number.
pub(crate) type Connection = (usize, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The owner of lanes died: what it had not recorded is sent again by its successor.
    Kill,
    /// The owner was held up or cut off: a successor goes on, and what the owner had begun may arrive late.
    Pause {
        /// It did nothing at all meanwhile.
        stood_still: bool,
    },
    /// The owner of some lanes lost its lease of them: what it had not recorded is sent again by its successor. Nothing
    /// arrives late: the successor waits until its requests have ended.
    Lease,
    /// Recording was impossible for a while.
    Store,
    /// The way to a receiver was cut while it lasted: replies were lost, and requests arrive late.
    Replies,
    /// A receiver's connections broke at its start.
    Receiver,
    /// Nothing about owners or replies.
    Other,
}

/// What was sent into a way that was cut is sent again by the kernel until this long after it is whole again.
const RESENT_NS: i64 = 10_000 * NS_PER_MS;
/// An owner that goes on sends what it had begun within this, or cuts it: its deadline went on.
const HELD_UP_NS: i64 = 1_000 * NS_PER_MS;
/// An answer is recorded within this where nothing holds that up.
const RECORDED_NS: i64 = 1_000 * NS_PER_MS;
/// A request ends within this, if the run names no deadline: the product's own.
const LONGEST_NS: i64 = 15_000 * NS_PER_MS;

/// A request that was read after its delivery had been answered with 2xx.
pub(crate) struct Repeat {
    pub(crate) lane: Lane,
    /// When the last 2xx before it was written, and on which connection.
    pub(crate) answered_ns: i64,
    /// When the request was read that this 2xx answers.
    pub(crate) asked_ns: i64,
    pub(crate) conn: Connection,
    /// The 2xx came when nobody waited for it any more.
    pub(crate) is_late: bool,
    pub(crate) read_ns: i64,
    /// Its attempt is an earlier one than one that was read before it: it was under way all that time.
    pub(crate) is_overtaken: bool,
    /// The last request on the connection that this 2xx went out on.
    pub(crate) conn_last_ns: i64,
    /// When the database recorded that it was delivered.
    pub(crate) recorded_ns: Option<i64>,
}

/// All faults of a run.
#[derive(Default)]
pub(crate) struct Faults {
    all: Vec<Fault>,
    /// Those in which a process stood still.
    still: Vec<usize>,
    /// How exact their times are.
    exact: i64,
    /// How long a request may take, 0 if the run does not say; and that with a lease before or behind it.
    deadline: i64,
    longest: i64,
    after: i64,
    /// Every lease that was lost is among them.
    leases_told: bool,
}

impl Faults {
    /// `offset` leads from the journals' monotonic clock to the wall clock.
    pub(crate) fn new(world: &World, options: &Options, offset: i64) -> Result<Self> {
        let ns = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        let deadline = options.deadline.map(ns);
        let longest = deadline.unwrap_or(LONGEST_NS);
        let all = world.faults.iter().map(|line| Fault::new(line, world, offset));
        let all: Vec<Fault> = all.collect::<Result<_>>()?;
        let stood_still = |fault: &Fault| fault.effect == Effect::Pause { stood_still: true };
        Ok(Self {
            still: (0..all.len()).filter(|&number| stood_still(&all[number])).collect(),
            all,
            exact: ns(options.fault_times),
            deadline: deadline.unwrap_or(0),
            longest,
            after: ns(options.lease).saturating_add(longest),
            leases_told: options.leases_told,
        })
    }

    /// A request was read now on a connection: what stood still has not sent it.
    pub(crate) fn saw(&mut self, conn: Connection, now: i64) {
        for &number in &self.still {
            let fault = &mut self.all[number];
            // What had left before may be read a deadline later.
            if fault.start + self.longest < now && now < fault.end - self.exact {
                fault.others.insert(conn);
            }
        }
    }

    /// Whether one of them explains a repeat. What was recorded is sent by nobody any more, but for what was under way by
    /// then; before that, the answer was lost to whoever was to record it.
    pub(crate) fn explain(&self, repeat: &Repeat) -> bool {
        let is_lost = repeat.is_late || self.all.iter().any(|fault| self.loses(fault, repeat));
        match repeat.recorded_ns {
            Some(recorded) if recorded + self.exact < repeat.read_ns => {
                let is_begun = |fault: &Fault| fault.start <= recorded + self.exact;
                self.late(repeat.lane, repeat.read_ns).any(is_begun)
                    || self.delay(repeat.lane.0, repeat.read_ns) && (repeat.is_overtaken || is_lost)
            }
            _ => is_lost,
        }
    }

    /// Whether the fault may have lost the answer before a repeat.
    fn loses(&self, fault: &Fault, repeat: &Repeat) -> bool {
        let (from, to, exact) = (repeat.answered_ns, repeat.read_ns, self.exact);
        let endpoint = repeat.lane.0;
        match fault.effect {
            // The connection of the answer was the dead process's: it carries nothing after. It had recorded what it was
            // told a second before, if nothing held that up; what was older than a lease it had in any case, or had lost
            // the lease.
            Effect::Kill => {
                let recorded =
                    from + if self.hold_up_records(from) { self.after } else { RECORDED_NS };
                (repeat.asked_ns - exact..=recorded + exact).contains(&fault.start)
                    && fault.start <= to
                    && repeat.conn_last_ns <= fault.start + exact
            }
            Effect::Pause { .. } | Effect::Store => {
                let is_its = !fault.others.contains(&repeat.conn)
                    || self.all.iter().any(|other| {
                        other.endpoint == Some(endpoint) && other.overlaps(fault.start, fault.end)
                    });
                fault.overlaps(repeat.asked_ns - exact, from + RECORDED_NS + exact)
                    && fault.start <= to
                    && is_its
            }
            // What was answered before the lease's time was recorded in it; a request that began in it may be answered
            // a deadline later, by then in vain.
            Effect::Lease => {
                fault.lanes.contains(&repeat.lane)
                    && (fault.start - exact..=fault.end + self.deadline + exact).contains(&from)
                    && fault.end <= to
            }
            // The answer was written, and did not arrive. What was held on its way is read when the way is whole again; its
            // sender waited a deadline for it.
            Effect::Replies => {
                let until = fault.end + self.deadline;
                let lost = fault.start <= from + exact && until >= from - exact;
                fault.endpoint == Some(endpoint) && lost
                    || repeat.is_overtaken && fault.delays(endpoint, to)
            }
            // The answer went into a connection that was being broken.
            Effect::Receiver => {
                fault.endpoint == Some(endpoint) && (from - fault.start).abs() <= exact
            }
            Effect::Other => false,
        }
    }

    /// Whether something held up the record of what was answered at `from`.
    fn hold_up_records(&self, from: i64) -> bool {
        self.all.iter().any(|fault| {
            matches!(fault.effect, Effect::Pause { .. } | Effect::Store)
                && fault.overlaps(from - self.exact, from + RECORDED_NS + self.exact)
        })
    }

    /// Those that held up an owner of this lane that another has replaced, and by which something may be sent now that it
    /// had begun before.
    fn late(&self, lane: Lane, now: i64) -> impl Iterator<Item = &Fault> {
        self.all.iter().filter(move |fault| {
            matches!(fault.effect, Effect::Pause { .. })
                && fault.start <= now
                && now <= fault.end + HELD_UP_NS
                && self.is_replaced(fault, lane)
        })
    }

    /// Whether the owner that was held up may have lost this lane to another. Where every lost lease is told, it has if
    /// its own is.
    fn is_replaced(&self, pause: &Fault, lane: Lane) -> bool {
        !self.leases_told
            || self.all.iter().any(|fault| {
                fault.effect == Effect::Lease
                    && fault.target == pause.target
                    && fault.lanes.contains(&lane)
                    && fault.overlaps(pause.start - self.exact, pause.end + self.after)
            })
    }

    /// Whether what an owner of this lane had begun before it was held up, and before another replaced it, may be sent
    /// now.
    pub(crate) fn hold_up(&self, lane: Lane, now: i64) -> bool {
        self.late(lane, now).next().is_some()
    }

    /// Whether an owner of the lane that another had replaced may have had something under way between the two times.
    pub(crate) fn leave_stragglers(&self, lane: Lane, from: i64, to: i64) -> bool {
        self.all.iter().any(|fault| {
            matches!(fault.effect, Effect::Pause { .. })
                && fault.overlaps(from, to)
                && to <= fault.end + self.after
                && self.is_replaced(fault, lane)
        })
    }

    /// Whether a request that is read now may have been under way since the way to its endpoint was cut.
    pub(crate) fn delay(&self, endpoint: u16, now: i64) -> bool {
        self.all.iter().any(|fault| fault.delays(endpoint, now))
    }

    /// Whether connections to the endpoint may have broken between the two times: the sender was free again.
    pub(crate) fn break_way(&self, endpoint: u16, from: i64, to: i64) -> bool {
        self.all.iter().any(|fault| fault.endpoint == Some(endpoint) && fault.overlaps(from, to))
    }

    /// Whether an attempt of a lane that was read at `from`, with another one at `to`, may not have been recorded.
    pub(crate) fn lose_attempts(&self, lane: Lane, from: i64, to: i64) -> bool {
        // By then it had ended, and the lease with it.
        let until = to.min(from.saturating_add(self.after + self.exact));
        self.all.iter().any(|fault| match fault.effect {
            Effect::Kill | Effect::Pause { .. } | Effect::Store => {
                fault.overlaps(from - self.exact, until)
            }
            Effect::Lease => fault.lanes.contains(&lane) && fault.overlaps(from, to),
            Effect::Replies | Effect::Receiver | Effect::Other => false,
        })
    }

    /// Whether something was aimed at the endpoint, or this key of it.
    pub(crate) fn touch(&self, (endpoint, key): Lane) -> bool {
        self.all.iter().any(|fault| {
            fault.endpoint == Some(endpoint) && fault.key.is_none_or(|touched| touched == key)
        })
    }
}

impl Fault {
    fn new(line: &FaultLine, world: &World, offset: i64) -> Result<Self> {
        let time = |ms: Option<i64>, ns: Option<i64>| {
            let wall = ns.map(|ns| near(ns.checked_add(offset)));
            ms.map(ns_of_ms).or(wall).transpose()
        };
        let start = time(line.start_ms, line.start_ns)?
            .ok_or_else(|| anyhow::anyhow!("fault `{}` has no start", line.kind))?;
        let end = time(line.end_ms, line.end_ns)?.unwrap_or(start);
        let number = |endpoint: &str| {
            let id = ids::parse(endpoint);
            let found =
                world.endpoints.iter().position(|one| Some(one.id) == id || one.path == endpoint);
            found.and_then(|found| u16::try_from(found).ok())
        };
        let endpoint = line.endpoint.as_deref().and_then(number);
        if line.endpoint.is_some() && endpoint.is_none() {
            bail!("fault `{}` names an unknown endpoint", line.kind);
        }
        // A key that no row has was touched in vain.
        let key = line.key.as_deref().map(|key| world.keys.get(key).unwrap_or(crate::world::NONE));
        let lane = |lane: &(String, String)| Some((number(&lane.0)?, world.keys.get(&lane.1)?));
        let lanes = line.lanes.iter().filter_map(lane).collect();
        let is_owner = line.target.starts_with("deliver") || line.target == "all";
        let effect = match line.kind.as_str() {
            _ if line.target.starts_with("postgres") => Effect::Store,
            "kill" if is_owner => Effect::Kill,
            "pause" if is_owner => Effect::Pause { stood_still: true },
            "throttle" | "cut" if is_owner => Effect::Pause { stood_still: false },
            "lease_lost" if is_owner => Effect::Lease,
            "cut" if endpoint.is_some() => Effect::Replies,
            _ if endpoint.is_some() => Effect::Receiver,
            _ => Effect::Other,
        };
        let (target, others) = (line.target.clone(), HashSet::new());
        Ok(Self { start, end, effect, target, lanes, endpoint, key, others })
    }

    fn delays(&self, endpoint: u16, now: i64) -> bool {
        self.effect == Effect::Replies
            && self.endpoint == Some(endpoint)
            && self.start <= now
            && now <= self.end + RESENT_NS
    }

    fn overlaps(&self, from: i64, to: i64) -> bool {
        self.start <= to && self.end >= from
    }
}
