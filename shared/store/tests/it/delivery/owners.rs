//! Ownership: one winner, clean release, and what moves the watcher's view.

use super::World;
use laneway_store::delivery::{
    OwnerState, groups_write, inbox_partitions_make, owner_read, owner_release, owner_take,
    owner_timeout_raise,
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn of_two_that_saw_the_same_row_one_takes_it() {
    let world = World::new().await;
    let seen = owner_read(&world.pool, 0).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.owner.as_deref()), (OwnerState::Owned, Some("me")));
    let (a, b) = tokio::join!(
        owner_take(&world.pool, 0, &seen, "a", SECOND),
        owner_take(&world.pool, 0, &seen, "b", SECOND)
    );
    assert_eq!(usize::from(a.unwrap().is_some()) + usize::from(b.unwrap().is_some()), 1);
}

#[tokio::test]
async fn a_renewal_between_makes_a_take_over_fail() {
    let world = World::new().await;
    let seen = owner_read(&world.pool, 0).await.unwrap().unwrap();
    world.settle(&[]).await;
    assert_eq!(owner_take(&world.pool, 0, &seen, "b", SECOND).await.unwrap(), None);
}

#[tokio::test]
async fn a_longer_timeout_is_durable_and_counts_as_a_renewal() {
    let world = World::new().await;
    let before = owner_read(&world.pool, 0).await.unwrap().unwrap();
    assert!(owner_timeout_raise(&world.pool, 0, world.epochs[0], 9 * SECOND).await.unwrap());
    assert!(owner_timeout_raise(&world.pool, 0, world.epochs[0], 3 * SECOND).await.unwrap());
    let after = owner_read(&world.pool, 0).await.unwrap().unwrap();
    assert_eq!((after.max_timeout, after.renewal), (9 * SECOND, before.renewal + 2));
    assert!(!owner_timeout_raise(&world.pool, 0, world.epochs[1], SECOND).await.unwrap());
}

#[tokio::test]
async fn a_released_partition_keeps_its_position_and_is_taken_at_once() {
    let world = World::new().await;
    let epoch = world.epochs[0];
    assert!(owner_release(&world.pool, 0, epoch, 1, 41).await.unwrap());
    assert!(!owner_release(&world.pool, 0, epoch, 1, 99).await.unwrap(), "the epoch is over");
    let seen = owner_read(&world.pool, 0).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.next_offset), (OwnerState::Released, 41));
    let taken = owner_take(&world.pool, 0, &seen, "b", SECOND).await.unwrap().unwrap();
    assert_eq!((taken.next_offset, taken.generation), (41, 1));
    assert!(taken.epoch > epoch);
}

#[tokio::test]
async fn the_inbox_gets_its_days_once_and_an_id_goes_to_its_day() {
    let world = World::new().await;
    assert_eq!(inbox_partitions_make(&world.pool).await.unwrap(), 13);
    assert_eq!(inbox_partitions_make(&world.pool).await.unwrap(), 0);
    for (id, want) in [
        ("laneway_control.inbox_bound((now() AT TIME ZONE 'UTC')::date)", "true"),
        ("'019ad2f0-0000-860a-b408-17c36fcb57e0'::uuid", "false"),
    ] {
        laneway_testkit::sql(
            &world.url,
            &format!(
                "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, \
                 took_ms) VALUES ({id}, '{0}', '{0}', '{0}', 1, 1, 1)",
                world.tenant
            ),
        )
        .await
        .unwrap();
        let found = format!(
            "SELECT (tableoid::regclass::text = 'laneway_control.inbox_' || to_char(now() AT TIME ZONE 'UTC', \
             'YYYYMMDD'))::text FROM laneway_control.inbox WHERE delivery_id = {id}"
        );
        assert_eq!(world.value(&found).await, want);
    }
}

/// P13: an owner that is paused, or cut off, between two statements of a settle transaction.
#[tokio::test]
async fn an_open_transaction_of_an_owner_that_says_nothing_holds_up_no_successor() {
    let world = World::new().await;
    let written = groups_write(&world.pool, &[world.group(0, &[])]).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_secs(30), world.take(0));
    let taken = waiting.await.expect("the server ends the silent session");
    assert!(taken > world.epochs[0]);
    let error = written.commit().await.expect_err("nothing of it was written");
    assert!(error.is_transient(), "{error:?}");
}
