//! P2, P4: what is committed is published, in lane order, whatever is held open meanwhile.

use crate::support::World;
use laneway_testkit::{sql, wait_for};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_row_is_published_byte_for_byte() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, endpoint) = world.tenant().await;
    let id = tenant.as_uuid();
    world
        .sql(&format!(
            "SELECT laneway.emit('{id}', 'order.created', 'u1', '{{\"a\": 1.0}}', 'text/plain', \
             '{{\"x-one\": \"1\"}}', NULL, '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01')"
        ))
        .await;
    let mut log = world.log().await;
    log.read_until("the record", |log| !log.records.is_empty()).await;
    let record = &log.records[0].2;
    assert_eq!(record.payload.as_ref(), br#"{"a": 1.0}"#);
    assert_eq!(record.head.generation, 1);
    assert_eq!(record.head.endpoint_id(), endpoint);
    assert_eq!(record.head.tenant_id(), tenant);
    assert_eq!(record.head.user_key.as_deref(), Some("u1"));
    assert_eq!(record.head.event_type, "order.created");
    assert_eq!(record.head.content_type, "text/plain");
    assert_eq!(record.head.headers, [("x-one".to_owned(), "1".to_owned())]);
    assert!(record.head.traceparent.as_ref().unwrap().starts_with("00-0af7651916cd43dd"));
    assert_eq!(record.head.source, "control");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_written_before_the_first_start_are_published_in_lane_order() {
    let world = World::new().await;
    let (tenant, endpoint) = world.tenant().await;
    for _ in 0..5 {
        world.emit_rows(tenant, 1_000, 50).await;
    }
    let mut settings = world.settings();
    settings.relay.page_rows = 300;
    let relay = world.start_with(settings);
    let rows = world.row_ids().await;
    assert_eq!(rows.len(), 5_000);
    wait_for("the topic", Duration::from_secs(30), || async {
        relay.context.readiness.report().ready
    })
    .await;
    let mut log = world.log().await;
    log.read_all(&rows, &[endpoint]).await;
    log.assert_lanes_in_order();
    assert_eq!(log.records.len(), 5_000, "nothing is published twice without a failure");
    relay.stop().await;
}

/// P2, P4: a session that began first and commits last holds nobody up, and none of its rows is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_held_open_stalls_nothing_and_its_rows_come_when_it_commits() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, endpoint) = world.tenant().await;
    world.sql("CREATE TABLE gate (open boolean)").await;
    let (url, id) = (world.url.clone(), tenant.as_uuid());
    let late = tokio::spawn(async move {
        sql(
            &url,
            &format!(
                "BEGIN; SELECT laneway.emit('{id}', 'late', 'late', 'first'); \
                 SAVEPOINT s; SELECT laneway.emit('{id}', 'late', 'late', 'second'); RELEASE s; \
                 SAVEPOINT t; SELECT laneway.emit('{id}', 'late', 'late', 'never'); ROLLBACK TO t; \
                 DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.02); END LOOP; END $$; \
                 SELECT laneway.emit('{id}', 'late', 'late', 'third'); COMMIT"
            ),
        )
        .await
    });
    wait_for("the open transaction", Duration::from_secs(10), || async {
        world.number("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid() AND datname = current_database()").await > 0
    })
    .await;
    // Others go on: several batches open and end beside the open transaction.
    let mut log = world.log().await;
    for round in 1..=5 {
        for number in 0..20 {
            world.emit(tenant, &format!("u{}", number % 4), &format!("{round}-{number}")).await;
        }
        let want = round * 20;
        log.read_until("rows of the others", |log| log.records.len() >= want).await;
    }
    assert!(log.records.iter().all(|(_, _, record)| record.head.event_type == "test.made"));
    world.sql("INSERT INTO gate VALUES (true)").await;
    late.await.unwrap().unwrap();
    log.read_until("the late rows", |log| log.records.len() >= 103).await;
    let late: Vec<_> = log
        .records
        .iter()
        .filter(|(_, _, record)| record.head.event_type == "late")
        .map(|(_, _, record)| record.payload.clone())
        .collect();
    assert_eq!(late, ["first", "second", "third"].map(|text| text.as_bytes()));
    log.assert_lanes_in_order();
    log.read_all(&world.row_ids().await, &[endpoint]).await;
    assert_eq!(log.records.len(), 103);
    relay.stop().await;
}

/// Ids are taken in one order and committed in the other, in one lane without a common lock: nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_commit_out_of_id_order_are_all_published() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, endpoint) = world.tenant().await;
    let id = tenant.as_uuid();
    let mut writers = Vec::new();
    for writer in 0..8 {
        let url = world.url.clone();
        writers.push(tokio::spawn(async move {
            for round in 0..15 {
                let pause = f64::from((writer * 7 + round * 3) % 11) / 200.0;
                let statement = format!(
                    "BEGIN; INSERT INTO laneway.outbox (tenant, type, user_key, payload) \
                     VALUES ('{id}', 'plain', 'same', '{writer}-{round}'); SELECT pg_sleep({pause}); \
                     INSERT INTO laneway.outbox (tenant, type, user_key, payload) \
                     VALUES ('{id}', 'plain', 'own{writer}', '{writer}-{round}'); COMMIT"
                );
                sql(&url, &statement).await.unwrap();
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let rows = world.row_ids().await;
    assert_eq!(rows.len(), 240);
    let mut log = world.log().await;
    log.read_all(&rows, &[endpoint]).await;
    assert_eq!(log.records.len(), 240);
    let same = laneway_wire::LaneId::derive(endpoint, laneway_wire::LaneMode::User, b"same");
    for (lane, rows) in log.first_occurrences() {
        assert!(lane == same || rows.is_sorted(), "lane {lane}: {rows:?}");
    }
    relay.stop().await;
}
