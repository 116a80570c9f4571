//! A promise broken by hand is found and named; a database that keeps them is clean.

use crate::world::World;
use laneway_store::audit::{Scope, audit, checks};
use laneway_testkit::sql;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneId, LaneMode};
use std::collections::BTreeMap;
use std::time::Duration;

/// Found by the last audit, without what found nothing.
async fn found(world: &World) -> BTreeMap<&'static str, u64> {
    let scope = Scope { window: Duration::from_secs(3_600), settled: Duration::from_millis(1) };
    let findings = audit(&world.pool, scope).await.unwrap().expect("no other audit");
    assert_eq!(findings.len(), checks().count());
    findings.iter().for_each(|f| assert!(f.count == 0 || !f.examples.is_empty(), "{f:?}"));
    findings.into_iter().filter(|f| f.count > 0).map(|f| (f.check, f.count)).collect()
}

async fn run(world: &World, statement: &str) {
    sql(&world.url, statement).await.unwrap();
}

/// A subscription that is older than what is emitted, and one delivered event; gives its delivery.
async fn delivered(world: &World) -> DeliveryId {
    run(
        world,
        "INSERT INTO laneway_control.subscriptions (tenant_id, subscription_id, endpoint_id, event_type, since_version, \
           created_at) SELECT tenant_id, gen_random_uuid(), endpoint_id, 'order.*', 1, now() - interval '1 day' \
         FROM laneway_control.endpoints",
    )
    .await;
    let emit =
        format!("SELECT laneway.emit('{}', 'order.created', 'k', '{{}}')", world.tenant.as_uuid());
    let event = EventId::from_uuid(world.value(&emit).await.parse::<uuid::Uuid>().unwrap());
    let delivery = DeliveryId::first(event, world.endpoint);
    run(
        world,
        &format!(
            "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
             VALUES ('{}', '{}', '{}', '{}', 1, 1, 5)",
            delivery.as_uuid(),
            world.tenant.as_uuid(),
            world.endpoint.as_uuid(),
            event.as_uuid()
        ),
    )
    .await;
    delivery
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_makes_delivery_ids_as_the_product_does() {
    let world = World::new().await;
    for n in 0..50u128 {
        let event = EventId::from_uuid(uuid::Uuid::from_u128(
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_0c41),
        ));
        let endpoint = EndpointId::from_uuid(uuid::Uuid::now_v7());
        let query = format!(
            "SELECT laneway_control.first_delivery_id('{}', '{}')::text",
            event.as_uuid(),
            endpoint.as_uuid()
        );
        let made = world.value(&query).await;
        assert_eq!(made, DeliveryId::first(event, endpoint).as_uuid().to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_deleted_is_found_and_named() {
    let world = World::new().await;
    let delivery = delivered(&world).await;
    assert_eq!(found(&world).await, BTreeMap::new());
    run(&world, "DELETE FROM laneway_control.inbox").await;
    assert_eq!(found(&world).await, BTreeMap::new(), "no relay has passed it: {delivery}");
    let passed =
        "UPDATE laneway.relay_cursors SET s1 = pg_current_snapshot(), s2 = pg_current_snapshot()";
    run(&world, passed).await;
    assert_eq!(found(&world).await, BTreeMap::from([("outcome_missing", 1)]));
    // Somebody has it: the relay holds it.
    run(
        &world,
        "INSERT INTO laneway.relay_held (shard, lane, row_id, endpoint, tenant, mode, reason) \
         SELECT o.shard, decode(repeat('00', 16), 'hex'), o.id, e.endpoint_id, o.tenant, 1, 'size' \
         FROM laneway.outbox o, laneway_control.endpoints e",
    )
    .await;
    assert_eq!(found(&world).await, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_broken_promise_has_its_name() {
    let world = World::new().await;
    world.dead_letters(2, 2).await;
    let without = BTreeMap::from([("dead_letter_without_outcome", 2)]);
    assert_eq!(found(&world).await, without);
    run(
        &world,
        "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
         SELECT delivery_id, tenant_id, endpoint_id, event_id, 2, 1, 5 FROM laneway_control.dead_letters",
    )
    .await;
    assert_eq!(found(&world).await, BTreeMap::new());
    run(&world, "DELETE FROM laneway_control.dead_letters WHERE user_key = 'k1'").await;
    assert_eq!(found(&world).await, BTreeMap::from([("dead_letter_missing", 1)]));
    run(&world, "DELETE FROM laneway_control.inbox; DELETE FROM laneway_control.dead_letters")
        .await;

    // A lane that waits: nobody owns its partition, then somebody does.
    world.unknown(&world.record(7, "k"), 1, Duration::ZERO).await;
    assert_eq!(found(&world).await, BTreeMap::from([("lane_without_owner", 1)]));
    run(
        &world,
        "INSERT INTO laneway_control.topic_generations (generation, topic, topic_id, partitions, reason) \
           VALUES (1, 't', 'a', 1, 'created'); \
         INSERT INTO laneway_control.partition_owners (generation, partition, state, updated_at) \
           VALUES (1, 0, 'owned', now() + interval '1 h')",
    )
    .await;
    assert_eq!(found(&world).await, BTreeMap::new());
    // Its head is damaged: a lane that waits for its time is nobody's business, one that is due is.
    let due = |damage: &str, due: &str| {
        let head = "overlay(record PLACING '\\x09' FROM 1)";
        format!(
            "UPDATE laneway_control.parked_events SET record = CASE WHEN {damage} THEN {head} ELSE \
               overlay(record PLACING '\\x01' FROM 1) END; \
             UPDATE laneway_control.parked_lanes SET unknown = false, due = now() + {due} * interval '1 h'"
        )
    };
    for (damage, hours, wanted) in [
        ("true", "1", BTreeMap::new()),
        ("true", "-1", BTreeMap::from([("lane_unreadable", 1)])),
        ("false", "-1", BTreeMap::new()),
    ] {
        run(&world, &due(damage, hours)).await;
        assert_eq!(found(&world).await, wanted, "{damage} {hours}");
    }
    // A second event in the same place: two heads.
    run(
        &world,
        "INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, tenant_id, \
           endpoint_id, event_id, first_held, record) SELECT bucket, gen_random_uuid(), lane, generation, moves, log_offset, \
           tenant_id, endpoint_id, event_id, first_held, record FROM laneway_control.parked_events",
    )
    .await;
    assert_eq!(found(&world).await, BTreeMap::from([("two_heads", 1)]));
    run(&world, "DELETE FROM laneway_control.parked_lanes").await;
    assert_eq!(found(&world).await, BTreeMap::from([("events_without_lane", 1), ("two_heads", 1)]));
    run(&world, "DELETE FROM laneway_control.parked_events").await;

    run(
        &world,
        "INSERT INTO laneway_control.intents (delivery_id, tenant_id, endpoint_id, number, epoch, deadline) \
         SELECT gen_random_uuid(), tenant_id, endpoint_id, 1, 1, now() - interval '1 s' FROM laneway_control.endpoints; \
         INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor) \
         SELECT tenant_id, gen_random_uuid(), '', 0, 'delivered', 'r', 'a' FROM laneway_control.endpoints",
    )
    .await;
    let wanted = BTreeMap::from([("command_not_applied", 1), ("intent_orphaned", 1)]);
    assert_eq!(found(&world).await, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_on_a_schedule_sets_the_gauges() {
    let mut world = World::new().await;
    world.settings.reconciler.audit_every = Duration::from_secs(1);
    world.settings.reconciler.audit_settled = Duration::from_secs(1);
    world.dead_letters(3, 2).await;
    let one = world.start();
    laneway_testkit::wait_for("the gauge", crate::world::LIMIT, || {
        let text = one.ctx.registry.encode();
        let found =
            text.contains("laneway_audit_violations{check=\"dead_letter_without_outcome\"} 3");
        async move { found }
    })
    .await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_audits_at_a_time_and_another_says_so() {
    let world = World::new().await;
    let url = world.url.clone();
    let other = tokio::spawn(async move {
        let hold =
            "SELECT pg_advisory_lock(hashtext('laneway_control.audit')); SELECT pg_sleep(600)";
        let _ = sql(&url, hold).await;
    });
    let held = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    laneway_testkit::wait_for("another audit", crate::world::LIMIT, || async {
        world.value(held).await == "1"
    })
    .await;
    let scope = Scope { window: Duration::from_secs(60), settled: Duration::from_secs(1) };
    assert_eq!(audit(&world.pool, scope).await.unwrap(), None);
    run(
        &world,
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .await;
    laneway_testkit::wait_for("its end", crate::world::LIMIT, || async {
        world.value(held).await == "0"
    })
    .await;
    assert!(audit(&world.pool, scope).await.unwrap().is_some());
    other.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_finds_buckets_as_the_product_does() {
    let world = World::new().await;
    let delivery = DeliveryId::from_uuid(uuid::Uuid::now_v7());
    for key in ["k", "ein längerer Schlüssel", ""] {
        let wanted = [
            LaneId::of(world.endpoint, LaneMode::User, Some(key), delivery),
            LaneId::of(world.endpoint, LaneMode::Total, Some(key), delivery),
            LaneId::of(world.endpoint, LaneMode::None, Some(key), delivery),
        ]
        .map(|lane| lane.bucket().number().to_string())
        .join(" ");
        let (e, d) = (world.endpoint.as_uuid(), delivery.as_uuid());
        let query = format!(
            "SELECT concat_ws(' ', laneway_control.lane_bucket('{e}', 1, convert_to('{key}', 'UTF8')), \
               laneway_control.lane_bucket('{e}', 2, ''), laneway_control.lane_bucket('{e}', 3, uuid_send('{d}')))"
        );
        assert_eq!(world.value(&query).await, wanted);
    }
}
