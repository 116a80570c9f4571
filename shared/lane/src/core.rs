//! The machine itself: takes one input, asks the parts that it concerns, and then lets go out what may.

use crate::effect::{AttemptRow, FinalOutcome};
use crate::endpoint::Ep;
use crate::gauges::{EndpointGauges, Gauges};
use crate::input::{CommandId, EndpointState, Epoch, Input, Partition, Ticket};
use crate::invariant::Invariant;
use crate::lanes::{Event, Phase};
use crate::limits::Limits;
use crate::mutant::{Mutant, Planted};
use crate::partition::{Deferred, Part, Stage};
use crate::shared::{Effects, Shared, Timer};
use laneway_wire::{EndpointId, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// How a delivery ended, on its way to the settle queue.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) event: Event,
    pub(crate) outcome: FinalOutcome,
    pub(crate) attempts: u32,
    pub(crate) attempt: Option<AttemptRow>,
    pub(crate) status: Option<u16>,
    pub(crate) took: Duration,
    pub(crate) command: Option<CommandId>,
}

/// The state machine of lanes. See the crate's page for the contract with the shell.
///
/// Nothing is sent before the first [`Input::Health`], and nothing while the last one is older than
/// [`Limits::health_view_max_age`].
#[derive(Debug)]
pub struct Core {
    pub(crate) sh: Shared,
    pub(crate) parts: BTreeMap<Partition, Part>,
}

impl Core {
    /// A core that owns nothing.
    pub fn new(limits: Limits) -> Self {
        Self { sh: Shared::new(limits, Planted::default()), parts: BTreeMap::new() }
    }

    /// A core with one rule broken, for tests of tests.
    #[cfg(feature = "mutants")]
    pub fn with_mutant(limits: Limits, mutant: Mutant) -> Self {
        Self { sh: Shared::new(limits, Planted::new(mutant)), parts: BTreeMap::new() }
    }

    /// Takes one input at `now` (database time) and appends what is to be done, in the order in which it must be
    /// begun. An input that does not fit (old epoch, late answer, repeat) changes nothing and is counted
    /// ([`Gauges::stale_inputs`]). Timers that have come are served with every input.
    pub fn handle(&mut self, now: Timestamp, input: Input, effects: &mut Effects) {
        self.sh.now = now;
        if !self.take(input, effects) {
            self.sh.stale_inputs += 1;
        }
        self.serve_timers(effects);
        self.judge_changed(effects);
        self.load(effects);
        self.dispatch(effects);
    }

