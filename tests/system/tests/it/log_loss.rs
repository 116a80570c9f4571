//! Parts of the log go: the tail by a truncation below acknowledged offsets, the head by a retention that was too short
//! (P4, I6). The topic stays the same one; `topic_loss` is the other case.

use crate::support::{Scene, leases};
use anyhow::{Context, Result};
use laneway_bus::{Admin, Connection};
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::{Stack, wait_for};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const PARTITIONS: u16 = 4;
const LIMIT: Duration = Duration::from_secs(90);

/// The log files of the topic's partitions, as the broker keeps them.
fn segments(stack: &Stack, topic: &str) -> Result<Vec<PathBuf>> {
    let data = stack.folder().context("a broker of its own")?.join("kafka/data");
    let name = |n| data.join(format!("{topic}-{n}/00000000000000000000.log"));
    Ok((0..PARTITIONS).map(name).collect())
}

async fn raised(scene: &Scene) {
    wait_for("a new generation", LIMIT, || async {
        let newest = "SELECT max(generation) FROM laneway_control.topic_generations";
        scene.world.app.number(newest).await.is_ok_and(|generation| generation > 1)
    })
    .await;
}

/// What the alert LanewayLogLost looks at, over these processes.
async fn counted(scene: &Scene, processes: &[&str]) -> Result<f64> {
    let mut sum = 0.0;
    for process in processes {
        for metric in ["laneway_relay_generation_raised_total", "laneway_generation_changes_total"]
        {
            sum += scene.world.metric(process, metric).await?;
        }
    }
    Ok(sum)
}

/// P4, I6: as after an unclean election, the log ends before what it had acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_truncated_below_acknowledged_offsets_is_published_again() -> Result<()> {
    let stack = Stack::private_kafka().await?;
    let options = Options { partitions: PARTITIONS, ..Options::default() };
    let mut scene = Scene::on(&stack, options, vec![EndpointOptions::default()]).await?;
    scene.services(2).await?;
    let _leases = leases(&scene, PARTITIONS);
    let app = Arc::clone(&scene.world.app);
    let load = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        for n in 0..3_000u32 {
            tick.tick().await;
            app.emit("load.created", Some(&format!("user_{}", n % 100)), b"{}").await?;
        }
        anyhow::Ok(())
    });
    scene.world.wait_settled(800, Duration::from_secs(60)).await;
    let start = monotonic_ns();
    stack.kill_kafka().await?;
    for segment in segments(&stack, &scene.world.topic)? {
        let file = std::fs::OpenOptions::new().write(true).open(&segment)?;
        let length = file.metadata()?.len();
        assert!(length > 0, "{} is empty", segment.display());
        file.set_len(length / 2)?;
    }
    stack.start_kafka().await?;
    scene.world.faults.note_since("log_truncated", "kafka", start);
    raised(&scene).await;
    load.await??;
    scene.drained(Duration::from_secs(180)).await;
    assert!(counted(&scene, &["relay-1", "deliver-1", "deliver-2"]).await? >= 1.0);
    scene.judged().await;
    Ok(())
}

/// K8: retention passed records that nobody had read.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_retention_took_unread_are_published_again() -> Result<()> {
    let stack = Stack::private_kafka().await?;
    let options = Options { partitions: PARTITIONS, ..Options::default() };
    let mut scene = Scene::on(&stack, options, vec![EndpointOptions::default()]).await?;
    scene.services(0).await?;
    scene.emit(100, 10, 100).await?;
    let admin = Admin::new(&Connection::plaintext(&scene.world.kafka))?;
    let topic = scene.world.topic.clone();
    let all = |of: fn((i64, i64)) -> i64| {
        let (admin, topic) = (admin.clone(), topic.clone());
        async move {
            let offsets =
                admin.all_offsets(&topic, u32::from(PARTITIONS)).await.unwrap_or_default();
            offsets.into_iter().map(of).sum::<i64>()
        }
    };
    wait_for("every record", LIMIT, || async { all(|(_, end)| end).await >= 1_000 }).await;
    let start = monotonic_ns();
    stack.kafka_topic_config(&topic, "retention.ms=1000,segment.ms=1000").await?;
    wait_for("the loss of them all", LIMIT, || async {
        all(|(begin, end)| end - begin).await == 0
    })
    .await;
    stack.kafka_topic_config(&topic, "retention.ms=604800000,segment.ms=604800000").await?;
    scene.world.faults.note_since("retention", "kafka", start);
    scene.world.up("deliver", "deliver-1").await?;
    raised(&scene).await;
    scene.emit(100, 2, 100).await?;
    scene.drained(Duration::from_secs(180)).await;
    assert!(counted(&scene, &["relay-1", "deliver-1"]).await? >= 1.0);
    scene.judged().await;
    Ok(())
}
