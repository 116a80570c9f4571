//! Rows of the fault matrix that take too long for every `make test`, named by their ids: `make faults` runs them, in a
//! network and mount namespace of its own where root allows that.

use crate::support::{Scene, drained, leases, load};
use anyhow::{Context, Result};
use laneway_client::NewEvent;
use laneway_system::chaos::{
    Cgroup, Link, Loss, Proxies, SmallDisk, Toxic, has_own_network, lose, lose_no_more,
};
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::{Stack, free_port, sql, temp_dir, wait_for};
use serde_json::value::RawValue;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(120);
const PARTITIONS: u16 = 4;

/// A scene under load, an event every 20 ms, until [`Row::end`].
struct Row {
    scene: Scene,
    loading: JoinHandle<u32>,
    leases: JoinHandle<()>,
}

impl Row {
    /// With two endpoints and two deliver processes, and events for so many seconds.
    async fn begin(stack: &Stack, options: Options, seconds: u32) -> Result<Self> {
        let mut scene = Scene::on(stack, options, vec![EndpointOptions::default(); 2]).await?;
        scene.services(2).await?;
        Ok(Self::of(scene, seconds))
    }

    fn of(scene: Scene, seconds: u32) -> Self {
        let leases = leases(&scene, PARTITIONS);
        let loading = load(&scene, seconds * 50, Duration::from_millis(20));
        Self { scene, loading, leases }
    }

    /// Waits until deliveries have come on.
    async fn flows(&self) -> Result<()> {
        let before = settled(&self.scene).await;
        self.scene.world.wait_settled(before + 100, LIMIT).await;
        Ok(())
    }

    /// Heals and drains; judged. Gives how many commits were refused.
    async fn end(self) -> Result<u32> {
        let refused = self.loading.await?;
        drained(&self.scene).await?;
        self.leases.abort();
        self.scene.judged().await;
        Ok(refused)
    }
}

/// As soon as the database says so.
async fn settled(scene: &Scene) -> i64 {
    laneway_testkit::wait_for_some("the number of outcomes", LIMIT, || async {
        scene.world.settled().await.ok()
    })
    .await
}

