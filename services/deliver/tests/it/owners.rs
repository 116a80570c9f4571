//! Who owns what: kills, take-overs, fences, a lost database, a lost topic.

use crate::world::{LIMIT, S, World};
use laneway_testkit::{Behaviour, Rule, Stack, sql, wait_for};
use std::time::{Duration, Instant};

const OWNED: &str = "SELECT count(*)::text FROM laneway_control.partition_owners WHERE state = 'owned' AND owner = 'two'";

/// P1, P2, P5, I3: a restart replays the window, and attempts go on where they were recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_owner_is_replaced_and_attempts_go_on_from_the_recorded_ones() {
    let world = World::with_short_lease().await;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(503)).header("x-key", "bad")]);
    let mut records = vec![world.record(endpoint, "bad"), world.record(endpoint, "bad")];
    records.extend((0..200).map(|n| world.record(endpoint, &format!("u{}", n % 20))));
    let first = world.start("one");
    world.produce(&records).await;
    world.wait_settled(200).await;
    let attempts = "SELECT (max(number) >= 2)::text FROM laneway_control.attempts";
    world.wait_value(attempts, "true").await;
    let before = world.requests().len();
    let killed = Instant::now();
    first.kill();
    let _second = world.start("two");
    world.wait_value(OWNED, "4").await;
    // Lease 3 s, timeouts 2 s, session 6 s, and what the group needs to come together.
    assert!(killed.elapsed() >= 3 * S, "an unclean partition is watched first");
    assert!(killed.elapsed() < 30 * S, "{:?}", killed.elapsed());
    world.receiver.set_rules(vec![]);
    world.wait_settled(202).await;
    world.check_order(&records);
    let tries: Vec<_> = world.requests_of(&records[0]).iter().map(|e| e.attempt.unwrap()).collect();
    assert!(tries.is_sorted() && *tries.last().unwrap() >= 3, "{tries:?}");
    // What was sent after the kill is the lane's own two, once more each at most.
    let after = world.requests().split_off(before);
    assert!(after.len() <= 4, "{}", after.len());
}

/// I49: a clean stop leaves nothing to wait for and repeats nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_owner_is_followed_at_once_and_nothing_is_repeated() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let records: Vec<_> =
        (0..300).map(|n| world.record(endpoint, &format!("u{}", n % 30))).collect();
    world
        .receiver
        .set_rules(vec![Rule::always(Behaviour::delayed(200, Duration::from_millis(30)))]);
    let first = world.start("one");
    world.produce(&records).await;
    wait_for("some requests", LIMIT, || async { world.requests().len() >= 60 }).await;
    first.stop().await;
    let _second = world.start("two");
    world.wait_settled(300).await;
    world.check_order(&records);
    assert_eq!(world.requests().len(), 300);
}

/// P13, I10: an owner that another one has replaced writes nothing more and counts it.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_owner_drops_everything_and_counts_it() {
    let world = World::with_short_lease().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let first = world.start("one");
    let records: Vec<_> = (0..20).map(|n| world.record(endpoint, &format!("u{n}"))).collect();
    world.produce(&records).await;
    world.wait_settled(20).await;
    // What a successor does, against the rules: without having watched.
    sql(
        &world.url,
        "UPDATE laneway_control.partition_owners SET epoch = nextval('laneway_control.epochs'), owner = 'ghost'",
    )
    .await
    .unwrap();
    let late: Vec<_> = (0..20).map(|n| world.record(endpoint, &format!("u{n}"))).collect();
    world.produce(&late).await;
    wait_for("all four fenced", LIMIT, || async { first.metric("laneway_fenced_total") >= 4.0 })
        .await;
    // The ghost renews nothing, so the partitions are taken again, after the watch.
    world.wait_settled(40).await;
    world.check_order(&records);
}

