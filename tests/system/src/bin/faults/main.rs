//! `make faults`: the rows of the fault matrix (reliability.md 3.3 and 3.4) by their ids. Each case is one test or
//! several, run by name, that inject, heal, drain and judge; it gives one line of JSON when it is over. Rows of what is
//! to come are `pending`. The last line has `cases`, `failed` and `pending`; the exit code is 1 if a case failed, or
//! its test was not found.

#![expect(
    clippy::disallowed_methods,
    reason = "a program around the product: clocks are used freely"
)]

mod matrix;

use anyhow::{Context, Result, ensure};
use matrix::{CASES, Case, PENDING};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            report(&format!("faults: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the cases with these ids, or all; gives how many failed.
fn run(wanted: &BTreeSet<String>) -> Result<usize> {
    let chosen: Vec<&Case> =
        CASES.iter().filter(|case| wanted.is_empty() || wanted.contains(case.id)).collect();
    let ids: BTreeSet<&str> = chosen.iter().map(|case| case.id).collect();
    for id in wanted {
        let is_pending = PENDING.iter().any(|pending| pending.id == id);
        ensure!(ids.contains(id.as_str()) || is_pending, "no row {id}");
    }
    let start = Instant::now();
    let mut failed = chosen.len();
    let mut open = chosen.clone();
    let mut results = BTreeMap::new();
    test(&chosen, |name, is_ok| {
        results.insert(name.to_owned(), is_ok);
        open.retain(|case| {
            let is_over = case.tests.iter().all(|test| results.contains_key(*test));
            if is_over {
                let is_ok = case.tests.iter().all(|test| results[*test]);
                failed -= usize::from(is_ok);
                told(case, if is_ok { "ok" } else { "failed" });
            }
            !is_over
        });
    })?;
    // A name that no test has is a failure: the row would be checked by nothing.
    for case in open {
        told(case, "failed");
    }
    let pending: Vec<_> =
        PENDING.iter().filter(|row| wanted.is_empty() || wanted.contains(row.id)).collect();
    for pending in &pending {
        let (id, what, why) = (pending.id, pending.what, pending.why);
        print(&json!({"id": id, "what": what, "result": "pending", "why": why}).to_string());
    }
    let line = json!({"cases": chosen.len(), "failed": failed, "pending": pending.len(),
        "seconds": start.elapsed().as_secs()});
    print(&line.to_string());
    Ok(failed)
}

fn told(case: &Case, result: &str) {
    let line = json!({"id": case.id, "what": case.what, "result": result, "package": case.package,
        "tests": case.tests});
    print(&line.to_string());
}

/// Runs the tests of these cases and tells of each that ended whether it passed.
fn test(cases: &[&Case], mut ended: impl FnMut(&str, bool)) -> Result<()> {
    let names: BTreeSet<&str> = cases.iter().flat_map(|case| case.tests).copied().collect();
    if names.is_empty() {
        return Ok(());
    }
    // All packages, as `make test` builds them: what is built is built already, and the laneway binary has the places
    // at which a process is killed.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(cargo)
        .args(["test", "--locked", "--workspace", "--no-fail-fast", "--test", "it"])
        // Those that take too long for every `make test` are ignored there.
        .args(["--", "--exact", "--include-ignored"])
        .args(&names)
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo cannot be run")?;
    let stdout = child.stdout.take().context("its output")?;
    let mut said = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        match line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
            Some((name, result)) => ended(name, result == "ok"),
            None => {
                said.push_str(&line);
                said.push('\n');
            }
        }
    }
    if !child.wait()?.success() {
        report(&said);
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the cases are this program's result")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "people read why a case failed")]
fn report(text: &str) {
    eprintln!("{text}");
}
