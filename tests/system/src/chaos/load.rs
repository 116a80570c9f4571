//! The load of a chaos run: an application that commits events one by one, and a client of the API that repeats each
//! event under its key until it has an answer.

use crate::app::App;
use crate::charges::CHARGE;
use laneway_client::{Client, NewEvent};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// User keys that the events are spread over.
const KEYS: u64 = 60;
/// Every so many events one is refused for good by an endpoint that does so.
pub(super) const REFUSED_EVERY: u64 = 20;
/// One event in so many goes through the API.
const POSTED_EVERY: u32 = 8;
/// One event in so many is of a kind that must not have its effect twice; no divisor of the number of keys.
const CHARGE_EVERY: u64 = 7;
/// The type of what goes through the API.
pub(super) const POSTED: &str = "chaos.posted";
/// What the refusing endpoint looks for.
pub(super) const REFUSED: &[u8] = br#""refused":true"#;
const PAUSE: Duration = Duration::from_millis(200);

/// What a load knows when it ends.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Events whose commit was acknowledged.
    pub(super) acknowledged: Vec<Uuid>,
    /// Commits that were refused, or whose answer was lost.
    pub(super) doubtful: u64,
}

/// All user keys of the load.
pub(super) fn keys() -> impl Iterator<Item = String> {
    (0..KEYS).map(key)
}

/// One of them.
pub(super) fn key(n: u64) -> String {
    format!("user_{}", n % KEYS)
}

fn payload(n: u64) -> String {
    format!(r#"{{"n":{n},"refused":{}}}"#, n.is_multiple_of(REFUSED_EVERY))
}

/// Commits `rate` events a second until `stop`.
pub(super) async fn emit(app: Arc<App>, rate: u32, stop: Arc<AtomicBool>) -> Loaded {
    let mut loaded = Loaded::default();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / rate.max(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        n += 1;
        let charge = n.is_multiple_of(CHARGE_EVERY);
        let event_type = if charge { CHARGE } else { "chaos.created" };
        match app.emit(event_type, Some(&key(n)), payload(n).as_bytes()).await {
            Ok(id) => loaded.acknowledged.push(id),
            Err(_) => {
                loaded.doubtful += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    loaded
}

/// Posts events until `stop`, each until it is acknowledged.
pub(super) async fn post(client: Client, rate: u32, stop: Arc<AtomicBool>) -> Loaded {
    let mut loaded = Loaded::default();
    let mut tick = tokio::time::interval(Duration::from_secs(1) * POSTED_EVERY / rate.max(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        n += 1;
        let (key, text) = (key(n), format!(r#"{{"posted":{n}}}"#));
        let payload = RawValue::from_string(text).expect("it is JSON");
        let event =
            NewEvent { r#type: POSTED, key: Some(&key), payload: &payload, dedupe_key: None };
        loop {
            match client.event_create(&format!("post-{n}"), &event).await {
                Ok(id) => {
                    loaded.acknowledged.push(id.as_uuid());
                    break;
                }
                Err(error) if error.is_transient() => {
                    loaded.doubtful += 1;
                    // Not without an answer: the key makes the repetition safe, and stopping here would prove nothing.
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => panic!("the API refuses an event: {error:?}"),
            }
        }
    }
    loaded
}
