//! What PostgreSQL holds, as far as the core can tell: inbox, attempts, intents, lanes and rows of parked events.

use laneway_lane::*;
use laneway_wire::{DeliveryId, EndpointId, LaneId, Record, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) record: Arc<Record>,
    pub(crate) first_held: Timestamp,
    pub(crate) attempts: u32,
    pub(crate) due: Timestamp,
    pub(crate) unknown: bool,
    pub(crate) tried_at: Timestamp,
}

#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) number: u32,
    pub(crate) began: Timestamp,
    pub(crate) ended: Timestamp,
    pub(crate) kind: AttemptKind,
    pub(crate) class: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Database {
    pub(crate) inbox: BTreeMap<DeliveryId, FinalOutcome>,
    pub(crate) attempts: BTreeMap<DeliveryId, Vec<Attempt>>,
    pub(crate) intents: BTreeSet<(DeliveryId, u32)>,
    pub(crate) lanes: BTreeMap<LaneId, (Partition, EndpointId)>,
    pub(crate) rows: BTreeMap<(LaneId, Position), Row>,
    pub(crate) released: BTreeSet<DeliveryId>,
    pub(crate) quarantine: BTreeSet<(Partition, i64)>,
    pub(crate) commands_done: BTreeMap<CommandId, &'static str>,
    /// When the last unknown of a lane ended: time behind it does not count.
    pub(crate) clock_from: BTreeMap<LaneId, Timestamp>,
    /// Endpoints that are degraded, with the time before which no probe is claimed.
    pub(crate) health: BTreeMap<EndpointId, Timestamp>,
}

fn rank(item: &SettleItem) -> u8 {
    match item {
        SettleItem::Park { .. } => 0,
        SettleItem::Append { .. } => 1,
        SettleItem::Intent { .. } => 2,
        SettleItem::Failed { .. } => 3,
        SettleItem::Final { .. } => 4,
        SettleItem::ReleaseUnknown { .. } => 5,
        SettleItem::Quarantine { .. } => 6,
        SettleItem::RefuseCommand { .. } => 7,
    }
}

impl Database {
    /// Commits a group in the order that the contract names; gives the lanes that are parked no more.
    pub(crate) fn commit(
        &mut self,
        now: Timestamp,
        partition: Partition,
        mut group: Vec<SettleItem>,
    ) -> Vec<LaneId> {
        group.sort_by_key(rank);
        let mut unparked = Vec::new();
        for item in group {
            self.write(now, partition, item, &mut unparked);
        }
        unparked
    }

