//! The database.

use super::{LIMIT, Row, post, proxies};
use anyhow::{Context, Result};
use laneway_system::chaos::{Link, SmallDisk, Toxic};
use laneway_system::{Options, monotonic_ns};
use laneway_testkit::{Stack, free_port, sql, wait_for};
use std::time::{Duration, Instant};

/// P2 and P3: one session's process is killed, so that the server throws all others out; then all sessions are ended.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute"]
async fn p2_p3_sessions_that_end_are_opened_again() -> Result<()> {
    let stack = Stack::private_postgres().await?;
    let row = Row::begin(&stack, Options::default(), 40).await?;
    let url = stack.database_url();
    row.flows().await?;
    let start = monotonic_ns();
    let others =
        "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let found =
        sql(url, &format!("SELECT pid {others} AND application_name LIKE 'laneway-%' LIMIT 1"))
            .await?;
    let pid = found.first().and_then(|row| row.first()?.as_deref()).context("a session")?;
    let pid = rustix::process::Pid::from_raw(pid.parse()?).context("a process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    row.flows().await?;
    row.scene.world.faults.note_since("postgres_sessions", "postgres", start);
    for _ in 0..2 {
        let start = monotonic_ns();
        let ended = sql(url, &format!("SELECT pg_terminate_backend(pid) {others}")).await?;
        assert!(ended.len() > 3, "{ended:?}");
        row.flows().await?;
        row.scene.world.faults.note_since("postgres_sessions", "postgres", start);
    }
    row.end().await?;
    Ok(())
}

/// P5: half a second for each word with the database; then one partition's row is locked for longer than a lease.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute"]
async fn p5_a_slow_database_and_a_locked_row_hold_up_what_needs_them() -> Result<()> {
    let mut proxies = proxies().await?;
    let stack = Stack::private_postgres().await?;
    let host = stack.database_url().split(['@', '/']).nth(3).context("a database URL")?;
    let address = proxies.add(Link::Postgres, free_port(), host).await?;
    let options = Options { postgres_via: Some(address), ..Options::default() };
    let row = Row::begin(&stack, options, 50).await?;
    row.flows().await?;
    proxies.begin(Link::Postgres, Toxic::Latency).await?;
    row.flows().await?;
    post(&row.scene, "slow").await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(proxies.end(Link::Postgres, Toxic::Latency).await?);
    row.flows().await?;
    let mut locked = row.scene.world.app.pool().begin().await?;
    let lock = "SELECT 1 FROM laneway_control.partition_owners WHERE partition = 0 FOR UPDATE";
    sqlx::query(lock).execute(&mut *locked).await?;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(12) {
        row.flows().await?;
        post(&row.scene, "locked").await?;
    }
    locked.rollback().await?;
    row.flows().await?;
    assert_eq!(row.end().await?, 0);
    Ok(())
}

/// P9: the database's disk is full: commits fail, or the server ends; nothing that it had acknowledged is lost.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute; mounts a file system"]
async fn p9_a_database_whose_disk_is_full_loses_nothing() -> Result<()> {
    let stack = Stack::private_postgres().await?;
    let folder = stack.folder().context("a stack of its own")?.join("postgres");
    stack.stop_postgres().await?;
    let disk = SmallDisk::mount(&folder)?;
    stack.start_postgres().await?;
    let row = Row::begin(&stack, Options::default(), 40).await?;
    row.flows().await?;
    let start = monotonic_ns();
    disk.fill()?;
    let url = stack.database_url();
    let big = "CREATE TEMP TABLE big AS SELECT repeat('x', 500) FROM generate_series(1, 100000)";
    wait_for("a statement that finds no room", LIMIT, || async { sql(url, big).await.is_err() })
        .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    disk.empty()?;
    stack.start_postgres().await?;
    row.flows().await?;
    row.scene.world.faults.note_since("postgres_disk_full", "postgres", start);
    row.end().await?;
    Ok(())
}

/// P11: a transaction that stays open, with an id and a snapshot of its own, while the outbox grows: no delivery waits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute"]
async fn p11_a_long_transaction_makes_no_delivery_late() -> Result<()> {
    let stack = Stack::private_postgres().await?;
    let row = Row::begin(&stack, Options::default(), 45).await?;
    row.flows().await?;
    let mut open = row.scene.world.app.pool().begin().await?;
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *open).await?;
    sqlx::query("SELECT pg_current_xact_id(), count(*) FROM laneway.outbox")
        .execute(&mut *open)
        .await?;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(30) {
        let rows = row.scene.world.app.number("SELECT count(*) FROM laneway.outbox").await?;
        let asked = Instant::now();
        row.scene.world.wait_settled(rows * 2, LIMIT).await;
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?} for what was committed");
    }
    open.rollback().await?;
    assert_eq!(row.end().await?, 0);
    Ok(())
}
