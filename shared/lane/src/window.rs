//! What keeps a waiting lane from stopping its partition (P3): beyond half of the window the lanes that hold the
//! position back are parked; when what may be incomplete gets scarce, lanes of slow endpoints and lanes with very long
//! queues are. A backlog that flows is only waited for.

use crate::endpoint::{Ep, PACE_GRACE};
use crate::lanes::Phase;
use crate::limits::Limits;
use crate::partition::{Part, Stage};
use crate::shared::{Effects, Shared, Timer};
use laneway_wire::Timestamp;
use std::time::Duration;

/// How often a scarce window is looked at.
const RELIEF_EVERY: Duration = Duration::from_millis(200);
/// A lane whose queue is longer than this part of what may be open is parked when that gets scarce, and longer than
/// so many events.
const HOT_LANE_PART: u32 = 8;
const HOT_LANE: u32 = 64;
/// So many records of a partition may be incomplete at a time, however little gets done.
const LEAST_OPEN: u32 = 64;
/// Beyond that: what gets done in this part of `slow_after`. A backlog of a healthy endpoint then waits in the log,
/// where it costs nothing, and never looks as if the endpoint needed longer than `slow_after` for it.
const OPEN_PART_OF_SLOW: u128 = 2;
/// Room is given in no smaller parts of that: each batch is a question to the database.
const ROOM_PART: u32 = 4;

impl Limits {
    /// Records of a partition that may be incomplete at a time, whatever the pace.
    fn most_open(&self) -> u32 {
        percent(u64::from(self.window_events), self.open_percent).max(1) as u32
    }

    /// Payload bytes of what may be incomplete.
    fn most_open_bytes(&self) -> u64 {
        percent(self.window_bytes, self.open_percent).max(1)
    }
}

fn percent(of: u64, percent: u32) -> u64 {
    of * u64::from(percent.min(100)) / 100
}

impl Part {
    /// Records that may be incomplete at the present pace.
    fn may_be_open(&self, limits: &Limits, now: Timestamp) -> u32 {
        let most = limits.most_open();
        let ends = u128::from(self.flow.a_second(now)) * limits.slow_after.as_millis();
        let paced = u32::try_from(ends / 1000 / OPEN_PART_OF_SLOW).unwrap_or(u32::MAX);
        // Beside what is under way, which cannot be parked: else slow requests alone could keep all others out.
        paced.max(LEAST_OPEN).saturating_add(self.in_flight).min(most)
    }

    /// Those of one slow endpoint.
    fn share(&self, sh: &Shared) -> u64 {
        let may = self.may_be_open(&sh.limits, sh.now);
        percent(u64::from(may), sh.limits.endpoint_share_percent).max(1)
    }

    /// How many records may still be taken in now.
    pub(crate) fn intake_room(&self, limits: &Limits, now: Timestamp) -> u32 {
        let (events, bytes) = self.ledger.span();
        if self.stage != Stage::Active
            || bytes >= limits.window_bytes
            || self.ledger.open_bytes() >= limits.most_open_bytes()
        {
            return 0;
        }
        let window = u64::from(limits.window_events).saturating_sub(events);
        let may = self.may_be_open(limits, now);
        if is_full(self.ledger.open(), may) {
            return 0;
        }
        let open = may.saturating_sub(self.ledger.open());
        u32::try_from(window).unwrap_or(u32::MAX).min(open)
    }

    /// Whether more than half of the window lies at or behind this open offset.
    pub(crate) fn holds_back(&self, sh: &Shared, offset: i64) -> bool {
        is_beyond_half(&sh.limits, self.ledger.behind(offset))
    }

    /// Parks what holds the position back or fills the window.
    pub(crate) fn relieve(&mut self, sh: &mut Shared, fx: &mut Effects) {
        if self.stage != Stage::Active {
            return;
        }
        self.let_go_position(sh, fx);
        self.relieve_open(sh, fx);
    }

    /// Lanes that hold the position back, oldest first, are parked; also those with a request under way, as far as the
    /// memory for parked events that are loaded allows, since a request may take a minute. What is being settled is
    /// judged when that ends.
    fn let_go_position(&mut self, sh: &mut Shared, fx: &mut Effects) {
        if !is_beyond_half(&sh.limits, self.ledger.span()) {
            self.relieved_to = self.ledger.position();
            return;
        }
        let mut found: Vec<u32> = Vec::new();
        let mut to = self.relieved_to;
        for (offset, id, behind) in self.ledger.open_from(self.relieved_to) {
            if !is_beyond_half(&sh.limits, behind) {
                break;
            }
            to = offset + 1;
            if let Some(index) = self.lanes.find(id)
                && self.lanes.get(index).is_some_and(|lane| !lane.parked)
            {
                found.push(index);
            }
        }
        self.relieved_to = to;
        for index in found {
            // A lane may be found by several of its events.
            let Some(lane) = self.lanes.get(index).filter(|lane| !lane.parked) else { continue };
            if lane.is_at_rest() {
                self.park(sh, index, "window", None, fx);
            } else if matches!(lane.phase, Phase::InFlight { .. }) && sh.load_room() > 0 {
                self.park_in_flight(sh, index, fx);
            }
        }
    }

