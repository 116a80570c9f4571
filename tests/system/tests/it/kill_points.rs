//! Kill points (reliability.md 3.3): kill -9 of a process exactly there. Places inside the process are named in its code;
//! where the receiver or the client knows better when it is time (C6, A5), it says so.

use crate::support::{Scene, by_delivery, drained};
use anyhow::{Context, Result};
use laneway_client::{Client, NewEvent};
use laneway_system::{EndpointOptions, Options, World};
use laneway_testkit::{Behaviour, wait_for};
use laneway_wire::EventId;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(90);

/// Starts the process so that it stops at `point`; the file is there when it has.
pub(crate) fn arm(world: &mut World, service: &str, name: &str, point: &str) -> Result<PathBuf> {
    let file = world.dir.join(format!("at-{point}"));
    let path = file.display().to_string();
    let envs = [("LANEWAY_FAILPOINT", point), ("LANEWAY_FAILPOINT_FILE", path.as_str())];
    world.spawn(service, name, &envs)?;
    Ok(file)
}

/// Waits until the process has stopped itself at its point, and kills it there.
pub(crate) async fn kill_there(world: &mut World, name: &str, file: &Path) -> Result<()> {
    let reached = tokio::time::timeout(LIMIT, async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    if reached.await.is_err() {
        anyhow::bail!("{} was not reached: {}", file.display(), world.tails());
    }
    assert!(world.kill(name), "it was killed there");
    Ok(())
}

/// Posts an event under `key`, on the side.
fn post(client: Client, key: &str) -> JoinHandle<Result<EventId, laneway_client::Error>> {
    let key = key.to_owned();
    tokio::spawn(async move {
        let payload = RawValue::from_string("{}".to_owned()).expect("JSON");
        let event =
            NewEvent { r#type: "load.posted", key: Some("u"), payload: &payload, dedupe_key: None };
        client.event_create(&key, &event).await
    })
}

/// A1 to A5: the caller is told nothing, and the same key gives one event.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_killed_at_any_point_makes_one_event_for_each_key() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.services(1).await?;
    for point in ["A1", "A2", "A3", "A4"] {
        scene.world.kill("api");
        let file = arm(&mut scene.world, "api", "api", point)?;
        scene.world.ready("api").await?;
        let posting = post(scene.world.client()?, point);
        kill_there(&mut scene.world, "api", &file).await?;
        assert!(posting.await?.is_err_and(|error| error.is_transient()), "{point}: no answer");
    }
    scene.world.up("api", "api").await?;
    // A5: a few bytes of the answer get through.
    let way = TcpListener::bind("127.0.0.1:0").await?;
    let posting = post(scene.world.client_via(&format!("http://{}", way.local_addr()?))?, "A5");
    let (mut caller, _) = way.accept().await?;
    let mut api = TcpStream::connect(scene.world.api_address()).await?;
    let mut some = [0; 8];
    let passed = async {
        let (mut from, mut to) = caller.split();
        let (mut back, mut forth) = api.split();
        tokio::select! {
            _ = tokio::io::copy(&mut from, &mut forth) => anyhow::bail!("the caller left"),
            read = back.read_exact(&mut some) => read?,
        };
        Ok(to.write_all(&some).await?)
    };
    passed.await?;
    scene.world.kill("api");
    drop((caller, api));
    assert!(posting.await?.is_err_and(|error| error.is_transient()), "A5: half an answer");
    scene.world.up("api", "api").await?;

    let events = "SELECT count(*) FROM laneway.outbox";
    assert_eq!(scene.world.app.number(events).await?, 2, "committed: A4 and A5 alone");
    for point in ["A1", "A2", "A3", "A4", "A5"] {
        let id = post(scene.world.client()?, point).await??;
        assert_eq!(post(scene.world.client()?, point).await??, id, "{point}");
    }
    assert_eq!(scene.world.app.number(events).await?, 5, "one event for one key");
    drained(&scene).await?;
    assert_eq!(scene.judged().await.number("duplicates"), 0.0);
    Ok(())
}

/// R1 to R5: what is published twice is sent once.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_at_any_point_repeats_nothing_at_a_receiver() -> Result<()> {
    let settings = vec![("LANEWAY_RELAY__PAGE_ROWS", "50".to_owned())];
    let options = Options { settings, ..Options::default() };
    let mut scene = Scene::shared(options, vec![EndpointOptions::default()]).await?;
    scene.world.up("deliver", "deliver-1").await?;
    for point in [
        "relay.holding_lease",
        "relay.after_read",
        "relay.after_produce",
        "relay.after_ack",
        "relay.between_pages",
        "relay.after_advance",
    ] {
        let file = arm(&mut scene.world, "relay", "relay-1", point)?;
        scene.emit(50, 10, 250).await?;
        kill_there(&mut scene.world, "relay-1", &file).await?;
    }
    scene.world.up("relay", "relay-1").await?;
    drained(&scene).await?;
    assert_eq!(scene.judged().await.number("duplicates"), 0.0);
    Ok(())
}

