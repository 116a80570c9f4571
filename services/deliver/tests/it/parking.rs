//! Lanes that wait in PostgreSQL: parked, appended to, loaded, expired, rejected, discarded.

use crate::world::{LIMIT, S, World, gap};
use laneway_store::endpoints::endpoint_set_enabled;
use laneway_store::idempotency::{Answer, Work};
use laneway_testkit::{Behaviour, Door, Rule, sql, wait_for};
use std::time::Duration;

const PARKED: &str = "SELECT count(*)::text FROM laneway_control.parked_lanes";
const EVENTS: &str = "SELECT count(*)::text FROM laneway_control.parked_events";

/// A1, A4, P2, P4.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_lane_takes_what_follows_and_goes_on_in_order() {
    let mut world = World::new().await;
    world.settings.deliver.live_retry = Duration::ZERO;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(503)).header("x-key", "bad")]);
    let mut records: Vec<_> = (0..3).map(|_| world.record(endpoint, "bad")).collect();
    let _deliver = world.start("one");
    world.produce(&records).await;
    world.wait_value(EVENTS, "3").await;
    let later: Vec<_> =
        (0..40).map(|n| world.record(endpoint, if n % 2 == 0 { "bad" } else { "good" })).collect();
    world.produce(&later).await;
    records.extend(later);
    world.wait_value(EVENTS, "23").await;
    // Everything taken in is durable: the position does not wait for the lane (I9).
    let position = "SELECT sum(next_offset)::text FROM laneway_control.partition_owners";
    world.wait_value(position, "43").await;
    assert_eq!(world.value(PARKED).await, "1");
    world.receiver.set_rules(vec![]);
    world.wait_settled(43).await;
    world.wait_value(PARKED, "0").await;
    assert_eq!(world.value(EVENTS).await, "0");
    world.check_order(&records);
}

/// P3, P10: a lane that never succeeds holds neither its endpoint nor its partition.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_lane_blocks_nothing_and_is_parked_when_it_holds_the_window() {
    let mut world = World::new().await;
    world.settings.deliver.window_events = 400;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(500)).header("x-key", "dead")]);
    let mut records = vec![world.record(endpoint, "dead")];
    records.extend((0..2_000).map(|n| world.record(endpoint, &format!("user_{}", n % 400))));
    let _deliver = world.start("one");
    world.produce(&records).await;
    world.wait_settled(2_000).await;
    world.wait_value(PARKED, "1").await;
    world.check_order(&records);
}

/// C9, I30.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_delivery_becomes_a_dead_letter_and_its_lane_goes_on() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let records: Vec<_> = (0..3).map(|_| world.record(endpoint, "k")).collect();
    let poison = format!("{{\"row\":{}}}", records[1].head.row);
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(422)).body_contains(&poison)]);
    let deliver = world.start("one");
    world.produce(&records).await;
    world.wait_settled(3).await;
    world.check_order(&records);
    let dead =
        "SELECT reason || ' ' || last_status || ' ' || attempts FROM laneway_control.dead_letters";
    assert_eq!(world.value(dead).await, "rejected 422 1");
    let series =
        format!("laneway_dead_letters_total{{endpoint=\"{endpoint}\",reason=\"rejected\"}}");
    assert_eq!(deliver.metric(&series), 1.0, "{}", deliver.metrics());
}

/// P8, A8, I22.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_tried_beyond_the_horizon_is_dead_lettered() {
    let mut world = World::new().await;
    world.settings.deliver.horizon = 4 * S;
    world.settings.deliver.expiry_every = S;
    world.settings.deliver.live_retry = Duration::ZERO;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(503)).header("x-key", "bad")]);
    let records = [world.record(endpoint, "bad"), world.record(endpoint, "good")];
    let _deliver = world.start("one");
    world.produce(&records).await;
    let dead = "SELECT count(*)::text FROM laneway_control.dead_letters WHERE reason = 'expired'";
    world.wait_value(dead, "1").await;
    let tries = world.requests_of(&records[0]);
    assert!(tries.len() >= 2 && gap(&tries[0], tries.last().unwrap()) < 8.0);
    world.wait_value(PARKED, "0").await;
}

/// P3: a record that was damaged in the database stops its own lane, visibly, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_record_that_cannot_be_read_stops_its_own_lane_alone() {
    let mut world = World::new().await;
    world.settings.deliver.live_retry = Duration::ZERO;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(503))]);
    let records: Vec<_> = (0..4).map(|n| world.record(endpoint, &format!("u{n}"))).collect();
    let deliver = world.start("one");
    world.produce(&records).await;
    world.wait_value(EVENTS, "4").await;
    deliver.stop().await;
    let damage = format!(
        "UPDATE laneway_control.parked_events SET record = set_byte(record, 7, 0) WHERE delivery_id = '{}'; \
         UPDATE laneway_control.parked_lanes SET last_tried = NULL, due = now() - interval '1 hour' \
         WHERE lane = (SELECT lane FROM laneway_control.parked_events WHERE delivery_id = '{0}')",
        records[0].head.delivery
    );
    sql(&world.url, &damage).await.unwrap();
    world.receiver.set_rules(vec![]);
    let _deliver = world.start("two");
    world.wait_settled(3).await;
    world.wait_value(PARKED, "1").await;
    world.check_order(&records[1..]);
}

