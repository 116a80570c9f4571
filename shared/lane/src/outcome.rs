//! What becomes of a lane when its request has ended, and when its items are durable.

use crate::classify::{Verdict, classify};
use crate::core::Outcome;
use crate::effect::{AttemptRow, Effect, FinalOutcome, SettleItem};
use crate::endpoint::Ep;
use crate::hash;
use crate::health::PROBE_SPREAD_MS;
use crate::input::{AttemptResult, EndpointState, OnUnknown, SettleSeq, Ticket};
use crate::lanes::Phase;
use crate::mutant::Mutant;
use crate::partition::{Part, Pending, Stage, What};
use crate::schedule;
use crate::shared::{Effects, Shared};
use laneway_wire::{LaneId, Timestamp};
use std::time::Duration;

/// A request that the shell did not start is not asked for again before this.
const NOT_STARTED_PAUSE: Duration = Duration::from_millis(200);

/// After so many of its probes an instance lets another go first, on average, if there is one: alone it loses no turn.
/// By a hash and not by counting: two bad lanes in step would leave a third instance without a turn.
const PROBE_TURNS: u64 = 3;

impl Part {
    /// The request of `ticket` ended. False if no such request is under way.
    pub(crate) fn attempt_ended(
        &mut self,
        sh: &mut Shared,
        ticket: Ticket,
        result: AttemptResult,
        took: Duration,
        fx: &mut Effects,
    ) -> bool {
        let Some(index) = self.open.get(&ticket.delivery).map(|open| open.lane) else {
            return false;
        };
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        let Phase::InFlight { probe, intent } = lane.phase else { return false };
        let (id, ep, parked) = (lane.id, lane.ep, lane.parked);
        let Some(head) = lane.head.as_mut() else { return false };
        if head.delivery != ticket.delivery || head.attempts + 1 != ticket.attempt {
            return false;
        }
        let mut on_unknown = sh.endpoints.get(ep).on_unknown;
        if sh.broken(Mutant::ResendOnHold) {
            on_unknown = OnUnknown::Resend;
        }
        let seen = classify(result, on_unknown);
        if seen.verdict == Verdict::NotStarted {
            if intent {
                self.not_started(sh, index, probe, fx);
                return true;
            }
            if head.attempts == 0 {
                head.first_tried = None;
            }
            head.due = head.due.max(sh.now + NOT_STARTED_PAUSE);
            self.in_flight -= 1;
            sh.free_slot(ep);
            if probe {
                self.probe_ended(sh, ep, false, fx);
            }
            self.rouse(sh, index, fx);
            return true;
        }
        let number = head.count_attempt();
        let ended = seen.clear_at.map_or(sh.now, |clear| clear.max(sh.now));
        let hold = seen.verdict == Verdict::Hold;
        head.due =
            if hold { ended } else { ended + schedule::step(&sh.limits, head.delivery, number) };
        self.in_flight -= 1;
        sh.free_slot(ep);
        if probe {
            self.probe_ended(sh, ep, seen.is_alive(), fx);
        }
        self.count_health(sh, ep, id, seen.is_alive(), seen.is_failure(), fx);
        let row = AttemptRow {
            number,
            ended,
            took,
            kind: seen.kind,
            status: seen.status,
            class: seen.class,
            body: seen.body,
        };
        match seen.verdict {
            Verdict::Delivered | Verdict::Rejected => {
                let Some(event) = self.lanes.at(index).head.take() else { return true };
                let delivered = seen.verdict == Verdict::Delivered;
                let outcome = Outcome {
                    event,
                    outcome: if delivered {
                        FinalOutcome::Delivered
                    } else {
                        FinalOutcome::DeadLettered { reason: "rejected" }
                    },
                    attempts: number,
                    attempt: (!delivered || number > 1).then_some(row),
                    status: seen.status,
                    took,
                    command: None,
                };
                self.finish(sh, index, outcome, fx);
                return true;
            }
            Verdict::Gone => self.disable(sh, ep, fx),
            Verdict::Retry | Verdict::Hold | Verdict::NotStarted => {}
        }
        let Some(head) = self.lanes.at(index).head.as_mut() else { return true };
        head.unknown = hold;
        let (record, due) = (head.record.clone(), head.due);
        if !parked {
            let reason = if hold {
                Some("unknown")
            } else if self.is_active() {
                self.must_park(sh, index)
            } else {
                None
            };
            if let Some(reason) = reason {
                self.park(sh, index, reason, Some(row), fx);
                return true;
            }
        }
        let item = SettleItem::Failed {
            lane: id,
            record,
            attempt: row,
            parked_due: parked.then_some(due),
            unknown: hold,
        };
        self.settle_failed(sh, index, (parked && !hold).then_some(due), item, fx);
        true
    }

