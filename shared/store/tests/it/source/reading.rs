//! Reading by snapshot difference, on the store's own functions: exactly the rows between two snapshots, in id order,
//! in pages; going back; a logical restore.

use super::World;
use laneway_store::relay::{self, Advance, Cursor, EntryAcks, Lease, Shard};
use std::time::Duration;

const TENANT: &str = "00000000-0000-7000-8000-000000000001";
const MINUTE: Duration = Duration::from_secs(60);

async fn lease(world: &World) -> Lease {
    let shard: u8 = world
        .text(&format!("SELECT get_byte(sha256(uuid_send('{TENANT}'::uuid)), 0) % 16"))
        .await
        .parse()
        .unwrap();
    let leases = relay::leases_acquire(&world.pool, "me", &[], 16, MINUTE).await.unwrap();
    leases.into_iter().find(|lease| lease.shard == Shard(shard)).unwrap()
}

async fn emit(world: &World, rows: u32) {
    world
        .sql(&format!(
            "SELECT laneway.emit_many('{TENANT}', array_agg('a'::text), array_agg('u' || n), array_agg('xxxxx'::bytea)) \
             FROM generate_series(1, {rows}) AS n"
        ))
        .await;
}

async fn open(world: &World, lease: &Lease, version: u64) -> Cursor {
    let poll = relay::poll(&world.pool, &[lease.shard], None).await.unwrap();
    relay::batch_open(&world.pool, lease, &poll.snapshot, version, 1, MINUTE)
        .await
        .unwrap()
        .unwrap()
}

