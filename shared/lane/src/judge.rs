//! What a lane's head does next: ends, waits, is parked, is put away, or goes out. Every rule about a single head
//! is here.

use crate::core::Outcome;
use crate::effect::{AttemptKind, AttemptRow, Effect, FinalOutcome, SettleItem};
use crate::endpoint::Ready;
use crate::input::{CommandId, EndpointState, OnUnknown, Ticket};
use crate::lanes::{Event, Phase};
use crate::mutant::Mutant;
use crate::partition::{Part, Stage, What};
use crate::schedule;
use crate::shared::{Effects, Shared, Timer};
use bytes::Bytes;
use laneway_wire::Timestamp;
use std::time::Duration;

/// An intent covers a request that starts up to so much after it was queued; later, the request is not made.
const INTENT_SLACK: Duration = Duration::from_secs(5);
/// Stale entries that an endpoint's ready queue may have beside as many live ones.
const READY_SLACK: usize = 64;

impl Part {
    /// Judges the head of a lane of which nothing is under way; takes the next from its queue if it has none.
    pub(crate) fn rouse(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        if matches!(self.stage, Stage::Revoking | Stage::Drained) {
            lane.phase = Phase::Stopped;
            return;
        }
        if lane.head.is_none() {
            lane.head = lane.queue.pop_front();
        }
        let (ep, parked) = (lane.ep, lane.parked);
        if lane.head.is_none() {
            debug_assert!(false, "a lane that is roused has something");
            return;
        }
        let erased = lane.is_erased();
        if !erased && let Some(command) = lane.erasing.as_mut().and_then(|it| it.command.take()) {
            // Others may wait behind it.
            self.refuse_because(sh, command, "nothing_to_erase", fx);
        }
        let lane = self.lanes.at(index);
        let Some(head) = lane.head.as_ref() else { return };
        let entry = sh.endpoints.get(ep);
        if head.settled {
            return self.end(sh, index, FinalOutcome::Delivered, fx);
        }
        if head.unknown {
            debug_assert!(parked, "an unknown is held as a row");
            // Its request may travel until it is due (P1).
            return match lane.erasing {
                Some(_) if erased && head.due <= sh.now => self.give_up_erased(sh, index, fx),
                _ => self.sleep(sh, index, None),
            };
        }
        if entry.state == EndpointState::Deleted {
            let outcome = FinalOutcome::Discarded { reason: "endpoint_deleted" };
            return self.end(sh, index, outcome, fx);
        }
        if head.open_intent && entry.on_unknown != OnUnknown::Resend {
            return self.hold_intent(sh, index, fx);
        }
        if erased && is_clear(sh, head) {
            return self.give_up_erased(sh, index, fx);
        }
        // The time of a disabled endpoint does not count (I22). What follows goes out when this has ended: not while the
        // last request of this may still travel (P1).
        if entry.state != EndpointState::Disabled && is_expired(sh, head) && is_clear(sh, head) {
            return self.expire(sh, index, fx);
        }
        let due = head.due;
        if parked {
            if !entry.is_available() || due > sh.now {
                return self.sleep(sh, index, Some(due));
            }
        } else if let Some(reason) = self.must_park(sh, index) {
            return self.park(sh, index, reason, None, fx);
        } else if due > sh.now {
            let stamp = sh.next_stamp();
            let lane = self.lanes.at(index);
            lane.phase = Phase::Waiting;
            lane.stamp = stamp;
            sh.set_timer(due, Timer::Lane { partition: self.id, lane: index, stamp });
            return;
        }
        self.make_ready(sh, index);
    }