    /// Notes what the attempt says of the endpoint; makes it degraded here at once if it failed too often.
    fn count_health(
        &mut self,
        sh: &mut Shared,
        ep: Ep,
        lane: LaneId,
        alive: bool,
        failure: bool,
        fx: &mut Effects,
    ) {
        let entry = sh.endpoints.at(ep);
        if alive {
            entry.alive();
        }
        if failure && entry.failed(lane, &sh.limits) {
            entry.alive();
            entry.degraded_here = Some(sh.now);
            entry.probe_rests = sh.now + sh.limits.probe_every;
            let endpoint = entry.id;
            sh.endpoints.degraded.insert(ep);
            sh.changed.push(ep);
            fx.push(Effect::Degrade { endpoint });
        }
    }

    fn disable(&mut self, sh: &mut Shared, ep: Ep, fx: &mut Effects) {
        let now = sh.now;
        let entry = sh.endpoints.at(ep);
        if entry.state == EndpointState::Enabled {
            entry.switch(EndpointState::Disabled, now);
            let endpoint = entry.id;
            sh.changed.push(ep);
            fx.push(Effect::Disable { endpoint });
        }
    }

    /// The probe is over, sent or not. Each instance knows only its own heads and is the first to know when its claim
    /// has ended: now and then it lets a turn pass, or a bad lane of its own would speak for the endpoint for ever.
    pub(crate) fn probe_ended(&mut self, sh: &mut Shared, ep: Ep, alive: bool, fx: &mut Effects) {
        let every = sh.limits.probe_every;
        let entry = sh.endpoints.at(ep);
        entry.probing = None;
        entry.probes_failed = if alive { 0 } else { entry.probes_failed + 1 };
        let draw =
            hash::of(entry.id.as_uuid().as_u128() ^ u128::from(self.epoch), entry.probes_failed);
        let yields = draw.is_multiple_of(PROBE_TURNS) && !alive;
        let later = Duration::from_millis(if yields { PROBE_SPREAD_MS } else { 0 });
        // The claim ends with its probe, whatever it was to last.
        entry.probe_until = sh.now + every;
        entry.probe_rests = sh.now + every + later;
        fx.push(Effect::ProbeEnded { endpoint: entry.id, alive });
        let next = sh.endpoints.get(ep).next_probe();
        sh.set_probe_timer(ep, next);
    }

    /// Everything queued up to `through` is durable. `unparked` is sorted.
    pub(crate) fn settled(
        &mut self,
        sh: &mut Shared,
        through: SettleSeq,
        unparked: &[LaneId],
        fx: &mut Effects,
    ) {
        if self.is_stalled(sh) {
            self.begin_paces(sh);
        }
        while self.pending.front().is_some_and(|pending| pending.seq <= through) {
            if let Some(pending) = self.pending.pop_front() {
                self.flow.count(sh.now);
                self.apply(sh, pending, unparked, fx);
            }
        }
    }

    fn apply(&mut self, sh: &mut Shared, pending: Pending, unparked: &[LaneId], fx: &mut Effects) {
        let seq = pending.seq;
        match pending.what {
            What::Park { lane, delivery, offset, due } => {
                self.close_logged(delivery, offset);
                let Some(entry) = self.lanes.get(lane).filter(|lane| lane.awaits == seq) else {
                    return;
                };
                let id = entry.id;
                self.touch(sh, id);
                self.sleep(sh, lane, due);
            }
            What::ParkInFlight { id, ep, delivery, offset } => {
                self.close_logged(delivery, offset);
                self.touch(sh, id);
                if self.parked.contains_key(&id) {
                    // Its request may have ended unmade, and the lane been put away, before there was a row.
                    self.note_due(sh, ep, sh.now);
                }
            }
            What::Append { lane, delivery, offset } => {
                self.close_logged(delivery, offset);
                self.append_settled(sh, lane, fx);
            }
            What::Intent { lane } => {
                if self.lanes.get(lane).is_some_and(|lane| lane.awaits == seq) {
                    self.intent_settled(sh, lane, fx);
                }
            }
            What::Failed { lane, due } => self.failed_settled(sh, lane, seq, due, fx),
            What::Final { lane, delivery, offset, command } => {
                match offset {
                    Some(offset) => self.close_logged(delivery, offset),
                    None => self.close_loaded(delivery),
                }
                if let Some(command) = command {
                    self.commands.remove(&command);
                }
                self.final_settled(sh, lane, seq, unparked, fx);
            }
            What::Release { id, due, command } => {
                self.commands.remove(&command);
                self.releasing.remove(&id);
                self.touch(sh, id);
                if let Some(ep) = self.parked.get(&id).map(|parked| parked.ep) {
                    self.note_due(sh, ep, due);
                }
            }
            What::Refuse { command } => {
                self.commands.remove(&command);
            }
            What::Quarantine { offset } => {
                self.ledger.complete(offset);
            }
        }
    }

