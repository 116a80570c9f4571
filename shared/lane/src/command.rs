//! A person's word on a held unknown, or on a whole lane (design 5.8). It is applied in the settle queue, and only to what
//! is a held unknown once everything queued before it is durable.

use crate::effect::{Effect, FinalOutcome, SettleItem};
use crate::endpoint::Ep;
use crate::input::{CommandId, Verdict};
use crate::lanes::{Erasing, Event, Lane, Phase};
use crate::partition::{Deferred, Part, What};
use crate::shared::{Effects, Shared, Timer};
use laneway_wire::Timestamp;

/// Commands of one partition that may wait; the shell offers the others again.
const MOST_DEFERRED: usize = 1_024;

impl Part {
    /// Applies a command, once.
    pub(crate) fn command(&mut self, sh: &mut Shared, given: Deferred, fx: &mut Effects) {
        let known = self.commands.contains(&given.command)
            || self.deferred.iter().any(|deferred| deferred.command == given.command);
        if known || !self.is_active() {
            return;
        }
        let parked = self.parked.get(&given.lane).copied();
        if let Verdict::Erase { before } = given.verdict {
            return match parked {
                Some(parked) => self.erase(sh, given, parked.ep, before, fx),
                None => self.refuse(sh, given, fx),
            };
        }
        let (Some(parked), Some(head)) = (parked, given.head.as_ref().filter(|head| head.unknown))
        else {
            return self.refuse(sh, given, fx);
        };
        let decided = self.is_decided(head.record.head.delivery_id(), head.attempts);
        if decided || self.releasing.contains_key(&given.lane) {
            return self.refuse(sh, given, fx);
        }
        let found = self.lanes.find(given.lane);
        match found.and_then(|index| self.lanes.get(index)).map(|lane| &lane.phase) {
            None | Some(Phase::Asleep) => {}
            // Its park, or the failure that makes it unknown, may be what was read: wait until that is told.
            Some(Phase::Parking | Phase::Settling { leaving: false }) => {
                if self.deferred.len() < MOST_DEFERRED {
                    self.deferred.push(given);
                }
                return;
            }
            Some(_) => return self.refuse(sh, given, fx),
        }
        if head.due > sh.now {
            // The unknown request may still travel: what follows in the lane waits for that, and so does its own next
            // send, which as a probe would not look at `due` (P1).
            let due = head.due;
            if self.deferred.len() < MOST_DEFERRED {
                self.deferred.push(given);
                sh.set_timer(due, Timer::Word { partition: self.id });
            }
            return;
        }
        let outcome = match given.verdict {
            Verdict::Erase { .. } => return,
            Verdict::Delivered => FinalOutcome::Delivered,
            Verdict::GivenUp => FinalOutcome::DeadLettered { reason: "unknown" },
            Verdict::NotApplied => {
                // `due` of a held unknown says since when it is held, or until when its request may travel.
                let held = sh.now.since(head.due);
                let due = head.due.max(sh.now);
                let item = SettleItem::ReleaseUnknown {
                    lane: given.lane,
                    delivery: head.record.head.delivery_id(),
                    first_held: head.first_held + held,
                    due,
                    command: given.command,
                };
                self.commands.insert(given.command);
                self.releasing.insert(given.lane, head.record.head.delivery_id());
                self.decide(head.record.head.delivery_id(), head.attempts);
                let what = What::Release { id: given.lane, due, command: given.command };
                self.settle(sh.now, what, item, fx);
                return;
            }
        };
        let event = Event {
            delivery: head.record.head.delivery_id(),
            record: head.record.clone(),
            position: head.position,
            logged: false,
            attempts: head.attempts,
            first_held: head.first_held,
            clock_from: Timestamp(i64::MIN),
            first_tried: None,
            due: head.due,
            unknown: true,
            open_intent: false,
            settled: false,
        };
        let lane = Lane::new(given.lane, parked.ep, true);
        let index = found.unwrap_or_else(|| self.insert_lane(sh, lane));
        self.put_in(sh, index, event);
        self.commands.insert(given.command);
        self.end_by(sh, index, outcome, Some(given.command), fx);
    }

    /// Has what was written before `before` end unsent, head by head, and reads the lane's rows for it if nothing of them
    /// is in memory: what the command's reader saw of them may be older than what was written since. A command that
    /// comes to nothing, because there is no room or the last request may still travel, is offered again.
    fn erase(
        &mut self,
        sh: &mut Shared,
        given: Deferred,
        ep: Ep,
        before: Timestamp,
        fx: &mut Effects,
    ) {
        let found = self.lanes.find(given.lane);
        let asleep = match found.and_then(|index| self.lanes.get(index)).map(|lane| &lane.phase) {
            None | Some(Phase::Asleep) => true,
            // Puts the lane away when it is durable.
            Some(Phase::Parking | Phase::Settling { leaving: false }) => {
                if self.deferred.len() < MOST_DEFERRED {
                    self.deferred.push(given);
                }
                return;
            }
            Some(_) => false,
        };
        if asleep && (self.releasing.contains_key(&given.lane) || sh.load_room() == 0) {
            return;
        }
        let index = match found {
            Some(index) => index,
            None => self.insert_lane(sh, Lane::new(given.lane, ep, true)),
        };
        let lane = self.lanes.at(index);
        // Of two commands the later moment counts: the first may be answered already, and what it means is not sent.
        let before = lane.erasing.map_or(before, |erasing| erasing.before.max(before));
        lane.erasing = Some(Erasing { before, command: Some(given.command) });
        if asleep {
            lane.expiring = true;
            lane.hungry = false;
            lane.phase = Phase::Paging;
            self.count_loaded(sh, index);
            fx.push(Effect::LoadPage {
                partition: self.id,
                epoch: self.epoch,
                lane: given.lane,
                after: None,
                limit: sh.limits.page_events,
            });
        }
    }

    /// Looks again at commands that waited.
    pub(crate) fn retry_commands(&mut self, sh: &mut Shared, fx: &mut Effects) {
        for given in std::mem::take(&mut self.deferred) {
            self.command(sh, given, fx);
        }
    }

    fn refuse(&mut self, sh: &Shared, given: Deferred, fx: &mut Effects) {
        let reason = match given.verdict {
            Verdict::Erase { .. } => "not_parked",
            Verdict::Delivered | Verdict::NotApplied | Verdict::GivenUp => "not_unknown",
        };
        self.refuse_because(sh, given.command, reason, fx);
    }

    pub(crate) fn refuse_because(
        &mut self,
        sh: &Shared,
        command: CommandId,
        reason: &'static str,
        fx: &mut Effects,
    ) {
        self.commands.insert(command);
        let item = SettleItem::RefuseCommand { command, reason };
        self.settle(sh.now, What::Refuse { command }, item, fx);
    }
}
