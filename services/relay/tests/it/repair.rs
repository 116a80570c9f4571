//! What the audit misses is published again as what it was.

use crate::support::{LIMIT, World, wait_until_passed};
use laneway_store::audit::{Scope, audit, repair};
use laneway_testkit::wait_for;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_repaired_delivery_is_the_first_one_again_and_the_window_is_told() {
    let world = World::new().await;
    let (tenant, _) = world.tenant().await;
    world
        .sql("UPDATE laneway_control.subscriptions SET created_at = now() - interval '1 day'")
        .await;
    let mut settings = world.settings();
    settings.relay.upkeep = Duration::from_secs(1);
    let relay = world.start_with(settings);
    world.emit(tenant, "u1", "one").await;
    wait_until_passed(&world).await;
    let mut log = world.log().await;
    log.read_until("the first record", |log| log.records.len() == 1).await;
    let scope = Scope { window: Duration::from_secs(3_600), settled: Duration::from_millis(1) };
    let missing = || async {
        let found = audit(&world.pool, scope).await.unwrap().expect("no other audit");
        found.into_iter().filter(|finding| finding.count > 0).collect::<Vec<_>>()
    };
    assert_eq!(missing().await, [], "it waits in the topic");
    world.sql("UPDATE laneway_control.partition_owners SET next_offset = 1").await;
    let mut found = missing().await;
    assert_eq!((found.len(), found[0].check), (1, "outcome_missing"));
    repair(&world.pool, scope, "ann", &mut found).await.unwrap();
    assert_eq!(found[0].repaired, 1);
    log.read_until("the repeat", |log| log.records.len() == 2).await;
    let [first, again] = [0, 1].map(|at| log.records[at].2.clone());
    assert_eq!((again.head.delivery, again.head.replay), (first.head.delivery, 0));
    assert_eq!((again.head.replay_of, again.head.lane()), (None, first.head.lane()));
    assert_eq!(again.payload, first.payload);
    let told = "SELECT coalesce(sum(window_ms / 3600000), 0)::bigint FROM laneway_control.windows WHERE what = 'outbox'";
    wait_for("the window", LIMIT, || async { world.number(told).await == 96 }).await;
    relay.stop().await;
}
