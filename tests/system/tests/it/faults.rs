//! Rows of the fault matrix (reliability.md 3.4) that have no test of their own elsewhere, named by their ids;
//! `make faults` runs them with the others.

use crate::support::Scene;
use anyhow::{Context, Result};
use laneway_client::NewEvent;
use laneway_system::chaos::clock_envs;
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::{Behaviour, Stack, wait_for};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(90);
const DRAIN: Duration = Duration::from_secs(240);

/// Commits `count` events, one every `every`, and gives how many commits were refused.
fn load(scene: &Scene, count: u32, every: Duration) -> JoinHandle<u32> {
    let app = Arc::clone(&scene.world.app);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(every);
        let mut refused = 0;
        for n in 0..count {
            tick.tick().await;
            let key = format!("user_{}", n % 100);
            refused += u32::from(app.emit("load.created", Some(&key), b"{}").await.is_err());
        }
        refused
    })
}

/// Waits until everything that was committed has its outcome: a commit whose answer was lost counts too.
async fn drained(scene: &Scene) -> Result<()> {
    let rows = scene.world.app.number("SELECT count(*) FROM laneway.outbox").await?;
    scene.world.wait_settled(rows * scene.receivers.len() as i64, DRAIN).await;
    Ok(())
}

/// K7: nothing is written to partitions that were added behind Laneway's back, order holds, and it is told.
#[tokio::test(flavor = "multi_thread")]
async fn k7_partitions_that_were_added_under_load_are_left_alone() -> Result<()> {
    let stack = Stack::private_kafka().await?;
    let mut scene = Scene::on(&stack, Options::default(), vec![EndpointOptions::default()]).await?;
    scene.services(2).await?;
    let loading = load(&scene, 2_000, Duration::from_millis(5));
    scene.world.wait_settled(300, LIMIT).await;
    let topic = scene.world.topic.clone();
    stack.kafka_partitions(&topic, 8).await?;
    assert_eq!(loading.await?, 0);
    scene.drained(DRAIN).await;
    wait_for("the gauge of the alert", LIMIT, || async {
        let gauge = scene.world.metric("relay-1", "laneway_relay_topic_partitions_changed").await;
        gauge.is_ok_and(|gauge| gauge == 1.0)
    })
    .await;
    let admin = laneway_bus::Admin::new(&laneway_bus::Connection::plaintext(&scene.world.kafka))?;
    let offsets = admin.all_offsets(&topic, 8).await?;
    assert!(offsets[4..].iter().all(|(_, end)| *end == 0), "{offsets:?}");
    scene.judged().await;
    Ok(())
}

/// P4: the database stands still for less and for more than a lease; owners send nothing by a lease that is over.
#[tokio::test(flavor = "multi_thread")]
async fn p4_a_database_that_stands_still_costs_time_only() -> Result<()> {
    let stack = Stack::private_postgres().await?;
    let mut scene =
        Scene::on(&stack, Options::default(), vec![EndpointOptions::default(); 2]).await?;
    scene.services(2).await?;
    let loading = load(&scene, 1_500, Duration::from_millis(10));
    scene.world.wait_settled(300, LIMIT).await;
    for seconds in [2, 20] {
        let before = scene.world.settled().await?;
        let start = monotonic_ns();
        stack.pause_postgres().await?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        stack.resume_postgres().await?;
        scene.world.faults.note_since("postgres_pause", "postgres", start);
        wait_for("deliveries again", LIMIT, || async {
            scene.world.settled().await.is_ok_and(|settled| settled > before)
        })
        .await;
    }
    loading.await?;
    drained(&scene).await?;
    scene.judged().await;
    Ok(())
}

/// T1: three days on, an hour back, half a second to and fro: nothing is given up, nothing waits for a clock.
#[tokio::test(flavor = "multi_thread")]
async fn t1_wall_clocks_that_jump_decide_nothing() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default(); 2]).await?;
    // A retry needs a clock.
    scene.receivers[1].set_script(|request| {
        Behaviour::status(if request.attempt() == 1 && request.body.ends_with(b"}") {
            503
        } else {
            200
        })
    });
    let clock = scene.world.dir.join("clock");
    std::fs::write(&clock, "+0")?;
    let Some(envs) = clock_envs(&clock) else {
        assert!(std::env::var_os("CI").is_none(), "libfaketime is not installed");
        return Ok(());
    };
    let envs: Vec<(&str, &str)> =
        envs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for (service, name) in
        [("relay", "relay-1"), ("deliver", "deliver-1"), ("deliver", "deliver-2")]
    {
        scene.world.spawn(service, name, &envs)?;
        scene.world.ready(name).await?;
    }
    let loading = load(&scene, 1_500, Duration::from_millis(10));
    for jump in ["+259200", "-3600", "+0.5", "-0.5", "+0.5", "+0"] {
        let before = scene.world.settled().await?;
        std::fs::write(&clock, jump)?;
        wait_for("deliveries under the new clock", LIMIT, || async {
            scene.world.settled().await.is_ok_and(|settled| settled > before + 50)
        })
        .await;
    }
    assert_eq!(loading.await?, 0);
    scene.drained(DRAIN).await;
    let verdict = scene.judged().await;
    assert_eq!(verdict.number("dead_letters"), 0.0);
    assert_eq!(verdict.number("duplicates"), 0.0);
    Ok(())
}

