//! Consumers that come and go.

use crate::support::Scene;
use anyhow::Result;
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::Behaviour;
use std::time::{Duration, Instant};

/// K9 in small, with 20 % failures (P1–P5).
#[tokio::test(flavor = "multi_thread")]
async fn consumers_joining_and_leaving_under_load_lose_and_reorder_nothing() -> Result<()> {
    let mut scene = Scene::shared(
        Options { partitions: 8, ..Options::default() },
        vec![EndpointOptions::default(); 2],
    )
    .await?;
    for receiver in &scene.receivers {
        // The same requests fail in every run: by the last digit of the delivery id's checksum and the attempt.
        receiver.set_script(|request| {
            let id = request.header("x-delivery-id").unwrap_or_default();
            let sum: u32 = id.bytes().map(u32::from).sum::<u32>() + request.attempt();
            if sum.is_multiple_of(5) { Behaviour::status(503) } else { Behaviour::ok() }
        });
    }
    scene.services(2).await?;
    let app = std::sync::Arc::clone(&scene.world.app);
    let load = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        for n in 0..3_000u32 {
            tick.tick().await;
            let key = format!("user_{}", n % 150);
            app.emit("load.created", Some(&key), format!(r#"{{"n":{n}}}"#).as_bytes()).await?;
        }
        anyhow::Ok(())
    });
    let end = Instant::now() + Duration::from_secs(30);
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        let name = format!("deliver-guest-{round}");
        scene.world.up("deliver", &name).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        if round % 3 == 0 {
            scene.world.kill(&name);
        } else {
            scene.world.stop(&name).await?;
        }
    }
    load.await??;
    scene.drained(Duration::from_secs(180)).await;
    scene.judged().await;
    Ok(())
}
