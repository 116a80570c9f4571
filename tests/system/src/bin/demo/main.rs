//! `make demo`: the main job on the real parts, with faults, judged by the receivers' journal.
//!
//! Emits at least 2,000 events through `laneway.emit` while one endpoint is down for 20 s, one user key of another
//! answers 503 for 15 s, and one of two deliver processes is killed with SIGKILL and comes back. The last line of
//! standard output is the verdict as JSON; the exit code is 1 if anything was lost, out of order, or duplicated without
//! an explanation (P1–P5).

#![expect(
    clippy::disallowed_methods,
    reason = "a program around the product: clocks and tasks are used freely"
)]

mod events;
mod scene;
mod view;

use anyhow::{Context, Result};
use std::path::PathBuf;

fn main() -> std::process::ExitCode {
    match run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            report(&format!("demo: {error:#}"));
            std::process::ExitCode::FAILURE
        }
    }
}

/// Whether everything held.
fn run() -> Result<bool> {
    let input = input(std::env::args_os().skip(1))?;
    let events = events::events(input.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let verdict = runtime.block_on(scene::play(events)).context("the demo could not be played")?;
    print(&verdict.to_string());
    let zero = |field: &str| verdict[field].as_u64() == Some(0);
    let explained = verdict["duplicates"] == verdict["duplicates_explained"];
    Ok(zero("lost") && zero("order_violations") && explained && zero("violations"))
}

/// `--input FILE`, or nothing.
fn input(mut args: impl Iterator<Item = std::ffi::OsString>) -> Result<Option<PathBuf>> {
    match (args.next(), args.next(), args.next()) {
        (None, ..) => Ok(None),
        (Some(flag), Some(file), None) if flag == "--input" => Ok(Some(file.into())),
        _ => anyhow::bail!("usage: laneway-demo [--input FILE.ndjson]"),
    }
}

#[expect(clippy::print_stdout, reason = "the verdict is this program's result")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "people read why there is no verdict")]
fn report(text: &str) {
    eprintln!("{text}");
}