    /// Whether what was queued first has not become durable for seconds: then what endpoints get done says nothing
    /// about them.
    pub(crate) fn is_stalled(&self, sh: &Shared) -> bool {
        self.pending.front().is_some_and(|pending| sh.now.since(pending.at) >= PACE_GRACE)
    }

    /// Paces begin anew: what was not sent is not the endpoints' fault.
    pub(crate) fn begin_paces(&self, sh: &mut Shared) {
        for ep in self.locals.keys() {
            sh.endpoints.at(*ep).pace.begin(sh.now);
        }
    }

    /// Whether the endpoint itself takes too long for its live events: not while nothing may be sent (P7) or nothing
    /// becomes durable, for parking would only add to the load that causes that.
    fn is_slow(&self, sh: &Shared, ep: Ep) -> bool {
        sh.is_view_fresh()
            && !self.is_stalled(sh)
            && sh.endpoints.get(ep).is_slow(sh.now, sh.limits.slow_after)
    }

    /// An event of the endpoint came: a slow one's oldest lanes are parked beyond its share.
    pub(crate) fn keep_share(&mut self, sh: &mut Shared, ep: Ep, fx: &mut Effects) {
        let share = self.share(sh);
        let over = self.locals.get(&ep).is_some_and(|local| local.live_events > share);
        if over && self.is_slow(sh, ep) {
            self.park_oldest(sh, ep, share, fx);
        }
    }

    fn relieve_open(&mut self, sh: &mut Shared, fx: &mut Effects) {
        let most = self.may_be_open(&sh.limits, sh.now);
        let share = self.share(sh);
        let open = u64::from(self.ledger.open());
        let full = is_full(self.ledger.open(), most)
            || self.ledger.open_bytes() >= sh.limits.most_open_bytes();
        if open <= share && !full {
            return;
        }
        if self.relief_set {
            return;
        }
        self.relief_set = true;
        sh.set_timer(sh.now + RELIEF_EVERY, Timer::Relief { partition: self.id });
        let mut crowded: Vec<(u64, Ep)> = self
            .locals
            .iter()
            .filter(|(_, local)| local.live_events > 0)
            .filter(|(_, local)| full || local.live_events > share)
            .map(|(ep, local)| (local.live_events, *ep))
            .collect();
        crowded.sort_unstable_by(|a, b| b.cmp(a));
        for (events, ep) in crowded {
            let slow = self.is_slow(sh, ep);
            if slow {
                // Down to its share, and further if others still find no room.
                let keep = if events > share { share } else { events / 2 };
                self.park_oldest(sh, ep, keep, fx);
            } else if full {
                self.park_hot_lanes(
                    sh,
                    ep,
                    (most / HOT_LANE_PART).max(HOT_LANE.min(sh.limits.most_open() / HOT_LANE_PART)),
                    fx,
                );
            }
        }
    }

    /// Parks lanes of the endpoint, those first that have not moved for longest, until it has so few live events.
    fn park_oldest(&mut self, sh: &mut Shared, ep: Ep, keep: u64, fx: &mut Effects) {
        let Some(local) = self.locals.get(&ep) else { return };
        let mut over = local.live_events.saturating_sub(keep);
        let mut chosen = Vec::new();
        for (index, lane) in self.lanes.listed(&local.list) {
            if over == 0 {
                break;
            }
            if lane.parked {
                continue;
            }
            let events = lane.queue.len() as u64 + u64::from(lane.head.is_some());
            if lane.is_at_rest() || !lane.queue.is_empty() {
                chosen.push(index);
                over = over.saturating_sub(events);
            }
        }
        for index in chosen {
            self.park_at_rest(sh, index, fx);
        }
    }

    fn park_hot_lanes(&mut self, sh: &mut Shared, ep: Ep, longest: u32, fx: &mut Effects) {
        let Some(local) = self.locals.get(&ep) else { return };
        let chosen: Vec<u32> = self
            .lanes
            .listed(&local.list)
            .filter(|(_, lane)| !lane.parked && lane.queue.len() > longest as usize)
            .map(|(index, _)| index)
            .collect();
        for index in chosen {
            self.park_at_rest(sh, index, fx);
        }
    }

    /// Parks a live lane now, or when what is under way of it has ended.
    fn park_at_rest(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        if lane.is_at_rest() {
            self.park(sh, index, "window", None, fx);
        } else if !matches!(lane.phase, Phase::Stopped) {
            lane.wants_park = Some("window");
        }
    }
}

/// Whether there is no room worth a batch.
fn is_full(open: u32, may: u32) -> bool {
    open > may - may / ROOM_PART || open >= may
}

fn is_beyond_half(limits: &Limits, (events, bytes): (u64, u64)) -> bool {
    events > u64::from(limits.window_events) / 2 || bytes > limits.window_bytes / 2
}