/// K9, P1, P3: members that come and go.
#[tokio::test(flavor = "multi_thread")]
async fn two_instances_share_the_partitions_and_hand_them_over_in_order() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let first = world.start("one");
    let mut records: Vec<_> =
        (0..400).map(|n| world.record(endpoint, &format!("u{}", n % 40))).collect();
    world.produce(&records[..200]).await;
    wait_for("some requests", LIMIT, || async { world.requests().len() > 20 }).await;
    let second = world.start("two");
    world.wait_value(OWNED, "2").await;
    world.produce(&records[200..]).await;
    world.wait_settled(400).await;
    second.stop().await;
    let more: Vec<_> = (0..100).map(|n| world.record(endpoint, &format!("u{}", n % 40))).collect();
    world.produce(&more).await;
    records.extend(more);
    world.wait_settled(500).await;
    world.check_order(&records);
    assert_eq!(world.requests().len(), 500);
    first.stop().await;
}

/// P1 of the fault table, P4: the database goes and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_costs_no_delivery() {
    let stack = Stack::private_postgres().await.unwrap();
    let mut world = World::on(&stack.fresh_database().await, stack.kafka()).await;
    world.settings.deliver.lease = 3 * S;
    let endpoint = world.endpoint("/a", "resend").await;
    let records: Vec<_> =
        (0..600).map(|n| world.record(endpoint, &format!("u{}", n % 60))).collect();
    world
        .receiver
        .set_rules(vec![Rule::always(Behaviour::delayed(200, Duration::from_millis(20)))]);
    let _deliver = world.start("one");
    world.produce(&records).await;
    wait_for("some requests", LIMIT, || async { world.requests().len() >= 100 }).await;
    stack.crash_postgres().await.unwrap();
    // Longer than the lease: everything has to stop by itself.
    tokio::time::sleep(4 * S).await;
    let stopped = world.requests().len();
    tokio::time::sleep(S).await;
    assert_eq!(world.requests().len(), stopped, "nothing starts without a lease");
    stack.start_postgres().await.unwrap();
    world.wait_settled(600).await;
    world.check_order(&records);
    // At most one repeat per lane (P5).
    assert!(world.requests().len() <= 660, "{}", world.requests().len());
}

/// K6, P4: the topic is deleted and made again; the relay's part, publishing again, is played here.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_made_again_begins_a_generation_and_loses_nothing() {
    let mut world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let records: Vec<_> = (0..60).map(|n| world.record(endpoint, &format!("u{}", n % 6))).collect();
    let deliver = world.start("one");
    world.produce(&records[..30]).await;
    world.wait_settled(30).await;
    assert!(world.admin.delete_topic(&world.topic).await.unwrap());
    wait_for("the topic to go", LIMIT, || async {
        matches!(world.admin.describe_topic(&world.topic).await, Ok(None))
    })
    .await;
    let spec = laneway_bus::TopicSpec::new(&world.topic, 4);
    wait_for("a new topic", LIMIT, || async {
        matches!(world.admin.create_topic(&spec).await, Ok(true))
    })
    .await;
    let generation = "SELECT max(generation)::text FROM laneway_control.topic_generations";
    world.wait_value(generation, "2").await;
    world.generation = 2;
    let again: Vec<_> = records
        .iter()
        .map(|record| {
            let mut record = record.clone();
            record.head.generation = 2;
            record
        })
        .collect();
    world.producer = laneway_bus::Producer::new(
        &laneway_bus::Connection::plaintext(&world.kafka),
        &world.topic,
        laneway_bus::ProducerSettings::default(),
    )
    .unwrap();
    world.produce(&again).await;
    world.wait_settled(60).await;
    world.check_order(&records);
    assert_eq!(world.requests().len(), 60, "what was settled is not sent again");
    let position = "SELECT sum(next_offset)::text FROM laneway_control.partition_owners \
                    WHERE generation = 2";
    world.wait_value(position, "60").await;
    deliver.stop().await;
}