    fn write(
        &mut self,
        now: Timestamp,
        partition: Partition,
        item: SettleItem,
        unparked: &mut Vec<LaneId>,
    ) {
        match item {
            SettleItem::Park { lane, head, attempt, .. } => {
                let endpoint = head.record.head.endpoint_id();
                let old = self.lanes.insert(lane, (partition, endpoint));
                assert!(old.is_none(), "park of a lane that is parked");
                let delivery = head.record.head.delivery_id();
                if let Some(attempt) = attempt {
                    self.attempt(delivery, &attempt);
                }
                self.insert(now, lane, head);
            }
            SettleItem::Append { lane, event } => {
                assert!(self.lanes.contains_key(&lane), "append to a lane that is not parked");
                self.insert(now, lane, event);
            }
            SettleItem::Intent { ticket, .. } => {
                let new = self.intents.insert((ticket.delivery, ticket.attempt));
                assert!(new, "an intent twice");
            }
            SettleItem::Failed { lane, record, attempt, parked_due, unknown } => {
                let delivery = record.head.delivery_id();
                self.attempt(delivery, &attempt);
                let clock_from = self.clock_from.get(&lane).copied().unwrap_or_default();
                let row = self.row(lane, delivery);
                assert_eq!(row.is_some(), parked_due.is_some(), "a failure and the lane's state");
                if let (Some(row), Some(due)) = (row, parked_due) {
                    if row.attempts == 0 {
                        row.first_held = row.first_held.max(clock_from);
                    }
                    row.attempts = attempt.number;
                    row.due = due;
                    row.unknown = unknown;
                    row.tried_at = now;
                } else {
                    assert!(!unknown, "a live unknown");
                }
            }
            SettleItem::Final {
                lane,
                record,
                outcome,
                parked,
                may_unpark,
                attempt,
                command,
                ..
            } => {
                let delivery = record.head.delivery_id();
                self.inbox.entry(delivery).or_insert(outcome);
                if let Some(attempt) = attempt {
                    self.attempt(delivery, &attempt);
                }
                let key = self.key(lane, delivery);
                assert!(parked || key.is_none(), "a live outcome of a parked row");
                if let Some(key) = key
                    && self.rows.remove(&key).is_some_and(|row| row.unknown)
                {
                    self.clock_from.insert(lane, now);
                }
                if let Some(command) = command {
                    self.commands_done.insert(command, "applied");
                }
                if may_unpark && self.head(lane).is_none() && self.lanes.remove(&lane).is_some() {
                    unparked.push(lane);
                }
            }
            SettleItem::ReleaseUnknown { lane, delivery, first_held, due, command } => {
                self.commands_done.insert(command, "released");
                if let Some(row) = self.row(lane, delivery).filter(|row| row.unknown) {
                    row.unknown = false;
                    row.first_held = first_held;
                    row.due = due;
                    self.released.insert(delivery);
                    self.clock_from.insert(lane, now);
                }
            }
            SettleItem::RefuseCommand { command, reason } => {
                self.commands_done.insert(command, reason);
            }
            SettleItem::Quarantine { offset, .. } => {
                self.quarantine.insert((partition, offset));
            }
        }
    }

    fn attempt(&mut self, delivery: DeliveryId, row: &AttemptRow) {
        let all = self.attempts.entry(delivery).or_default();
        let last = all.last().map_or(0, |last| last.number);
        assert_eq!(row.number, last + 1, "attempts are numbered without gaps");
        let began = row.ended - row.took;
        let (number, ended, kind, class) = (row.number, row.ended, row.kind, row.class);
        all.push(Attempt { number, began, ended, kind, class });
    }

    fn insert(&mut self, now: Timestamp, lane: LaneId, event: NewParked) {
        let delivery = event.record.head.delivery_id();
        let mut key = (lane, event.position);
        let mut row = Row {
            record: event.record,
            first_held: event.first_held,
            attempts: event.attempts,
            due: event.due,
            unknown: event.unknown,
            tried_at: if event.attempts > 0 { now } else { Timestamp(0) },
        };
        if let Some(old) = self.key(lane, delivery) {
            key.1 = key.1.min(old.1);
            row = self.rows.remove(&old).unwrap();
        }
        self.rows.insert(key, row);
    }

    fn key(&self, lane: LaneId, delivery: DeliveryId) -> Option<(LaneId, Position)> {
        self.of_lane(lane)
            .find(|(_, row)| row.record.head.delivery_id() == delivery)
            .map(|(k, _)| *k)
    }

    fn row(&mut self, lane: LaneId, delivery: DeliveryId) -> Option<&mut Row> {
        let key = self.key(lane, delivery)?;
        self.rows.get_mut(&key)
    }

    fn of_lane(&self, lane: LaneId) -> impl Iterator<Item = (&(LaneId, Position), &Row)> {
        let most = Position { generation: u64::MAX, moves: u32::MAX, offset: i64::MAX };
        self.rows.range((lane, Position::default())..=(lane, most))
    }

    pub(crate) fn head(&self, lane: LaneId) -> Option<(Position, &Row)> {
        self.of_lane(lane).next().map(|(key, row)| (key.1, row))
    }

    pub(crate) fn has_row(&self, lane: LaneId, delivery: DeliveryId) -> bool {
        self.key(lane, delivery).is_some()
    }

    fn read(&self, lane: LaneId, position: Position, row: &Row) -> ParkedEvent {
        let delivery = row.record.head.delivery_id();
        let recorded = self.attempts.get(&delivery).map_or(0, |all| all.len() as u32);
        ParkedEvent {
            lane,
            position,
            record: row.record.clone(),
            first_held: row.first_held,
            clock_from: self.clock_from.get(&lane).copied().unwrap_or_default(),
            attempts: recorded,
            due: row.due,
            unknown: row.unknown,
            open_intent: self.intents.contains(&(delivery, recorded + 1)),
            settled: self.inbox.contains_key(&delivery),
        }
    }

