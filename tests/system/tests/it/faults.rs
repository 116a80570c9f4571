//! Rows of the fault matrix (reliability.md 3.4) that have no test of their own elsewhere, named by their ids;
//! `make faults` runs them with the others.

use crate::support::{DRAIN, Scene, drained, load};
use anyhow::Result;
use laneway_client::NewEvent;
use laneway_system::chaos::clock_envs;
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::{Behaviour, Stack, wait_for};
use serde_json::value::RawValue;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

/// An event for the API.
fn posted(payload: &RawValue) -> NewEvent<'_> {
    NewEvent { r#type: "load.posted", key: Some("u"), payload, dedupe_key: None }
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
        let sum: u32 = request.delivery_id().bytes().map(u32::from).sum();
        let fails = request.attempt() == 1 && sum.is_multiple_of(10);
        Behaviour::status(if fails { 503 } else { 200 })
    });
    let clock = scene.world.dir.join("clock");
    std::fs::write(&clock, "+0")?;
    let Some(envs) = clock_envs(&clock) else {
        assert!(std::env::var_os("CI").is_none(), "libfaketime is not installed");
        return Ok(());
    };
    let envs: Vec<(&str, &str)> =
        envs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    scene.world.stop("api").await?;
    for (service, name) in
        [("api", "api"), ("relay", "relay-1"), ("deliver", "deliver-1"), ("deliver", "deliver-2")]
    {
        scene.world.spawn(service, name, &envs)?;
        scene.world.ready(name).await?;
    }
    let client = scene.world.client()?;
    for jump in ["+259200", "-3600", "+0.5", "-0.5", "+0.5", "+0"] {
        let before = scene.world.settled().await?;
        let loading = load(&scene, 250, Duration::from_millis(10));
        wait_for("deliveries under way", LIMIT, || async {
            scene.world.settled().await.is_ok_and(|settled| settled > before)
        })
        .await;
        std::fs::write(&clock, jump)?;
        let payload = RawValue::from_string("{}".to_owned())?;
        client.event_create(&format!("key{jump}"), &posted(&payload)).await?;
        assert_eq!(loading.await?, 0);
        drained(&scene).await?;
    }
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