async fn ids(
    world: &World,
    lease: &Lease,
    cursor: &Cursor,
    rows: u32,
    bytes: u64,
) -> Vec<Vec<i64>> {
    let bounds = relay::batch_bounds(&world.pool, lease.shard, cursor).await.unwrap();
    let (mut pages, mut after) = (Vec::new(), cursor.last_id);
    loop {
        let page = relay::batch_page(&world.pool, lease.shard, cursor, bounds, after, rows, bytes)
            .await
            .unwrap();
        let ids: Vec<i64> = page.rows.iter().map(|row| row.id).collect();
        after = ids.last().copied().unwrap_or(after);
        if !ids.is_empty() {
            pages.push(ids);
        }
        if page.last {
            return pages;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_read_in_pages_bounded_by_rows_and_bytes() {
    let world = World::new().await;
    let lease = lease(&world).await;
    emit(&world, 7).await;
    assert_eq!(relay::poll(&world.pool, &[lease.shard], None).await.unwrap().fresh, [lease.shard]);
    let cursor = open(&world, &lease, 1).await;
    emit(&world, 2).await;
    assert_eq!(
        ids(&world, &lease, &cursor, 3, 1_000).await,
        [vec![1, 2, 3], vec![4, 5, 6], vec![7]]
    );
    assert_eq!(ids(&world, &lease, &cursor, 7, 1_000).await, [vec![1, 2, 3, 4, 5, 6, 7]]);
    assert_eq!(ids(&world, &lease, &cursor, 10, 10).await, [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
    let next = open(&world, &lease, 1).await;
    assert_eq!(ids(&world, &lease, &next, 10, 1_000).await, [vec![8, 9]]);
    assert!(relay::poll(&world.pool, &[lease.shard], None).await.unwrap().fresh.is_empty());
}

/// A prepared transaction is under way until it is committed, whichever session does it.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_transaction_under_way_come_in_the_batch_after_its_commit() {
    let world = World::new().await;
    let lease = lease(&world).await;
    let url = world.url.clone();
    world.sql("CREATE TABLE gate (open boolean)").await;
    let late = tokio::spawn(async move {
        laneway_testkit::sql(&url, &format!(
            "BEGIN; SELECT laneway.emit('{TENANT}', 'late', 'l', 'x'); \
             DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.02); END LOOP; END $$; COMMIT"
        )).await.unwrap();
    });
    laneway_testkit::wait_for("the late one to have its id", super::LIMIT, || async {
        world.text("SELECT last_value || ' ' || is_called FROM laneway.outbox_id_seq").await
            == "1 true"
    })
    .await;
    emit(&world, 2).await;
    let first = open(&world, &lease, 1).await;
    assert_eq!(ids(&world, &lease, &first, 10, 1_000).await, [vec![2, 3]]);
    emit(&world, 1).await;
    let second = open(&world, &lease, 1).await;
    assert_eq!(ids(&world, &lease, &second, 10, 1_000).await, [vec![4]]);
    world.sql("INSERT INTO gate VALUES (true)").await;
    late.await.unwrap();
    // The old batches stay what they were: a resumed one uses its stored snapshots.
    assert_eq!(ids(&world, &lease, &first, 10, 1_000).await, [vec![2, 3]]);
    assert_eq!(relay::poll(&world.pool, &[lease.shard], None).await.unwrap().fresh, [lease.shard]);
    emit(&world, 1).await;
    let third = open(&world, &lease, 1).await;
    assert_eq!(ids(&world, &lease, &third, 10, 1_000).await, [vec![1, 5]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_goes_back_to_an_entry_of_its_history_and_comes_forward_over_the_same_entries() {
    let world = World::new().await;
    let lease = lease(&world).await;
    for version in [1, 1, 2, 3] {
        emit(&world, 2).await;
        let cursor = open(&world, &lease, version).await;
        let acks = EntryAcks {
            entry: cursor.entry,
            generation: 1,
            acked: vec![Some(cursor.s2.xmax() as i64)],
        };
        let advance = Advance { last_id: 99, acks: &acks, held: &[] };
        assert!(relay::batch_advance(&world.pool, &lease, &advance).await.unwrap());
    }
    let acks = relay::acks_all(&world.pool, lease.shard).await.unwrap();
    assert_eq!(
        acks.iter().map(|acks| acks.entry).collect::<Vec<_>>(),
        [1, 2, 3],
        "the first two share an entry"
    );
    assert!(relay::cursor_go_back(&world.pool, &lease, 2, Some(1)).await.unwrap());
    let mut seen = Vec::new();
    for (entry, version) in [(1, 1), (2, 2), (3, 3)] {
        let cursor = relay::cursor_load(&world.pool, &lease).await.unwrap().unwrap();
        assert_eq!((cursor.entry, cursor.last_entry, cursor.generation), (entry, 3, 2));
        assert_eq!(
            cursor.subscription_version, version,
            "publishing again routes as the first time"
        );
        seen.extend(ids(&world, &lease, &cursor, 10, 1_000).await.concat());
        if entry < 3 {
            assert!(relay::batch_reopen(&world.pool, &lease, entry + 1, 1).await.unwrap());
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// A dump restored elsewhere keeps rows and cursors, whose transactions mean nothing there: all is published again,
/// and each new row exactly by its own batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_logical_restore_is_seen_and_everything_is_read_once_more() {
    let world = World::new().await;
    let lease = lease(&world).await;
    emit(&world, 3).await;
    open(&world, &lease, 1).await;
    let cursor = relay::cursor_load(&world.pool, &lease).await.unwrap().unwrap();
    assert!(!cursor.restored);
    world.sql("UPDATE laneway.relay_cursors SET system_id = 1").await;
    assert!(relay::cursor_load(&world.pool, &lease).await.unwrap().unwrap().restored);
    world
        .sql("UPDATE laneway.relay_cursors SET system_id = NULL, s2 = '900000000:900000000:'")
        .await;
    assert!(relay::cursor_load(&world.pool, &lease).await.unwrap().unwrap().restored);
    assert!(relay::cursor_restore(&world.pool, &lease, 1, || async { Ok(5) }).await.unwrap());
    let cursor = relay::cursor_load(&world.pool, &lease).await.unwrap().unwrap();
    assert!(!cursor.restored);
    assert_eq!((cursor.s1.as_ref(), cursor.floor_id, cursor.subscription_version), (None, 3, 5));
    emit(&world, 2).await;
    assert_eq!(ids(&world, &lease, &cursor, 2, 1_000).await, [vec![1, 2], vec![3]]);
    let next = open(&world, &lease, 5).await;
    assert_eq!(ids(&world, &lease, &next, 10, 1_000).await, [vec![4, 5]]);
    assert!(relay::poll(&world.pool, &[lease.shard], None).await.unwrap().fresh.is_empty());
}
