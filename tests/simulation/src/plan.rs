//! What a seed decides before anything runs: the size of the world, its limits, which faults it has, how each
//! endpoint behaves when (swarm testing: many seeds lack some faults, so that those left can go further).

use crate::rng::Rng;
use laneway_lane::{Limits, OnUnknown};
use std::time::Duration;

/// The leases of tests (design 5.3), ms; times [`Plan::scale`].
const LEASE: i64 = 3_000;
/// What must be left of a lease when a request starts, ms.
pub const LEASE_MARGIN: i64 = 1_000;
/// Kafka's session timeout in tests, ms; times [`Plan::scale`].
const SESSION: i64 = 6_000;
/// How often a process looks at assignments, leases, commands, settings and health, ms; times [`Plan::scale`].
const POLL: i64 = 300;
/// How long a healed world may take until lanes that nothing holds back are empty, and again, once cured, ms; times
/// [`Plan::scale`].
const DRAIN: i64 = 150_000;
/// A process's idea of the database's time lags by at most this, ms (the age of the last reading).
pub const MAX_SKEW: i64 = 60;

/// An authority is asked so long after a request can have ended, ms (I13).
pub const ASK_GRACE: i64 = 500;

/// How many schedules of 100 have a fault of those that came later.
const LATER_PERCENT: u32 = 35;

/// How many schedules of 100 are hasty.
const HASTY_PERCENT: u32 = 30;
/// In those a view of endpoints' health counts for so long, s; times [`Plan::scale`]; more than [`HASTY_SLEEP`].
const LONG_VIEW: i64 = 20;
/// In those machines sleep so long at most, ms; times [`Plan::scale`]: others have taken over by then.
pub(crate) const HASTY_SLEEP: i64 = 14_000;

/// Kinds of faults; a schedule can be replayed without some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Fault {
    Crash,
    Pause,
    Rebalance,
    GracefulStop,
    LostReply,
    LostTransaction,
    SlowStore,
    Republish,
    Garbage,
    Outage,
    Unknowns,
    BadLane,
    Rejects,
    Disable,
    Delete,
    Gone,
    Commands,
    FrozenSend,
    Skew,
    LateResults,
    TornStop,
    Authority,
    LogLoss,
    Suspend,
    ClockJump,
    Failover,
    Erase,
    Rewind,
}

impl Fault {
    /// All of them, in the order of their bits.
    pub const ALL: [Self; Self::FIRST_LATER + 6] = [
        Self::Crash,
        Self::Pause,
        Self::Rebalance,
        Self::GracefulStop,
        Self::LostReply,
        Self::LostTransaction,
        Self::SlowStore,
        Self::Republish,
        Self::Garbage,
        Self::Outage,
        Self::Unknowns,
        Self::BadLane,
        Self::Rejects,
        Self::Disable,
        Self::Delete,
        Self::Gone,
        Self::Commands,
        Self::FrozenSend,
        Self::Skew,
        Self::LateResults,
        Self::TornStop,
        Self::Authority,
        Self::LogLoss,
        Self::Suspend,
        Self::ClockJump,
        Self::Failover,
        Self::Erase,
        Self::Rewind,
    ];
    /// The faults from here on have streams of their own ([`Plan::new`]; the nemesis strikes with them in turns of
    /// their own): a schedule that has none of them is the one that its seed meant before there were any.
    const FIRST_LATER: usize = 22;

    /// Those of the first stream.
    pub(crate) fn earlier() -> &'static [Self] {
        &Self::ALL[..Self::FIRST_LATER]
    }

    /// Those with streams of their own.
    pub(crate) fn later() -> &'static [Self] {
        &Self::ALL[Self::FIRST_LATER..Self::FIRST_LATER + 5]
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// What a run is made from: a seed, and what shrinking took away from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// The seed.
    pub seed: u64,
    /// Bits of faults that are left out.
    pub without: u32,
    /// At most so many deliveries.
    pub deliveries: u32,
}

impl Spec {
    /// The whole schedule of a seed.
    pub const fn of(seed: u64) -> Self {
        Self { seed, without: 0, deliveries: u32::MAX }
    }

    /// The same without one more kind of fault.
    #[must_use]
    pub const fn without(mut self, fault: Fault) -> Self {
        self.without |= fault.bit();
        self
    }
}

/// How an endpoint answers in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Mood {
    Fine,
    Status(u16),
    Refused,
    /// Hangs until the deadline, having done the work or not.
    Hangs,
    Resets,
    /// Answers, but late: up to just below or above the deadline.
    Slow,
    /// Fine and 503 in turn, second by second.
    Flaps,
    /// Each request its own way.
    Mixed,
}

