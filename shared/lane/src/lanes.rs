//! Lanes that have something in memory, and their states. An idle lane has no entry (A4); a parked lane has one only
//! while something of it is loaded or an item of it is queued.

use crate::core::Outcome;
use crate::endpoint::Ep;
use crate::hash::Map;
use crate::input::{CommandId, Position, SettleSeq};
use laneway_wire::{DeliveryId, LaneId, Record, Timestamp};
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries for which an empty table keeps its memory.
const KEPT: usize = 1_024;

/// No lane.
pub(crate) const NONE: u32 = u32::MAX;

/// One delivery held in memory.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) record: Arc<Record>,
    pub(crate) delivery: DeliveryId,
    pub(crate) position: Position,
    /// Its offset is open in the ledger: it came from the topic and is in no row yet. Otherwise it was loaded.
    pub(crate) logged: bool,
    /// Recorded attempts.
    pub(crate) attempts: u32,
    pub(crate) first_held: Timestamp,
    /// For events never tried, the horizon does not begin before this.
    pub(crate) clock_from: Timestamp,
    /// When the first attempt began.
    pub(crate) first_tried: Option<Timestamp>,
    /// Not sent before this.
    pub(crate) due: Timestamp,
    /// It is a held unknown.
    pub(crate) unknown: bool,
    /// An intent without an outcome exists.
    pub(crate) open_intent: bool,
    /// It has its outcome already: its row only has to go.
    pub(crate) settled: bool,
}

impl Event {
    pub(crate) fn bytes(&self) -> u64 {
        self.record.payload.len() as u64
    }

    /// One more attempt is to be recorded; gives its number. The first fixes where the horizon begins (I22).
    pub(crate) fn count_attempt(&mut self) -> u32 {
        if self.attempts == 0 {
            self.first_held = self.first_held.max(self.clock_from);
        }
        self.attempts += 1;
        self.attempts
    }
}

/// What a lane's head is doing.
#[derive(Debug)]
pub(crate) enum Phase {
    /// It may go out when its turn comes.
    Ready,
    /// Live and failed: not before this time.
    Waiting,
    /// Its intent is queued.
    Intent { probe: bool, deadline: Timestamp },
    /// A request is under way: the only one of the lane (P1).
    InFlight { probe: bool, intent: bool },
    /// Its outcome is queued. `leaving`: the lane may be unparked by it; what comes meanwhile waits in the queue.
    Settling { leaving: bool },
    /// Its outcome is known and waits for queued appends of its lane, because it may unpark it.
    Held(Box<Outcome>),
    /// The lane's park is queued.
    Parking,
    /// What follows is being loaded.
    Paging,
    /// Parked with nothing loaded; the entry counts queued appends.
    Asleep,
    /// Given back: nothing more is started.
    Stopped,
}

/// Heads written before this end unsent; the first of them answers the command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Erasing {
    pub(crate) before: Timestamp,
    pub(crate) command: Option<CommandId>,
}

/// A lane that has something in memory.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    pub(crate) ep: Ep,
    pub(crate) phase: Phase,
    /// Changes with each phase that something outside refers to (ring, timer).
    pub(crate) stamp: u64,
    /// The queue item that ends the present phase.
    pub(crate) awaits: SettleSeq,
    /// Its rows exist, or will when its queued park is durable.
    pub(crate) parked: bool,
    pub(crate) head: Option<Event>,
    pub(crate) queue: VecDeque<Event>,
    /// Appends of it that are queued and not durable.
    pub(crate) appends: u32,
    /// A page said that rows follow what is loaded.
    pub(crate) more: bool,
    /// Where the last loaded event stands.
    pub(crate) last: Position,
    /// To be parked when its head is at rest, and why.
    pub(crate) wants_park: Option<&'static str>,
    /// Its last head expired: what follows is looked at even if the endpoint takes nothing.
    pub(crate) expiring: bool,
    /// It counts among the loaded lanes.
    pub(crate) loaded: bool,
    /// A page came back empty: to be looked for again when its queued appends are durable.
    pub(crate) hungry: bool,
    /// What is to be ended unsent, until the lane is put away.
    pub(crate) erasing: Option<Erasing>,
    prev: u32,
    next: u32,
}

impl Lane {
    pub(crate) fn new(id: LaneId, ep: Ep, parked: bool) -> Self {
        Self {
            id,
            ep,
            phase: Phase::Asleep,
            stamp: 0,
            awaits: 0,
            parked,
            head: None,
            queue: VecDeque::new(),
            appends: 0,
            more: false,
            last: Position::default(),
            wants_park: None,
            expiring: false,
            loaded: false,
            hungry: false,
            erasing: None,
            prev: NONE,
            next: NONE,
        }
    }

    /// Its head is never to be sent, because its payload is erased or about to be.
    pub(crate) fn is_erased(&self) -> bool {
        self.head.as_ref().is_some_and(|head| self.erases(head))
    }

    /// The same of an event of it.
    pub(crate) fn erases(&self, event: &Event) -> bool {
        let head = &event.record.head;
        head.erased || self.erasing.is_some_and(|erasing| head.created_at < erasing.before)
    }

