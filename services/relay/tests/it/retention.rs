//! Old partitions go only when nothing can need them, and a late writer's row is not lost with one.

use crate::support::{World, wait_until_passed};
use laneway_testkit::{sql, wait_for};
use std::time::Duration;

async fn old_partition(world: &World, days: i32) -> String {
    world
        .sql(&format!(
            "SELECT laneway.outbox_partition_create((now() AT TIME ZONE 'UTC')::date - {days})"
        ))
        .await;
    world
        .sql(&format!(
            "SELECT 'outbox_' || to_char((now() AT TIME ZONE 'UTC')::date - {days}, 'YYYYMMDD')"
        ))
        .await[0][0]
        .clone()
        .unwrap()
}

async fn exists(world: &World, table: &str) -> bool {
    world.number(&format!("SELECT count(*) FROM pg_class WHERE relname = '{table}'")).await == 1
}

fn settings(world: &World) -> laneway_relay::Settings {
    let mut settings = world.settings();
    settings.relay.upkeep = Duration::from_secs(1);
    settings
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_partition_goes_when_its_deliveries_were_passed_and_a_late_row_is_not_lost() {
    let world = World::new().await;
    let (tenant, endpoint) = world.tenant().await;
    let id = tenant.as_uuid();
    let table = old_partition(&world, 7).await;
    world
        .sql(&format!(
            "INSERT INTO laneway.outbox (tenant, type, user_key, payload, created_at) \
             SELECT '{id}', 'old', 'u' || n % 5, 'x', now() - interval '7 days' FROM generate_series(1, 50) AS n"
        ))
        .await;
    let relay = world.start_with(settings(&world));
    wait_until_passed(&world).await;
    // A writer that began long ago and has not committed: its row lies in the old partition.
    world.sql("CREATE TABLE gate (open boolean)").await;
    let url = world.url.clone();
    let late = tokio::spawn(async move {
        sql(
            &url,
            &format!(
                "BEGIN; INSERT INTO laneway.outbox (tenant, type, user_key, payload, created_at) \
                 VALUES ('{id}', 'old', 'late', 'late', now() - interval '7 days'); \
                 DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.02); END LOOP; END $$; COMMIT"
            ),
        )
        .await
    });
    // Nothing has been delivered: the owners' positions say so, and the partition stays.
    wait_for("a round of care", Duration::from_secs(20), || async {
        relay.metric("laneway_outbox_retention_overdue_seconds") > 0.0
    })
    .await;
    assert!(exists(&world, &table).await);
    world.sql("UPDATE laneway_control.partition_owners SET next_offset = 1000000").await;
    // The late writer still holds its locks: no removal, and nobody waits behind it.
    world.emit(tenant, "u1", "new").await;
    assert!(exists(&world, &table).await);
    world.sql("INSERT INTO gate VALUES (true)").await;
    late.await.unwrap().unwrap();
    let rows = 52;
    let mut log = world.log().await;
    log.read_until("the late row too", |log| log.pairs().len() == rows).await;
    assert!(log.pairs().iter().all(|(_, to)| *to == endpoint));
    wait_for("the partition to go", Duration::from_secs(60), || async {
        !exists(&world, &table).await
    })
    .await;
    assert_eq!(world.rows().await, 1);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_made_ahead_and_what_has_none_is_kept_and_counted() {
    let world = World::new().await;
    let (tenant, _) = world.tenant().await;
    world.sql("DO $$ BEGIN EXECUTE (SELECT 'DROP TABLE laneway.outbox_' || to_char((now() AT TIME ZONE 'UTC')::date + 3, 'YYYYMMDD')); END $$").await;
    let id = tenant.as_uuid();
    world
        .sql(&format!(
            "INSERT INTO laneway.outbox (tenant, type, user_key, payload, created_at) \
             VALUES ('{id}', 'far', 'u', 'x', now() + interval '40 days')"
        ))
        .await;
    let relay = world.start_with(settings(&world));
    let ahead = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'laneway.outbox'::regclass";
    wait_for("the missing partition", Duration::from_secs(20), || async {
        world.number(ahead).await == 16
    })
    .await;
    wait_for("the gauge", Duration::from_secs(20), || async {
        relay.metric("laneway_outbox_default_rows") == 1.0
    })
    .await;
    let mut log = world.log().await;
    log.read_until("the row without a partition of its own", |log| log.records.len() == 1).await;
    relay.stop().await;
}