/// One endpoint of the world.
#[derive(Debug, Clone)]
pub struct EndpointPlan {
    /// What it wants done with an unknown outcome.
    pub on_unknown: OnUnknown,
    /// Hard deadline of its requests, ms.
    pub timeout: i64,
    /// Its requests in flight from one instance at most.
    pub max_in_flight: u32,
    /// From when it is in which mood, by time; before the first it is fine.
    pub moods: Vec<(i64, Mood)>,
    /// Still bad after the first healing: only its own lanes may wait.
    pub lingers: bool,
}

/// One lane of the world.
#[derive(Debug, Clone)]
pub struct LanePlan {
    /// Index of its endpoint.
    pub endpoint: usize,
    /// Its user key; none: each delivery a lane of its own.
    pub keyed: bool,
    /// It alone is answered 503 between these times; the second may lie beyond the first healing.
    pub bad: Option<(i64, i64)>,
}

/// All that a seed decides in advance.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where it came from.
    pub spec: Spec,
    /// 1, or in slow schedules the factor of all periods but requests': hours go by in them.
    pub scale: i64,
    /// Processes.
    pub instances: usize,
    /// Partitions of the topic.
    pub partitions: u32,
    /// Endpoints.
    pub endpoints: Vec<EndpointPlan>,
    /// Lanes.
    pub lanes: Vec<LanePlan>,
    /// Records that are no repeats.
    pub deliveries: u32,
    /// From 0 to this, ms, records come and faults strike; then the world is healed.
    pub heal_at: i64,
    /// The core's limits.
    pub limits: Limits,
    /// Items in a group at most.
    pub group: usize,
    /// Records in an intake at most.
    pub batch: usize,
    /// Bits of the faults that it has.
    faults: u32,
    /// A release waits for requests under way at most this long, ms.
    pub cut_after: i64,
    /// Between two faults at most this, ms.
    pub pace: i64,
    /// Percent of replies of the database that are lost, and of transactions.
    pub losses: u32,
    /// Percent of deliveries whose payload is rejected for good.
    pub rejects: u32,
    /// A topic made again is filled at once, by large pages; machines fall asleep when they have just committed
    /// something, and what they know of endpoints' health does not become too old meanwhile to send by.
    pub hasty: bool,
}

impl Plan {
    /// What `spec` says.
    pub fn new(spec: Spec) -> Self {
        let mut rng = Rng::new(spec.seed, 1);
        let mut faults = 0;
        let calm = rng.chance(4);
        for fault in Fault::earlier().iter().copied() {
            let percent = match fault {
                Fault::Delete | Fault::Gone | Fault::Disable => 20,
                Fault::Crash | Fault::Pause | Fault::Rebalance => 65,
                _ => 50,
            };
            if rng.chance(percent) && !calm {
                faults |= fault.bit();
            }
        }
        let mut later = Rng::new(spec.seed, 7);
        for fault in Fault::later() {
            if later.chance(LATER_PERCENT) && !calm {
                faults |= fault.bit();
            }
        }
        // Drawn alone: what the others draw stays as it was.
        if Rng::new(spec.seed, 9).chance(LATER_PERCENT) && !calm {
            faults |= Fault::Rewind.bit();
        }
        faults &= !spec.without;
        let has = |fault: Fault| faults & fault.bit() != 0;
        let scale = if rng.chance(3) { 60 } else { 1 };
        let heal_at = rng.range(8_000, 40_000) * scale;
        let endpoints: Vec<_> =
            (0..rng.range(1, 4)).map(|_| endpoint(&mut rng, &has, heal_at)).collect();
        let per_endpoint = rng.range(1, 6) as usize;
        let hasty = Rng::new(spec.seed, 12).chance(HASTY_PERCENT);
        let lanes = (0..endpoints.len() * per_endpoint)
            .map(|n| LanePlan {
                endpoint: n % endpoints.len(),
                keyed: !rng.chance(8),
                bad: (rng.chance(25) && has(Fault::BadLane)).then(|| {
                    let from = rng.range(0, heal_at);
                    // An endpoint that is forever half bad flaps, and gets on by one event in the life of a view:
                    // not where a view lives long.
                    let forever = if hasty { heal_at } else { i64::MAX };
                    (from, if rng.chance(40) { forever } else { rng.range(from, heal_at) })
                }),
            })
            .collect();
        Self {
            spec,
            scale,
            instances: rng.range(2, 3) as usize,
            partitions: rng.range(1, 4) as u32,
            endpoints,
            lanes,
            deliveries: (rng.range(15, 90) as u32).min(spec.deliveries),
            heal_at,
            limits: limits(&mut rng, scale, if hasty { LONG_VIEW } else { 2 }),
            group: rng.pick(&[1, 3, 8, 500]),
            batch: rng.pick(&[1, 4, 16, 64]),
            cut_after: rng.pick(&[0, 700, 2_000]),
            pace: rng.pick(&[150, 500, 1_500]) * scale,
            losses: rng.pick(&[1, 3, 12]),
            rejects: {
                let rejects = if has(Fault::Rejects) { rng.pick(&[2, 10]) } else { 0 };
                if has(Fault::Rewind) { 12 } else { rejects }
            },
            hasty,
            faults,
        }
    }

