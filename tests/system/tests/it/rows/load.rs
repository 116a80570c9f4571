//! The load itself.

use crate::support::{Scene, load};
use anyhow::Result;
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::wait_for;
use std::time::Duration;

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
