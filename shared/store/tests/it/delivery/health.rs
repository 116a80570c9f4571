//! One probe a second over all instances (A7, P7), by compare-and-set.

use super::{NOW, World, append, lane, park, parked};
use laneway_lane::SettleItem;
use laneway_store::delivery::{
    endpoint_disable, endpoints_changed, endpoints_load, health_degrade, health_probe_claim,
    health_probe_ended, health_read,
};
use laneway_testkit::sql;
use laneway_wire::Timestamp;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);

async fn make_free(world: &World) {
    sql(&world.url, "UPDATE laneway_control.endpoint_health SET probe_until = now()")
        .await
        .unwrap();
}

#[tokio::test]
async fn one_of_two_claims_wins_and_only_the_claimed_version_counts() {
    let world = World::new().await;
    let record = world.record(1, "k");
    world.settle(&[park(&record, 1)]).await;
    assert!(health_read(&world.pool).await.unwrap().degraded.is_empty());
    assert!(health_degrade(&world.pool, world.endpoint).await.unwrap());
    assert!(!health_degrade(&world.pool, world.endpoint).await.unwrap());
    let early = health_probe_claim(&world.pool, world.endpoint, &[0, 1], TIMEOUT).await.unwrap();
    assert!(early.head.is_none(), "the first probe comes a second later");
    make_free(&world).await;
    let (a, b) = tokio::join!(
        health_probe_claim(&world.pool, world.endpoint, &[0, 1], TIMEOUT),
        health_probe_claim(&world.pool, world.endpoint, &[0, 1], TIMEOUT)
    );
    let mut heads: Vec<_> = [a.unwrap(), b.unwrap()].into_iter().filter_map(|c| c.head).collect();
    assert_eq!(heads.len(), 1);
    let (partition, event, version) = heads.remove(0);
    assert_eq!((partition, event.lane), (0, lane(&record)));
    assert!(!health_probe_ended(&world.pool, world.endpoint, version - 1, true).await.unwrap());
    assert!(health_probe_ended(&world.pool, world.endpoint, version, false).await.unwrap());
    let view = health_read(&world.pool).await.unwrap();
    assert_eq!(view.degraded.len(), 1);
    assert!(view.degraded[0].1 > view.read_at);
    make_free(&world).await;
    let claim = health_probe_claim(&world.pool, world.endpoint, &[0], TIMEOUT).await.unwrap();
    let (_, _, version) = claim.head.unwrap();
    assert!(claim.probe_until > view.read_at + TIMEOUT);
    assert!(health_probe_ended(&world.pool, world.endpoint, version, true).await.unwrap());
    assert!(health_read(&world.pool).await.unwrap().degraded.is_empty());
}

#[tokio::test]
async fn probes_go_round_and_nothing_is_claimed_without_a_head() {
    let world = World::new().await;
    let records: Vec<_> = (0..3).map(|n| world.record(n, &format!("k{n}"))).collect();
    let never = SettleItem::Park {
        lane: lane(&records[1]),
        head: parked(&records[1], 2, 0),
        reason: "endpoint_degraded",
        attempt: None,
    };
    world.settle(&[park(&records[0], 1), never, append(&world.record(9, "k1"), 3)]).await;
    health_degrade(&world.pool, world.endpoint).await.unwrap();
    make_free(&world).await;
    let nobody = health_probe_claim(&world.pool, world.endpoint, &[1], TIMEOUT).await.unwrap();
    assert!(nobody.head.is_none());
    let first = health_probe_claim(&world.pool, world.endpoint, &[0], TIMEOUT).await.unwrap();
    let (_, head, version) = first.head.unwrap();
    assert_eq!(head.lane, lane(&records[1]), "never tried goes first");
    world
        .settle(&[SettleItem::Failed {
            lane: head.lane,
            record: Arc::clone(&head.record),
            attempt: super::attempt(1),
            parked_due: Some(NOW),
            unknown: false,
        }])
        .await;
    health_probe_ended(&world.pool, world.endpoint, version, false).await.unwrap();
    make_free(&world).await;
    let second = health_probe_claim(&world.pool, world.endpoint, &[0], TIMEOUT).await.unwrap();
    assert_eq!(second.head.unwrap().1.lane, lane(&records[0]));
}

#[tokio::test]
async fn endpoints_are_found_by_id_and_by_change_and_disabled_once_with_an_audit_entry() {
    let world = World::new().await;
    let row = endpoints_load(&world.pool, &[world.endpoint]).await.unwrap().remove(0);
    assert_eq!((row.timeout, row.max_connections, row.revision), (TIMEOUT, 16, 1));
    let (now, rows) = endpoints_changed(&world.pool, Timestamp(0)).await.unwrap();
    assert_eq!(rows.len(), 1);
    let (_, rows) = endpoints_changed(&world.pool, now + TIMEOUT).await.unwrap();
    assert!(rows.is_empty());
    assert!(endpoint_disable(&world.pool, world.endpoint, "gone", "deliver").await.unwrap());
    assert!(!endpoint_disable(&world.pool, world.endpoint, "gone", "deliver").await.unwrap());
    let (_, rows) = endpoints_changed(&world.pool, now).await.unwrap();
    assert_eq!((rows[0].revision, rows[0].state), (2, laneway_lane::EndpointState::Disabled));
    assert_eq!(world.value("SELECT count(*)::text FROM laneway_control.audit_log").await, "1");
}

/// A7: one lane that cannot be read does not keep its endpoint degraded for ever.
#[tokio::test]
async fn a_probe_passes_over_a_head_that_cannot_be_read() {
    let world = World::new().await;
    let records: Vec<_> = (0..3).map(|n| world.record(n, &format!("k{n}"))).collect();
    let items: Vec<_> = records.iter().zip(0..).map(|(record, n)| park(record, n)).collect();
    world.settle(&items).await;
    let bad = "UPDATE laneway_control.parked_events SET record = '\\x01' WHERE log_offset < 2; \
               UPDATE laneway_control.parked_lanes SET last_tried = NULL";
    sql(&world.url, bad).await.unwrap();
    health_degrade(&world.pool, world.endpoint).await.unwrap();
    make_free(&world).await;
    let claim = health_probe_claim(&world.pool, world.endpoint, &[0, 1], TIMEOUT).await.unwrap();
    assert_eq!(claim.head.unwrap().1.lane, lane(&records[2]));
}
