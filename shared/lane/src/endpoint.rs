//! What lanes of one endpoint share: settings, requests in flight, whose turn it is, and health.

use crate::hash::Map;
use crate::input::{Endpoint, EndpointState, OnUnknown, Partition};
use crate::limits::Limits;
use laneway_wire::{EndpointId, LaneId, Timestamp};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// An endpoint's place in [`Endpoints`]: four bytes instead of sixteen in a million parked entries.
pub(crate) type Ep = u32;

/// Timeout of a request to an endpoint whose settings were never given (it gets none).
const UNKNOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// A lane whose head may go out. Stale once the lane's stamp is another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) partition: Partition,
    pub(crate) lane: u32,
    pub(crate) stamp: u64,
}

/// A probe asked for and not yet answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// The load clock when it was asked for.
    pub(crate) clock: u32,
    /// When it was asked for: the claim began later.
    pub(crate) at: Timestamp,
}

/// One endpoint.
#[derive(Debug)]
pub(crate) struct EndpointEntry {
    pub(crate) id: EndpointId,
    pub(crate) state: EndpointState,
    pub(crate) on_unknown: OnUnknown,
    pub(crate) timeout: Duration,
    pub(crate) max_in_flight: u32,
    pub(crate) in_flight: u32,
    pub(crate) ready: VecDeque<Ready>,
    /// It stands in the ring.
    pub(crate) ringed: bool,
    /// Lanes live in memory, over all partitions.
    pub(crate) live_lanes: u32,
    /// Lanes parked, over all partitions.
    pub(crate) parked_lanes: u32,
    /// Events of live lanes.
    pub(crate) live_events: u64,
    /// Parked lanes with something loaded.
    pub(crate) loaded: u32,
    /// Loads wait until fewer are loaded.
    pub(crate) load_blocked: bool,
    streak: u32,
    streak_lane: Option<LaneId>,
    streak_lanes_differ: bool,
    /// The view says so.
    pub(crate) degraded_view: bool,
    /// Since when this core has known it as disabled.
    pub(crate) disabled_since: Option<Timestamp>,
    /// This core said so at that time, and no view has confirmed or refuted it yet.
    pub(crate) degraded_here: Option<Timestamp>,
    /// No probe is claimed before this: as the database said last.
    pub(crate) probe_until: Timestamp,
    /// The same, from the end of the last probe of this core.
    pub(crate) probe_rests: Timestamp,
    /// Probes of this core in a row that showed no life.
    pub(crate) probes_failed: u32,
    /// Drawn anew for each claim, so that an instance whose clock lags is not always the last to ask.
    pub(crate) probe_wait: Duration,
    /// Claims so far.
    pub(crate) claims: u32,
    /// When the probe is looked at next.
    pub(crate) probe_timer: Option<Timestamp>,
    pub(crate) claim: Option<Claim>,
    /// When the claim of the probe under way was asked for.
    pub(crate) probing: Option<Timestamp>,
    pub(crate) pace: Pace,
}

impl EndpointEntry {
    fn new(id: EndpointId) -> Self {
        Self {
            id,
            state: EndpointState::Disabled,
            on_unknown: OnUnknown::Resend,
            timeout: UNKNOWN_TIMEOUT,
            max_in_flight: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            ringed: false,
            live_lanes: 0,
            parked_lanes: 0,
            live_events: 0,
            loaded: 0,
            load_blocked: false,
            streak: 0,
            streak_lane: None,
            streak_lanes_differ: false,
            degraded_view: false,
            disabled_since: None,
            degraded_here: None,
            probe_until: Timestamp(0),
            probe_rests: Timestamp(0),
            probes_failed: 0,
            probe_wait: Duration::ZERO,
            claims: 0,
            probe_timer: None,
            claim: None,
            probing: None,
            pace: Pace::default(),
        }
    }

    /// Takes its state; since when it was disabled if that ends now.
    pub(crate) fn switch(&mut self, state: EndpointState, now: Timestamp) -> Option<Timestamp> {
        self.state = state;
        if state == EndpointState::Disabled {
            self.disabled_since.get_or_insert(now);
            return None;
        }
        self.disabled_since.take()
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded_view || self.degraded_here.is_some()
    }

