//! One owned partition: its ledger, its lanes, its parked set and its settle queue.

use crate::effect::{AttemptRow, Effect, NewParked, SettleItem};
use crate::endpoint::{Ep, Pace};
use crate::hash::Map;
use crate::input::{CommandId, Epoch, ParkedEvent, Partition, Position, SettleSeq, Verdict};
use crate::lanes::{Event, Lane, LaneTable, List, Phase};
use crate::ledger::Ledger;
use crate::loads::{Due, Expiry};
use crate::mutant::Mutant;
use crate::shared::{Effects, Shared};
use laneway_wire::{DeliveryId, LaneId, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far a partition's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Ids of parked lanes are coming; nothing is taken in.
    Loading,
    Active,
    /// Being given back: nothing more is started.
    Revoking,
    /// [`Effect::Drained`] was told.
    Drained,
}

/// A parked lane, loaded or not. With its key 24 bytes: a million of them take some 50 MB (P10).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParkedLane {
    pub(crate) ep: Ep,
    /// The load clock when its rows last changed.
    pub(crate) touched: u32,
}

/// Where an open delivery is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub(crate) lane: u32,
    /// Its offset is open: in memory or in the settle queue.
    pub(crate) logged: bool,
    /// Its row is loaded, or the item that ends it is queued.
    pub(crate) loaded: bool,
}

/// What an item of the settle queue changes once it is durable.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Park {
        lane: u32,
        delivery: DeliveryId,
        offset: i64,
        due: Option<Timestamp>,
    },
    ParkInFlight {
        id: LaneId,
        ep: Ep,
        delivery: DeliveryId,
        offset: i64,
    },
    Append {
        lane: u32,
        delivery: DeliveryId,
        offset: i64,
    },
    Intent {
        lane: u32,
    },
    /// `due`: of a parked head that is no unknown.
    Failed {
        lane: u32,
        due: Option<Timestamp>,
    },
    Final {
        lane: u32,
        delivery: DeliveryId,
        offset: Option<i64>,
        command: Option<CommandId>,
    },
    Release {
        id: LaneId,
        due: Timestamp,
        command: CommandId,
    },
    Refuse {
        command: CommandId,
    },
    Quarantine {
        offset: i64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) seq: SettleSeq,
    /// When it was queued.
    pub(crate) at: Timestamp,
    pub(crate) what: What,
}

/// A command that waits for an item of its lane to become durable.
#[derive(Debug, Clone)]
pub(crate) struct Deferred {
    pub(crate) command: CommandId,
    pub(crate) lane: LaneId,
    pub(crate) head: Option<ParkedEvent>,
    pub(crate) verdict: Verdict,
}

/// What one partition has of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Local {
    /// Its lanes with an entry; live ones least recently moved forward first, then parked ones.
    pub(crate) list: List,
    pub(crate) live_events: u64,
    pub(crate) parked: u32,
    pub(crate) due: Due,
}

/// Decided unknowns remembered at a time: far more than a head that was read can stay under way for.
const MOST_DECIDED: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) id: Partition,
    pub(crate) epoch: Epoch,
    pub(crate) generation: u64,
    pub(crate) stage: Stage,
    pub(crate) ledger: Ledger,
    pub(crate) lanes: LaneTable,
    pub(crate) parked: Map<LaneId, ParkedLane>,
    pub(crate) locals: Map<Ep, Local>,
    pub(crate) open: Map<DeliveryId, Open>,
    pub(crate) pending: VecDeque<Pending>,
    next_seq: SettleSeq,
    /// Lanes with an intent queued or a request under way.
    pub(crate) in_flight: u32,
    /// Outcomes that wait for appends.
    pub(crate) held: u32,
    pub(crate) deferred: Vec<Deferred>,
    /// Commands whose items are queued.
    pub(crate) commands: BTreeSet<CommandId>,
    /// Held unknowns whose release is queued.
    pub(crate) releasing: BTreeMap<LaneId, DeliveryId>,
    /// Unknowns that were decided, with the attempts that they had then, and in which order.
    decided: Map<DeliveryId, u32>,
    decided_order: VecDeque<DeliveryId>,
    pub(crate) expiry: Expiry,
    /// What became durable: how much is worth taking in (P10).
    pub(crate) flow: Pace,
    /// Open offsets below this were looked at for holding the position back.
    pub(crate) relieved_to: i64,
    pub(crate) relief_set: bool,
}

impl Part {
    pub(crate) fn new(id: Partition, epoch: Epoch, next_offset: i64, generation: u64) -> Self {
        Self {
            id,
            epoch,
            generation,
            stage: Stage::Loading,
            ledger: Ledger::new(next_offset),
            lanes: LaneTable::default(),
            parked: Map::default(),
            locals: Map::default(),
            open: Map::default(),
            pending: VecDeque::new(),
            next_seq: 1,
            in_flight: 0,
            held: 0,
            deferred: Vec::new(),
            commands: BTreeSet::new(),
            releasing: BTreeMap::new(),
            decided: Map::default(),
            decided_order: VecDeque::new(),
            expiry: Expiry::default(),
            flow: Pace::default(),
            relieved_to: next_offset,
            relief_set: false,
        }
    }

