//! Several sources under one relay, servers that come late or go away, and what the relay says of it.

use crate::support::{LIMIT, Running, World, wait_until_passed};
use laneway_platform::config::{Source, Tenants};
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, sql, wait_for};
use laneway_wire::TenantId;

async fn says(relay: &Running, part: &str, why: &str) {
    wait_for(why, LIMIT, || async {
        let report = relay.context.readiness.report();
        report.waiting.get(part).is_some_and(|waiting| waiting.contains(why))
    })
    .await;
}

async fn is_ready(relay: &Running) {
    wait_for("readiness", LIMIT, || async { relay.context.readiness.report().ready }).await;
}

fn source(name: &str, url: &str) -> Source {
    Source { name: name.to_owned(), url: url.into(), tenants: Tenants::All }
}

async fn emit(url: &str, tenant: TenantId, key: &str, count: u32) {
    let tenant = tenant.as_uuid();
    let statement = format!(
        "SELECT laneway.emit('{tenant}', 'test.made', '{key}', convert_to(n::text, 'UTF8')) \
         FROM generate_series(1, {count}) n"
    );
    sql(url, &statement).await.unwrap();
}

/// A1, P3: rows of both reach the topic under their source's name, each in its order; the one that is away keeps the
/// other waiting neither at the start nor later.
#[tokio::test(flavor = "multi_thread")]
async fn two_sources_are_read_side_by_side_and_one_that_is_away_holds_nothing_up() {
    let stack = Stack::private_postgres().await.unwrap();
    let other_url = stack.fresh_database().await;
    let pool = Pool::connect(&other_url.as_str().into(), Options::new("test")).await.unwrap();
    migrate::source_migrate(&pool).await.unwrap();
    pool.close().await;
    let world = World::new().await;
    let (ours, our_endpoint) = world.tenant().await;
    let (theirs, their_endpoint) = world.tenant().await;
    emit(&world.url, ours, "u", 3).await;
    emit(&other_url, theirs, "u", 3).await;
    stack.stop_postgres().await.unwrap();

    let mut settings = world.settings();
    settings.sources = vec![source("away", &other_url), source("here", &world.url)];
    let relay = world.start_with(settings);
    wait_until_passed(&world).await;
    says(&relay, "source away", "waiting for a source database").await;
    let mut log = world.log().await;
    log.read_until("the source that is there", |log| log.records.len() == 3).await;
    stack.start_postgres().await.unwrap();
    log.read_until("the source that came", |log| log.records.len() == 6).await;
    is_ready(&relay).await;

    stack.stop_postgres().await.unwrap();
    says(&relay, "source away", "no progress").await;
    emit(&world.url, ours, "u", 2).await;
    log.read_until("the source that stayed", |log| log.records.len() == 8).await;
    stack.start_postgres().await.unwrap();
    is_ready(&relay).await;
    emit(&other_url, theirs, "u", 2).await;
    log.read_until("the source that came back", |log| log.records.len() >= 10).await;
    log.assert_lanes_in_order();
    for (name, endpoint) in [("here", our_endpoint), ("away", their_endpoint)] {
        let of: Vec<_> = log.records.iter().filter(|(_, _, r)| r.head.source == name).collect();
        assert!(of.iter().all(|(_, _, record)| record.head.endpoint_id() == endpoint));
        let rows: std::collections::BTreeSet<_> = of.iter().map(|(_, _, r)| r.head.row).collect();
        assert_eq!(rows.len(), 5, "{name}");
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_broker_is_away_is_not_ready_until_it_is_back() {
    let stack = Stack::private_kafka().await.unwrap();
    let world = World::with_kafka(stack.kafka()).await;
    let (tenant, endpoint) = world.tenant().await;
    let relay = world.start();
    is_ready(&relay).await;
    stack.stop_kafka().await.unwrap();
    // The last word of a broker that stops may be that it has no topic.
    wait_for("it to be not ready", LIMIT, || async {
        relay.context.readiness.report().waiting.contains_key("relay")
    })
    .await;
    world.emit(tenant, "u", "while it is away").await;
    stack.start_kafka().await.unwrap();
    is_ready(&relay).await;
    let mut log = world.log().await;
    log.read_all(&world.row_ids().await, &[endpoint]).await;
    relay.stop().await;
}