    fn heads(
        &self,
        partition: Partition,
    ) -> impl Iterator<Item = (EndpointId, ParkedEvent, Timestamp)> {
        self.lanes.iter().filter(move |(_, (of, _))| *of == partition).filter_map(
            |(lane, (_, ep))| {
                let (position, row) = self.head(*lane)?;
                Some((*ep, self.read(*lane, position, row), row.tried_at))
            },
        )
    }

    pub(crate) fn due(
        &self,
        partition: Partition,
        endpoint: EndpointId,
        after: Option<(Timestamp, LaneId)>,
        until: Timestamp,
        limit: u32,
    ) -> (Vec<ParkedEvent>, bool, Option<Timestamp>) {
        let mut all: Vec<ParkedEvent> = self
            .heads(partition)
            .filter(|(ep, head, _)| *ep == endpoint && !head.unknown)
            .map(|(_, head, _)| head)
            .collect();
        all.sort_by_key(|head| (head.due, head.lane));
        let next = all.iter().map(|head| head.due).find(|due| *due > until);
        all.retain(|head| {
            head.due <= until && after.is_none_or(|after| (head.due, head.lane) > after)
        });
        let more = all.len() > limit as usize;
        all.truncate(limit as usize);
        (all, more, if more { None } else { next })
    }

    pub(crate) fn page(
        &self,
        lane: LaneId,
        after: Option<Position>,
        limit: u32,
    ) -> (Vec<ParkedEvent>, bool) {
        let mut all: Vec<ParkedEvent> = self
            .of_lane(lane)
            .filter(|(key, _)| after.is_none_or(|after| key.1 > after))
            .map(|(key, row)| self.read(lane, key.1, row))
            .collect();
        let more = all.len() > limit as usize;
        all.truncate(limit as usize);
        (all, more)
    }

    pub(crate) fn expired(
        &self,
        partition: Partition,
        held_before: Timestamp,
        limit: u32,
    ) -> (Vec<ParkedEvent>, bool) {
        let mut all: Vec<ParkedEvent> = self
            .heads(partition)
            .map(|(_, head, _)| head)
            .filter(|head| !head.unknown && head.first_held <= held_before)
            .collect();
        let more = all.len() > limit as usize;
        all.truncate(limit as usize);
        (all, more)
    }

    pub(crate) fn probe_head(
        &self,
        partitions: impl Iterator<Item = Partition>,
        endpoint: EndpointId,
    ) -> Option<(Partition, ParkedEvent)> {
        partitions
            .flat_map(|p| self.heads(p).map(move |head| (p, head)))
            .filter(|(_, (ep, head, _))| *ep == endpoint && !head.unknown)
            .min_by_key(|(_, (_, head, tried))| (*tried, head.lane))
            .map(|(p, (_, head, _))| (p, head))
    }

    pub(crate) fn unknown_head(&self, lane: LaneId) -> Option<ParkedEvent> {
        let (position, row) = self.head(lane)?;
        row.unknown.then(|| self.read(lane, position, row))
    }

    pub(crate) fn known(&self, delivery: DeliveryId) -> Known {
        if self.inbox.contains_key(&delivery) {
            return Known::Settled;
        }
        let all = self.attempts.get(&delivery);
        let attempts = all.map_or(0, |all| all.len() as u32);
        let open_intent = self.intents.contains(&(delivery, attempts + 1));
        match all.and_then(|all| Some((all.first()?, all.last()?))) {
            None if !open_intent => Known::New,
            None => Known::Tried(Tried {
                attempts: 0,
                first_at: Timestamp(0),
                last_end: Timestamp(0),
                open_intent,
            }),
            Some((first, last)) => Known::Tried(Tried {
                attempts,
                first_at: first.began,
                last_end: last.ended,
                open_intent,
            }),
        }
    }
}
