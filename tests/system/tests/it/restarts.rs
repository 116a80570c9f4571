//! The broker and the database go away and come back.

use crate::support::{Scene, leases};
use anyhow::Result;
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::{Stack, wait_for};
use std::sync::Arc;
use std::time::Duration;

/// Told for so long again and again that there is no broker, all of twenty clients had forgotten it for good.
const FORGETTING: Duration = Duration::from_secs(30);

async fn under_load(stack: &Stack) -> Result<(Scene, tokio::task::JoinHandle<Result<u32>>)> {
    let mut scene =
        Scene::on(stack, Options::default(), vec![EndpointOptions::default(); 2]).await?;
    scene.services(2).await?;
    let _leases = leases(&scene, Options::default().partitions);
    let app = Arc::clone(&scene.world.app);
    let load = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        let mut refused = 0;
        for n in 0..2_500u32 {
            tick.tick().await;
            let key = format!("user_{}", n % 100);
            // While the database is away nothing commits: that is the application's to repeat, or to leave.
            refused += u32::from(app.emit("load.created", Some(&key), b"{}").await.is_err());
        }
        anyhow::Ok(refused)
    });
    Ok((scene, load))
}

/// K1: kill -9 of the broker, restart (P4).
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_and_restarted_loses_nothing() -> Result<()> {
    let stack = Stack::private_kafka().await?;
    let (mut scene, load) = under_load(&stack).await?;
    scene.world.wait_settled(600, Duration::from_secs(60)).await;
    let start = monotonic_ns();
    stack.kill_kafka().await?;
    wait_for("deliver says that Kafka is away", Duration::from_secs(60), || async {
        !scene.world.is_ready("deliver-1").await
    })
    .await;
    stack.start_kafka().await?;
    scene.world.ready("deliver-1").await?;
    scene.world.faults.note_since("kafka_kill", "kafka", start);
    assert_eq!(load.await??, 0, "the application notices nothing of the broker");
    scene.drained(Duration::from_secs(180)).await;
    scene.judged().await;
    Ok(())
}

/// All brokers are fenced for a moment again and again: clients are told that there are none, and forget them for good
/// (librdkafka issue 5301). The processes find them again without being restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_fenced_is_found_again() -> Result<()> {
    let stack = Stack::private_kafka().await?;
    let mut scene =
        Scene::on(&stack, Options::default(), vec![EndpointOptions::default(); 2]).await?;
    scene.services(1).await?;
    let _leases = leases(&scene, Options::default().partitions);
    let app = Arc::clone(&scene.world.app);
    let emitting = Arc::clone(&app);
    let (enough, mut told) = tokio::sync::oneshot::channel::<()>();
    let load = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        // As long as the fault: a producer without a record to send has nothing to forget the brokers over.
        for n in 0.. {
            tokio::select! {
                _ = &mut told => break,
                _ = tick.tick() => emitting.emit("load.created", Some(&format!("user_{}", n % 100)), b"{}").await?,
            };
        }
        anyhow::Ok(())
    });
    scene.world.wait_settled(100, Duration::from_secs(60)).await;
    let start = monotonic_ns();
    // Fenced for two seconds of three.
    stack.kafka_extra("broker.session.timeout.ms=1000\nbroker.heartbeat.interval.ms=3000\n")?;
    stack.restart_kafka().await?;
    let log = scene.world.process("deliver-1").log().to_owned();
    wait_for("the group is lost", Duration::from_secs(120), || async {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("partitions lost"))
    })
    .await;
    tokio::time::sleep(FORGETTING).await;
    stack.kafka_extra("")?;
    stack.restart_kafka().await?;
    scene.world.faults.note_since("kafka_fenced", "kafka", start);
    let _ = enough.send(());
    load.await??;
    let expected = app.committed() * scene.receivers.len() as u64;
    let mut look = tokio::time::interval(Duration::from_millis(100));
    let drained = async {
        while scene.world.settled().await? < expected.cast_signed() {
            look.tick().await;
            // A member that joins anew while its last commit is under way can be fenced by itself. The client is dead
            // then, and its process ends, for a supervisor to start it again.
            if scene.world.process("deliver-1").ended().is_some() {
                scene.world.spawn("deliver", "deliver-1", &[])?;
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(180), drained).await??;
    scene.judged().await;
    Ok(())
}

/// P1: immediate crash of the database, whole group (P4, P13).
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_and_recovers_loses_nothing() -> Result<()> {
    let stack = Stack::private_postgres().await?;
    let (scene, load) = under_load(&stack).await?;
    scene.world.wait_settled(600, Duration::from_secs(60)).await;
    for _ in 0..2 {
        let start = monotonic_ns();
        stack.crash_postgres().await?;
        stack.start_postgres().await?;
        scene.world.faults.note_since("postgres_crash", "postgres", start);
        let before = scene.world.app.committed();
        scene.world.wait_settled((before + 100).cast_signed(), Duration::from_secs(90)).await;
    }
    load.await??;
    let rows = scene.world.app.number("SELECT count(*) FROM laneway.outbox").await?;
    scene.world.wait_settled(rows * 2, Duration::from_secs(180)).await;
    scene.judged().await;
    Ok(())
}
