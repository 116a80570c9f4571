//! P13: shards are shared between processes, and one that was paused changes nothing when it comes back.

use crate::support::{World, wait_until_passed};
use laneway_store::relay::{self, Advance, EntryAcks, Shard};
use laneway_testkit::wait_for;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_share_the_shards_and_one_takes_over_what_the_other_gives_back() {
    let world = World::new().await;
    let (first, second) = (world.start(), world.start());
    let owners = "SELECT count(DISTINCT owner) FROM laneway.relay_cursors WHERE token IS NOT NULL";
    let even = "SELECT count(*) FROM (SELECT FROM laneway.relay_cursors WHERE token IS NOT NULL \
                GROUP BY owner HAVING count(*) = 8) AS o";
    wait_for("an even share", Duration::from_secs(30), || async {
        world.number(owners).await == 2 && world.number(even).await == 2
    })
    .await;
    let mut endpoints = Vec::new();
    for _ in 0..6 {
        let (tenant, endpoint) = world.tenant().await;
        world.emit_rows(tenant, 50, 5).await;
        endpoints.push((tenant, endpoint));
    }
    wait_until_passed(&world).await;
    first.stop().await;
    for (tenant, _) in &endpoints {
        world.emit_rows(*tenant, 50, 5).await;
    }
    wait_until_passed(&world).await;
    let mut log = world.log().await;
    log.read_until("all rows", |log| log.pairs().len() == 600).await;
    log.assert_lanes_in_order();
    assert_eq!(log.records.len(), 600, "an orderly change of owner repeats nothing");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_owner_can_write_nothing() {
    let world = World::new().await;
    let lease = Duration::from_millis(1_000);
    let stale = relay::leases_acquire(&world.pool, "stale", &[], 16, lease).await.unwrap();
    assert_eq!(stale.len(), 16);
    let none = relay::leases_acquire(&world.pool, "other", &[], 16, lease).await.unwrap();
    assert!(none.is_empty(), "a lease that runs is not taken");
    wait_for("the leases to end", Duration::from_secs(10), || async {
        world.number("SELECT count(*) FROM laneway.relay_cursors WHERE lease_until >= now()").await
            == 0
    })
    .await;
    let fresh = relay::leases_acquire(&world.pool, "other", &[], 16, lease * 60).await.unwrap();
    assert_eq!(fresh.len(), 16);

    let stale = stale.iter().find(|lease| lease.shard == Shard(3)).unwrap();
    let fresh = fresh.iter().find(|lease| lease.shard == Shard(3)).unwrap();
    let before = relay::cursor_load(&world.pool, fresh).await.unwrap().unwrap();
    let snapshot = relay::poll(&world.pool, &[Shard(3)], None).await.unwrap().snapshot;
    assert!(relay::cursor_load(&world.pool, stale).await.unwrap().is_none());
    let opened = relay::batch_open(&world.pool, stale, &snapshot, 1, 1, lease).await.unwrap();
    assert!(opened.is_none());
    let acks = EntryAcks { entry: before.entry, generation: 1, acked: vec![Some(9)] };
    let advance = Advance { last_id: 99, acks: &acks, held: &[] };
    assert!(!relay::batch_advance(&world.pool, stale, &advance).await.unwrap());
    assert!(!relay::cursor_go_back(&world.pool, stale, 7, None).await.unwrap());
    assert!(!relay::batch_reopen(&world.pool, stale, 0, 1).await.unwrap());
    assert!(!relay::held_leave(&world.pool, stale, &[], &acks).await.unwrap());
    assert!(relay::leases_renew(&world.pool, &[*stale], lease).await.unwrap().is_empty());
    relay::leases_release(&world.pool, &[*stale]).await.unwrap();
    let after = relay::cursor_load(&world.pool, fresh).await.unwrap().unwrap();
    assert_eq!(before, after);
    assert_eq!(world.number("SELECT count(*) FROM laneway.relay_acks").await, 0);
}