    /// When [`Input::Tick`] is due if nothing else happens before.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        self.sh.next_timer()
    }

    /// The partition's first offset that is not complete: what may be stored as `next_offset`. It passes a record only
    /// when that is durably settled, parked or quarantined (I9).
    pub fn position(&self, partition: Partition) -> Option<i64> {
        self.parts.get(&partition).map(|part| part.ledger.position())
    }

    /// How many records of the partition may still be handed in. What the shell has already read and not handed in is
    /// to be taken off. 0 before the last page of parked lanes, when the window is full, and once it is being revoked.
    pub fn intake_room(&self, partition: Partition) -> u32 {
        self.parts.get(&partition).map_or(0, |part| part.intake_room(&self.sh.limits, self.sh.now))
    }

    /// The epoch under which the core holds the partition.
    pub fn epoch(&self, partition: Partition) -> Option<Epoch> {
        self.parts.get(&partition).map(|part| part.epoch)
    }

    /// Present numbers, for metrics. Costs a pass over the partitions, not over lanes.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            partitions: self.parts.len(),
            lanes_in_memory: self.parts.values().map(|part| part.lanes.len()).sum(),
            lanes_parked: self.parts.values().map(|part| part.parked.len()).sum(),
            lanes_loaded: self.sh.loaded_lanes,
            loaded_bytes: self.sh.loaded_bytes,
            in_flight: self.sh.in_flight,
            open_events: self.parts.values().map(|part| u64::from(part.ledger.open())).sum(),
            open_bytes: self.parts.values().map(|part| part.ledger.open_bytes()).sum(),
            unsettled: self.parts.values().map(|part| part.pending.len()).sum(),
            endpoints_degraded: self.sh.endpoints.degraded.len(),
            health_view: self.sh.view,
            stale_inputs: self.sh.stale_inputs,
            duplicates: self.sh.duplicates,
        }
    }

    /// How often each invariant did not hold; a debug build stops at the first.
    pub fn violations(&self) -> impl Iterator<Item = (Invariant, u64)> {
        Invariant::ALL.into_iter().map(|invariant| (invariant, self.sh.violations.of(invariant)))
    }

    /// Present numbers of each endpoint that has a lane here.
    pub fn endpoint_gauges(&self) -> impl Iterator<Item = EndpointGauges> {
        let here = self.sh.endpoints.all().map(|(_, entry)| entry);
        here.filter(|entry| entry.live_lanes + entry.parked_lanes + entry.in_flight > 0).map(
            |entry| EndpointGauges {
                endpoint: entry.id,
                lanes_live: entry.live_lanes,
                lanes_parked: entry.parked_lanes,
                in_flight: entry.in_flight,
                degraded: entry.is_degraded(),
            },
        )
    }

    /// Whether the endpoint counts as degraded here.
    pub fn is_degraded(&self, endpoint: EndpointId) -> bool {
        let ep = self.sh.endpoints.find(endpoint);
        ep.is_some_and(|ep| self.sh.endpoints.get(ep).is_degraded())
    }

    /// Checks the core against its own invariants; a pass over everything, for tests and the simulator.
    ///
    /// # Errors
    /// The first thing that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        crate::gauges::check(&self.sh, &self.parts)
    }

    /// False if the input fits nothing.
    fn take(&mut self, input: Input, fx: &mut Effects) -> bool {
        match input {
            Input::Tick => true,
            Input::Endpoint(settings) => {
                let now = self.sh.now;
                let (ep, disabled_since) = self.sh.endpoints.set(&settings, now);
                if let Some(since) = disabled_since {
                    for part in self.parts.values_mut() {
                        part.stood_still(ep, since, now);
                    }
                }
                self.sh.changed.push(ep);
                true
            }
            Input::Assigned { partition, epoch, next_offset, generation } => {
                if self.parts.get(&partition).is_some_and(|part| part.epoch >= epoch) {
                    return false;
                }
                self.forget(partition);
                self.sh.last_epoch = epoch;
                self.parts.insert(partition, Part::new(partition, epoch, next_offset, generation));
                true
            }
            Input::ParkedLanes { partition, epoch, lanes, last } => {
                self.with(partition, epoch, fx, |part, sh, _| {
                    if part.stage != Stage::Loading {
                        return false;
                    }
                    part.know_parked(sh, lanes);
                    if last {
                        part.activate(sh);
                    }
                    true
                })
            }
            Input::Revoke { partition } => {
                let Some(part) = self.parts.get_mut(&partition) else { return false };
                if !matches!(part.stage, Stage::Loading | Stage::Active) {
                    return false;
                }
                part.stage = Stage::Revoking;
                part.deferred.clear();
                part.tell_drained(fx);
                true
            }
            Input::Lost { partition } => self.forget(partition),
            Input::Intake { partition, epoch, records } => {
                self.with(partition, epoch, fx, |part, sh, fx| {
                    if !part.is_active() {
                        return false;
                    }
                    for record in records {
                        part.take_in(sh, record, fx);
                    }
                    part.relieve(sh, fx);
                    true
                })
            }
            Input::AttemptEnded { ticket, result, took } => {
                let epoch = self.epoch_for(&ticket);
                self.with(ticket.partition, epoch, fx, |part, sh, fx| {
                    part.attempt_ended(sh, ticket, result, took, fx)
                })
            }
            Input::Settled { partition, epoch, through, mut unparked } => {
                unparked.sort_unstable();
                self.with(partition, epoch, fx, |part, sh, fx| {
                    part.settled(sh, through, &unparked, fx);
                    part.retry_commands(sh, fx);
                    part.relieve(sh, fx);
                    true
                })
            }
            Input::Due { partition, epoch, endpoint, heads, more, next_due } => {
                let Some(ep) = self.sh.endpoints.find(endpoint) else { return false };
                self.with(partition, epoch, fx, |part, sh, fx| {
                    part.due_loaded(sh, ep, heads, more, next_due, fx)
                })
            }
            Input::Page { partition, epoch, lane, events, more } => {
                self.with(partition, epoch, fx, |part, sh, fx| {
                    part.page_loaded(sh, lane, events, more, fx)
                })
            }
            Input::Expired { partition, epoch, heads, more } => {
                self.with(partition, epoch, fx, |part, sh, fx| {
                    part.expired_loaded(sh, heads, more, fx)
                })
            }
            Input::Probe { endpoint, head, probe_until } => {
                self.probe_claimed(endpoint, head, probe_until, fx)
            }
            Input::Health { read_at, degraded } => self.health(read_at, degraded, fx),
            Input::Command { partition, epoch, command, lane, head, verdict } => {
                self.with(partition, epoch, fx, |part, sh, fx| {
                    part.command(sh, Deferred { command, lane, head, verdict }, fx);
                    true
                })
            }
        }
    }

    fn epoch_for(&self, ticket: &Ticket) -> Epoch {
        if self.sh.broken(Mutant::LateResultAccepted) {
            return self.epoch(ticket.partition).unwrap_or(ticket.epoch);
        }
        ticket.epoch
    }

    /// Does something with a partition that is held under this very epoch (P13).
    fn with(
        &mut self,
        partition: Partition,
        epoch: Epoch,
        fx: &mut Effects,
        act: impl FnOnce(&mut Part, &mut Shared, &mut Effects) -> bool,
    ) -> bool {
        let Some(part) = self.parts.get_mut(&partition).filter(|part| part.epoch == epoch) else {
            return false;
        };
        let fits = act(part, &mut self.sh, fx);
        part.tell_drained(fx);
        fits
    }

    fn forget(&mut self, partition: Partition) -> bool {
        let Some(part) = self.parts.remove(&partition) else { return false };
        part.drop_loads(&mut self.sh);
        for (_, lane) in part.lanes.all() {
            let ep = lane.ep;
            if let Phase::Intent { probe, .. } | Phase::InFlight { probe, .. } = lane.phase {
                self.sh.free_slot(ep);
                if probe {
                    let entry = self.sh.endpoints.at(ep);
                    entry.probing = None;
                    let next = entry.next_probe();
                    self.sh.set_probe_timer(ep, next);
                }
            }
            if lane.loaded {
                self.sh.uncount_loaded(ep);
            }
            let mut events: Vec<&Event> = lane.head.iter().chain(&lane.queue).collect();
            if let Phase::Held(outcome) = &lane.phase {
                events.push(&outcome.event);
            }
            let loaded = events.iter().filter(|event| !event.logged);
            self.sh.loaded_bytes -= loaded.map(|event| event.bytes()).sum::<u64>();
            if !lane.parked {
                self.sh.endpoints.at(ep).live_lanes -= 1;
            }
        }
        for (&ep, local) in &part.locals {
            let entry = self.sh.endpoints.at(ep);
            entry.parked_lanes -= local.parked;
            entry.live_events = entry.live_events.saturating_sub(local.live_events);
        }
        true
    }

    fn serve_timers(&mut self, fx: &mut Effects) {
        while let Some(timer) = self.sh.pop_timer() {
            let sh = &mut self.sh;
            match timer {
                Timer::Lane { partition, lane, stamp } => {
                    let Some(part) = self.parts.get_mut(&partition) else { continue };
                    let due = part.lanes.get(lane).is_some_and(|lane| {
                        lane.stamp == stamp && matches!(lane.phase, Phase::Waiting)
                    });
                    if due {
                        part.rouse(sh, lane, fx);
                    }
                }
                Timer::Due { partition, ep } => {
                    if let Some(part) = self.parts.get_mut(&partition) {
                        part.look_for_due(sh, ep);
                    }
                }
                Timer::Probe { ep } => self.ask_probe(ep, fx),
                Timer::Expiry { partition, epoch } => {
                    let part = self.parts.get_mut(&partition);
                    if let Some(part) = part.filter(|part| part.epoch == epoch) {
                        part.look_for_expired(sh, fx);
                    }
                }
                Timer::Word { partition } => {
                    if let Some(part) = self.parts.get_mut(&partition) {
                        part.retry_commands(sh, fx);
                    }
                }
                Timer::Relief { partition } => {
                    if let Some(part) = self.parts.get_mut(&partition) {
                        part.relief_set = false;
                        part.relieve(sh, fx);
                    }
                }
            }
        }
    }

    /// Lanes of endpoints that changed are judged anew.
    fn judge_changed(&mut self, fx: &mut Effects) {
        for ep in std::mem::take(&mut self.sh.changed) {
            let available = self.sh.endpoints.get(ep).is_available();
            if available {
                self.sh.recheck.push(ep);
                continue;
            }
            for part in self.parts.values_mut() {
                part.judge_all(&mut self.sh, ep, fx);
            }
            if self.sh.endpoints.get(ep).state == EndpointState::Deleted {
                self.sh.recheck.push(ep);
            }
        }
    }

    /// Loads due heads while there is room, each endpoint one page in turn.
    fn load(&mut self, fx: &mut Effects) {
        for ep in std::mem::take(&mut self.sh.recheck) {
            self.sh.endpoints.ring_if_ready(ep);
            for part in self.parts.values_mut() {
                part.look_for_due(&mut self.sh, ep);
            }
        }
        if !self.sh.is_view_fresh() {
            return;
        }
        for _ in 0..self.sh.load_queue.len() {
            let room = self.sh.load_room();
            if room == 0 {
                return;
            }
            let Some((partition, ep)) = self.sh.load_queue.pop_front() else { return };
            if let Some(part) = self.parts.get_mut(&partition) {
                part.load_due(&mut self.sh, ep, room, fx);
            }
        }
    }

    /// Sends heads: round robin over endpoints with ready lanes, first come first served within one (P3, P11).
    fn dispatch(&mut self, fx: &mut Effects) {
        let sh = &mut self.sh;
        if !sh.is_view_fresh() {
            return;
        }
        while sh.in_flight + sh.claims < sh.limits.max_in_flight {
            let Some(ep) = sh.endpoints.ring.pop_front() else { return };
            let entry = sh.endpoints.at(ep);
            entry.ringed = false;
            if !entry.is_available() || entry.in_flight >= entry.max_in_flight {
                continue;
            }
            while let Some(ready) = sh.endpoints.at(ep).ready.pop_front() {
                let Some(part) = self.parts.get_mut(&ready.partition) else { continue };
                let valid = part.is_active()
                    && part.lanes.get(ready.lane).is_some_and(|lane| {
                        lane.stamp == ready.stamp && matches!(lane.phase, Phase::Ready)
                    });
                if valid {
                    part.start(sh, ready.lane, false, fx);
                    break;
                }
            }
            sh.endpoints.ring_if_ready(ep);
        }
    }
}

impl Part {
    /// The time in which the endpoint was disabled does not count for what stayed in memory (I22): a head that was under
    /// way all the time, and what waits behind it. Rows that are read from now on have it from there.
    fn stood_still(&mut self, ep: Ep, since: Timestamp, now: Timestamp) {
        let Some(local) = self.locals.get(&ep) else { return };
        let lanes: Vec<u32> = self.lanes.listed(&local.list).map(|(index, _)| index).collect();
        for index in lanes {
            let lane = self.lanes.at(index);
            for event in lane.head.iter_mut().chain(&mut lane.queue) {
                for from in [&mut event.first_held, &mut event.clock_from] {
                    *from = *from + now.since(since.max(*from));
                }
            }
        }
    }

    /// Judges anew every lane of the endpoint of which nothing is under way.
    fn judge_all(&mut self, sh: &mut Shared, ep: Ep, fx: &mut Effects) {
        let Some(local) = self.locals.get(&ep) else { return };
        let resting: Vec<u32> = self
            .lanes
            .listed(&local.list)
            .filter(|(_, lane)| lane.is_at_rest())
            .map(|(index, _)| index)
            .collect();
        for index in resting {
            self.rouse(sh, index, fx);
        }
    }
}
