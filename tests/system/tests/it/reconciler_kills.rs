//! Kill points of the reconciler (Q1 to Q3): kill -9 exactly there, and another goes on: one effect each.

use crate::kill_points::{arm, kill_there};
use crate::support::Scene;
use anyhow::{Context, Result};
use laneway_system::{EndpointOptions, Options, World};
use laneway_testkit::{Behaviour, First, Provider, Stack, wait_for};
use laneway_wire::EventId;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Q1, Q2, I12, I14: killed with a claim, with an answer, with a command written: what was applied is not sent again, what
/// was not is sent once more, and the database is as it must be.
#[tokio::test(flavor = "multi_thread")]
async fn a_reconciler_killed_at_any_point_settles_each_unknown_once() -> Result<()> {
    let setting = |name, value: &str| (name, value.to_owned());
    let settings = vec![
        setting("LANEWAY_RECONCILER__POLL", "100ms"),
        setting("LANEWAY_RECONCILER__LOOKUP_GRACE", "1s"),
        setting("LANEWAY_RECONCILER__LOOKUP_FIRST", "200ms"),
        setting("LANEWAY_RECONCILER__LOOKUP_DEADLINE", "1s"),
    ];
    let options = Options { settings, ..Options::default() };
    let mut world = World::start(Stack::shared().await, options).await?;
    let provider = Provider::start().await;
    let lookup = EndpointOptions { on_unknown: "lookup", ..EndpointOptions::default() };
    let id = world.endpoint(&provider.url(), lookup).await?;
    let authority = json!({"url": provider.authority()});
    world.client()?.authority_set(id, &authority).await?;
    world.up("relay", "relay-1").await?;
    world.up("deliver", "deliver-1").await?;
    let mut settled = 0;
    for point in ["lookup.after_claim", "lookup.after_answer", "lookup.after_settle"] {
        // One that is applied and one that is not, each with another event behind it.
        let mut keys = Vec::new();
        for lane in ["done", "lost"] {
            for _ in 0..2 {
                let event = world.app.emit("charge.made", Some(lane), b"{}").await?;
                keys.push(EventId::from_uuid(event).to_string());
            }
        }
        let (done, lost) = (keys[0].clone(), keys[2].clone());
        provider.set_first(move |key| match key {
            _ if key == done => First::ApplyThenCut,
            _ if key == lost => First::CutBefore,
            _ => First::Answer,
        });
        let file = arm(&mut world, "reconciler", "reconciler-1", point)?;
        kill_there(&mut world, "reconciler-1", &file).await?;
        world.up("reconciler", "reconciler-1").await?;
        settled += 4;
        world.wait_settled(settled, LIMIT).await;
        world.kill("reconciler-1");
        let requests: Vec<_> = keys.iter().map(|key| provider.account(key).requests).collect();
        assert_eq!(requests, [1, 1, 2, 1], "{point}");
        for key in &keys {
            let account = provider.account(key);
            assert_eq!((account.effects, account.repeats_after_effect), (1, 0), "{point}");
            assert_eq!(account.questions_too_early, 0, "{point}");
        }
    }
    let audit = world.cli_output(&["audit", "--settled", "1s"])?;
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stdout));
    Ok(())
}

/// Q3, I31, I32: killed after a page of a rewind that was asked for twice: every dead letter is sent once more, in the
/// order of its lane, under the same `webhook-id`.
#[tokio::test(flavor = "multi_thread")]
async fn a_reconciler_killed_half_way_through_a_rewind_makes_one_series() -> Result<()> {
    const KEYS: usize = 50;
    const PER_KEY: usize = 50;
    const ALL: usize = KEYS * PER_KEY;
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.receivers[0].set_script(|_| Behaviour::status(400));
    scene.services(1).await?;
    scene.emit(KEYS, PER_KEY, 250).await?;
    scene.world.wait_settled(ALL as i64, LIMIT).await;
    scene.receivers[0].set_script(|_| Behaviour::ok());
    let project = scene.world.tenant.to_string();
    let how = ["--reason", "fixed", "--actor", "ann", "--yes", "--no-wait", "--project", &project];
    for _ in 0..2 {
        scene.world.cli(&[["dead-letters", "rewind"].as_slice(), &how].concat())?;
    }
    let file = arm(&mut scene.world, "reconciler", "reconciler-1", "rewind.after_page")?;
    kill_there(&mut scene.world, "reconciler-1", &file).await?;
    let pages = "SELECT count(*) FROM laneway_control.rewound";
    let half = usize::try_from(scene.world.app.number(pages).await?)?;
    assert!(0 < half && half < ALL, "{half} of {ALL} when it was killed");
    scene.world.up("reconciler", "reconciler-1").await?;
    scene.world.wait_settled(2 * ALL as i64, LIMIT).await;
    wait_for("both commands", LIMIT, || async {
        let done = "SELECT count(*) FROM laneway_control.rewinds WHERE state = 'done'";
        scene.world.app.number(done).await.is_ok_and(|done| done == 2)
    })
    .await;
    let rows = scene
        .world
        .app
        .rows("SELECT event_id, user_key FROM laneway.outbox WHERE rewind IS NULL ORDER BY id");
    let mut wanted = BTreeMap::<String, Vec<String>>::new();
    for row in rows.await? {
        let text = |name: &str| row[name].as_str().map(str::to_owned).context("a text");
        let event: uuid::Uuid = text("event_id")?.parse()?;
        wanted.entry(text("user_key")?).or_default().push(EventId::from_uuid(event).to_string());
    }
    let key_of: BTreeMap<&str, &str> = wanted
        .iter()
        .flat_map(|(key, events)| events.iter().map(|event| (event.as_str(), key.as_str())))
        .collect();
    let mut sent = BTreeMap::<String, Vec<String>>::new();
    for request in scene.receivers[0].journal().requests() {
        if request.status == Some(200) {
            let event = request.webhook_id.clone().context("a webhook-id")?;
            sent.entry(key_of[event.as_str()].to_owned()).or_default().push(event);
        }
    }
    assert_eq!(sent, wanted, "each once, in its lane's order");
    Ok(())
}
