//! P8, I22: where the horizon of what waits begins, as the rows tell it.

use super::{World, append, attempt, lane, parked};
use laneway_lane::{FinalOutcome, ParkedEvent, SettleItem};
use laneway_store::delivery::{parked_due_load, parked_expired_load, parked_page_load};
use laneway_testkit::sql;
use laneway_wire::{Record, Timestamp};
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

impl World {
    async fn clock(&self) -> Timestamp {
        let now = self.value("SELECT ceil(extract(epoch FROM now()) * 1000)::bigint::text").await;
        Timestamp(now.parse().unwrap())
    }

    async fn set_state(&self, state: &str) {
        let update = format!("UPDATE laneway_control.endpoints SET state = '{state}'");
        sql(&self.url, &update).await.unwrap();
    }

    /// Makes it as if what happened so far had happened `hours` earlier.
    async fn pass(&self, hours: u32) {
        for update in [
            "UPDATE laneway_control.endpoints SET disabled_at = disabled_at - $ , enabled_at = enabled_at - $",
            "UPDATE laneway_control.parked_events SET first_held = first_held - $",
            "UPDATE laneway_control.parked_lanes SET head_held = head_held - $, clock_from = clock_from - $",
        ] {
            let update = update.replace('$', &format!("interval '{hours} h'"));
            sql(&self.url, &update).await.unwrap();
        }
    }

    async fn head(&self, record: &Record) -> ParkedEvent {
        parked_page_load(&self.pool, lane(record), None, 1).await.unwrap().events.remove(0)
    }

    /// Lanes of partition 0 whose heads wait for longer than `hours`.
    async fn expired(&self, hours: u32) -> Vec<laneway_wire::LaneId> {
        let before = self.clock().await - HOUR * hours;
        let (heads, _) = parked_expired_load(&self.pool, 0, before, 10).await.unwrap();
        heads.iter().map(|head| head.lane).collect()
    }
}

fn park_since(record: &Arc<Record>, at: Timestamp, attempts: u32, unknown: bool) -> SettleItem {
    let mut head = parked(record, 1, attempts);
    (head.first_held, head.due, head.unknown) = (at, at, unknown);
    SettleItem::Park { lane: lane(record), head, reason: "retry", attempt: None }
}

fn failed(record: &Arc<Record>, number: u32, unknown: bool) -> SettleItem {
    SettleItem::Failed {
        lane: lane(record),
        record: Arc::clone(record),
        attempt: attempt(number),
        parked_due: Some(Timestamp(0)),
        unknown,
    }
}

fn delivered(record: &Arc<Record>) -> SettleItem {
    SettleItem::Final {
        lane: lane(record),
        record: Arc::clone(record),
        outcome: FinalOutcome::Delivered,
        attempts: 1,
        first_held: Timestamp(0),
        attempt: None,
        status: Some(200),
        took: Duration::ZERO,
        parked: true,
        may_unpark: true,
        command: None,
    }
}

fn near(at: Timestamp, wanted: Timestamp) -> bool {
    let (early, late) = (wanted - Duration::from_secs(60), wanted + Duration::from_secs(60));
    (early..=late).contains(&at)
}

#[tokio::test]
async fn what_waited_behind_an_unknown_has_its_whole_horizon_also_after_its_first_failure() {
    let world = World::new().await;
    let now = world.clock().await;
    let (first, second) = (world.record(1, "k"), world.record(2, "k"));
    let SettleItem::Append { lane: id, mut event } = append(&second, 2) else { unreachable!() };
    event.first_held = now;
    world.settle(&[park_since(&first, now, 1, true), SettleItem::Append { lane: id, event }]).await;
    world.pass(100).await;
    world.settle(&[delivered(&first)]).await;
    assert!(world.expired(72).await.is_empty(), "its horizon begins when the unknown ends");
    for _ in 0..2 {
        world.settle(&[failed(&second, 1, false)]).await;
        assert!(world.expired(72).await.is_empty(), "and its first failure does not change that");
    }
    let due = parked_due_load(&world.pool, 0, world.endpoint, None, now, 10).await.unwrap();
    assert!(near(due.heads[0].first_held, now));
    world.pass(73).await;
    assert_eq!(world.expired(72).await, [id]);
}

#[tokio::test]
async fn while_an_endpoint_is_disabled_no_horizon_runs_of_what_was_tried_nor_of_what_was_not() {
    let world = World::new().await;
    let now = world.clock().await;
    let [tried, never, held] = [1, 2, 3].map(|n| world.record(n, &format!("k{n}")));
    world
        .settle(&[
            park_since(&tried, now, 1, false),
            park_since(&never, now, 0, false),
            park_since(&held, now, 1, false),
        ])
        .await;
    world.pass(50).await;
    world.set_state("disabled").await;
    world.pass(100).await;
    assert!(world.expired(72).await.is_empty());
    world.set_state("enabled").await;
    assert!(world.expired(72).await.is_empty());
    assert!(near(world.head(&tried).await.first_held, now - 50 * HOUR), "100 hours stood");
    let head = world.head(&never).await;
    assert!(near(head.first_held.max(head.clock_from), now), "it begins when it is enabled");

    world.settle(&[failed(&never, 1, false), failed(&held, 2, true)]).await;
    world.pass(10).await;
    world.set_state("disabled").await;
    world.pass(30).await;
    world.set_state("enabled").await;
    assert!(near(world.head(&tried).await.first_held, now - 60 * HOUR));
    assert!(near(world.head(&never).await.first_held, now - 10 * HOUR));
    let release = SettleItem::ReleaseUnknown {
        lane: lane(&held),
        delivery: held.head.delivery_id(),
        first_held: now - 50 * HOUR,
        due: now,
        command: 1,
    };
    world.settle(&[release]).await;
    let head = world.head(&held).await;
    assert!(near(head.first_held, now - 50 * HOUR), "time on hold is told by the release alone");
    world.pass(15).await;
    assert_eq!(world.expired(72).await, [lane(&tried)]);
    world.settle(&[failed(&tried, 2, false)]).await;
    assert_eq!(world.expired(72).await, [lane(&tried)]);
}

#[tokio::test]
async fn an_endpoint_that_was_disabled_before_the_schema_knew_of_it_is_enabled_all_the_same() {
    let world = World::new().await;
    world.set_state("disabled").await;
    sql(&world.url, "UPDATE laneway_control.endpoints SET disabled_at = NULL").await.unwrap();
    world.set_state("enabled").await;
    let stood = world.value("SELECT stood_ms::text FROM laneway_control.endpoints").await;
    assert_eq!(stood, "0");
}
