//! The topic and the relay before it: new records, repeats of a stretch, gaps, and bytes that are no record.

use super::{LogRecord, World};
use crate::event::{Delivery, Event, Lane};
use crate::mutants::Slip;
use crate::plan::Fault;
use crate::store::DeliveryInfo;
use crate::world::Happening;
use bytes::Bytes;
use laneway_lane::{Incoming, Known, Partition};
use laneway_wire::record::Head;
use laneway_wire::{DeliveryId, EventId, LaneId, LaneMode, Record, Timestamp};
use std::sync::Arc;
use uuid::Uuid;

impl World {
    pub(super) fn produce(&mut self) {
        if self.made < self.plan.deliveries {
            let at_once = self.producer.pick(&[1, 1, 1, 3, 8]);
            for _ in 0..at_once {
                if self.made < self.plan.deliveries {
                    self.produce_new();
                }
            }
        }
        if self.plan.has(Fault::Garbage) && self.producer.chance(8) {
            let partition = self.producer.range(0, i64::from(self.plan.partitions) - 1) as u32;
            let offset = self.append(partition, None);
            self.faults += 1;
            self.log(Event::Garbage { partition, offset });
        }
        if self.plan.has(Fault::Republish) && self.producer.chance(12) {
            self.republish();
        }
        let left = i64::from(self.plan.deliveries.saturating_sub(self.made)) + 1;
        let step = (self.plan.heal_at - self.now).max(0) / left + 1;
        let next = self.now + self.producer.range(1, 2 * step);
        if self.made < self.plan.deliveries || next < self.plan.heal_at {
            self.at(next, Happening::Produce);
        }
    }

    fn produce_new(&mut self) {
        let lanes = self.plan.lanes.len();
        let slot = self.producer.index(lanes).min(self.producer.index(lanes));
        let plan = &self.plan.lanes[slot];
        let index = self.made;
        self.made += 1;
        let time = 1_000 + u128::from(index);
        let event =
            EventId::from_uuid(Uuid::from_u128((time << 80) | (7 << 76) | (2 << 62) | time));
        let endpoint = self.store.endpoints[plan.endpoint].1.id;
        let id = DeliveryId::first(event, endpoint);
        let user_key = plan.keyed.then(|| format!("user_{slot}"));
        let mode = if plan.keyed { LaneMode::User } else { LaneMode::None };
        let lane_id = LaneId::of(endpoint, mode, user_key.as_deref(), id);
        let next_lane = self.store.lane_by_id.len() as Lane;
        let lane = *self.store.lane_by_id.entry(lane_id).or_insert(next_lane);
        let record = Record {
            head: Head {
                generation: 1,
                delivery: id.as_uuid(),
                event: event.as_uuid(),
                endpoint: endpoint.as_uuid(),
                tenant: Uuid::from_u128(7),
                mode,
                user_key,
                event_type: "a.b".into(),
                content_type: "application/json".into(),
                headers: Vec::new(),
                traceparent: None,
                source: "app".into(),
                row: i64::from(index),
                created_at: Timestamp(self.now),
                replay: 0,
                replay_of: None,
                erased: false,
            },
            payload: Bytes::from(vec![b'x'; self.producer.pick(&[10, 50, 200])]),
        };
        let partition = u32::from(lane_id.bucket().number()) % self.plan.partitions;
        let info = DeliveryInfo {
            record: Arc::new(record),
            lane_id,
            lane,
            endpoint: plan.endpoint,
            partition,
            slot,
            rejected: self.producer.chance(self.plan.rejects),
        };
        self.store.by_id.insert(id, index);
        self.store.deliveries.push(info);
        let endpoint = self.plan.lanes[slot].endpoint as u32;
        let offset = self.append(partition, Some(index));
        self.log(Event::Produced {
            partition,
            offset,
            delivery: index,
            lane,
            endpoint,
            first: true,
        });
    }

    /// The relay lost a cursor's save and publishes a stretch of the partition again.
    fn republish(&mut self) {
        let partition = self.producer.range(0, i64::from(self.plan.partitions) - 1) as u32;
        let records = &self.topic[partition as usize];
        if records.is_empty() {
            return;
        }
        let back = self.producer.range(1, 12) as usize;
        let from = records.len().saturating_sub(back);
        let to = from + self.producer.range(1, back as i64) as usize;
        let stretch: Vec<_> =
            records[from..to.min(records.len())].iter().filter_map(|r| r.delivery).collect();
        self.faults += 1;
        for delivery in stretch {
            let info = &self.store.deliveries[delivery as usize];
            let (lane, endpoint) = (info.lane, info.endpoint as u32);
            let offset = self.append(partition, Some(delivery));
            self.log(Event::Produced { partition, offset, delivery, lane, endpoint, first: false });
        }
    }

    fn append(&mut self, partition: Partition, delivery: Option<Delivery>) -> i64 {
        let gap = if self.producer.chance(6) { self.producer.range(1, 4) } else { 0 };
        let offset = self.end(partition) + gap;
        self.topic[partition as usize].push(LogRecord { offset, delivery, early: None });
        for instance in 0..self.processes.len() {
            self.kick(instance, partition);
        }
        offset
    }

    /// The offset behind the last record.
    pub(crate) fn end(&self, partition: Partition) -> i64 {
        self.topic[partition as usize].last().map_or(0, |record| record.offset + 1)
    }

    /// Records as the core wants them.
    pub(crate) fn incoming(&self, records: &[LogRecord], known: &[Known]) -> Vec<Incoming> {
        let mut known = known.iter();
        let one = |record: &LogRecord| match record.delivery {
            None => Incoming::Unreadable {
                offset: record.offset,
                reason: "bad_head",
                raw: Bytes::from_static(b"?"),
            },
            Some(delivery) => {
                let info = &self.store.deliveries[delivery as usize];
                let now = *known.next().expect("one fact for each delivery of an intake");
                Incoming::Delivery {
                    offset: record.offset,
                    record: info.record.clone(),
                    lane: info.lane_id,
                    known: record.early.unwrap_or(now),
                }
            }
        };
        let dropped = self.slips(Slip::GarbageDropped);
        let records = records.iter().filter(|record| !dropped || record.delivery.is_some());
        records.map(one).collect()
    }
}
