//! Routing by version: what is subscribed when a batch is read, and the same again when it is published again.

use crate::support::World;
use laneway_wire::LaneMode;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_committed_after_a_subscription_goes_to_it_and_one_before_does_not() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, first) = world.tenant().await;
    world.emit(tenant, "u1", "before").await;
    let mut log = world.log().await;
    log.read_until("the first", |log| log.records.len() == 1).await;
    let second = world.endpoint(tenant, "test.*", "none").await;
    let elsewhere = world.endpoint(tenant, "other.*", "user").await;
    world.emit(tenant, "u1", "after").await;
    log.read_until("both", |log| log.records.len() == 3).await;
    let seen: BTreeSet<_> = log
        .records
        .iter()
        .map(|(_, _, record)| (record.payload.clone(), record.head.endpoint_id()))
        .collect();
    let want: BTreeSet<_> = [("before", first), ("after", first), ("after", second)]
        .map(|(p, e)| (p.as_bytes().into(), e))
        .into();
    assert_eq!(seen, want);
    assert!(log.records.iter().all(|(_, _, record)| record.head.endpoint_id() != elsewhere));
    let modes: BTreeSet<_> = log
        .records
        .iter()
        .map(|(_, _, record)| {
            (record.head.endpoint_id() == second, record.head.mode == LaneMode::None)
        })
        .collect();
    assert_eq!(modes, [(false, false), (true, true)].into());
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_nobody_is_subscribed_to_are_passed() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, _) = world.tenant().await;
    let nobody = laneway_wire::TenantId::from_uuid(uuid::Uuid::now_v7());
    world.emit(nobody, "u1", "unheard").await;
    world.emit(tenant, "u1", "heard").await;
    crate::support::wait_until_passed(&world).await;
    let mut log = world.log().await;
    log.read_until("the heard one", |log| !log.records.is_empty()).await;
    assert_eq!(log.records.len(), 1);
    relay.stop().await;
}