/// A7, P7, I18, I20.
#[tokio::test(flavor = "multi_thread")]
async fn a_degraded_endpoint_gets_one_request_a_second_until_it_answers() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(503))]);
    let records: Vec<_> = (0..60).map(|n| world.record(endpoint, &format!("u{n}"))).collect();
    let _deliver = world.start("one");
    world.produce(&records).await;
    let degraded = "SELECT count(*)::text FROM laneway_control.endpoint_health";
    world.wait_value(degraded, "1").await;
    world.wait_value(EVENTS, "60").await;
    let before = world.requests().len();
    wait_for("some probes", LIMIT, || async { world.requests().len() >= before + 4 }).await;
    let probes = world.requests();
    let probes = &probes[before..];
    for pair in probes[1..].windows(2) {
        assert!(gap(&pair[0], &pair[1]) > 0.95, "{}", gap(&pair[0], &pair[1]));
    }
    let lanes: std::collections::HashSet<_> = probes.iter().map(|e| &e.delivery_id).collect();
    assert_eq!(lanes.len(), probes.len(), "heads in turn");
    world.receiver.set_rules(vec![]);
    world.wait_settled(60).await;
    world.wait_value(PARKED, "0").await;
    world.wait_value(degraded, "0").await;
    world.check_order(&records);
}

/// I24; and what belongs to an endpoint that is deleted is discarded.
#[tokio::test(flavor = "multi_thread")]
async fn a_gone_endpoint_is_disabled_and_its_lanes_are_kept_until_it_is_deleted() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(410))]);
    let records: Vec<_> = (0..5).map(|n| world.record(endpoint, &format!("u{}", n % 2))).collect();
    let _deliver = world.start("one");
    world.produce(&records).await;
    let state = "SELECT state || ' ' || state_reason FROM laneway_control.endpoints";
    world.wait_value(state, "disabled gone").await;
    world.wait_value(EVENTS, "5").await;
    world.receiver.set_rules(vec![]);
    sql(
        &world.url,
        "UPDATE laneway_control.endpoints SET state = 'deleted', revision = revision + 1, updated_at = now()",
    )
    .await
    .unwrap();
    world.wait_settled(5).await;
    let discarded = "SELECT count(*)::text FROM laneway_control.inbox WHERE outcome = 3";
    assert_eq!(world.value(discarded).await, "5");
    world.wait_value(PARKED, "0").await;
    assert!(world.requests().len() <= 2);
}

/// I24: enabled again, what waited goes out in order, and the head that was answered with 410 first.
#[tokio::test(flavor = "multi_thread")]
async fn a_gone_endpoint_that_is_enabled_again_goes_on_in_order() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(410))]);
    let mut records: Vec<_> =
        (0..6).map(|n| world.record(endpoint, &format!("u{}", n % 2))).collect();
    let _deliver = world.start("one");
    world.produce(&records).await;
    let state = "SELECT state FROM laneway_control.endpoints";
    world.wait_value(state, "disabled").await;
    world.wait_value(EVENTS, "6").await;
    let later: Vec<_> = (0..6).map(|n| world.record(endpoint, &format!("u{}", n % 3))).collect();
    world.produce(&later).await;
    records.extend(later);
    world.wait_value(EVENTS, "12").await;
    let sent = world.requests().len();
    assert!(sent <= 2, "one of each lane that was under way at most: {sent}");
    world.receiver.set_rules(vec![]);
    let mut work = Work::begin(&world.pool, world.tenant).await.unwrap();
    assert!(endpoint_set_enabled(&mut work, endpoint, true, "ann", "it is back").await.unwrap());
    work.commit(&Answer { status: 200, body: vec![] }, None).await.unwrap();
    world.wait_settled(12).await;
    world.wait_value(PARKED, "0").await;
    world.check_order(&records);
    assert_eq!(world.requests().len(), sent + 12);
    let delivered = "SELECT count(*)::text FROM laneway_control.inbox WHERE outcome = 1";
    assert_eq!(world.value(delivered).await, "12");
}

/// P3, I21: an endpoint that answers nothing does not hold the others of its partitions.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_hangs_does_not_delay_others() {
    let world = World::new().await;
    let slow = world.endpoint("/slow", "resend").await;
    let quick = world.endpoint("/quick", "resend").await;
    world.receiver.set_rules(vec![Rule::path("/slow", Behaviour::Hang)]);
    let mut records = Vec::new();
    for n in 0..300 {
        records.push(world.record(slow, &format!("u{n}")));
        records.push(world.record(quick, &format!("u{n}")));
    }
    let _deliver = world.start("one");
    world.produce(&records).await;
    let quick = format!(
        "SELECT count(*)::text FROM laneway_control.inbox WHERE endpoint_id = '{}'",
        quick.as_uuid()
    );
    world.wait_value(&quick, "300").await;
    world.receiver.set_door(Door::Open);
}
