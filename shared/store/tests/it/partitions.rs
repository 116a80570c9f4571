//! Old partitions go in two steps, and nothing is left between them.

use laneway_store::retention::{inbox_days_expired, inbox_drop_detached};
use laneway_store::source::{partition_remove, partitions_drop_detached};
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, sql};
use sqlx::{Connection, PgConnection};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A process that ended between detaching and dropping leaves a table, a reader of it leaves it for the round after.
#[tokio::test(flavor = "multi_thread")]
async fn a_day_that_was_detached_and_not_dropped_goes_the_next_time() {
    let url = Stack::shared().await.fresh_database().await;
    let pool = Pool::connect(&url.as_str().into(), Options::new("partitions")).await.unwrap();
    migrate::control_migrate(&pool).await.unwrap();
    migrate::source_migrate(&pool).await.unwrap();
    sql(&url, "SELECT laneway_control.inbox_make_partitions(20, 1)").await.unwrap();
    let day = inbox_days_expired(&pool, 10 * DAY).await.unwrap()[0];
    sql(&url, &format!("SELECT laneway.outbox_partition_create('{day}')")).await.unwrap();
    for (schema, table) in [("laneway_control", "inbox"), ("laneway", "outbox")] {
        let (old, gone) =
            (day.format(&format!("{table}_%Y%m%d")).to_string(), format!("{table}_gone"));
        let gone = format!("{schema}.{}", old.replace(table, &gone));
        sql(&url, &format!("ALTER TABLE {schema}.{table} DETACH PARTITION {schema}.{old}"))
            .await
            .unwrap();
        sql(
            &url,
            &format!("ALTER TABLE {schema}.{old} RENAME TO {}", gone.split_once('.').unwrap().1),
        )
        .await
        .unwrap();
        let there = format!("SELECT (to_regclass('{gone}') IS NOT NULL)::text");
        let there = || async { sql(&url, &there).await.unwrap()[0][0].as_deref() == Some("true") };
        let drop_detached = || async {
            match table {
                "inbox" => inbox_drop_detached(&pool).await.unwrap(),
                _ => partitions_drop_detached(&pool).await.unwrap(),
            }
        };

        let mut backup = PgConnection::connect(&url).await.unwrap();
        let mut reading = backup.begin().await.unwrap();
        let lock = format!("LOCK TABLE {gone} IN ACCESS SHARE MODE");
        sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *reading).await.unwrap();
        drop_detached().await;
        assert!(there().await, "{gone} is read");
        reading.rollback().await.unwrap();
        drop_detached().await;
        assert!(!there().await, "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_the_outbox_goes_when_all_of_it_was_read() {
    let url = Stack::shared().await.fresh_database().await;
    let pool = Pool::connect(&url.as_str().into(), Options::new("partitions")).await.unwrap();
    migrate::control_migrate(&pool).await.unwrap();
    migrate::source_migrate(&pool).await.unwrap();
    let day = sql(
        &url,
        "SELECT d::text FROM (SELECT (now() AT TIME ZONE 'UTC')::date - 9) AS t (d), \
           LATERAL laneway.outbox_partition_create(d) AS made",
    )
    .await
    .unwrap()[0][0]
        .clone()
        .unwrap();
    let row = format!(
        "INSERT INTO laneway.outbox (tenant, type, payload, created_at) \
         VALUES (gen_random_uuid(), 'a', '', '{day} 12:00:00+00')"
    );
    sql(&url, &row).await.unwrap();
    let day = day.parse().unwrap();
    assert!(partition_remove(&pool, day).await.unwrap().is_some(), "a row was not read");
    sql(&url, "UPDATE laneway.relay_cursors SET s1 = pg_current_snapshot()").await.unwrap();
    assert_eq!(partition_remove(&pool, day).await.unwrap(), None);
    let left = "SELECT count(*)::text FROM pg_class WHERE relname ~ '^outbox_(gone_)?[0-9]{8}$' \
                AND relkind = 'r' AND relname < to_char(now() - interval '2 days', '\"outbox_\"YYYYMMDD')";
    assert_eq!(sql(&url, left).await.unwrap()[0][0].as_deref(), Some("0"));
}
