//! One user's payloads are erased while everything runs (C17).

use crate::kill_points::{arm, kill_there};
use crate::support::Scene;
use crate::topic_loss::recreate;
use anyhow::{Context, Result};
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::{Behaviour, wait_for};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// The payloads of `user_0` say this.
const SAID: &str = r#"{"key":"user_0""#;

/// Waits until this many rows are counted.
async fn counted(scene: &Scene, what: &str, query: &'static str, wanted: i64) {
    wait_for(what, LIMIT, || async {
        scene.world.app.number(query).await.is_ok_and(|found| found == wanted)
    })
    .await;
}

/// Places of the database that still hold something that `user_0` has said.
async fn kept(scene: &Scene) -> Result<i64> {
    let hex: String = SAID.bytes().map(|byte| format!("{byte:02x}")).collect();
    let holds = |column: &str| format!("position('\\x{hex}'::bytea IN {column}) > 0");
    let query = format!(
        "SELECT (SELECT count(*) FROM laneway.outbox WHERE {}) \
           + (SELECT count(*) FROM laneway_control.parked_events WHERE {}) \
           + (SELECT count(*) FROM laneway_control.dead_letters WHERE {}) \
           + (SELECT count(*) FROM laneway_control.attempts WHERE {}) AS kept",
        holds("payload"),
        holds("record"),
        holds("record"),
        holds("coalesce(body, '')"),
    );
    let rows = scene.world.app.rows(&query).await?;
    rows[0]["kept"].as_i64().context("a number")
}

fn begin(scene: &Scene) -> Result<()> {
    let who = ["--project", &scene.world.tenant.to_string(), "--user-key", "user_0"];
    let why = ["--reason", "they asked for it", "--actor", "ann", "--yes", "--no-wait"];
    scene.world.cli(&[["erase"].as_slice(), &who, &why].concat())?;
    Ok(())
}

/// SHA-256 of no bytes.
const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const DONE: &str = "SELECT count(*) FROM laneway_control.erasures WHERE finished_at IS NOT NULL";
const SETTLED: &str = "SELECT count(*) FROM laneway_control.inbox";
const ERASED: &str = "SELECT count(*) FROM laneway_control.dead_letters WHERE state = 'erased' AND user_key = 'user_0'";

/// Waiting at a degraded endpoint, held as an unknown, refused, delivered: nothing is kept, nothing of it is sent any
/// more, and everybody else's goes on, whenever the reconciler is killed.
#[tokio::test(flavor = "multi_thread")]
async fn an_erased_user_leaves_nothing_behind_and_the_others_go_on() -> Result<()> {
    let hold = EndpointOptions { on_unknown: "hold", ..EndpointOptions::default() };
    let all = vec![EndpointOptions::default(), hold, EndpointOptions::default()];
    let mut scene = Scene::shared(Options::default(), all).await?;
    scene.receivers[0].set_script(|_| Behaviour::status(503));
    let of_user = |body: &[u8]| body.starts_with(SAID.as_bytes());
    scene.receivers[1].set_script(move |request| match of_user(&request.body) {
        true => Behaviour::Close,
        false => Behaviour::ok(),
    });
    scene.receivers[2].set_script(move |request| match of_user(&request.body) {
        true if request.body.ends_with(br#""n":1}"#) => Behaviour::status(400),
        _ => Behaviour::ok(),
    });
    scene.services(2).await?;
    scene.emit(20, 5, 100).await?;
    // Endpoint 0: all 100 wait. Endpoint 1: five wait behind an unknown. Endpoint 2: all settled, one as a dead letter.
    counted(&scene, "what can be settled", SETTLED, 95 + 100).await;
    let parked = "SELECT count(*) FROM laneway_control.parked_events";
    counted(&scene, "what waits", parked, 105).await;
    begin(&scene)?;
    begin(&scene)?;
    for _ in 0..3 {
        let file = arm(&mut scene.world, "reconciler", "reconciler-1", "erasure.after_step")?;
        kill_there(&mut scene.world, "reconciler-1", &file).await?;
        std::fs::remove_file(file)?;
    }
    scene.world.up("reconciler", "reconciler-1").await?;
    counted(&scene, "the end of the erasure", DONE, 1).await;
    assert_eq!(kept(&scene).await?, 0);
    assert_eq!(scene.world.app.number(ERASED).await?, 11, "five, five, and one that was refused");
    assert_eq!(scene.world.app.number(parked).await?, 95, "nobody else's");

    scene.receivers[0].set_script(|_| Behaviour::ok());
    let rows = scene.world.app.number("SELECT count(*) FROM laneway.outbox").await?;
    counted(&scene, "everybody else's", SETTLED, rows * 3).await;
    let delivered: Vec<_> = scene.receivers.iter().map(|of| of.journal().delivered()).collect();
    assert_eq!(delivered, [95, 95, 99], "nothing that waited");
    scene.receivers[1].set_script(|_| Behaviour::ok());
    scene.emit(1, 1, 1).await?;
    counted(&scene, "what they say later", SETTLED, rows * 3 + 3).await;
    let findings = scene.world.cli_output(&["audit", "--settled", "1s"])?;
    assert!(findings.status.success(), "{}", String::from_utf8_lossy(&findings.stdout));
    Ok(())
}

/// The row is erased, and then the log is lost with the only copy: what is published again is never sent.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_again_of_an_erased_row_is_not_sent() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.services(1).await?;
    scene.emit(3, 1, 10).await?;
    counted(&scene, "the first events", SETTLED, 3).await;
    scene.world.stop("deliver-1").await?;
    scene.emit(3, 4, 12).await?;
    scene.world.up("reconciler", "reconciler-1").await?;
    begin(&scene)?;
    let rows = "SELECT count(*) FROM laneway.outbox WHERE erased AND payload = ''";
    counted(&scene, "what is published to be erased", rows, 5).await;
    assert_eq!(scene.world.app.number(DONE).await?, 0, "what lies in the topic is not passed");
    recreate(&scene).await?;
    let newest = "SELECT max(generation) FROM laneway_control.topic_generations";
    counted(&scene, "the new generation", newest, 2).await;
    scene.world.up("deliver", "deliver-1").await?;
    counted(&scene, "every event's outcome", SETTLED, 15).await;
    counted(&scene, "the end of the erasure", DONE, 1).await;
    assert_eq!(scene.world.app.number(ERASED).await?, 4);
    assert_eq!(kept(&scene).await?, 0);
    let requests = scene.receivers[0].journal().requests();
    assert_eq!(requests.len(), 3 + 8, "three at first, eight of the others");
    let empty = requests.iter().any(|request| request.body_sha256.as_deref() == Some(NOTHING));
    assert!(!empty, "nothing without its payload");
    Ok(())
}