    /// Why a live lane at rest has to be parked, if it has to.
    pub(crate) fn must_park(&self, sh: &Shared, index: u32) -> Option<&'static str> {
        let lane = self.lanes.get(index)?;
        let head = lane.head.as_ref()?;
        let entry = sh.endpoints.get(lane.ep);
        let waits = head.due > sh.now
            && head.due.since(head.first_tried.unwrap_or(sh.now)) > sh.limits.live_retry;
        match entry.state {
            EndpointState::Disabled => Some("endpoint_disabled"),
            _ if entry.is_degraded() => Some("endpoint_degraded"),
            _ if lane.wants_park.is_some() => lane.wants_park,
            _ if head.logged && self.holds_back(sh, head.position.offset) => Some("window"),
            _ if waits => Some("retry"),
            _ => None,
        }
    }

    fn make_ready(&mut self, sh: &mut Shared, index: u32) {
        let stamp = sh.next_stamp();
        let lane = self.lanes.at(index);
        lane.phase = Phase::Ready;
        lane.stamp = stamp;
        let ep = lane.ep;
        let entry = sh.endpoints.at(ep);
        entry.ready.push_back(Ready { partition: self.id, lane: index, stamp });
        // Live lanes and loaded ones are all that can be ready; the rest of the queue is stale.
        let most = 2 * (entry.live_lanes + entry.loaded) as usize + READY_SLACK;
        if entry.ready.len() > most {
            let own = self.id;
            let lanes = &self.lanes;
            entry.ready.retain(|ready| {
                ready.partition != own
                    || lanes.get(ready.lane).is_some_and(|lane| {
                        lane.stamp == ready.stamp && matches!(lane.phase, Phase::Ready)
                    })
            });
        }
        sh.endpoints.ring_if_ready(ep);
    }

    /// Takes a slot and begins the next attempt of the head: its intent first where the endpoint takes no resend.
    pub(crate) fn start(&mut self, sh: &mut Shared, index: u32, probe: bool, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        let (id, ep) = (lane.id, lane.ep);
        let Some(head) = lane.head.as_ref() else { return };
        if is_expired(sh, head) {
            return self.expire(sh, index, fx);
        }
        if lane.is_erased() {
            return self.give_up_erased(sh, index, fx);
        }
        let ticket = Ticket {
            partition: self.id,
            epoch: self.epoch,
            delivery: head.delivery,
            attempt: head.attempts + 1,
        };
        let record = head.record.clone();
        sh.take_slot(ep);
        self.in_flight += 1;
        let entry = sh.endpoints.get(ep);
        if entry.on_unknown == OnUnknown::Resend || sh.broken(Mutant::IntentSkipped) {
            return self.send(sh, index, probe, false, fx);
        }
        let deadline = sh.now + entry.timeout + INTENT_SLACK;
        let item = SettleItem::Intent { ticket, lane: id, record, deadline };
        let seq = self.settle(sh.now, What::Intent { lane: index }, item, fx);
        let lane = self.lanes.at(index);
        lane.phase = Phase::Intent { probe, deadline };
        lane.awaits = seq;
    }

    /// The head's intent is durable: its request goes out, unless it no longer may.
    pub(crate) fn intent_settled(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        let Phase::Intent { probe, deadline } = lane.phase else { return };
        let Some(head) = lane.head.as_ref() else { return };
        let entry = sh.endpoints.get(lane.ep);
        let may = self.stage == Stage::Active
            && sh.is_view_fresh()
            && entry.state == EndpointState::Enabled
            && sh.now + entry.timeout <= deadline
            && !is_expired(sh, head)
            && if probe {
                entry.probing.is_some_and(|claimed| sh.now.since(claimed) <= CLAIM_GRACE)
            } else {
                !entry.is_degraded()
            };
        if may {
            self.send(sh, index, probe, true, fx);
        } else {
            self.not_started(sh, index, probe, fx);
        }
    }

    /// A request with a durable intent was not made: that is recorded, or the intent would count as unknown.
    pub(crate) fn not_started(
        &mut self,
        sh: &mut Shared,
        index: u32,
        probe: bool,
        fx: &mut Effects,
    ) {
        let now = sh.now;
        let lane = self.lanes.at(index);
        let (id, ep, parked) = (lane.id, lane.ep, lane.parked);
        let Some(head) = lane.head.as_mut() else { return };
        let number = head.count_attempt();
        head.due = head.due.max(now);
        let attempt = AttemptRow {
            number,
            ended: now,
            took: Duration::ZERO,
            kind: AttemptKind::NotSent,
            status: None,
            class: "not_started",
            body: Bytes::new(),
        };
        let (record, due) = (head.record.clone(), parked.then_some(head.due));
        self.in_flight -= 1;
        sh.free_slot(ep);
        if probe {
            self.probe_ended(sh, ep, false, fx);
        }
        let item =
            SettleItem::Failed { lane: id, record, attempt, parked_due: due, unknown: false };
        self.settle_failed(sh, index, due, item, fx);
    }

    /// Queues a failure after which the lane's head stays its head.
    pub(crate) fn settle_failed(
        &mut self,
        sh: &Shared,
        index: u32,
        due: Option<Timestamp>,
        item: SettleItem,
        fx: &mut Effects,
    ) {
        let seq = self.settle(sh.now, What::Failed { lane: index, due }, item, fx);
        let lane = self.lanes.at(index);
        lane.phase = Phase::Settling { leaving: false };
        lane.awaits = seq;
    }

    fn send(&mut self, sh: &mut Shared, index: u32, probe: bool, intent: bool, fx: &mut Effects) {
        let (partition, epoch, now) = (self.id, self.epoch, sh.now);
        self.look(sh, index, intent);
        let lane = self.lanes.at(index);
        lane.phase = Phase::InFlight { probe, intent };
        let timeout = sh.endpoints.get(lane.ep).timeout;
        let Some(head) = lane.head.as_mut() else { return };
        head.first_tried.get_or_insert(now);
        let effect = |event: &Event| Effect::Send {
            ticket: Ticket {
                partition,
                epoch,
                delivery: event.delivery,
                attempt: event.attempts + 1,
            },
            record: event.record.clone(),
            timeout,
            probe,
        };
        fx.push(effect(head));
        if let (true, Some(next)) = (sh.broken(Mutant::HeadRuleRemoved), lane.queue.front()) {
            fx.push(effect(next));
        }
    }

    /// Queues the head's final outcome without an attempt.
    fn end(&mut self, sh: &mut Shared, index: u32, outcome: FinalOutcome, fx: &mut Effects) {
        self.end_by(sh, index, outcome, None, fx);
    }

    /// The same, as a command says.
    pub(crate) fn end_by(
        &mut self,
        sh: &mut Shared,
        index: u32,
        outcome: FinalOutcome,
        command: Option<CommandId>,
        fx: &mut Effects,
    ) {
        let Some(event) = self.lanes.at(index).head.take() else { return };
        let outcome = Outcome {
            attempts: event.attempts,
            event,
            outcome,
            attempt: None,
            status: None,
            took: Duration::ZERO,
            command,
        };
        self.finish(sh, index, outcome, fx);
    }

    /// The head's payload is erased: it ends unsent (C17).
    fn give_up_erased(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        // What follows is looked at even if the endpoint takes nothing.
        lane.expiring = lane.parked;
        if lane.head.as_ref().is_some_and(|head| head.unknown) {
            // What waited behind it begins its horizon now (I22); it was read before.
            for event in &mut lane.queue {
                event.clock_from = event.clock_from.max(sh.now);
            }
        }
        let command = lane.erasing.as_mut().and_then(|erasing| erasing.command.take());
        if sh.broken(Mutant::ErasureForgotten) {
            lane.erasing = None;
        }
        let outcome = FinalOutcome::DeadLettered { reason: "erased" };
        self.end_by(sh, index, outcome, command, fx);
    }

    fn expire(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        self.lanes.at(index).expiring = true;
        self.end(sh, index, FinalOutcome::DeadLettered { reason: "expired" }, fx);
    }

    /// Queues a final outcome. If it can be the lane's last row, queued appends come first: a lane leaves the parked
    /// state only if no append of it is queued, and each final outcome of a last row has to ask for that.
    pub(crate) fn finish(
        &mut self,
        sh: &mut Shared,
        index: u32,
        outcome: Outcome,
        fx: &mut Effects,
    ) {
        let lane = self.lanes.at(index);
        // Now and not when it is durable: a slow database is no slow endpoint.
        sh.endpoints.at(lane.ep).pace.count(sh.now);
        let last = lane.parked && lane.queue.is_empty() && !lane.more;
        if last && lane.appends > 0 {
            lane.phase = Phase::Held(Box::new(outcome));
            self.held += 1;
            return;
        }
        self.queue_final(sh, index, outcome, last, fx);
    }

    /// Queues a final outcome; `last`: it may be of the lane's last row.
    pub(crate) fn queue_final(
        &mut self,
        sh: &mut Shared,
        index: u32,
        outcome: Outcome,
        last: bool,
        fx: &mut Effects,
    ) {
        let lane = self.lanes.at(index);
        let (id, parked) = (lane.id, lane.parked);
        lane.phase = Phase::Settling { leaving: last };
        let Outcome { event, outcome, attempts, attempt, status, took, command } = outcome;
        if event.unknown {
            self.decide(event.delivery, event.attempts);
        }
        let offset = event.logged.then_some(event.position.offset);
        if !event.logged {
            sh.loaded_bytes -= event.bytes();
        }
        if let Some(command) = command {
            self.commands.insert(command);
        }
        let what = What::Final { lane: index, delivery: event.delivery, offset, command };
        let item = SettleItem::Final {
            lane: id,
            record: event.record,
            outcome,
            attempts,
            first_held: event.first_held,
            attempt,
            status,
            took,
            parked,
            may_unpark: last,
            command,
        };
        let seq = self.settle(sh.now, what, item, fx);
        let lane = self.lanes.at(index);
        lane.awaits = seq;
        if sh.broken(Mutant::NextBeforeSettled) && !parked && !lane.queue.is_empty() {
            self.rouse(sh, index, fx);
        }
    }

    /// An intent without an outcome, of an endpoint that takes no resend: the attempt is unknown, and held.
    fn hold_intent(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let now = sh.now;
        let lane = self.lanes.at(index);
        let (id, parked) = (lane.id, lane.parked);
        let Some(head) = lane.head.as_mut() else { return };
        let number = head.count_attempt();
        head.unknown = true;
        head.open_intent = false;
        head.due = head.due.max(now);
        let attempt = AttemptRow {
            number,
            ended: head.due,
            took: Duration::ZERO,
            kind: AttemptKind::Unknown,
            status: None,
            class: "owner_lost",
            body: Bytes::new(),
        };
        if !parked {
            return self.park(sh, index, "unknown", Some(attempt), fx);
        }
        let (record, due) = (head.record.clone(), Some(head.due));
        let item = SettleItem::Failed { lane: id, record, attempt, parked_due: due, unknown: true };
        self.settle_failed(sh, index, None, item, fx);
    }

    /// Puts away what is loaded of a parked lane; it is looked for again at `due`.
    pub(crate) fn sleep(&mut self, sh: &mut Shared, index: u32, due: Option<Timestamp>) {
        let lane = self.lanes.at(index);
        debug_assert!(lane.parked, "only a parked lane can be put away");
        let ep = lane.ep;
        lane.phase = Phase::Asleep;
        lane.expiring = false;
        lane.erasing = None;
        lane.more = false;
        let events: Vec<Event> = lane.head.take().into_iter().chain(lane.queue.drain(..)).collect();
        lane.queue = std::collections::VecDeque::new();
        let idle = lane.appends == 0;
        if std::mem::take(&mut lane.loaded) {
            sh.uncount_loaded(ep);
        }
        for event in events {
            debug_assert!(!event.logged, "what has an open offset is appended, not put away");
            sh.loaded_bytes -= event.bytes();
            self.close_loaded(event.delivery);
        }
        if idle {
            self.remove_lane(sh, index);
        }
        if let Some(due) = due {
            self.note_due(sh, ep, due);
        }
    }
}

/// A probe goes out within this after its claim was asked for, or not at all: the claim holds for the request's hard
/// timeout and a second.
pub(crate) const CLAIM_GRACE: Duration = Duration::from_secs(1);

/// Whether its last request can travel no more (P1): a failed head is due one step after that.
pub(crate) fn is_clear(sh: &Shared, event: &Event) -> bool {
    match event.attempts {
        0 => true,
        n => event.due - schedule::step(&sh.limits, event.delivery, n) <= sh.now,
    }
}

/// Whether its horizon has passed (P8, I22). A held unknown does not expire; callers ask before this.
pub(crate) fn is_expired(sh: &Shared, event: &Event) -> bool {
    is_beyond_horizon(sh, event) && !sh.broken(Mutant::ExpiredSent)
}

pub(crate) fn is_beyond_horizon(sh: &Shared, event: &Event) -> bool {
    let from =
        if event.attempts == 0 { event.first_held.max(event.clock_from) } else { event.first_held };
    sh.now >= from + sh.limits.horizon
}
