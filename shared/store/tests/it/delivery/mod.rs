//! Deliver's tables on a real PostgreSQL: every kind of settle item, fences, take-over, loads.

mod health;
mod horizon;
mod loads;
mod owners;
mod settle;

use bytes::Bytes;
use laneway_lane::{AttemptKind, AttemptRow, Epoch, NewParked, Partition, Position, SettleItem};
use laneway_store::delivery::{Group, GroupEnd, groups_write, owner_read, owner_take};
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, sql};
use laneway_wire::record::Head;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneId, LaneMode, Record, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A control database with one topic of two partitions, both taken.
pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) pool: Pool,
    pub(crate) endpoint: EndpointId,
    pub(crate) tenant: Uuid,
    pub(crate) epochs: [Epoch; 2],
}

impl World {
    pub(crate) async fn new() -> Self {
        let url = Stack::shared().await.fresh_database().await;
        let pool = Pool::connect(&url.as_str().into(), Options::new("test")).await.unwrap();
        migrate::control_migrate(&pool).await.unwrap();
        let (tenant, endpoint) = (Uuid::from_u128(7), EndpointId::from_uuid(Uuid::from_u128(8)));
        for statement in [
            "INSERT INTO laneway_control.topic_generations (generation, topic, topic_id, partitions, reason) \
             VALUES (1, 't', 'a', 2, 'created')"
                .to_owned(),
            "INSERT INTO laneway_control.partition_owners (generation, partition) VALUES (1, 0), (1, 1)".to_owned(),
            "INSERT INTO laneway_control.bucket_map (bucket, partition) SELECT b, b % 2 FROM generate_series(0, 1023) b"
                .to_owned(),
            format!("INSERT INTO laneway_control.projects (tenant_id, name) VALUES ('{tenant}', 'p')"),
            format!(
                "INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, timeout_ms, secret, since_version) \
                 VALUES ('{tenant}', '{}', 'http://127.0.0.1:1/', 2000, '', 1)",
                endpoint.as_uuid()
            ),
        ] {
            sql(&url, &statement).await.unwrap();
        }
        let mut world = Self { url, pool, endpoint, tenant, epochs: [0; 2] };
        world.epochs = [world.take(0).await, world.take(1).await];
        world
    }

    pub(crate) async fn take(&self, partition: Partition) -> Epoch {
        let seen = owner_read(&self.pool, partition).await.unwrap().unwrap();
        let second = Duration::from_secs(1);
        owner_take(&self.pool, partition, &seen, "me", second).await.unwrap().unwrap().epoch
    }

    /// The only value of a query's only row.
    pub(crate) async fn value(&self, query: &str) -> String {
        let rows = sql(&self.url, query).await.unwrap();
        rows[0][0].clone().unwrap_or_default()
    }

    pub(crate) fn record(&self, number: u32, key: &str) -> Arc<Record> {
        let event = EventId::from_uuid(Uuid::from_u128(
            0x019a_d2f0_0000_7000_8000_0000_0000_0000 + u128::from(number),
        ));
        Arc::new(Record {
            head: Head {
                generation: 1,
                delivery: DeliveryId::first(event, self.endpoint).as_uuid(),
                event: event.as_uuid(),
                endpoint: self.endpoint.as_uuid(),
                tenant: self.tenant,
                mode: LaneMode::User,
                user_key: Some(key.to_owned()),
                event_type: "order.created".into(),
                content_type: "application/json".into(),
                headers: vec![],
                traceparent: None,
                source: "app".into(),
                row: i64::from(number),
                created_at: Timestamp(1_796_000_000_000),
                replay: 0,
                replay_of: None,
                erased: false,
            },
            payload: Bytes::from_static(b"{}"),
        })
    }

    pub(crate) fn group<'a>(&self, partition: Partition, items: &'a [SettleItem]) -> Group<'a> {
        let epoch = self.epochs[partition as usize];
        Group { partition, epoch, generation: 1, next_offset: None, items, intake: &[] }
    }

    /// Writes the items of partition 0 and gives the lanes that were unparked.
    pub(crate) async fn settle(&self, items: &[SettleItem]) -> Vec<LaneId> {
        let written = groups_write(&self.pool, &[self.group(0, items)]).await.unwrap();
        match written.commit().await.unwrap().remove(0) {
            GroupEnd::Written { unparked, .. } => unparked,
            GroupEnd::Fenced => panic!("the epoch holds"),
        }
    }
}

pub(crate) const NOW: Timestamp = Timestamp(1_796_000_100_000);

pub(crate) fn lane(record: &Record) -> LaneId {
    record.head.lane()
}

pub(crate) fn attempt(number: u32) -> AttemptRow {
    AttemptRow {
        number,
        ended: NOW + Duration::from_secs(u64::from(number)),
        took: Duration::from_millis(120),
        kind: AttemptKind::Responded,
        status: Some(503),
        class: "http_5xx",
        body: Bytes::from_static(b"busy"),
    }
}

pub(crate) fn parked(record: &Arc<Record>, offset: i64, attempts: u32) -> NewParked {
    NewParked {
        position: Position { generation: 1, moves: 0, offset },
        record: Arc::clone(record),
        first_held: NOW,
        attempts,
        due: NOW + Duration::from_secs(4),
        unknown: false,
    }
}

pub(crate) fn park(record: &Arc<Record>, offset: i64) -> SettleItem {
    SettleItem::Park {
        lane: lane(record),
        head: parked(record, offset, 1),
        reason: "retry",
        attempt: Some(attempt(1)),
    }
}

pub(crate) fn append(record: &Arc<Record>, offset: i64) -> SettleItem {
    SettleItem::Append { lane: lane(record), event: parked(record, offset, 0) }
}
