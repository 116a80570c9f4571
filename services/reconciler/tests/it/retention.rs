//! What is over goes, what is not final stays, whatever its age (C17).

use crate::world::World;
use laneway_store::retention::{
    Kind, inbox_day_remove, inbox_days_expired, inbox_default_step, retention_step,
};
use laneway_store::windows::{Window, window_tell, windows_contradict};
use laneway_testkit::{sql, wait_for};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3_600);

async fn run(world: &World, statement: &str) {
    sql(&world.url, statement).await.unwrap();
}

/// Removes what is older than ten days, of every kind.
async fn remove(world: &World) {
    for kind in Kind::ALL {
        while retention_step(&world.pool, kind, 10 * DAY).await.unwrap() > 0 {}
    }
}

async fn count(world: &World, table: &str) -> String {
    world.value(&format!("SELECT count(*)::text FROM laneway_control.{table}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_final_and_old_is_removed() {
    let world = World::new().await;
    world.dead_letters(4, 2).await;
    // One is closed long ago, one lately; two are open, and all are old.
    run(
        &world,
        "UPDATE laneway_control.dead_letters SET dead_at = now() - interval '90 days'; \
         UPDATE laneway_control.dead_letters SET state = 'rewound', closed_at = now() - interval '11 days' \
           WHERE place = (SELECT min(place) FROM laneway_control.dead_letters); \
         UPDATE laneway_control.dead_letters SET state = 'discarded', closed_at = now() - interval '1 day' \
           WHERE place = (SELECT max(place) FROM laneway_control.dead_letters)",
    )
    .await;
    // Attempts of 5,000 settled deliveries, of a waiting one, and of an open dead letter, all old.
    run(
        &world,
        "INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, class, took_ms, ended_at) \
           SELECT gen_random_uuid(), tenant_id, endpoint_id, 1, 2, 'http_5xx', 1, now() - interval '20 days' \
           FROM laneway_control.endpoints, generate_series(1, 5000); \
         INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
           SELECT delivery_id, tenant_id, endpoint_id, gen_random_uuid(), 1, 2, 1 FROM laneway_control.attempts",
    )
    .await;
    world.unknown(&world.record(9, "waits"), 1, Duration::ZERO).await;
    run(
        &world,
        "UPDATE laneway_control.attempts SET ended_at = now() - interval '20 days'; \
         INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, class, took_ms, ended_at) \
           SELECT delivery_id, tenant_id, endpoint_id, 1, 2, 'rejected', 1, now() - interval '20 days' \
           FROM laneway_control.dead_letters WHERE state = 'open'; \
         INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
           SELECT delivery_id, tenant_id, endpoint_id, event_id, 2, 1, 1 FROM laneway_control.dead_letters",
    )
    .await;
    // A command that waits, and one that was applied; answers old and young; entries of the audit log.
    run(
        &world,
        "INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor, created_at, \
           applied_at) SELECT tenant_id, gen_random_uuid(), '', 0, 'delivered', 'r', 'a', now() - interval '30 days', \
           CASE n WHEN 1 THEN now() - interval '29 days' END FROM laneway_control.projects, generate_series(1, 2) n; \
         INSERT INTO laneway_control.idempotency_keys (tenant_id, operation, key, fingerprint, status, body, created_at) \
           SELECT tenant_id, 'o', n::text, decode(repeat('00', 32), 'hex'), 200, '', now() - n * interval '6 days' \
           FROM laneway_control.projects, generate_series(1, 2) n; \
         INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, at) \
           SELECT tenant_id, 'a', 'x', 'o', now() - n * interval '6 days' \
           FROM laneway_control.projects, generate_series(1, 2) n",
    )
    .await;
    remove(&world).await;
    assert_eq!(count(&world, "dead_letters").await, "3");
    assert_eq!(count(&world, "dead_letters WHERE state = 'open'").await, "2");
    assert_eq!(count(&world, "attempts").await, "3", "of what waits, and of open dead letters");
    assert_eq!(count(&world, "commands").await, "1");
    assert_eq!(count(&world, "idempotency_keys").await, "1");
    assert_eq!(count(&world, "audit_log").await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_the_inbox_goes_only_when_nothing_can_come_again_from_it() {
    let world = World::new().await;
    run(&world, "SELECT laneway_control.inbox_make_partitions(20, 1)").await;
    let expired = inbox_days_expired(&world.pool, 10 * DAY).await.unwrap();
    assert_eq!(expired.len(), 10, "{expired:?}");
    let day = expired[0];
    // A row of the log that is as old.
    run(
        &world,
        &format!(
            "INSERT INTO laneway.outbox (tenant, type, payload, created_at) VALUES ('{}', 'a', '', '{day} 12:00:00+00')",
            world.tenant.as_uuid()
        ),
    )
    .await;
    assert!(!inbox_day_remove(&world.pool, day, DAY).await.unwrap());
    run(&world, "DELETE FROM laneway.outbox").await;
    // An event that waits with an id of that day.
    world.unknown(&world.record(1, "k"), 1, Duration::ZERO).await;
    run(
        &world,
        &format!("UPDATE laneway_control.parked_events SET delivery_id = laneway_control.inbox_bound('{day}')"),
    )
    .await;
    assert!(!inbox_day_remove(&world.pool, day, DAY).await.unwrap());
    assert!(inbox_day_remove(&world.pool, expired[1], DAY).await.unwrap(), "another day can go");
    run(&world, "DELETE FROM laneway_control.parked_events").await;
    // What a rewind sent today, under its command's time.
    run(
        &world,
        &format!(
            "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
             VALUES (laneway_control.inbox_bound('{day}'), '{}', gen_random_uuid(), gen_random_uuid(), 1, 1, 1)",
            world.tenant.as_uuid()
        ),
    )
    .await;
    assert!(!inbox_day_remove(&world.pool, day, DAY).await.unwrap());
    run(&world, "UPDATE laneway_control.inbox SET settled_at = now() - interval '2 days'").await;
    assert!(inbox_day_remove(&world.pool, day, DAY).await.unwrap());
    assert_eq!(inbox_days_expired(&world.pool, 10 * DAY).await.unwrap().len(), 8);
}

/// A dead letter outlives its day of the inbox; what was kept for its sake goes after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_outlived_its_day_of_the_inbox_goes_with_its_dead_letter() {
    let world = World::new().await;
    run(&world, "SELECT laneway_control.inbox_make_partitions(5, 1)").await;
    world.dead_letters(2, 1).await;
    world.unknown(&world.record(9, "waits"), 1, Duration::ZERO).await;
    let old = "UPDATE laneway_control.attempts SET ended_at = now() - interval '20 days'; \
               INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, class, took_ms, ended_at) \
                 SELECT delivery_id, tenant_id, endpoint_id, 1, 2, 'rejected', 1, now() - interval '20 days' \
                 FROM laneway_control.dead_letters; \
               INSERT INTO laneway_control.rewound (tenant_id, event_id, endpoint_id, number, delivery_id, of_delivery, \
                   rewind_id, created_at) \
                 SELECT tenant_id, gen_random_uuid(), endpoint_id, 1, delivery_id, gen_random_uuid(), gen_random_uuid(), \
                   now() - interval '20 days' FROM laneway_control.attempts; \
               INSERT INTO laneway_control.rewound (tenant_id, event_id, endpoint_id, number, delivery_id, of_delivery, \
                   rewind_id, created_at) \
                 SELECT tenant_id, gen_random_uuid(), endpoint_id, 1, laneway.uuid_v7(), gen_random_uuid(), \
                   gen_random_uuid(), now() - interval '20 days' FROM laneway_control.endpoints";
    run(&world, old).await;
    remove(&world).await;
    assert_eq!(count(&world, "attempts").await, "3", "of what waits, and of dead letters");
    assert_eq!(count(&world, "rewound").await, "4");
    run(
        &world,
        "UPDATE laneway_control.dead_letters SET state = 'discarded', closed_at = now() - interval '11 days' \
           WHERE place = (SELECT min(place) FROM laneway_control.dead_letters)",
    )
    .await;
    remove(&world).await;
    remove(&world).await;
    assert_eq!(count(&world, "attempts").await, "2", "its attempts went with it");
    assert_eq!(count(&world, "rewound").await, "3");
    run(
        &world,
        "DELETE FROM laneway_control.parked_events; DELETE FROM laneway_control.dead_letters",
    )
    .await;
    remove(&world).await;
    assert_eq!(count(&world, "attempts").await, "0");
    assert_eq!(count(&world, "rewound").await, "1", "of a day that is still there");
}

/// A lock that is never waited for is never had where transactions overlap all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_day_goes_while_the_inbox_is_written_all_the_time() {
    let world = World::new().await;
    run(&world, "SELECT laneway_control.inbox_make_partitions(20, 1)").await;
    let writers: Vec<_> = (0..6)
        .map(|n| {
            let url = world.url.clone();
            tokio::spawn(async move {
                let write = "BEGIN; INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, \
                             attempts, took_ms) SELECT laneway.uuid_v7(), gen_random_uuid(), gen_random_uuid(), \
                             gen_random_uuid(), 1, 1, 1; SELECT pg_sleep(0.06); COMMIT";
                // One after the other, so that there is always one in its middle.
                tokio::time::sleep(Duration::from_millis(12 * n)).await;
                loop {
                    sql(&url, write).await.unwrap();
                }
            })
        })
        .collect();
    let written = "SELECT count(*) > 20 FROM laneway_control.inbox";
    wait_for("writers", crate::world::LIMIT, || async { world.value(written).await == "t" }).await;
    let day = inbox_days_expired(&world.pool, 10 * DAY).await.unwrap()[0];
    let gone = inbox_day_remove(&world.pool, day, DAY).await.unwrap();
    for writer in &writers {
        assert!(!writer.is_finished(), "nobody was refused");
        writer.abort();
    }
    assert!(gone);
}

/// Ids that no day holds go by when their outcome was written.
#[tokio::test(flavor = "multi_thread")]
async fn outcomes_in_the_default_partition_go_when_nothing_can_come_again() {
    let world = World::new().await;
    run(
        &world,
        "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms, \
           settled_at) SELECT ('ffffffff-0000-8000-8000-00000000000' || n)::uuid, tenant_id, endpoint_id, \
           gen_random_uuid(), 1, 2, 5, now() - CASE n WHEN 3 THEN interval '1 day' ELSE interval '20 days' END \
           FROM laneway_control.endpoints, generate_series(1, 4) n; \
         INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, class, took_ms, ended_at) \
           SELECT delivery_id, tenant_id, endpoint_id, 1, 2, 'http_5xx', 1, settled_at FROM laneway_control.inbox; \
         INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, tenant_id, \
           endpoint_id, event_id, first_held, record) SELECT 7, delivery_id, '', 1, 0, 1, tenant_id, endpoint_id, event_id, \
           now(), '' FROM laneway_control.inbox WHERE delivery_id::text LIKE '%4'",
    )
    .await;
    let old = format!(
        "INSERT INTO laneway.outbox (tenant, type, payload, created_at) \
         VALUES ('{}', 'a', '', now() - interval '20 days')",
        world.tenant.as_uuid()
    );
    run(&world, &old).await;
    assert_eq!(inbox_default_step(&world.pool, 10 * DAY).await.unwrap(), 0, "an outbox is as old");
    run(&world, "DELETE FROM laneway.outbox").await;
    assert_eq!(inbox_default_step(&world.pool, 10 * DAY).await.unwrap(), 2);
    assert_eq!(inbox_default_step(&world.pool, 10 * DAY).await.unwrap(), 0);
    assert_eq!(count(&world, "inbox").await, "2", "one is young, one waits");
    assert_eq!(count(&world, "attempts").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_outcome_goes_while_another_window_says_that_it_is_needed() {
    let world = World::new().await;
    run(&world, "SELECT laneway_control.inbox_make_partitions(20, 1)").await;
    let days = || async { inbox_days_expired(&world.pool, 14 * DAY).await.unwrap().len() };
    assert_eq!(days().await, 6);
    window_tell(&world.pool, Window::Outbox, "shop", 15 * DAY).await.unwrap();
    window_tell(&world.pool, Window::Outbox, "control", 4 * DAY).await.unwrap();
    window_tell(&world.pool, Window::Horizon, "deliver-1", 5 * DAY).await.unwrap();
    let found = windows_contradict(&world.pool, 14 * DAY).await.unwrap();
    let found: Vec<_> = found.iter().map(|one| (one.reason, one.owner.as_str())).collect();
    let wanted =
        [("inbox_not_longer_than_outbox", "shop"), ("outbox_shorter_than_horizon", "control")];
    assert_eq!(found, wanted);
    let one = world.start();
    let told = "laneway_windows_contradicting{reason=\"inbox_not_longer_than_outbox\"} 1";
    wait_for("the alert", crate::world::LIMIT, || async {
        let text = one.ctx.registry.encode();
        text.contains(told) && text.contains("laneway_inbox_days_overdue 6")
    })
    .await;
    one.stop().await;
    assert_eq!(days().await, 6, "refused");
    // Set right: the last word counts.
    window_tell(&world.pool, Window::Outbox, "shop", 4 * DAY).await.unwrap();
    let one = world.start();
    wait_for("old days that go", crate::world::LIMIT, || async { days().await == 0 }).await;
    one.stop().await;
}

/// Of an endpoint that orders nothing: the record has no user key, the event's row has one.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_without_a_user_key_is_found_by_its_user_when_its_row_is_gone() {
    let world = World::new().await;
    let tenant = world.tenant.as_uuid();
    let emit = format!("SELECT laneway.emit('{tenant}', 'order.created', 'ann', '{{}}')");
    let event = world.value(&emit).await;
    let mut record = world.record(1, "");
    record.head.user_key = None;
    record.head.mode = laneway_wire::LaneMode::None;
    record.head.event = event.parse().unwrap();
    record.head.delivery = laneway_wire::DeliveryId::first(
        laneway_wire::EventId::from_uuid(record.head.event),
        world.endpoint,
    )
    .as_uuid();
    record.head.row = world.value("SELECT id FROM laneway.outbox").await.parse().unwrap();
    let bytes: String = record.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    let dead = format!(
        "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, event_type, reason, \
           attempts, record, first_held) VALUES ('{tenant}', '{}', '{event}', '{}', '', 'order.created', 'rejected', 1, \
           '\\x{bytes}', now())",
        record.head.delivery, record.head.endpoint
    );
    run(&world, &dead).await;
    let one = world.start();
    let key = "SELECT user_key FROM laneway_control.dead_letters";
    wait_for("its user", crate::world::LIMIT, || async { world.value(key).await == "ann" }).await;
    one.stop().await;
    run(&world, "DELETE FROM laneway.outbox").await;
    let found = laneway_store::erasures::erasure_preview(&world.pool, world.tenant, Some("ann"));
    assert_eq!(found.await.unwrap().dead_letters, 1);
}
