//! The broker, and who does not reach it.

use super::{LIMIT, Row, post, proxies};
use crate::support::Scene;
use anyhow::{Context, Result};
use laneway_system::chaos::{
    Cgroup, Link, Loss, Proxies, SmallDisk, Toxic, has_own_network, lose, lose_no_more,
};
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::{Stack, free_port, wait_for};
use std::time::{Duration, Instant};

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
    row.scene.world.faults.note_since("throttle", "deliver-1", start);
    row.flows().await?;
    assert!(row.scene.world.process("deliver-1").is_running());
    assert_eq!(row.end().await?, 0);
    Ok(())
}
