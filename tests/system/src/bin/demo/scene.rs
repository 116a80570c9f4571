//! The demo's plot: servers, endpoints, faults at fixed times, the drain, the verdict.

use crate::events::Event;
use crate::view::{Numbers, View};
use anyhow::{Context, Result};
use laneway_system::{EndpointOptions, Options, Verdict, World, monotonic_ns};
use laneway_testkit::{Behaviour, Door, Receiver, ReceiverConfig, Request, Stack};
use laneway_wire::EventId;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// When each fault begins, after the first event.
const DOWN_AT: Duration = Duration::from_secs(3);
const DOWN_FOR: Duration = Duration::from_secs(20);
const KEY_FAILS_AT: Duration = Duration::from_secs(5);
const KEY_FAILS_FOR: Duration = Duration::from_secs(15);
const KILL_AT: Duration = Duration::from_secs(10);
const BACK_AFTER: Duration = Duration::from_secs(2);
/// The events are spread over the whole fault time, at 50 to 200 a second.
const EMIT_FOR: Duration = Duration::from_secs(26);
const RATES: std::ops::RangeInclusive<f64> = 50.0..=200.0;
/// The last events are delivered within this after the last fault.
const DRAIN_LIMIT: Duration = Duration::from_secs(240);
const NAMES: [&str; 3] = ["crm", "billing", "warehouse"];