/// T4, I49: everything is stopped in order and started again, round after round: no repeat.
#[tokio::test(flavor = "multi_thread")]
async fn t4_rolling_restarts_repeat_nothing() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default(); 2]).await?;
    scene.services(2).await?;
    let loading = load(&scene, 3_000, Duration::from_millis(10));
    for _ in 0..10 {
        for (service, name) in [
            ("deliver", "deliver-1"),
            ("relay", "relay-1"),
            ("deliver", "deliver-2"),
            ("api", "api"),
        ] {
            scene.world.stop(name).await?;
            scene.world.up(service, name).await?;
        }
    }
    assert_eq!(loading.await?, 0);
    scene.drained(DRAIN).await;
    let verdict = scene.judged().await;
    assert_eq!(verdict.number("duplicates"), 0.0, "{}", verdict.line());
    Ok(())
}

/// P8: the reply to a commit is lost; what was emitted is found again by its key and delivered once.
#[tokio::test(flavor = "multi_thread")]
async fn p8_a_commit_whose_reply_was_lost_is_found_again() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.services(1).await?;
    let client = scene.world.client()?;
    let payload = RawValue::from_string(r#"{"n":1}"#.to_owned())?;
    let event =
        NewEvent { r#type: "load.posted", key: Some("u"), payload: &payload, dedupe_key: None };
    // Killed after COMMIT, before the answer (A4): the client knows nothing.
    let file = scene.world.dir.join("reached");
    let path = file.display().to_string();
    scene.world.kill("api");
    let point = [("LANEWAY_FAILPOINT", "A4"), ("LANEWAY_FAILPOINT_FILE", path.as_str())];
    scene.world.spawn("api", "api", &point)?;
    scene.world.ready("api").await?;
    let first = client.event_create("key-1", &event);
    let killing = async {
        wait_for("the place", LIMIT, || async { file.exists() }).await;
        scene.world.kill("api");
    };
    let (first, ()) = tokio::join!(first, killing);
    assert!(first.is_err_and(|error| error.is_transient()), "the answer was lost");
    scene.world.up("api", "api").await?;
    let id = client.event_create("key-1", &event).await?;
    assert_eq!(client.event_create("key-1", &event).await?, id);
    let rows = scene.world.app.number("SELECT count(*) FROM laneway.outbox").await?;
    assert_eq!(rows, 1, "one key made one event");
    drained(&scene).await?;
    assert_eq!(scene.judged().await.number("deliveries"), 1.0);
    Ok(())
}

/// Kill points (3.3): kill -9 of the process exactly there, for each of them.
#[tokio::test(flavor = "multi_thread")]
async fn kill_points_lose_and_reorder_nothing() -> Result<()> {
    let settings = vec![("LANEWAY_RELAY__PAGE_ROWS", "50".to_owned())];
    let options = Options { settings, ..Options::default() };
    let mut scene = Scene::shared(options, vec![EndpointOptions::default()]).await?;
    // What a dead letter needs.
    scene.receivers[0].set_script(|request| {
        Behaviour::status(if request.body.ends_with(br#""n":7}"#) { 400 } else { 200 })
    });
    scene.services(1).await?;
    let points = [
        ("api", "api", vec!["A1", "A2", "A3", "A4"]),
        (
            "relay",
            "relay-1",
            vec![
                "relay.holding_lease",
                "relay.after_read",
                "relay.after_produce",
                "relay.after_ack",
                "relay.between_pages",
                "relay.after_advance",
            ],
        ),
        ("deliver", "deliver-1", vec!["C1", "C2", "C3", "C4", "C7", "C8", "C9", "C10"]),
    ];
    for (service, name, points) in points {
        for point in points {
            kill_at(&mut scene, service, name, point)
                .await
                .with_context(|| format!("{point}: {}", scene.world.tails()))?;
        }
        scene.world.up(service, name).await?;
    }
    drained(&scene).await?;
    scene.judged().await;
    Ok(())
}

/// Starts the process anew so that it stops at `point`, gives it work, and kills it there.
async fn kill_at(scene: &mut Scene, service: &str, name: &str, point: &str) -> Result<()> {
    let file = scene.world.dir.join(format!("at-{point}"));
    let path = file.display().to_string();
    scene.world.kill(name);
    let envs = [("LANEWAY_FAILPOINT", point), ("LANEWAY_FAILPOINT_FILE", path.as_str())];
    scene.world.spawn(service, name, &envs)?;
    let mut posting = None;
    if service == "api" {
        scene.world.ready(name).await?;
        let client = scene.world.client()?;
        let key = format!("key-{point}");
        posting = Some(tokio::spawn(async move {
            let payload = RawValue::from_string("{}".to_owned()).expect("JSON");
            let event = NewEvent {
                r#type: "load.posted",
                key: Some("u"),
                payload: &payload,
                dedupe_key: None,
            };
            client.event_create(&key, &event).await
        }));
    } else {
        scene.emit(50, 10, 250).await?;
    }
    let mut guest = false;
    if point == "C4" {
        scene.world.ready(name).await?;
        scene.world.spawn("deliver", "deliver-guest", &[])?;
        guest = true;
    }
    let reached = tokio::time::timeout(LIMIT, async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    reached.await.context("the place was not reached")?;
    assert!(scene.world.kill(name), "it was killed there");
    if guest {
        scene.world.stop("deliver-guest").await?;
    }
    if let Some(posting) = posting {
        assert!(posting.await?.is_err(), "{point}: killed before the answer");
    }
    Ok(())
}