/// An event through the API. What the API says without a database is no answer.
async fn post(scene: &Scene, key: &str) -> Result<(), laneway_client::Error> {
    let client = scene.world.client().expect("a client");
    let payload = RawValue::from_string("{}".to_owned()).expect("JSON");
    let event =
        NewEvent { r#type: "load.posted", key: Some("u"), payload: &payload, dedupe_key: None };
    client.event_create(key, &event).await.map(drop)
}

async fn proxies() -> Result<Proxies> {
    let log = temp_dir("rows").join("toxiproxy.log");
    Proxies::start(&log).await?.context("toxiproxy is not built: deploy/dev/stack setup-faults")
}

/// A Kafka that its clients reach through a proxy, and where.
async fn kafka_behind(proxies: &mut Proxies) -> Result<(Stack, String)> {
    let port = free_port();
    let stack = Stack::private_behind(port).await?;
    let upstream = stack.kafka_via().context("a listener for the proxy")?.to_owned();
    let address = proxies.add(Link::Kafka, port, &upstream).await?;
    Ok((stack, address))
}

/// K2: the broker stands still, for less and for more than a session.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "more than a minute"]
async fn k2_a_broker_that_stands_still_costs_time_only() -> Result<()> {
    let stack = Stack::private_kafka().await?;
    let row = Row::begin(&stack, Options::default(), 50).await?;
    for seconds in [5, 30] {
        row.flows().await?;
        stack.pause_kafka().await?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        stack.resume_kafka().await?;
        row.flows().await?;
    }
    assert_eq!(row.end().await?, 0);
    Ok(())
}

/// K3: the broker answers late, in pieces, or through a narrow way: the relay waits, the API does not.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "more than a minute"]
async fn k3_a_slow_broker_makes_deliveries_late_and_nothing_else() -> Result<()> {
    let mut proxies = proxies().await?;
    let (stack, address) = kafka_behind(&mut proxies).await?;
    let options = Options { kafka_via: Some(address), ..Options::default() };
    let row = Row::begin(&stack, options, 55).await?;
    for (number, toxic) in [Toxic::Latency, Toxic::Bandwidth, Toxic::Slicer].into_iter().enumerate()
    {
        row.flows().await?;
        proxies.begin(Link::Kafka, toxic).await?;
        let asked = Instant::now();
        post(&row.scene, &format!("key-{number}")).await?;
        assert!(asked.elapsed() < Duration::from_secs(5), "the API asks no broker");
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert!(proxies.end(Link::Kafka, toxic).await?);
    }
    assert_eq!(row.end().await?, 0);
    Ok(())
}

/// K4: the relay alone, deliver alone, or both do not reach the broker: refused, without any word, or reset.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "more than a minute"]
async fn k4_what_does_not_reach_the_broker_catches_up() -> Result<()> {
    let mut proxies = proxies().await?;
    let (stack, address) = kafka_behind(&mut proxies).await?;
    let port = proxies.port(Link::Kafka).context("the proxy's port")?;
    let via = [("LANEWAY_KAFKA__BROKERS", address.as_str())];
    for (relay, deliver) in [(true, false), (false, true), (true, true)] {
        let endpoints = vec![EndpointOptions::default(); 2];
        let mut scene = Scene::on(&stack, Options::default(), endpoints).await?;
        for (service, name, is_cut) in [
            ("relay", "relay-1", relay),
            ("deliver", "deliver-1", deliver),
            ("deliver", "deliver-2", deliver),
        ] {
            scene.world.spawn(service, name, if is_cut { &via } else { &[] })?;
            scene.world.ready(name).await?;
        }
        let row = Row::of(scene, 45);
        row.flows().await?;
        proxies.begin(Link::Kafka, Toxic::Down).await?;
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(proxies.end(Link::Kafka, Toxic::Down).await?);
        row.flows().await?;
        if has_own_network() {
            for loss in [Loss::All, Loss::Reset] {
                lose(port, loss)?;
                tokio::time::sleep(Duration::from_secs(6)).await;
                assert!(lose_no_more(port, loss)?, "packets were lost");
                row.flows().await?;
            }
        }
        assert_eq!(row.end().await?, 0);
    }
    Ok(())
}

/// K5: the broker's disk is full; it ends, and comes back when there is room.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute; mounts a file system"]
async fn k5_a_broker_whose_disk_is_full_loses_nothing() -> Result<()> {
    let stack = Stack::private_kafka().await?;
    let folder = stack.folder().context("a stack of its own")?.join("kafka");
    stack.stop_kafka().await?;
    let disk = SmallDisk::mount(&folder)?;
    stack.start_kafka().await?;
    let row = Row::begin(&stack, Options::default(), 40).await?;
    row.flows().await?;
    disk.fill()?;
    wait_for("the relay finds no broker to publish to", LIMIT, || async {
        let rows = row.scene.world.app.number("SELECT count(*) FROM laneway.outbox").await;
        let settled = row.scene.world.settled().await;
        matches!((rows, settled), (Ok(rows), Ok(settled)) if rows * 2 > settled + 300)
    })
    .await;
    stack.kill_kafka().await?;
    disk.empty()?;
    stack.start_kafka().await?;
    row.flows().await?;
    assert_eq!(row.end().await?, 0);
    Ok(())
}

/// K10: a consumer with a tenth of a processor and a short session neither joins for ever nor holds others up.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute"]
async fn k10_a_throttled_consumer_holds_nobody_up_for_good() -> Result<()> {
    let stack = Stack::shared().await;
    let mut row = Row::begin(stack, Options::default(), 60).await?;
    row.flows().await?;
    let pid = row.scene.world.process("deliver-1").pid();
    let start = monotonic_ns();
    let group = Cgroup::throttle(pid)?;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(30) {
        row.flows().await?;
    }
    assert!(group.had_effect());
    drop(group);
    row.scene.world.faults.note_since("pause", "deliver-1", start);
    row.flows().await?;
    assert!(row.scene.world.process("deliver-1").is_running());
    assert_eq!(row.end().await?, 0);
    Ok(())
}

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

/// L4: ten thousand events of one user keep no other waiting, and come in their order.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes"]
async fn l4_a_hot_lane_holds_up_nobody_else() -> Result<()> {
    let endpoints = vec![EndpointOptions::default()];
    let mut scene = Scene::shared(Options::default(), endpoints).await?;
    scene.services(2).await?;
    let hot: Vec<(String, Vec<u8>)> =
        (0..10_000).map(|n| ("hot".to_owned(), format!(r#"{{"n":{n}}}"#).into_bytes())).collect();
    for events in hot.chunks(500) {
        scene.world.app.emit_many("load.hot", events).await?;
    }
    assert_eq!(load(&scene, 500, Duration::from_millis(10)).await?, 0);
    let others = "SELECT count(*) FROM laneway_control.inbox i JOIN laneway.outbox o USING (event_id) \
                  WHERE o.type = 'load.created'";
    wait_for("the others' deliveries", Duration::from_secs(20), || async {
        scene.world.app.number(others).await.is_ok_and(|others| others >= 500)
    })
    .await;
    assert!(scene.world.settled().await? < 10_500, "the hot lane was not over before");
    scene.drained(Duration::from_secs(600)).await;
    assert_eq!(scene.judged().await.number("duplicates"), 0.0);
    Ok(())
}