/// C1 to C4, C7 to C10: nothing is lost, nothing out of order, one repeat at most for each event under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_deliver_killed_at_any_point_loses_and_reorders_nothing() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    // What a dead letter needs.
    scene.receivers[0].set_script(|request| {
        Behaviour::status(if request.body.ends_with(br#""n":7}"#) { 400 } else { 200 })
    });
    scene.world.up("relay", "relay-1").await?;
    for point in ["C1", "C2", "C3", "C4", "C7", "C8", "C9", "C10"] {
        let file = arm(&mut scene.world, "deliver", "deliver-1", point)?;
        scene.emit(50, 10, 250).await?;
        // A revocation needs somebody who joins.
        let guest = point == "C4";
        if guest {
            scene.world.ready("deliver-1").await?;
            scene.world.spawn("deliver", "deliver-guest", &[])?;
        }
        kill_there(&mut scene.world, "deliver-1", &file).await?;
        if guest {
            scene.world.stop("deliver-guest").await?;
        }
    }
    scene.world.up("deliver", "deliver-1").await?;
    drained(&scene).await?;
    scene.judged().await;
    Ok(())
}

/// C6: killed while the receiver has the request and has not answered: it gets exactly one more.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_request_is_under_way_it_is_sent_once_more() -> Result<()> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.receivers[0].set_script(|_| Behaviour::Hang);
    scene.services(1).await?;
    scene.emit(1, 3, 3).await?;
    wait_for("the request", LIMIT, || async {
        !scene.receivers[0].journal().requests().is_empty()
    })
    .await;
    scene.world.kill("deliver-1");
    scene.receivers[0].set_script(|_| Behaviour::ok());
    scene.world.up("deliver", "deliver-1").await?;
    drained(&scene).await?;
    scene.judged().await;
    let mut counts: Vec<usize> = by_delivery(&scene.receivers[0]).values().map(Vec::len).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2], "the head once more, the others once");
    Ok(())
}

/// C5 and C6 of an endpoint that takes no resend (I12, I16): the intent is found and is an unknown, and nothing is sent
/// before somebody has said what happened.
#[tokio::test(flavor = "multi_thread")]
async fn killed_around_a_request_of_a_hold_endpoint_its_outcome_is_unknown() -> Result<()> {
    let hold = EndpointOptions { on_unknown: "hold", ..EndpointOptions::default() };
    let mut scene = Scene::shared(Options::default(), vec![hold]).await?;
    scene.world.up("relay", "relay-1").await?;

    // C5: the intent is durable, the request is not begun.
    let file = arm(&mut scene.world, "deliver", "deliver-1", "C5")?;
    scene.emit(1, 2, 2).await?;
    kill_there(&mut scene.world, "deliver-1", &file).await?;
    scene.world.up("deliver", "deliver-1").await?;
    let delivery = held(&scene).await?;
    assert_eq!(sent(&scene), 0, "nobody sends what may have been sent");
    say(&scene, &delivery, "not-applied")?;
    scene.world.wait_settled(2, LIMIT).await;
    assert_eq!(sent(&scene), 2);

    // C6: the receiver has it.
    scene.receivers[0].set_script(|_| Behaviour::Hang);
    scene.emit(1, 2, 2).await?;
    wait_for("the request", LIMIT, || async { sent(&scene) == 3 }).await;
    scene.world.kill("deliver-1");
    scene.receivers[0].set_script(|_| Behaviour::ok());
    scene.world.up("deliver", "deliver-1").await?;
    let delivery = held(&scene).await?;
    assert_eq!(sent(&scene), 3, "nobody sends it again, and nothing behind it");
    say(&scene, &delivery, "delivered")?;
    scene.world.wait_settled(4, LIMIT).await;
    assert_eq!(sent(&scene), 4);
    assert_eq!(scene.judged().await.number("duplicates"), 0.0);
    Ok(())
}

fn sent(scene: &Scene) -> usize {
    scene.receivers[0].journal().requests().len()
}

/// Waits for the one unknown outcome and gives its delivery's id.
async fn held(scene: &Scene) -> Result<String> {
    wait_for("an unknown", LIMIT, || async {
        let held = "SELECT count(*) FROM laneway_control.parked_lanes WHERE unknown";
        scene.world.app.number(held).await.is_ok_and(|held| held == 1)
    })
    .await;
    let all = scene.world.cli_json(&["unknowns", "list"])?;
    let delivery = all[0]["deliveryId"].as_str().context("an unknown in the list")?;
    Ok(delivery.to_owned())
}

fn say(scene: &Scene, delivery: &str, verdict: &str) -> Result<()> {
    let reason = ["--reason", "asked them", "--actor", "ann"];
    let args = ["unknowns", "resolve", delivery, "--as", verdict];
    scene.world.cli(&[args.as_slice(), reason.as_slice()].concat())?;
    Ok(())
}