    /// Nothing of it is under way: its head can be judged anew.
    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::Waiting)
    }
}

/// Ends of a list of lanes, least recently moved forward first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl List {
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// The lanes of one partition that have an entry.
#[derive(Debug, Default)]
pub(crate) struct LaneTable {
    index: Map<LaneId, u32>,
    slots: Vec<Option<Lane>>,
    free: Vec<u32>,
}

impl LaneTable {
    pub(crate) fn find(&self, id: LaneId) -> Option<u32> {
        self.index.get(&id).copied()
    }

    /// A lane that is known to exist.
    pub(crate) fn at(&mut self, index: u32) -> &mut Lane {
        self.slots[index as usize].as_mut().expect("the lane has an entry")
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Lane> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Lane> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Adds a lane at the end of its endpoint's list.
    pub(crate) fn insert(&mut self, lane: Lane, list: &mut List) -> u32 {
        let id = lane.id;
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(lane);
                index
            }
            None => {
                self.slots.push(Some(lane));
                u32::try_from(self.slots.len() - 1).expect("fewer lanes in memory than 2^32")
            }
        };
        self.index.insert(id, index);
        self.link(index, list);
        index
    }

    pub(crate) fn remove(&mut self, index: u32, list: &mut List) {
        self.unlink(index, list);
        if let Some(lane) = self.slots[index as usize].take() {
            self.index.remove(&lane.id);
            self.free.push(index);
        }
        if self.index.is_empty() && self.slots.capacity() > KEPT {
            // What a burst needed is given back (P10).
            *self = Self::default();
        }
    }

    /// Puts it at the end of its endpoint's list.
    pub(crate) fn move_to_end(&mut self, index: u32, list: &mut List) {
        if list.tail != index {
            self.unlink(index, list);
            self.link(index, list);
        }
    }

    /// The lanes of a list, in its order.
    pub(crate) fn listed(&self, list: &List) -> impl Iterator<Item = (u32, &Lane)> {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let lane = self.get(at)?;
            let here = at;
            at = lane.next;
            Some((here, lane))
        })
    }

    /// All lanes; in the order of their slots, which equal inputs make equal.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &Lane)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    fn link(&mut self, index: u32, list: &mut List) {
        let tail = list.tail;
        let lane = self.at(index);
        lane.prev = tail;
        lane.next = NONE;
        match self.get_mut(tail) {
            Some(last) => last.next = index,
            None => list.head = index,
        }
        list.tail = index;
    }

    fn unlink(&mut self, index: u32, list: &mut List) {
        let lane = self.at(index);
        let (prev, next) = (lane.prev, lane.next);
        match self.get_mut(prev) {
            Some(lane) => lane.next = next,
            None => list.head = next,
        }
        match self.get_mut(next) {
            Some(lane) => lane.prev = prev,
            None => list.tail = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> LaneId {
        LaneId::from_bytes([number; 16])
    }

    /// I22.
    #[test]
    fn the_first_attempt_and_no_other_fixes_where_the_horizon_begins() {
        let head = laneway_wire::record::Head {
            generation: 1,
            delivery: uuid::Uuid::from_u128(1),
            event: uuid::Uuid::from_u128(2),
            endpoint: uuid::Uuid::from_u128(3),
            tenant: uuid::Uuid::from_u128(4),
            mode: laneway_wire::LaneMode::User,
            user_key: Some("k".into()),
            event_type: "t".into(),
            content_type: "c".into(),
            headers: Vec::new(),
            traceparent: None,
            source: "s".into(),
            row: 1,
            created_at: Timestamp(0),
            replay: 0,
            replay_of: None,
            erased: false,
        };
        let delivery = head.delivery_id();
        let mut event = Event {
            record: Arc::new(Record { head, payload: bytes::Bytes::new() }),
            delivery,
            position: Position::default(),
            logged: false,
            attempts: 0,
            first_held: Timestamp(10),
            clock_from: Timestamp(70),
            first_tried: None,
            due: Timestamp(0),
            unknown: false,
            open_intent: false,
            settled: false,
        };
        assert_eq!((event.count_attempt(), event.first_held), (1, Timestamp(70)));
        event.clock_from = Timestamp(90);
        assert_eq!((event.count_attempt(), event.first_held), (2, Timestamp(70)));
    }

    fn order(table: &LaneTable, list: &List) -> Vec<u8> {
        table.listed(list).map(|(_, lane)| lane.id.as_bytes()[0]).collect()
    }

    #[test]
    fn lanes_keep_their_order_and_leave_no_trace() {
        let (mut table, mut list) = (LaneTable::default(), List::default());
        let entries: Vec<u32> =
            (1..=4).map(|n| table.insert(Lane::new(id(n), 0, false), &mut list)).collect();
        table.move_to_end(entries[1], &mut list);
        table.remove(entries[0], &mut list);
        assert_eq!(order(&table, &list), [3, 4, 2]);
        table.move_to_end(entries[3], &mut list);
        assert_eq!(order(&table, &list), [3, 2, 4]);
        for entry in [entries[1], entries[3], entries[2]] {
            table.remove(entry, &mut list);
        }
        assert!(list.is_empty());
        assert_eq!(table.len(), 0);
    }
}
