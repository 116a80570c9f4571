//! An operator at the API during a chaos run: has dead letters sent again, and what an endpoint was delivered lately, at
//! times and of kinds drawn from the seed. Each command is repeated under its key until there is an answer.

use super::load;
use super::plan::Again;
use laneway_client::{Client, Error};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(200);

/// Commands that meant something, and why one was refused, if it should not have been.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) commands: u64,
    pub(super) refusals: Vec<String>,
}

/// Gives the commands, each at its time, until `stop`.
pub(super) async fn give(
    client: Client,
    commands: Vec<(Duration, Again)>,
    endpoints: Vec<Vec<String>>,
    stop: &AtomicBool,
) -> Given {
    let start = Instant::now();
    let mut given = Given::default();
    for (number, (at, again)) in commands.into_iter().enumerate() {
        tokio::time::sleep_until((start + at).into()).await;
        let body = body(again, &endpoints);
        while !stop.load(Ordering::Relaxed) {
            match client.rewind_create(&format!("again-{number}"), &body).await {
                Ok(made) => {
                    given.commands += u64::from(made["matched"].as_u64().unwrap_or(0) > 0);
                    break;
                }
                Err(error) if error.is_transient() => tokio::time::sleep(PAUSE).await,
                // What it was delivered may be too young, or on its way.
                Err(Error::Refused(problem)) if problem.code == "nothing_to_replay" => break,
                Err(error) => {
                    given.refusals.push(format!("a command is refused: {error:?}"));
                    break;
                }
            }
        }
    }
    given
}

fn body(again: Again, endpoints: &[Vec<String>]) -> Value {
    let mut body = json!({ "action": "rewind", "reason": "they say that it works now" });
    match again {
        Again::All => {}
        // The first receiver is the one that refuses.
        Again::Refused { endpoint } => body["endpointId"] = json!(endpoints[0][endpoint]),
        Again::Key(number) => body["key"] = json!(load::key(number)),
        Again::Replay { receiver, endpoint, seconds } => {
            let since = chrono::Utc::now() - Duration::from_secs(seconds);
            body["action"] = json!("replay");
            body["endpointId"] = json!(endpoints[receiver][endpoint]);
            body["since"] = json!(since.to_rfc3339());
        }
    }
    body
}