/// Plays `events` and gives the verdict.
pub(crate) async fn play(events: Vec<Event>) -> Result<Value> {
    let deliveries = events.len() as u64 * NAMES.len() as u64;
    let view = Arc::new(View::new(events.len() as u64, deliveries));
    view.say(
        "starting PostgreSQL, Kafka, relay, two deliver processes, the API and three receivers",
    );
    let stack = Stack::shared().await;
    let mut world = World::start(stack, Options { partitions: 12, ..Options::default() }).await?;
    let mut receivers = Vec::new();
    let mut ids = Vec::new();
    for name in NAMES {
        let config = ReceiverConfig {
            journal: Some(world.dir.join(format!("{name}.journal.ndjson"))),
            ..ReceiverConfig::default()
        };
        let receiver = Receiver::with(config).await?;
        let url = receiver.url(&format!("/{name}"));
        ids.push(world.endpoint(&url, EndpointOptions::default()).await?.to_string());
        receivers.push(receiver);
    }
    for (service, name) in
        [("relay", "relay-1"), ("deliver", "deliver-1"), ("deliver", "deliver-2")]
    {
        world.spawn(service, name, &[])?;
    }
    for name in ["relay-1", "deliver-1", "deliver-2"] {
        world.ready(name).await?;
    }

    let failing_key = busiest_key(&events);
    let failing = Arc::new(RwLock::new(HashSet::<String>::new()));
    let emitting = tokio::spawn(emit(
        Arc::clone(&world.app),
        events,
        failing_key.clone(),
        Arc::clone(&failing),
    ));
    let start = Instant::now();
    let looking = tokio::spawn(look(
        Arc::clone(&world.app),
        view.clone(),
        receivers.iter().map(|r| r.journal().clone()).collect(),
    ));

    // The endpoint that is down.
    sleep_until(start + DOWN_AT).await;
    view.say(&format!("endpoint {} is down for {} s", NAMES[0], DOWN_FOR.as_secs()));
    let down_ns = monotonic_ns();
    receivers[0].set_door(Door::Shut);
    // The key that fails.
    sleep_until(start + KEY_FAILS_AT).await;
    let key = failing_key.unwrap_or_default();
    view.say(&format!(
        "endpoint {} answers 503 to user key {key} for {} s",
        NAMES[1],
        KEY_FAILS_FOR.as_secs()
    ));
    let key_ns = monotonic_ns();
    receivers[1].set_script(refuse(failing));
    // The process that is killed.
    sleep_until(start + KILL_AT).await;
    view.say("kill -9 of deliver-1");
    world.kill("deliver-1");
    sleep_until(start + KILL_AT + BACK_AFTER).await;
    view.say("deliver-1 is started again");
    world.spawn("deliver", "deliver-1", &[])?;
    sleep_until(start + KEY_FAILS_AT + KEY_FAILS_FOR).await;
    receivers[1].set_script(|_| Behaviour::ok());
    world.faults.note_endpoint("key_fails", &ids[1], Some(&key), key_ns);
    view.say(&format!("user key {key} is served again"));
    sleep_until(start + DOWN_AT + DOWN_FOR).await;
    receivers[0].set_door(Door::Open);
    world.faults.note_endpoint("endpoint_down", &ids[0], None, down_ns);
    view.say(&format!("endpoint {} is up again", NAMES[0]));

    let emitted = emitting.await.context("the emitter")??;
    let drained = tokio::time::timeout(DRAIN_LIMIT, async {
        while world.settled().await.unwrap_or(0) < (emitted * NAMES.len() as u64).cast_signed() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    if drained.await.is_err() {
        view.say(&format!(
            "not everything was delivered within {DRAIN_LIMIT:?}; {}",
            world.tails()
        ));
    }
    looking.abort();
    view.end();
    for name in ["deliver-1", "deliver-2", "relay-1", "api"] {
        world.stop(name).await?;
    }
    let verdict = Verdict::of(&world, &receivers).await?;
    if !verdict.holds() {
        view.say(&verdict.breaches());
    }
    view.say(&format!("journals, fault journal and logs: {}", world.dir.display()));
    Ok(verdict.line())
}

/// Commits the events one by one at an even rate; gives how many.
async fn emit(
    app: Arc<laneway_system::App>,
    events: Vec<Event>,
    failing_key: Option<String>,
    failing: Arc<RwLock<HashSet<String>>>,
) -> Result<u64> {
    let rate = (events.len() as f64 / EMIT_FOR.as_secs_f64()).clamp(*RATES.start(), *RATES.end());
    let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    for event in &events {
        tick.tick().await;
        let id = app.emit(&event.event_type, event.key.as_deref(), &event.payload).await?;
        if event.key == failing_key {
            let id = EventId::from_uuid(id).to_string();
            failing.write().expect("no writer panicked").insert(id);
        }
    }
    Ok(events.len() as u64)
}

fn refuse(failing: Arc<RwLock<HashSet<String>>>) -> impl Fn(&Request) -> Behaviour {
    move |request| {
        let id = request.header("webhook-id").unwrap_or_default();
        let fails = failing.read().expect("no writer panicked").contains(id);
        if fails { Behaviour::status(503) } else { Behaviour::ok() }
    }
}

/// Shows how it goes until it is aborted.
async fn look(
    app: Arc<laneway_system::App>,
    view: Arc<View>,
    journals: Vec<laneway_testkit::Journal>,
) {
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tick.tick().await;
        view.show(Numbers {
            emitted: app.committed(),
            delivered: app_number(&app, "SELECT count(*) FROM laneway_control.inbox")
                .await
                .cast_unsigned(),
            requests: journals.iter().map(|journal| journal.counts().0).sum(),
            parked: app_number(&app, "SELECT count(*) FROM laneway_control.parked_lanes").await,
            degraded: app_number(&app, "SELECT count(*) FROM laneway_control.endpoint_health")
                .await,
        });
    }
}

async fn app_number(app: &laneway_system::App, sql: &'static str) -> i64 {
    app.number(sql).await.unwrap_or(0)
}

/// The key with most events: it will be seen to wait.
fn busiest_key(events: &[Event]) -> Option<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for key in events.iter().filter_map(|event| event.key.as_deref()) {
        *counts.entry(key).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(key, _)| key.to_owned())
}

async fn sleep_until(moment: Instant) {
    tokio::time::sleep_until(moment.into()).await;
}