    fn append_settled(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        lane.appends = lane.appends.saturating_sub(1);
        if lane.appends > 0 {
            return;
        }
        let ep = lane.ep;
        match &mut lane.phase {
            Phase::Asleep => {
                let hungry = lane.hungry;
                self.remove_lane(sh, index);
                if hungry {
                    self.note_due(sh, ep, sh.now);
                }
            }
            phase @ Phase::Held(_) => {
                if let Phase::Held(outcome) =
                    std::mem::replace(phase, Phase::Settling { leaving: true })
                {
                    self.held -= 1;
                    self.queue_final(sh, index, *outcome, true, fx);
                }
            }
            _ => {}
        }
    }

    fn failed_settled(
        &mut self,
        sh: &mut Shared,
        index: u32,
        seq: SettleSeq,
        due: Option<Timestamp>,
        fx: &mut Effects,
    ) {
        let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.awaits == seq) else {
            return;
        };
        if !matches!(lane.phase, Phase::Settling { .. }) {
            return;
        }
        if lane.parked {
            let id = lane.id;
            self.touch(sh, id);
            return self.sleep(sh, index, due);
        }
        if sh.broken(Mutant::FailedHeadToBack)
            && let (false, Some(mut head)) = (lane.queue.is_empty(), lane.head.take())
        {
            head.due = sh.now;
            lane.queue.push_back(head);
        }
        self.rouse(sh, index, fx);
    }

    fn final_settled(
        &mut self,
        sh: &mut Shared,
        index: u32,
        seq: SettleSeq,
        unparked: &[LaneId],
        fx: &mut Effects,
    ) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let ep = lane.ep;
        let (parked, id) = (lane.parked, lane.id);
        if !parked {
            self.count_live(sh, ep, -1);
        }
        let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.awaits == seq) else {
            return;
        };
        let Phase::Settling { leaving } = lane.phase else { return };
        if parked {
            if !(leaving && unparked.binary_search(&id).is_ok()) {
                self.touch(sh, id);
                return self.go_on_parked(sh, index, leaving, fx);
            }
            self.unpark(sh, index);
        }
        let lane = self.lanes.at(index);
        if lane.queue.is_empty() {
            if lane.appends == 0 {
                self.remove_lane(sh, index);
            }
            return;
        }
        if let Some(local) = self.locals.get_mut(&ep) {
            self.lanes.move_to_end(index, &mut local.list);
        }
        self.rouse(sh, index, fx);
    }

    /// A parked lane's head has its outcome and rows are left.
    fn go_on_parked(&mut self, sh: &mut Shared, index: u32, leaving: bool, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        let (id, ep, last, expiring) = (lane.id, lane.ep, lane.last, lane.expiring);
        if matches!(self.stage, Stage::Revoking | Stage::Drained) {
            lane.phase = Phase::Stopped;
            return;
        }
        if leaving {
            // What came while the lane might have been unparked waited in memory: its place is behind the rows.
            for event in std::mem::take(&mut lane.queue) {
                self.append(sh, index, event, fx);
            }
        }
        if !self.lanes.at(index).queue.is_empty() {
            return self.rouse(sh, index, fx);
        }
        if !(sh.endpoints.get(ep).is_loadable() || expiring) {
            return self.sleep(sh, index, Some(sh.now));
        }
        if !self.lanes.at(index).loaded && sh.load_room() == 0 {
            return self.sleep(sh, index, Some(sh.now));
        }
        self.count_loaded(sh, index);
        self.lanes.at(index).phase = Phase::Paging;
        fx.push(Effect::LoadPage {
            partition: self.id,
            epoch: self.epoch,
            lane: id,
            after: Some(last),
            limit: sh.limits.page_events,
        });
    }
}
