//! A person at the command line during a chaos run: looks up what became of requests to the endpoint with `onUnknown:
//! hold` and says so, and gives up dead letters.

use super::crew::Crew;
use crate::world::World;
use anyhow::{Context, Result, ensure};
use laneway_testkit::Provider;
use serde_json::Value;
use std::collections::HashMap;
use std::process::Output;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
/// Dead letters are given up every so many rounds.
const DISCARD_EVERY: u32 = 15;
/// A command that takes longer met a fault.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
const AUDIT_LIMIT: Duration = Duration::from_secs(120);

/// One person.
pub(super) struct Hand {
    /// The endpoint with `hold`.
    endpoint: String,
    project: String,
    /// Nobody says anything about a request before this much after it was found unknown.
    quiet: Duration,
    seen: HashMap<(String, u64), Instant>,
}

impl Hand {
    pub(super) fn new(world: &World, path: &str, quiet: Duration) -> Result<Self> {
        let made = world.endpoints().iter().find(|made| made.path == path);
        let endpoint = made.context("an endpoint with that path")?.id.to_string();
        Ok(Self { endpoint, project: world.tenant.to_string(), quiet, seen: HashMap::new() })
    }

    /// Works until it is aborted. What a fault prevents is done in a later round.
    pub(super) async fn work(mut self, crew: &Crew, provider: &Provider) {
        for round in 1u32.. {
            tokio::time::sleep(EVERY).await;
            if let Ok(resolved) = self.round(crew, provider).await {
                crew.counts.lock().await.resolved += resolved;
            }
            if round.is_multiple_of(DISCARD_EVERY) {
                let reason = ["--reason", "of no use", "--actor", "ann", "--yes", "--no-wait"];
                let discard = ["dead-letters", "discard", "--project", &self.project];
                // Without dead letters, or while one command is not done yet, it is refused.
                let given = run(crew, &[&discard[..], &reason[..]].concat()).await.is_ok();
                crew.counts.lock().await.discards += u64::from(given);
            }
        }
    }

    async fn round(&mut self, crew: &Crew, provider: &Provider) -> Result<u64> {
        let list = ["-o", "json", "unknowns", "list", "--endpoint", &self.endpoint];
        let listed: Vec<Value> = serde_json::from_str(&run(crew, &list).await?)?;
        let mut now_seen = HashMap::new();
        let mut resolved = 0;
        for unknown in listed.iter().filter(|unknown| unknown["decided"] == false) {
            let delivery = unknown["deliveryId"].as_str().context("a delivery's id")?.to_owned();
            let id = (delivery, unknown["attempts"].as_u64().unwrap_or(0));
            let since = self.seen.get(&id).copied().unwrap_or_else(Instant::now);
            if since.elapsed() >= self.quiet {
                let verdict = if provider.look_up(&id.0) { "delivered" } else { "not-applied" };
                let resolve = ["unknowns", "resolve", &id.0, "--as", verdict, "--no-wait"];
                let reason = ["--reason", "their ledger says so", "--actor", "ann"];
                resolved +=
                    u64::from(run(crew, &[&resolve[..], &reason[..]].concat()).await.is_ok());
            }
            now_seen.insert(id, since);
        }
        self.seen = now_seen;
        Ok(resolved)
    }
}

/// Runs a command to its end and gives what it printed.
async fn run(crew: &Crew, args: &[&str]) -> Result<String> {
    let output = output(crew, args, COMMAND_LIMIT).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a command to its end, whatever its exit code.
async fn output(crew: &Crew, args: &[&str], limit: Duration) -> Result<Output> {
    let command = crew.world.lock().await.command(args)?;
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).output();
    Ok(tokio::time::timeout(limit, output).await??)
}

/// Runs the audit over all rows that are at least `settled` old and gives what it found, each with its examples.
pub(super) async fn audit(crew: &Crew, settled: Duration) -> Result<Vec<Value>> {
    let settled = format!("{}s", settled.as_secs());
    let args = ["-o", "json", "audit", "--settled", &settled];
    let output = output(crew, &args, AUDIT_LIMIT).await?;
    // It ends with 8 when it has found something.
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    ensure!(!findings.is_empty(), "the audit made no check");
    Ok(findings.into_iter().filter(|finding| finding["count"] != 0).collect())
}
