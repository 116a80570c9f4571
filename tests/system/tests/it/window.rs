//! One lane that never succeeds while its partition moves on.

use crate::support::{Scene, by_delivery};
use anyhow::Result;
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::{Behaviour, wait_for};
use std::time::Duration;

/// A partition's window in this test; what a restart replays at most.
const WINDOW: i64 = 2_000;

/// P3, P5, P10: after a kill the restart replays no more than the window, and the dead lane's attempts are not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_lane_holds_neither_its_partition_nor_the_restart() -> Result<()> {
    let settings = vec![("LANEWAY_DELIVER__WINDOW_EVENTS", WINDOW.to_string())];
    let options = Options { partitions: 1, settings, ..Options::default() };
    let endpoint = EndpointOptions { max_connections: 64, ..EndpointOptions::default() };
    let mut scene = Scene::shared(options, vec![endpoint]).await?;
    scene.receivers[0].set_script(|request| {
        let dead = request.body.windows(6).any(|part| part == b"\"dead\"");
        if dead { Behaviour::status(503) } else { Behaviour::ok() }
    });
    scene.services(1).await?;
    scene.world.app.emit("load.created", Some("dead"), br#"{"key":"dead"}"#).await?;
    scene.emit(2_000, 25, 1_000).await?;
    scene.world.wait_settled(50_000, Duration::from_secs(300)).await;
    let attempts = "SELECT coalesce(max(number), 0)::bigint FROM laneway_control.attempts";
    wait_for("a few attempts of the dead lane", Duration::from_secs(60), || async {
        scene.world.app.number(attempts).await.is_ok_and(|number| number >= 3)
    })
    .await;

    scene.world.kill("deliver-1");
    let position = scene
        .world
        .app
        .number("SELECT max(next_offset) FROM laneway_control.partition_owners")
        .await?;
    assert!(
        position > 50_001 - WINDOW,
        "the stored position {position} is more than the window behind"
    );
    let before = scene.world.app.number(attempts).await?;
    scene.world.up("deliver", "deliver-1").await?;
    wait_for("another attempt of the dead lane", Duration::from_secs(90), || async {
        scene.world.app.number(attempts).await.is_ok_and(|number| number > before)
    })
    .await;
    let all = by_delivery(&scene.receivers[0]);
    let dead = all.values().max_by_key(|requests| requests.len()).expect("requests");
    let numbers: Vec<u32> = dead.iter().filter_map(|request| request.attempt).collect();
    assert!(
        numbers.windows(2).all(|pair| pair[0] <= pair[1]),
        "attempt numbers went back: {numbers:?}"
    );
    let repeated = all.values().filter(|requests| requests.len() > 1).count();
    assert!(repeated <= 65, "{repeated} deliveries were repeated: more than were in flight");
    Ok(())
}
