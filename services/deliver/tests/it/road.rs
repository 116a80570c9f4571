//! The working road: from records of the topic to requests, lane by lane.

use crate::world::{LIMIT, World, gap};
use laneway_testkit::{Behaviour, Rule, wait_for};

/// P1, P2, P4, P5.
#[tokio::test(flavor = "multi_thread")]
async fn every_record_is_delivered_once_and_in_its_lanes_order() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let records: Vec<_> =
        (0..500).map(|n| world.record(endpoint, &format!("user_{}", n % 50))).collect();
    let deliver = world.start("one");
    world.produce(&records).await;
    world.wait_settled(500).await;
    world.check_order(&records);
    assert_eq!(world.requests().len(), 500, "nothing is sent twice");
    let sent = "SELECT sum(next_offset)::text FROM laneway_control.partition_owners";
    world.wait_value(sent, "500").await;
    deliver.stop().await;
    let released =
        "SELECT count(*)::text FROM laneway_control.partition_owners WHERE state = 'released'";
    assert_eq!(world.value(released).await, "4");
}

/// A3, A6, I17, I21.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_head_is_tried_after_1_2_and_4_seconds_and_blocks_only_its_lane() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![
        Rule::always(Behaviour::status(503)).header("x-key", "bad").up_to_attempt(3),
    ]);
    let mut records = vec![world.record(endpoint, "bad"), world.record(endpoint, "bad")];
    records.extend((0..100).map(|n| world.record(endpoint, &format!("user_{n}"))));
    let _deliver = world.start("one");
    world.produce(&records).await;
    wait_for("the other lanes", LIMIT, || async { world.receiver.journal().delivered() >= 100 })
        .await;
    assert!(world.requests_of(&records[0]).len() < 3, "the others did not wait for it");
    world.wait_settled(102).await;
    world.check_order(&records);
    let tries = world.requests_of(&records[0]);
    assert_eq!(tries.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), [1, 2, 3, 4].map(Some));
    for (n, step) in [1.0, 2.0, 4.0].into_iter().enumerate() {
        let waited = gap(&tries[n], &tries[n + 1]);
        assert!((step - 0.005..step * 1.2 + 1.0).contains(&waited), "step {n}: {waited}");
    }
    let attempts = format!(
        "SELECT string_agg(number || ' ' || class, ', ' ORDER BY number) FROM laneway_control.attempts \
         WHERE delivery_id = '{}'",
        records[0].head.delivery
    );
    assert!(world.value(&attempts).await.starts_with("1 http_5xx, 2 http_5xx, 3 http_5xx, 4 "));
}
