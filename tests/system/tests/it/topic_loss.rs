//! The deliveries topic is deleted and made again under load.

use crate::support::{Scene, leases};
use anyhow::Result;
use laneway_bus::{Admin, Connection, TopicSpec};
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::wait_for;
use std::sync::Arc;
use std::time::Duration;

pub(crate) async fn recreate(scene: &Scene) -> Result<()> {
    let admin = Admin::new(&Connection::plaintext(&scene.world.kafka))?;
    admin.delete_topic(&scene.world.topic).await?;
    let spec = TopicSpec::new(&scene.world.topic, 4);
    // Deletion is asynchronous: the name is free a moment later.
    wait_for("the topic's name", Duration::from_secs(30), || async {
        matches!(admin.create_topic(&spec).await, Ok(true))
    })
    .await;
    Ok(())
}

/// P4, K6, I6: everything is delivered, in order; the generation was raised.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_deleted_and_recreated_under_load_is_published_again_from_the_outbox() -> Result<()>
{
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.services(2).await?;
    let _leases = leases(&scene, Options::default().partitions);
    let app = Arc::clone(&scene.world.app);
    let load = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        for n in 0..4_000u32 {
            tick.tick().await;
            let key = format!("user_{}", n % 100);
            app.emit("load.created", Some(&key), b"{}").await?;
        }
        anyhow::Ok(())
    });
    scene.world.wait_settled(800, Duration::from_secs(60)).await;
    let start = monotonic_ns();
    recreate(&scene).await?;
    scene.world.faults.note_since("topic_recreated", "kafka", start);
    wait_for("a new generation", Duration::from_secs(60), || async {
        let newest = "SELECT max(generation) FROM laneway_control.topic_generations";
        scene.world.app.number(newest).await.is_ok_and(|generation| generation > 1)
    })
    .await;
    load.await??;
    scene.drained(Duration::from_secs(180)).await;
    scene.judged().await;
    Ok(())
}
