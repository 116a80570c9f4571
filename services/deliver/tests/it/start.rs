//! A database that is not there: waited for at the start and later, and not ready meanwhile.

use crate::world::{Instance, LIMIT, World};
use laneway_testkit::{Stack, sql, wait_for};

async fn waits_for(deliver: &Instance, why: &str) {
    wait_for(why, LIMIT, || async {
        let report = deliver.ctx.readiness.report();
        report.waiting.get("database").is_some_and(|waiting| waiting.contains(why))
    })
    .await;
}

async fn is_ready(deliver: &Instance) {
    wait_for("readiness", LIMIT, || async { deliver.ctx.readiness.report().ready }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliver_waits_for_a_database_that_starts_later_and_for_its_schema() {
    let stack = Stack::private_postgres().await.unwrap();
    let url = stack.fresh_database().await;
    let world = World::on(&url, stack.kafka()).await;
    let endpoint = world.endpoint("/a", "resend").await;
    let mut records: Vec<_> =
        (0..20).map(|n| world.record(endpoint, &format!("u{}", n % 4))).collect();
    world.produce(&records).await;
    sql(&url, "ALTER SCHEMA laneway_control RENAME TO not_yet").await.unwrap();
    stack.stop_postgres().await.unwrap();

    let deliver = world.start("one");
    waits_for(&deliver, "waiting for the control database").await;
    stack.start_postgres().await.unwrap();
    waits_for(&deliver, "waiting for `laneway migrate`").await;
    sql(&url, "ALTER SCHEMA not_yet RENAME TO laneway_control").await.unwrap();
    world.wait_settled(20).await;
    is_ready(&deliver).await;

    stack.stop_postgres().await.unwrap();
    waits_for(&deliver, "no progress").await;
    stack.start_postgres().await.unwrap();
    is_ready(&deliver).await;
    let later: Vec<_> = (0..20).map(|n| world.record(endpoint, &format!("u{}", n % 4))).collect();
    world.produce(&later).await;
    records.extend(later);
    world.wait_settled(40).await;
    world.check_order(&records);
    deliver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliver_that_waits_for_its_database_can_be_stopped() {
    let mut world = World::new().await;
    let nobody = laneway_testkit::free_port();
    world.settings.database.url = format!("postgres://nobody@127.0.0.1:{nobody}/x").as_str().into();
    let deliver = world.start("one");
    waits_for(&deliver, "waiting for the control database").await;
    deliver.stop().await;
}