    /// When the next probe may be claimed.
    pub(crate) fn next_probe(&self) -> Timestamp {
        self.probe_until.max(self.probe_rests) + self.probe_wait
    }

    /// Whether lanes of it may be live and loaded.
    pub(crate) fn is_available(&self) -> bool {
        self.state == EndpointState::Enabled && !self.is_degraded()
    }

    /// Whether rows of it are worth loading: to send, or to discard.
    pub(crate) fn is_loadable(&self) -> bool {
        self.is_available() || self.state == EndpointState::Deleted
    }

    /// Parked lanes of it that may be loaded at a time: what it can use, so that a slow one does not fill the budget.
    pub(crate) fn loaded_cap(&self, limits: &Limits) -> u32 {
        self.max_in_flight.saturating_mul(2).max(16).min(limits.loaded_lanes)
    }

    /// The attempt shows that it is alive.
    pub(crate) fn alive(&mut self) {
        self.streak = 0;
        self.streak_lane = None;
        self.streak_lanes_differ = false;
    }

    /// An attempt of `lane` failed; whether the endpoint is degraded by that: so many in a row, over at least two
    /// lanes, or on the only one that is not idle.
    pub(crate) fn failed(&mut self, lane: LaneId, limits: &Limits) -> bool {
        if self.is_degraded() {
            return false;
        }
        self.streak += 1;
        match self.streak_lane {
            None => self.streak_lane = Some(lane),
            Some(first) => self.streak_lanes_differ |= first != lane,
        }
        self.streak >= limits.degrade_after
            && (self.streak_lanes_differ || self.live_lanes + self.parked_lanes <= 1)
    }

    /// Whether its live events would take longer than `limit` at its present pace.
    pub(crate) fn is_slow(&self, now: Timestamp, limit: Duration) -> bool {
        self.pace.is_slow(self.live_events, now, limit)
    }
}

/// How much ends per second, from whole seconds on the core's time.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    began: Option<Timestamp>,
    second: Timestamp,
    /// The present second and those before it, latest first.
    counts: [u64; PACE_SECONDS],
}

const SECOND: Duration = Duration::from_secs(1);
/// The best of so many seconds counts: a hiccup of a busy machine is no pace.
const PACE_SECONDS: usize = 4;
/// Before this nothing can be said.
pub(crate) const PACE_GRACE: Duration = Duration::from_secs(PACE_SECONDS as u64 - 1);

impl Pace {
    /// Events came where there were none.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        *self = Self { began: Some(now), second: now, counts: [0; PACE_SECONDS] };
    }

    /// One more has ended.
    pub(crate) fn count(&mut self, now: Timestamp) {
        let passed = now.since(self.second).as_secs();
        if passed > 0 {
            let shift = usize::try_from(passed).unwrap_or(PACE_SECONDS).min(PACE_SECONDS);
            self.counts.rotate_right(shift % PACE_SECONDS);
            self.counts[..shift].fill(0);
            self.second = self.second + SECOND * u32::try_from(passed).unwrap_or(u32::MAX);
        }
        self.counts[0] += 1;
    }

    fn is_slow(&self, events: u64, now: Timestamp, limit: Duration) -> bool {
        if self.began.is_none_or(|began| now.since(began) < PACE_GRACE) {
            return false;
        }
        u128::from(events) * 1000 > u128::from(self.a_second(now)) * limit.as_millis()
    }

    /// The best of the last seconds.
    pub(crate) fn a_second(&self, now: Timestamp) -> u64 {
        let passed = usize::try_from(now.since(self.second).as_secs()).unwrap_or(PACE_SECONDS);
        let known = PACE_SECONDS.saturating_sub(passed);
        self.counts[..known].iter().copied().max().unwrap_or(0)
    }
}

/// All endpoints that were ever named, and the ring of those with ready lanes.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    index: Map<EndpointId, Ep>,
    entries: Vec<EndpointEntry>,
    /// Endpoints with a ready lane and a free slot, whose turn comes in this order.
    pub(crate) ring: VecDeque<Ep>,
    /// Those degraded, by the view or by this core.
    pub(crate) degraded: BTreeSet<Ep>,
}

