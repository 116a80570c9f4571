//! An owner that is paused past its lease and comes back.

use crate::support::Scene;
use anyhow::Result;
use laneway_system::{EndpointOptions, Options, monotonic_ns};
use laneway_testkit::{Behaviour, wait_for};
use std::time::Duration;

/// P1, P13: SIGSTOP of an owner past its lease, another takes over, SIGCONT.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_owner_that_comes_back_changes_nothing_and_is_counted() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.receivers[0].set_script(|_| Behaviour::delayed(200, Duration::from_millis(20)));
    scene.services(1).await?;
    scene.emit(50, 40, 100).await?;
    wait_for("deliveries under way", Duration::from_secs(60), || async {
        scene.world.settled().await.is_ok_and(|settled| settled > 200)
    })
    .await;
    let paused = monotonic_ns();
    scene.world.process("deliver-1").pause();
    scene.world.up("deliver", "deliver-2").await?;
    let before = scene.world.settled().await?;
    wait_for("the successor's deliveries", Duration::from_secs(60), || async {
        scene.world.settled().await.is_ok_and(|settled| settled > before + 200)
    })
    .await;
    scene.world.process("deliver-1").resume();
    scene.world.faults.note_since("pause", "deliver-1", paused);
    scene.drained(Duration::from_secs(120)).await;
    // It finds its lease over, or its epoch gone, whichever it looks at first; what it had queued is counted.
    wait_for("the old owner's count", Duration::from_secs(60), || async {
        let world = &scene.world;
        let over = world.metric("deliver-1", "laneway_leases_lost_total").await.unwrap_or(0.0);
        let fenced = world.metric("deliver-1", "laneway_fenced_total").await.unwrap_or(0.0);
        over + fenced >= 1.0
    })
    .await;
    scene.judged().await;
    Ok(())
}
