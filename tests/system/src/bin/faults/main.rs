//! `make faults`: the rows of the fault matrix (reliability.md 3.4) by their ids. Each case is a test that injects, heals,
//! drains and judges; it is run by its name and gives one line of JSON. Rows of features to come are `pending`. The last
//! line has `cases`, `failed` and `pending`; the exit code is 1 if one failed, or was not found.

#![expect(
    clippy::disallowed_methods,
    reason = "a program around the product: clocks are used freely"
)]

mod matrix;

use anyhow::{Context, Result};
use matrix::{CASES, Case, PENDING};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};
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
    let chosen = CASES.iter().filter(|case| wanted.is_empty() || wanted.contains(case.id));
    let mut packages = BTreeMap::<&str, Vec<&Case>>::new();
    for case in chosen {
        packages.entry(case.package).or_default().push(case);
    }
    let (mut cases, mut failed) = (0, 0);
    for (package, of) in packages {
        let started = Instant::now();
        let said = test(package, &of)?;
        let seconds = started.elapsed().as_secs();
        for case in of {
            // A name that no test has is a failure: the row would be checked by nothing.
            let ok = said.lines().any(|line| line == format!("test {} ... ok", case.test));
            cases += 1;
            failed += usize::from(!ok);
            let result = if ok { "ok" } else { "failed" };
            let line = json!({"id": case.id, "what": case.what, "result": result,
                "test": format!("{package}: {}", case.test), "seconds_of_package": seconds});
            print(&line.to_string());
        }
    }
    for (id, what) in PENDING {
        print(&json!({"id": id, "what": what, "result": "pending"}).to_string());
    }
    print(&json!({"cases": cases, "failed": failed, "pending": PENDING.len()}).to_string());
    Ok(failed)
}

/// Runs these tests of a package's integration binary and gives what it said.
fn test(package: &str, cases: &[&Case]) -> Result<String> {
    let mut names: Vec<&str> = cases.iter().map(|case| case.test).collect();
    names.sort_unstable();
    names.dedup();
    // The laneway binary beside it has the places at which a process is killed.
    let build = ["test", "--locked", "-p", "laneway", "-p", package];
    let features = ["--features", "laneway/failpoints", "--test", "it", "--", "--exact"];
    let output = Command::new("cargo")
        .args(build)
        .args(features)
        .args(&names)
        .output()
        .context("cargo cannot be run")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        report(&said);
        report(&String::from_utf8_lossy(&output.stderr));
    }
    Ok(said)
}

#[expect(clippy::print_stdout, reason = "the cases are this program's result")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "people read why a case failed")]
fn report(text: &str) {
    eprintln!("{text}");
}