impl Endpoints {
    /// Its number; an endpoint without settings counts as disabled until they come.
    pub(crate) fn intern(&mut self, id: EndpointId) -> Ep {
        if let Some(&ep) = self.index.get(&id) {
            return ep;
        }
        let ep = Ep::try_from(self.entries.len()).expect("fewer endpoints than 2^32");
        self.entries.push(EndpointEntry::new(id));
        self.index.insert(id, ep);
        ep
    }

    /// Takes settings; gives its number, and since when it was disabled if that ends with them.
    pub(crate) fn set(&mut self, settings: &Endpoint, now: Timestamp) -> (Ep, Option<Timestamp>) {
        let ep = self.intern(settings.id);
        let entry = &mut self.entries[ep as usize];
        let ended = entry.switch(settings.state, now);
        entry.on_unknown = settings.on_unknown;
        entry.timeout = settings.timeout;
        entry.max_in_flight = settings.max_in_flight.max(1);
        self.ring_if_ready(ep);
        (ep, ended)
    }

    pub(crate) fn get(&self, ep: Ep) -> &EndpointEntry {
        &self.entries[ep as usize]
    }

    pub(crate) fn at(&mut self, ep: Ep) -> &mut EndpointEntry {
        &mut self.entries[ep as usize]
    }

    pub(crate) fn find(&self, id: EndpointId) -> Option<Ep> {
        self.index.get(&id).copied()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Ep, &EndpointEntry)> {
        (0..).zip(&self.entries)
    }

    /// Puts it at the ring's end if it has something ready and a free slot, and stands nowhere in it.
    pub(crate) fn ring_if_ready(&mut self, ep: Ep) {
        let entry = &mut self.entries[ep as usize];
        if !entry.ringed && !entry.ready.is_empty() && entry.in_flight < entry.max_in_flight {
            entry.ringed = true;
            self.ring.push_back(ep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn lane(number: u8) -> LaneId {
        LaneId::from_bytes([number; 16])
    }

    fn entry() -> EndpointEntry {
        EndpointEntry::new(EndpointId::from_uuid(Uuid::from_u128(1)))
    }

    #[test]
    fn failures_of_one_lane_among_several_do_not_degrade_the_endpoint() {
        let limits = Limits { degrade_after: 3, ..Limits::default() };
        let mut entry = entry();
        entry.live_lanes = 2;
        assert!((0..20).all(|_| !entry.failed(lane(1), &limits)));
        assert!(entry.failed(lane(2), &limits));
    }

    #[test]
    fn failures_of_the_only_lane_degrade_it_and_a_sign_of_life_starts_anew() {
        let limits = Limits { degrade_after: 3, ..Limits::default() };
        let mut entry = entry();
        entry.parked_lanes = 1;
        assert!(!entry.failed(lane(1), &limits) && !entry.failed(lane(1), &limits));
        entry.alive();
        assert!(!entry.failed(lane(1), &limits) && !entry.failed(lane(1), &limits));
        assert!(entry.failed(lane(1), &limits));
    }

    #[test]
    fn pace_tells_a_backlog_from_a_slow_endpoint() {
        let (limit, t0) = (Duration::from_secs(5), Timestamp(1_000_000));
        let mut pace = Pace::default();
        pace.begin(t0);
        assert!(!pace.is_slow(5_000, t0 + 2 * SECOND, limit), "too early to tell");
        for ms in 0..3_500 {
            pace.count(t0 + Duration::from_millis(ms));
        }
        let t = t0 + Duration::from_millis(3_500);
        assert!(!pace.is_slow(4_000, t, limit) && pace.is_slow(6_000, t, limit));
        assert!(!pace.is_slow(4_000, t + 2 * SECOND, limit), "a hiccup");
        pace.count(t + 2 * SECOND);
        assert_eq!(pace.a_second(t + 2 * SECOND), 1_000);
        assert_eq!(pace.a_second(t + 5 * SECOND), 1);
        assert!(pace.is_slow(1, t0 + 20 * SECOND, limit), "nothing ended for seconds");
    }
}