    /// Whether this schedule has that kind of fault.
    pub const fn has(&self, fault: Fault) -> bool {
        self.faults & fault.bit() != 0
    }

    /// Whether this schedule has a fault of those that came later.
    pub(crate) fn has_later(&self) -> bool {
        Fault::later().iter().any(|fault| self.has(*fault))
    }

    /// Leases last this, ms.
    pub const fn lease(&self) -> i64 {
        LEASE * self.scale
    }

    /// Kafka misses a process after this, ms.
    pub const fn session(&self) -> i64 {
        SESSION * self.scale
    }

    /// Processes look around this often, ms.
    pub const fn poll(&self) -> i64 {
        POLL * self.scale
    }

    /// A healed world, and then a cured one, has this long, ms.
    pub const fn drain(&self) -> i64 {
        DRAIN * self.scale
    }

    /// The longest deadline of a request, ms.
    pub fn max_timeout(&self) -> i64 {
        self.endpoints.iter().map(|endpoint| endpoint.timeout).max().unwrap_or(0)
    }
}

fn endpoint(rng: &mut Rng, has: &impl Fn(Fault) -> bool, heal_at: i64) -> EndpointPlan {
    let on_unknown = match rng.range(0, 9) {
        0..=4 => OnUnknown::Resend,
        5..=6 => OnUnknown::Hold,
        _ => OnUnknown::Lookup,
    };
    let mut moods = Vec::new();
    for _ in 0..rng.pick(&[0, 1, 2, 4, 6]) {
        let from = rng.range(0, heal_at);
        let mood = match rng.range(0, 11) {
            0 => Mood::Status(500),
            1 => Mood::Status(503),
            2 => Mood::Refused,
            3 => Mood::Slow,
            4 => Mood::Flaps,
            5 => Mood::Status(rng.pick(&[404, 302, 429, 101, 999])),
            6 if has(Fault::Gone) => Mood::Status(410),
            7 => Mood::Status(rng.pick(&[408, 499, 502, 504])),
            8 => Mood::Hangs,
            9 => Mood::Resets,
            _ => Mood::Mixed,
        };
        let unknown = matches!(mood, Mood::Hangs | Mood::Resets | Mood::Mixed | Mood::Slow)
            || matches!(mood, Mood::Status(408 | 499 | 502 | 504));
        let wanted = if unknown { has(Fault::Unknowns) } else { has(Fault::Outage) };
        if wanted {
            moods.push((from, mood));
            moods.push((from + rng.range(500, heal_at / 2), Mood::Fine));
        }
    }
    moods.sort_by_key(|(from, _)| *from);
    EndpointPlan {
        on_unknown,
        timeout: rng.pick(&[500, 1_000, 2_000, 4_000]),
        max_in_flight: rng.pick(&[1, 2, 4, 20]),
        moods,
        lingers: has(Fault::Outage) && rng.chance(15),
    }
}

fn limits(rng: &mut Rng, scale: i64, view: i64) -> Limits {
    let seconds = |n: i64| Duration::from_secs(n.unsigned_abs());
    Limits {
        window_events: rng.pick(&[4, 8, 20, 1_000]),
        window_bytes: rng.pick(&[600, 4_000, 1 << 20]),
        endpoint_share_percent: rng.pick(&[25, 50, 100]),
        open_percent: rng.pick(&[10, 25, 100]),
        slow_after: seconds(rng.pick(&[1, 5])),
        max_in_flight: rng.pick(&[1, 3, 8, 64]),
        live_retry: seconds(rng.pick(&[0, 2, 30]) * scale),
        page_events: rng.pick(&[1, 2, 4, 64]),
        loaded_lanes: rng.pick(&[1, 2, 4, 4_096]),
        loaded_bytes: rng.pick(&[300, 1_000, 1 << 20]),
        due_page: rng.pick(&[1, 2, 16]),
        expiry_every: seconds(rng.pick(&[2, 5, 20]) * scale),
        horizon: seconds(rng.pick(&[20, 60, 600, 600]) * scale),
        retry_steps: [1, 2, 4, 8].map(Duration::from_secs).to_vec(),
        retry_max: seconds(rng.pick(&[8, 15]) * scale),
        retry_jitter_percent: rng.pick(&[0, 20]),
        degrade_after: rng.pick(&[2, 4, 10, 10]),
        probe_every: seconds(1),
        health_view_max_age: seconds(view * scale),
    }
}
