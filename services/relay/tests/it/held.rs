//! Held rows: a hot lane delays nobody, a foreign tenant's rows wait visibly, order holds through both.

use crate::support::{World, wait_until_passed};
use laneway_platform::config::{Source, Tenants};

fn restricted(world: &World, tenants: Tenants) -> laneway_relay::Settings {
    let mut settings = world.settings();
    settings.sources =
        vec![Source { name: "shop".to_owned(), url: world.url.clone().into(), tenants }];
    settings
}

/// P3: what a page may not take of a hot lane follows by itself, in order, and other lanes do not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_lane_is_held_and_follows_in_order() {
    let world = World::new().await;
    let (tenant, endpoint) = world.tenant().await;
    world.emit_rows(tenant, 400, 1).await;
    world.emit_rows(tenant, 40, 40).await;
    let mut settings = world.settings();
    settings.relay.page_rows = 100;
    settings.relay.waves = 4;
    let relay = world.start_with(settings);
    wait_until_passed(&world).await;
    // More of the hot lane, now that some of it has left the held rows.
    world.emit_rows(tenant, 30, 1).await;
    let rows = world.row_ids().await;
    let mut log = world.log().await;
    log.read_all(&rows, &[endpoint]).await;
    log.assert_lanes_in_order();
    wait_until_passed(&world).await;
    let left =
        world.number("SELECT count(*) FROM laneway.relay_held WHERE left_offset IS NOT NULL").await;
    assert!(left >= 300, "the hot lane went through the held rows: {left}");
    relay.stop().await;
}

/// A source speaks for its own tenants only; what it says for others is held, visibly, and goes when it is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_tenant_that_the_source_may_not_speak_for_are_held_until_it_may() {
    let world = World::new().await;
    let (ours, our_endpoint) = world.tenant().await;
    let (foreign, foreign_endpoint) = world.tenant().await;
    let relay = world.start_with(restricted(&world, Tenants::These(vec![ours])));
    world.emit(foreign, "u1", "f1").await;
    world.emit(foreign, "u1", "f2").await;
    world.emit(ours, "u1", "o1").await;
    let mut log = world.log().await;
    log.read_until("ours", |log| !log.records.is_empty()).await;
    assert_eq!(log.records[0].2.head.endpoint_id(), our_endpoint);
    laneway_testkit::wait_for("the foreign rows to be held", crate::support::LIMIT, || async {
        world.number("SELECT count(*) FROM laneway.relay_held WHERE left_entry IS NULL AND reason = 'tenant'").await == 2
    })
    .await;
    assert_eq!(log.records.len(), 1);
    relay.stop().await;

    let relay = world.start_with(restricted(&world, Tenants::These(vec![ours, foreign])));
    log.read_until("the foreign ones", |log| log.records.len() == 3).await;
    let foreign: Vec<_> =
        log.records[1..].iter().map(|(_, _, record)| record.payload.clone()).collect();
    assert_eq!(foreign, ["f1", "f2"].map(|text| text.as_bytes()));
    assert_eq!(log.records[1].2.head.endpoint_id(), foreign_endpoint);
    wait_until_passed(&world).await;
    relay.stop().await;
}
