//! Connections come back from cancelled callers without anything open in them.

use laneway_store::delivery::groups_write;
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::Stack;
use sqlx::{Connection, PgConnection};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Drops `future` after so many polls: how a time limit or a client that hangs up ends it.
async fn polled<T>(times: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// A transaction that stays open in a pooled connection would swallow what others write through it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_leaves_no_transaction_open() {
    let url = Stack::shared().await.fresh_database().await;
    let options = Options::new("cancelled").max_connections(1);
    let pool = Pool::connect(&url.as_str().into(), options).await.unwrap();
    migrate::control_migrate(&pool).await.unwrap();
    let mut watch = PgConnection::connect(&url).await.unwrap();
    let mut finished = 0;
    for round in 0..60 {
        // Again and again, since where the polls fall is up to the scheduler.
        if polled(round % 12, groups_write(&pool, &[])).await.is_some() {
            finished += 1;
        }
        pool.now().await.unwrap();
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name = 'cancelled' AND state LIKE 'idle in transaction%'",
        )
        .fetch_one(&mut watch)
        .await
        .unwrap();
        assert_eq!(open, 0, "after {} polls", round % 12);
    }
    assert!((1..60).contains(&finished), "some were cut short, some were not: {finished}");
}