    /// Remembers that a held unknown with so many attempts was decided. A command's head is read outside the settle
    /// queue, so a word on it can come after that and must not be applied to what the delivery is by then (P5, P6).
    pub(crate) fn decide(&mut self, delivery: DeliveryId, attempts: u32) {
        if self.decided.insert(delivery, attempts).is_none() {
            self.decided_order.push_back(delivery);
        }
        if self.decided_order.len() > MOST_DECIDED
            && let Some(oldest) = self.decided_order.pop_front()
        {
            self.decided.remove(&oldest);
        }
    }

    /// Whether an unknown that was read with so many attempts is decided already.
    pub(crate) fn is_decided(&self, delivery: DeliveryId, attempts: u32) -> bool {
        self.decided.get(&delivery).is_some_and(|decided| attempts <= *decided)
    }

    /// New work may begin.
    pub(crate) fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }

    pub(crate) fn local(&mut self, ep: Ep) -> &mut Local {
        self.locals.entry(ep).or_default()
    }

    /// Queues an item.
    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        what: What,
        item: SettleItem,
        fx: &mut Effects,
    ) -> SettleSeq {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.pending.push_back(Pending { seq, at: now, what });
        fx.push(Effect::Settle { partition: self.id, epoch: self.epoch, seq, item });
        seq
    }

    /// Adds a lane's entry.
    pub(crate) fn insert_lane(&mut self, sh: &mut Shared, lane: Lane) -> u32 {
        if !lane.parked {
            sh.endpoints.at(lane.ep).live_lanes += 1;
        }
        let list = &mut self.locals.entry(lane.ep).or_default().list;
        self.lanes.insert(lane, list)
    }

    /// Removes the entry of a lane that is idle, or parked with nothing loaded and nothing queued.
    pub(crate) fn remove_lane(&mut self, sh: &mut Shared, index: u32) {
        let lane = self.lanes.at(index);
        let (ep, parked, loaded) = (lane.ep, lane.parked, lane.loaded);
        if loaded {
            sh.uncount_loaded(ep);
        }
        if !parked {
            sh.endpoints.at(ep).live_lanes -= 1;
        }
        let local = self.locals.entry(ep).or_default();
        self.lanes.remove(index, &mut local.list);
        self.forget_local(ep);
    }

    /// Drops what is kept of an endpoint that has nothing here any more (A4).
    pub(crate) fn forget_local(&mut self, ep: Ep) {
        let idle = |local: &Local| {
            local.list.is_empty()
                && local.parked == 0
                && local.due.is_idle()
                && local.live_events == 0
        };
        if self.locals.get(&ep).is_some_and(idle) {
            self.locals.remove(&ep);
        }
    }

    /// Events of live lanes came or went.
    pub(crate) fn count_live(&mut self, sh: &mut Shared, ep: Ep, change: i64) {
        let entry = sh.endpoints.at(ep);
        if entry.live_events == 0 && change > 0 {
            entry.pace.begin(sh.now);
        }
        entry.live_events = entry.live_events.saturating_add_signed(change);
        let local = self.local(ep);
        local.live_events = local.live_events.saturating_add_signed(change);
    }

    /// Makes a live lane parked: its head's row and its own first, then its queue as appends (design 5.2).
    pub(crate) fn park(
        &mut self,
        sh: &mut Shared,
        index: u32,
        reason: &'static str,
        attempt: Option<AttemptRow>,
        fx: &mut Effects,
    ) {
        let lane = self.lanes.at(index);
        debug_assert!(!lane.parked, "only a live lane is parked");
        let Some(head) = lane.head.take() else { return };
        let id = lane.id;
        lane.phase = Phase::Parking;
        let due = (!head.unknown).then_some(head.due);
        let offset = head.position.offset;
        let what = What::Park { lane: index, delivery: head.delivery, offset, due };
        let item = SettleItem::Park { lane: id, head: as_row(&head), reason, attempt };
        let seq = self.settle(sh.now, what, item, fx);
        if sh.broken(Mutant::OffsetBeforeParkDurable) {
            self.ledger.complete(offset);
        }
        self.lanes.at(index).awaits = seq;
        self.enter_parked(sh, index, fx);
    }

    /// Makes a live lane parked while the request of its head is under way: that ends as a parked head's. Its slot
    /// among the loaded is there, or its caller has waited for one.
    pub(crate) fn park_in_flight(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        let (id, ep) = (lane.id, lane.ep);
        let Some(head) = lane.head.as_mut() else { return };
        head.logged = false;
        let row = NewParked { due: sh.now, ..as_row(head) };
        lane.last = head.position;
        lane.more = false;
        let (delivery, offset, bytes) = (head.delivery, head.position.offset, head.bytes());
        sh.loaded_bytes += bytes;
        self.open_loaded(delivery, index);
        let what = What::ParkInFlight { id, ep, delivery, offset };
        let item = SettleItem::Park { lane: id, head: row, reason: "window", attempt: None };
        self.settle(sh.now, what, item, fx);
        self.enter_parked(sh, index, fx);
        self.count_loaded(sh, index);
    }

    /// The lane's park is queued: from here on it counts as parked, and its queue is appended.
    fn enter_parked(&mut self, sh: &mut Shared, index: u32, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        let (id, ep) = (lane.id, lane.ep);
        lane.parked = true;
        lane.wants_park = None;
        let queue = std::mem::take(&mut lane.queue);
        self.count_live(sh, ep, -1 - queue.len() as i64);
        let entry = sh.endpoints.at(ep);
        entry.live_lanes -= 1;
        entry.parked_lanes += 1;
        self.parked.insert(id, ParkedLane { ep, touched: sh.clock });
        let local = self.locals.entry(ep).or_default();
        local.parked += 1;
        self.lanes.move_to_end(index, &mut local.list);
        for event in queue {
            self.append(sh, index, event, fx);
        }
    }

    /// Adds an event to a parked lane's rows; its offset completes when that is durable.
    pub(crate) fn append(&mut self, sh: &Shared, index: u32, event: Event, fx: &mut Effects) {
        let lane = self.lanes.at(index);
        lane.appends += 1;
        let id = lane.id;
        let what =
            What::Append { lane: index, delivery: event.delivery, offset: event.position.offset };
        self.settle(sh.now, what, SettleItem::Append { lane: id, event: as_row(&event) }, fx);
    }

    /// The lane's last row is gone: it is live if something waits in memory, else idle.
    pub(crate) fn unpark(&mut self, sh: &mut Shared, index: u32) {
        let lane = self.lanes.at(index);
        let (id, ep) = (lane.id, lane.ep);
        lane.parked = false;
        lane.more = false;
        lane.expiring = false;
        let waiting = lane.queue.len() as i64;
        if std::mem::take(&mut lane.loaded) {
            sh.uncount_loaded(ep);
        }
        self.parked.remove(&id);
        if self.parked.capacity() > 4_096 && self.parked.len() * 8 < self.parked.capacity() {
            self.parked.shrink_to(self.parked.len() * 2);
        }
        let entry = sh.endpoints.at(ep);
        entry.live_lanes += 1;
        entry.parked_lanes -= 1;
        self.local(ep).parked -= 1;
        if waiting > 0 {
            self.count_live(sh, ep, waiting);
        }
    }

    /// A delivery's offset is complete and nothing of it is queued any more.
    pub(crate) fn close_logged(&mut self, delivery: DeliveryId, offset: i64) {
        self.ledger.complete(offset);
        if let Some(open) = self.open.get_mut(&delivery) {
            open.logged = false;
            if !open.loaded {
                self.open.remove(&delivery);
            }
        }
    }

    /// A delivery's row is not in memory any more.
    pub(crate) fn close_loaded(&mut self, delivery: DeliveryId) {
        if let Some(open) = self.open.get_mut(&delivery) {
            open.loaded = false;
            if !open.logged {
                self.open.remove(&delivery);
            }
        }
    }

    /// A delivery's row is in memory.
    pub(crate) fn open_loaded(&mut self, delivery: DeliveryId, lane: u32) {
        let open = self.open.entry(delivery).or_insert(Open { lane, logged: false, loaded: false });
        open.loaded = true;
        open.lane = lane;
    }

    /// The lane's rows changed: answers read before this tell nothing of it.
    pub(crate) fn touch(&mut self, sh: &Shared, id: LaneId) {
        if let Some(parked) = self.parked.get_mut(&id) {
            parked.touched = sh.clock;
        }
    }

    /// Where a record of this partition stands.
    pub(crate) fn position_of(&self, offset: i64) -> Position {
        Position { generation: self.generation, moves: 0, offset }
    }

    /// Tells once that nothing is under way or unsettled any more.
    pub(crate) fn tell_drained(&mut self, fx: &mut Effects) {
        if self.stage == Stage::Revoking
            && self.in_flight == 0
            && self.held == 0
            && self.pending.is_empty()
        {
            self.stage = Stage::Drained;
            fx.push(Effect::Drained { partition: self.id, epoch: self.epoch });
        }
    }
}

fn as_row(event: &Event) -> NewParked {
    NewParked {
        position: event.position,
        record: event.record.clone(),
        first_held: event.first_held,
        attempts: event.attempts,
        due: event.due,
        unknown: event.unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P10: a million parked lanes fit in well under 100 MB, also with a table half full.
    #[test]
    fn a_parked_lane_takes_24_bytes() {
        assert_eq!(size_of::<(LaneId, ParkedLane)>(), 24);
    }
}
