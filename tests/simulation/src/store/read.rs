//! Queries: what `deliver` reads outside its settle queues, and what the world asks at the end.

use super::{LaneRow, Store};
use crate::event::{Delivery, Lane, Time};
use laneway_lane::{EndpointState, Epoch, ParkedEvent, Partition, Position};
use laneway_wire::{EndpointId, LaneId, Record, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// Answer to a claim.
#[derive(Debug)]
pub struct Claim {
    /// Partition, epoch and head, if a probe was claimed.
    pub head: Option<(Partition, Epoch, ParkedEvent)>,
    /// What the claim wrote.
    pub version: Option<u64>,
    /// Nothing may be claimed before this.
    pub until: Timestamp,
}

impl Store {
    fn event(&self, row: &LaneRow, position: Position, delivery: Delivery) -> ParkedEvent {
        let event = &self.parked[&delivery];
        let head = row.events.keys().next() == Some(&position);
        let stands = self.standstill(row.endpoint);
        let unknown = head && row.unknown_since.is_some();
        // A held unknown's time stands by itself.
        let tried = event.attempts > 0 && !unknown;
        let moved = if tried { stands.stood.saturating_sub(row.stood) } else { Duration::ZERO };
        ParkedEvent {
            lane: row.id,
            position,
            record: self.record(delivery, event.erased),
            first_held: event.first_held + moved,
            clock_from: row.clock_from.max(stands.enabled),
            attempts: event.attempts,
            due: if head { row.due } else { Timestamp(0) },
            unknown,
            open_intent: self.intents.contains_key(&delivery),
            settled: self.inbox.contains_key(&delivery),
        }
    }

    /// A delivery's record, or what is left of it.
    pub fn record(&self, delivery: Delivery, erased: bool) -> Arc<Record> {
        let record = &self.deliveries[delivery as usize].record;
        if erased { Arc::new(record.erased()) } else { record.clone() }
    }

    /// The first waiting event of the lane that was written before that.
    pub fn waits(&self, lane: Lane, before: Timestamp) -> Option<Delivery> {
        let row = self.lanes.get(&lane)?;
        let older = |of: &&Delivery| self.deliveries[**of as usize].record.head.created_at < before;
        row.events.values().find(older).copied()
    }

    fn head(&self, row: &LaneRow) -> Option<ParkedEvent> {
        row.events.iter().next().map(|(position, delivery)| self.event(row, *position, *delivery))
    }

    fn waiting<'s>(
        &'s self,
        partitions: &'s [Partition],
        endpoint: Option<usize>,
    ) -> impl Iterator<Item = &'s LaneRow> {
        self.lanes.values().filter(move |row| {
            partitions.contains(&row.partition)
                && endpoint.is_none_or(|endpoint| row.endpoint == endpoint)
                && row.unknown_since.is_none()
                && !row.events.is_empty()
        })
    }

    /// Ids of parked lanes, in order.
    pub fn parked_lanes(&self, partition: Partition) -> Vec<(LaneId, EndpointId, Timestamp)> {
        self.lanes
            .values()
            .filter(|row| row.partition == partition)
            .map(|row| (row.id, self.endpoints[row.endpoint].1.id, row.due))
            .collect()
    }

    /// Heads of due lanes, whether there are more, and the next due time otherwise.
    pub fn due(
        &self,
        partition: Partition,
        endpoint: EndpointId,
        after: Option<(Timestamp, LaneId)>,
        until: Timestamp,
        limit: usize,
    ) -> (Vec<ParkedEvent>, bool, Option<Timestamp>) {
        let endpoint = self.endpoint_by_id[&endpoint];
        let of = [partition];
        let mut rows: Vec<_> = self.waiting(&of, Some(endpoint)).collect();
        rows.sort_by_key(|row| (row.due, row.id));
        let next_due = rows.iter().map(|row| row.due).find(|due| *due > until);
        let mut due = rows
            .into_iter()
            .filter(|row| row.due <= until && after.is_none_or(|after| (row.due, row.id) > after));
        let heads: Vec<_> = due.by_ref().take(limit).filter_map(|row| self.head(row)).collect();
        let more = due.next().is_some();
        (heads, more, if more { None } else { next_due })
    }

    /// Events of a lane behind a position, and whether there are more.
    pub fn page(
        &self,
        lane: LaneId,
        after: Option<Position>,
        limit: usize,
    ) -> (Vec<ParkedEvent>, bool) {
        let Some(row) = self.lanes.get(&self.lane_by_id[&lane]) else { return (Vec::new(), false) };
        let mut events =
            row.events.iter().filter(|(position, _)| after.is_none_or(|after| **position > after));
        let page =
            events.by_ref().take(limit).map(|(at, delivery)| self.event(row, *at, *delivery));
        (page.collect(), events.next().is_some())
    }

    /// Heads whose horizon began before `held_before`, and whether there are more.
    pub fn expired(
        &self,
        partition: Partition,
        held_before: Timestamp,
        limit: usize,
    ) -> (Vec<ParkedEvent>, bool) {
        let of = [partition];
        let takes =
            |row: &&LaneRow| self.endpoints[row.endpoint].1.state != EndpointState::Disabled;
        let mut heads =
            self.waiting(&of, None).filter(takes).filter_map(|row| self.head(row)).filter(|head| {
                let from = if head.attempts == 0 {
                    head.first_held.max(head.clock_from)
                } else {
                    head.first_held
                };
                from < held_before
            });
        let page: Vec<_> = heads.by_ref().take(limit).collect();
        (page, heads.next().is_some())
    }

    /// Claims a probe for the head least recently tried of these partitions.
    pub fn claim_probe(
        &mut self,
        now: Time,
        partitions: &[(Partition, Epoch)],
        endpoint: EndpointId,
        timeout: Duration,
    ) -> Claim {
        let none = |until| Claim { head: None, version: None, until };
        let index = self.endpoint_by_id[&endpoint];
        let Some((_, probe_until)) = self.health.get(&index).copied() else {
            return none(Timestamp(now));
        };
        if probe_until > Timestamp(now) {
            return none(probe_until);
        }
        let second = Duration::from_secs(1);
        let own: Vec<_> = partitions
            .iter()
            .filter(|(partition, epoch)| {
                let row = &self.owners[*partition as usize];
                row.epoch == *epoch && !row.released
            })
            .copied()
            .collect();
        let of: Vec<_> = own.iter().map(|(partition, _)| *partition).collect();
        let row = self.waiting(&of, Some(index)).min_by_key(|row| (row.last_tried, row.id));
        let Some((row, head)) = row.and_then(|row| Some((row, self.head(row)?))) else {
            return none(Timestamp(now) + second);
        };
        let epoch = own.iter().find(|(partition, _)| *partition == row.partition);
        let epoch = epoch.expect("its partition was asked for").1;
        let claim = (row.partition, epoch, head);
        let until = Timestamp(now) + timeout + second;
        self.versions += 1;
        self.health.insert(index, (self.versions, until));
        Claim { head: Some(claim), version: Some(self.versions), until }
    }

    /// The head of the delivery's lane if it is a held unknown.
    pub fn unknown_head(&self, delivery: Delivery) -> Option<ParkedEvent> {
        let row = self.lanes.get(&self.deliveries[delivery as usize].lane)?;
        let head = self.head(row)?;
        (head.unknown && row.events.values().next() == Some(&delivery)).then_some(head)
    }

    /// Held unknowns, each with the time since when.
    pub fn unknowns(&self) -> Vec<(Delivery, Timestamp)> {
        let held = |row: &LaneRow| Some((*row.events.values().next()?, row.unknown_since?));
        self.lanes.values().filter_map(held).collect()
    }

    /// Held unknowns, each with its number of attempts and when its request can have ended: the recorded end, or its begin
    /// and the endpoint's deadline.
    pub fn unknown_ends(&self) -> Vec<(Delivery, u32, Time)> {
        let ends = |(delivery, _): (Delivery, Timestamp)| {
            let attempts = self.parked.get(&delivery)?.attempts;
            let timeout = self.endpoints[self.deliveries[delivery as usize].endpoint].1.timeout;
            let rows = self.attempts.get(&delivery)?;
            let last = rows.iter().filter(|row| row.number == attempts);
            let end = last.map(|row| row.ended.max(row.began + timeout)).max()?;
            Some((delivery, attempts, end.0))
        };
        self.unknowns().into_iter().filter_map(ends).collect()
    }

    /// Lanes that have parked rows.
    pub fn parked_count(&self) -> usize {
        self.lanes.len()
    }

    /// Deliveries with an intent.
    pub fn intent_count(&self) -> usize {
        self.intents.len()
    }

    /// Whether a delivery has its final outcome.
    pub fn is_settled(&self, delivery: Delivery) -> bool {
        self.inbox.contains_key(&delivery)
    }

    /// Deliveries with a final outcome.
    pub fn settled_count(&self) -> usize {
        self.inbox.len()
    }
}
