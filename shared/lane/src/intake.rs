//! Records as they come from the topic, each with what the database knew of it (design 5.2).

use crate::effect::SettleItem;
use crate::endpoint::Ep;
use crate::input::{Incoming, Known, OnUnknown};
use crate::lanes::{Event, Lane, Phase};
use crate::mutant::Mutant;
use crate::partition::{Open, Part, What};
use crate::schedule;
use crate::shared::{Effects, Shared};
use laneway_wire::{LaneId, Record, Timestamp};
use std::sync::Arc;

impl Part {
    /// Takes one record in.
    pub(crate) fn take_in(&mut self, sh: &mut Shared, incoming: Incoming, fx: &mut Effects) {
        match incoming {
            Incoming::Delivery { offset, record, lane, known } => {
                self.take_delivery(sh, offset, record, lane, known, fx);
            }
            Incoming::Unreadable { offset, reason, raw } => {
                if self.ledger.take(offset, None, raw.len()) {
                    let item = SettleItem::Quarantine { offset, reason, raw };
                    self.settle(sh.now, What::Quarantine { offset }, item, fx);
                } else {
                    sh.stale_inputs += 1;
                }
            }
            Incoming::Skip { offset } => {
                if self.ledger.take(offset, None, 0) {
                    self.ledger.complete(offset);
                } else {
                    sh.stale_inputs += 1;
                }
            }
        }
    }

    fn take_delivery(
        &mut self,
        sh: &mut Shared,
        offset: i64,
        record: Arc<Record>,
        id: LaneId,
        known: Known,
        fx: &mut Effects,
    ) {
        if !self.ledger.take(offset, Some(id), record.payload.len()) {
            sh.stale_inputs += 1;
            return;
        }
        let settled = known == Known::Settled && !sh.broken(Mutant::DuplicateIntakeSent);
        let delivery = record.head.delivery_id();
        // The first copy is durable, or its own lower offset is open and holds the position: either way this one is
        // complete at once (P4, P5).
        let open = self.open.contains_key(&delivery) || self.releasing.get(&id) == Some(&delivery);
        if settled || open {
            self.ledger.complete(offset);
            sh.duplicates += 1;
            return;
        }
        let ep = sh.endpoints.intern(record.head.endpoint_id());
        let event = self.event(sh, offset, record, known, ep);
        let index = match self.lanes.find(id) {
            Some(index) => index,
            None => {
                let parked =
                    self.parked.contains_key(&id) && !sh.broken(Mutant::AppendSkippedWhileParked);
                self.insert_lane(sh, Lane::new(id, ep, parked))
            }
        };
        self.open.insert(delivery, Open { lane: index, logged: true, loaded: false });
        let lane = self.lanes.at(index);
        if !lane.parked {
            let idle = matches!(lane.phase, Phase::Asleep);
            lane.queue.push_back(event);
            self.count_live(sh, ep, 1);
            if idle {
                self.rouse(sh, index, fx);
            }
            self.keep_share(sh, ep, fx);
        } else if matches!(lane.phase, Phase::Settling { leaving: true } | Phase::Held(_))
            && !sh.broken(Mutant::UnparkWithQueuedAppend)
        {
            lane.queue.push_back(event);
        } else {
            self.append(sh, index, event, fx);
        }
    }

    /// Number, schedule and horizon go on from what is recorded.
    fn event(&self, sh: &Shared, offset: i64, record: Arc<Record>, known: Known, ep: Ep) -> Event {
        let delivery = record.head.delivery_id();
        let mut event = Event {
            record,
            delivery,
            position: self.position_of(offset),
            logged: true,
            attempts: 0,
            first_held: sh.now,
            clock_from: Timestamp(i64::MIN),
            first_tried: None,
            due: sh.now,
            unknown: false,
            open_intent: false,
            settled: false,
        };
        let Known::Tried(tried) = known else { return event };
        if sh.broken(Mutant::AttemptCountForgotten) {
            return event;
        }
        event.attempts = tried.attempts;
        event.first_held = tried.first_at;
        event.first_tried = Some(tried.first_at);
        event.open_intent = tried.open_intent;
        event.due = match tried.attempts {
            0 => tried.last_end,
            n => tried.last_end + schedule::step(&sh.limits, delivery, n),
        };
        if tried.open_intent && sh.endpoints.get(ep).on_unknown != OnUnknown::Resend {
            // Held from the end of the time in which the unknown request may travel.
            event.due = tried.last_end;
        }
        event
    }
}
