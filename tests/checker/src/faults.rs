//! Which faults explain that something was sent again, or late (P5, I3).

use crate::ids;
use crate::input::FaultLine;
use crate::world::{NS_PER_MS, World};
use std::collections::HashSet;

/// A fault on the wall clock, in ns.
pub(crate) struct Fault {
    start: i64,
    end: i64,
    effect: Effect,
    /// Endpoint and key of the lanes whose owner lost its lease.
    lanes: HashSet<(u16, u32)>,
    /// The endpoint, and the key if it is one key's, that it was aimed at.
    pub(crate) endpoint: Option<u16>,
    pub(crate) key: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The owner of lanes died: what it had not recorded is sent again by its successor.
    Kill,
    /// The owner was held up or cut off: a successor goes on, and what the owner had begun may arrive late.
    Pause,
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

/// A request that was read after its delivery had been answered with 2xx.
pub(crate) struct Repeat {
    pub(crate) endpoint: u16,
    pub(crate) key: u32,
    /// When the last 2xx before it was written.
    pub(crate) answered_ns: i64,
    /// When the request was read that this 2xx answers.
    pub(crate) asked_ns: i64,
    pub(crate) read_ns: i64,
    /// Its attempt is an earlier one than one that was read before it: it was under way all that time.
    pub(crate) is_overtaken: bool,
    /// The last request on the connection that this 2xx went out on.
    pub(crate) conn_last_ns: i64,
}

impl Fault {
    /// `offset` leads from the journals' monotonic clock to the wall clock.
    pub(crate) fn new(line: &FaultLine, world: &World, offset: i64) -> anyhow::Result<Self> {
        let time = |ms: Option<i64>, ns: Option<i64>| {
            ms.map(|ms| ms * NS_PER_MS).or_else(|| ns.map(|ns| ns + offset))
        };
        let start = time(line.start_ms, line.start_ns)
            .ok_or_else(|| anyhow::anyhow!("fault `{}` has no start", line.kind))?;
        let end = time(line.end_ms, line.end_ns).unwrap_or(start);
        let number = |endpoint: &str| {
            let id = ids::parse(endpoint);
            let found =
                world.endpoints.iter().position(|one| Some(one.id) == id || one.path == endpoint);
            found.and_then(|found| u16::try_from(found).ok())
        };
        let endpoint = line.endpoint.as_deref().and_then(number);
        if line.endpoint.is_some() && endpoint.is_none() {
            anyhow::bail!("fault `{}` names an unknown endpoint", line.kind);
        }
        // A key that no row has was touched in vain.
        let key = line.key.as_deref().map(|key| world.keys.get(key).unwrap_or(crate::world::NONE));
        let lane = |lane: &(String, String)| Some((number(&lane.0)?, world.keys.get(&lane.1)?));
        let lanes = line.lanes.iter().filter_map(lane).collect();
        let is_owner = line.target.starts_with("deliver") || line.target == "all";
        let effect = match line.kind.as_str() {
            _ if line.target.starts_with("postgres") => Effect::Store,
            "kill" if is_owner => Effect::Kill,
            "pause" | "cut" if is_owner => Effect::Pause,
            "lease_lost" if is_owner => Effect::Lease,
            "cut" if endpoint.is_some() => Effect::Replies,
            _ if endpoint.is_some() => Effect::Receiver,
            _ => Effect::Other,
        };
        Ok(Self { start, end, effect, lanes, endpoint, key })
    }

    /// Whether it explains a repeat; `exact` is how exact its times are, `deadline` how long a request may take, in ns.
    pub(crate) fn explains(&self, repeat: &Repeat, exact: i64, deadline: i64) -> bool {
        let (from, to) = (repeat.answered_ns, repeat.read_ns);
        match self.effect {
            // The connection of the answer was the dead process's: it carries nothing after.
            Effect::Kill => {
                self.start >= repeat.asked_ns - exact
                    && self.start <= to
                    && repeat.conn_last_ns <= self.start + exact
            }
            Effect::Pause | Effect::Store => self.overlaps(from - exact, to),
            // What was answered before the lease's time was recorded in it; a request that began in it may be answered
            // a deadline later, by then in vain.
            Effect::Lease => {
                self.lanes.contains(&(repeat.endpoint, repeat.key))
                    && (self.start - exact..=self.end + deadline + exact).contains(&from)
                    && self.end <= to
            }
            // The answer was written, and did not arrive. What was held on its way is read when the way is whole again; its
            // sender waited a deadline for it.
            Effect::Replies => {
                let lost = self.start <= from + exact && self.end + deadline >= from - exact;
                self.endpoint == Some(repeat.endpoint) && lost
                    || repeat.is_overtaken && self.delays(repeat.endpoint, to)
            }
            // The answer went into a connection that was being broken.
            Effect::Receiver => {
                self.endpoint == Some(repeat.endpoint) && (from - self.start).abs() <= exact
            }
            Effect::Other => false,
        }
    }

    /// Whether an owner that another had replaced may have had something under way between the two times.
    pub(crate) fn leaves_stragglers(&self, from: i64, to: i64) -> bool {
        self.effect == Effect::Pause && self.overlaps(from, to)
    }

    /// Whether what an owner had begun before it was held up may be sent now.
    pub(crate) fn holds_up(&self, now: i64) -> bool {
        self.effect == Effect::Pause && self.start <= now && now <= self.end + HELD_UP_NS
    }

    /// Whether a request that is read now may have been under way since the way to its endpoint was cut.
    pub(crate) fn delays(&self, endpoint: u16, now: i64) -> bool {
        self.effect == Effect::Replies
            && self.endpoint == Some(endpoint)
            && self.start <= now
            && now <= self.end + RESENT_NS
    }

    /// Whether connections to the endpoint may have broken between the two times: the sender was free again.
    pub(crate) fn breaks(&self, endpoint: u16, from: i64, to: i64) -> bool {
        self.endpoint == Some(endpoint) && self.overlaps(from, to)
    }

    /// Whether an attempt of a lane made between the two times may have been lost before it was recorded.
    pub(crate) fn loses_attempts(&self, lane: (u16, u32), from: i64, to: i64) -> bool {
        match self.effect {
            Effect::Kill | Effect::Pause | Effect::Store => self.overlaps(from, to),
            Effect::Lease => self.lanes.contains(&lane) && self.overlaps(from, to),
            Effect::Replies | Effect::Receiver | Effect::Other => false,
        }
    }

    fn overlaps(&self, from: i64, to: i64) -> bool {
        self.start <= to && self.end >= from
    }
}
