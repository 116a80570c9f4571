//! The scripted receiver as a process of its own: `laneway-receiver CONFIG.json`, the address on standard output.
//!
//! Rules can be replaced while it runs: `PUT /-/rules` with a JSON list.

#![expect(clippy::print_stdout, reason = "its address is its output")]

use std::io::Write;

use anyhow::{Context, Result};
use laneway_testkit::{ReceiverConfig, run_receiver};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    let config = match std::env::args().nth(1) {
        Some(path) => {
            let text = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
            serde_json::from_slice(&text).with_context(|| format!("{path} is no configuration"))?
        }
        None => ReceiverConfig::default(),
    };
    let mut terminate = signal(SignalKind::terminate())?;
    run_receiver(
        config,
        |address| {
            println!("{address}");
            let _ = std::io::stdout().flush();
        },
        async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        },
    )
    .await
}
