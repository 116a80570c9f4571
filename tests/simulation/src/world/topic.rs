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
        if self.plan.has(Fault::Garbage) && self.producer.chance(8) && !self.kafka.gone {
            let partition = self.producer.range(0, i64::from(self.plan.partitions) - 1) as u32;
            self.write_garbage(partition);
        }
        if self.plan.has(Fault::Republish) && self.producer.chance(12) && !self.kafka.gone {
            self.republish();
        }
        let left = i64::from(self.plan.deliveries.saturating_sub(self.made)) + 1;
        let step = (self.plan.heal_at - self.now).max(0) / left + 1;
        // Past the healing only what the relay could not take is left.
        let least = if step == 1 && self.plan.has(Fault::LogLoss) { 50 } else { 1 };
        let next = self.now + self.producer.range(least, 2 * step.max(least));
        if self.made < self.plan.deliveries || next < self.plan.heal_at {
            self.at(next, Happening::Produce);
        }
    }

    /// Somebody else writes to the topic.
    fn write_garbage(&mut self, partition: Partition) {
        // A stranger's record in the place of a lost one would hide the loss: a known limit.
        if self.hides_loss(partition) {
            return;
        }
        let offset = self.append(partition, None, self.store.topology.generation);
        self.faults += 1;
        self.log(Event::Garbage { partition, offset });
    }

    /// Whether the log ends before something that was acknowledged or read, and nobody has noticed yet.
    fn hides_loss(&self, partition: Partition) -> bool {
        let end = self.end(partition);
        let read = self.store.owners[partition as usize].next_offset;
        let marked = self.store.topology.marks[partition as usize] >= end;
        marked || read > end || self.kafka.writes_over(partition)
    }

    pub(super) fn produce_new(&mut self) {
        if self.made >= self.plan.deliveries {
            return;
        }
        let lanes = self.plan.lanes.len();
        let slot = self.producer.index(lanes).min(self.producer.index(lanes));
        let plan = &self.plan.lanes[slot];
        if !self.publishes(plan.endpoint) {
            return; // its relay has to look first
        }
        let (index, made) = (self.store.deliveries.len() as Delivery, self.made);
        self.made += 1;
        let time = 1_000 + u128::from(made);
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
                row: i64::from(made),
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
            erased: false,
        };
        self.store.by_id.insert(id, index);
        self.store.deliveries.push(info);
        self.publish_new(index);
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
            self.send_again(delivery);
        }
    }

    pub(super) fn append(
        &mut self,
        partition: Partition,
        delivery: Option<Delivery>,
        generation: u64,
    ) -> i64 {
        let gap = if self.producer.chance(6) { self.producer.range(1, 4) } else { 0 };
        let gap = if self.hides_loss(partition) { 0 } else { gap };
        let offset = self.end(partition) + gap;
        let erased = delivery.is_some_and(|of| self.store.deliveries[of as usize].erased);
        let record = LogRecord { offset, delivery, generation, erased, skip: false, early: None };
        self.topic[partition as usize].push(record);
        self.kafka.end[partition as usize] = offset + 1;
        for instance in 0..self.processes.len() {
            self.kick(instance, partition);
        }
        offset
    }

    /// The offset behind the last record.
    pub(crate) fn end(&self, partition: Partition) -> i64 {
        self.kafka.end[partition as usize]
    }

    /// A delivery's record as the topic has it.
    fn read(&self, delivery: Delivery, erased: bool) -> Arc<Record> {
        let record = self.store.record(delivery, erased);
        if !erased || !self.slips(Slip::ErasedNotMarked) {
            return record;
        }
        let mut record = Record::clone(&record);
        record.head.erased = false;
        Arc::new(record)
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
            Some(_) if record.skip => Incoming::Skip { offset: record.offset },
            Some(delivery) => {
                let info = &self.store.deliveries[delivery as usize];
                let now = *known.next().expect("one fact for each delivery of an intake");
                Incoming::Delivery {
                    offset: record.offset,
                    record: self.read(delivery, record.erased),
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
