//! kill -9 of a deliver process at its most delicate moment.

use crate::support::{Scene, by_delivery};
use anyhow::Result;
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::wait_for;
use std::time::Duration;

/// P2, P5, kill point C8: answered 2xx, not recorded.
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_answer_and_settle_each_lane_repeats_exactly_its_head() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    let reached = scene.world.dir.join("reached");
    scene.world.spawn("relay", "relay-1", &[])?;
    let file = reached.display().to_string();
    let point = [("LANEWAY_FAILPOINT", "C8:40"), ("LANEWAY_FAILPOINT_FILE", file.as_str())];
    scene.world.spawn("deliver", "deliver-1", &point)?;
    scene.world.ready("relay-1").await?;
    scene.world.ready("deliver-1").await?;
    scene.emit(20, 10, 50).await?;
    wait_for("the failpoint", Duration::from_secs(60), || async { reached.exists() }).await;
    scene.world.kill("deliver-1");
    scene.world.up("deliver", "deliver-2").await?;
    scene.drained(Duration::from_secs(90)).await;

    let verdict = scene.judged().await;
    assert!(
        verdict.number("duplicates") >= 1.0,
        "the answered head was sent again: {}",
        verdict.line()
    );
    for (delivery, requests) in by_delivery(&scene.receivers[0]) {
        let ids: Vec<_> =
            requests.iter().map(|request| (&request.webhook_id, &request.body_sha256)).collect();
        assert!(
            requests.len() <= 2 && ids.windows(2).all(|pair| pair[0] == pair[1]),
            "{delivery}: {requests:?}"
        );
    }
    Ok(())
}

/// P4, P5 over kills at random moments.
#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_under_load_nothing_is_lost_or_reordered() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default(); 2]).await?;
    scene.services(2).await?;
    scene.emit(100, 30, 100).await?;
    for round in 0..6u64 {
        let name = if round % 2 == 0 { "deliver-1" } else { "deliver-2" };
        let before = scene.world.settled().await?;
        wait_for("progress or the end", Duration::from_secs(60), || async {
            scene.world.settled().await.is_ok_and(|now| now >= (before + 300).min(6_000))
        })
        .await;
        scene.world.kill(name);
        scene.world.up("deliver", name).await?;
    }
    scene.drained(Duration::from_secs(120)).await;
    scene.judged().await;
    Ok(())
}
