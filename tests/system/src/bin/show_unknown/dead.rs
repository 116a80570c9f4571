//! Dead letters by the thousand, sent again under live traffic: each once, in its lane's order.

use crate::Cases;
use anyhow::{Context, Result};
use laneway_system::{EndpointOptions, Options, World};
use laneway_testkit::{Behaviour, Receiver, ReceiverConfig, Stack, wait_for};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const LANES: usize = 500;
/// Dead letters of the command under live traffic, and of the large one.
const FEW: usize = 5_000;
const MANY: usize = 50_000;
/// Events of one transaction of the application.
const BATCH: usize = 250;
/// Live traffic: so many events at each beat.
const LIVE: usize = 20;
const BEAT: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(420);

/// Events of one lane by their ids, in the order in which the receiver read them.
#[derive(Default)]
struct Lane {
    refused: Vec<String>,
    again: Vec<String>,
    live: Vec<u64>,
}

type Lanes = Arc<Mutex<HashMap<String, Lane>>>;

/// Plays it and gives the world, which has something to be audited now, its receiver, and the figures.
pub(crate) async fn play(stack: &Stack, cases: &mut Cases) -> Result<(World, Receiver, Value)> {
    let options = Options { log_level: "warn,laneway=info".to_owned(), ..Options::default() };
    let mut world = World::start(stack, options).await?;
    let receiver =
        Receiver::with(ReceiverConfig { in_memory: false, ..ReceiverConfig::default() }).await?;
    let lanes = Lanes::default();
    let seen = Arc::clone(&lanes);
    receiver.set_script(move |request| {
        let text = |name: &str| request.header(name).unwrap_or_default().to_owned();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let mut lanes = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.entry(body["key"].as_str().unwrap_or_default().to_owned()).or_default();
        if request.header("x-replay-of").is_some() {
            lane.again.push(text("webhook-id"));
        } else if text("x-event-type") == "charge.refused" {
            lane.refused.push(text("webhook-id"));
            return Behaviour::status(422);
        } else {
            lane.live.push(body["n"].as_u64().unwrap_or_default());
        }
        Behaviour::ok()
    });
    let endpoint = EndpointOptions { max_connections: 64, ..EndpointOptions::default() };
    world.endpoint(&receiver.url("/do"), endpoint).await?;
    for (service, name) in [
        ("relay", "relay"),
        ("deliver", "deliver-1"),
        ("deliver", "deliver-2"),
        ("reconciler", "r"),
    ] {
        world.up(service, name).await?;
    }

    let began = Instant::now();
    refuse(&world, FEW).await?;
    let dead_after = began.elapsed();
    let stop = Arc::new(AtomicBool::new(false));
    let live = tokio::spawn(live(Arc::clone(&world.app), Arc::clone(&stop)));
    let began = Instant::now();
    let first = rewind(&world)?;
    cases.check(
        "five thousand are rewound under live traffic",
        first["state"] == "done" && first["done"] == FEW,
        &format!("{} of {}", first["done"], first["matched"]),
    );
    let again = world.cli(&arguments(&world.tenant.to_string()))?;
    cases.check("a second time there is nothing", again.is_empty(), "nothing is written");
    let arrived = |count: usize| {
        let lanes = Arc::clone(&lanes);
        async move { sum(&lanes, |lane| lane.again.len()) >= count }
    };
    wait_for("what was rewound", LIMIT, || arrived(FEW)).await;
    let few_after = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let live = live.await??;

    let began = Instant::now();
    refuse(&world, MANY).await?;
    let many_dead_after = began.elapsed();
    let began = Instant::now();
    let second = rewind(&world)?;
    let written_after = began.elapsed();
    cases.check(
        "fifty thousand are rewound by one command",
        second["state"] == "done" && second["done"] == MANY,
        &format!("{} of {}", second["done"], second["matched"]),
    );
    wait_for("what was rewound in one", LIMIT, || arrived(FEW + MANY)).await;
    let many_after = began.elapsed();
    let total = (2 * (FEW + MANY) + live).try_into()?;
    world.wait_settled(total, LIMIT).await;
    judge(&lanes, live, cases);
    let outcomes = world
        .app
        .rows("SELECT outcome, count(*) FROM laneway_control.inbox GROUP BY 1 ORDER BY 1")
        .await?;
    let counts: Vec<_> = outcomes.iter().map(|row| row["count"].clone()).collect();
    cases.check(
        "every delivery has its outcome",
        counts == [FEW + MANY + live, FEW + MANY],
        &format!("delivered, given up: {counts:?}"),
    );
    let figures = json!({
        "lanes": LANES, "live_events": live,
        "few": FEW, "few_dead_seconds": seconds(dead_after), "few_rewound_seconds": seconds(few_after),
        "many": MANY, "many_dead_seconds": seconds(many_dead_after),
        "many_written_seconds": seconds(written_after), "many_rewound_seconds": seconds(many_after),
    });
    Ok((world, receiver, figures))
}

fn seconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 10.0).round() / 10.0
}

/// Emits so many events that the receiver refuses, and waits until all are given up.
async fn refuse(world: &World, count: usize) -> Result<()> {
    let events: Vec<(String, Vec<u8>)> = (0..count).map(event).collect();
    for events in events.chunks(BATCH) {
        world.app.emit_many("charge.refused", events).await?;
    }
    let open = "SELECT count(*) FROM laneway_control.dead_letters WHERE state = 'open'";
    wait_for("dead letters", LIMIT, || async {
        world.app.number(open).await.is_ok_and(|open| usize::try_from(open) == Ok(count))
    })
    .await;
    Ok(())
}

/// Events for the same lanes until it is told to stop; gives how many there were.
async fn live(app: Arc<laneway_system::App>, stop: Arc<AtomicBool>) -> Result<usize> {
    let mut beat = tokio::time::interval(BEAT);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        beat.tick().await;
        let events: Vec<_> = (count..count + LIVE).map(event).collect();
        app.emit_many("charge.made", &events).await?;
        count += LIVE;
    }
    Ok(count)
}

fn event(n: usize) -> (String, Vec<u8>) {
    let key = format!("u{}", n % LANES);
    let payload = json!({ "key": key, "n": n }).to_string().into_bytes();
    (key, payload)
}

fn arguments(project: &str) -> [&str; 7] {
    ["dead-letters", "rewind", "--project", project, "--reason", "fixed", "--yes"]
}

/// Rewinds all that is dead and waits for the command's end.
fn rewind(world: &World) -> Result<Value> {
    tokio::task::block_in_place(|| world.cli_json(&arguments(&world.tenant.to_string())))
        .context("rewinding")
}

fn sum(lanes: &Lanes, of: impl Fn(&Lane) -> usize) -> usize {
    lanes.lock().unwrap_or_else(PoisonError::into_inner).values().map(of).sum()
}

fn judge(lanes: &Lanes, live: usize, cases: &mut Cases) {
    let lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
    let wrong = lanes.values().filter(|lane| lane.refused != lane.again).count();
    cases.check(
        "each once more, in its lane's order",
        wrong == 0 && lanes.len() == LANES,
        &format!("{wrong} of {} lanes differ", lanes.len()),
    );
    let disorder =
        lanes.values().flat_map(|lane| lane.live.windows(2)).filter(|two| two[0] >= two[1]).count();
    let seen: usize = lanes.values().map(|lane| lane.live.len()).sum();
    cases.check(
        "live traffic is undisturbed",
        disorder == 0 && seen == live,
        &format!("{seen} of {live} events, {disorder} out of order"),
    );
}
