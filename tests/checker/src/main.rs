//! `laneway-check`: the judge as a command. Exit code 0: everything holds; 1: something does not; 2: bad input.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

use anyhow::{Context, Result, bail};
use laneway_checker::{Inputs, Options, Source, check};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "laneway-check --journal FILE [--journal FILE …] --rows FILE --subscriptions FILE \
                     [--finals FILE] [--faults FILE] [--ledger FILE] [--deadline-ms N] [--lease-ms N] [--leases-told yes|no] \
                     [--finals-whole yes|no] [--late-lines-ms N] [--quiet-ms N]";

/// Of the durations.
const LONGEST_MS: u64 = 86_400_000;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("laneway-check: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<bool> {
    let (mut rows, mut subscriptions) = (None, None);
    let mut options = Options::default();
    let mut inputs = Inputs {
        journals: Vec::new(),
        rows: Source::empty(),
        subscriptions: Source::empty(),
        finals: Source::empty(),
        faults: Source::empty(),
        ledger: Source::empty(),
    };
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{name} has no value\n{USAGE}"))?;
        let file = || Source::Path(value.clone().into());
        let millis = || match value.parse() {
            Ok(ms) if ms <= LONGEST_MS => Ok(Duration::from_millis(ms)),
            _ => bail!("{name} is no number of ms of at most a day: {value}"),
        };
        let told = || match value.as_str() {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => bail!("{name} is neither yes nor no: {value}"),
        };
        match name.as_str() {
            "--journal" => inputs.journals.push(file()),
            "--rows" => rows = Some(file()),
            "--subscriptions" => subscriptions = Some(file()),
            "--finals" => inputs.finals = file(),
            "--faults" => inputs.faults = file(),
            "--ledger" => inputs.ledger = file(),
            "--quiet-ms" => options.quiet = Some(millis()?),
            "--deadline-ms" => options.deadline = Some(millis()?),
            "--lease-ms" => options.lease = millis()?,
            "--leases-told" => options.leases_told = told()?,
            "--finals-whole" => options.finals_whole = told()?,
            "--late-lines-ms" => options.late_lines = millis()?,
            _ => bail!("unknown option {name}\n{USAGE}"),
        }
    }
    inputs.rows = rows.context(USAGE)?;
    inputs.subscriptions = subscriptions.context(USAGE)?;
    if inputs.journals.is_empty() {
        bail!(USAGE);
    }
    let verdict = check(&inputs, &options)?;
    if verdict.figures.events == 0 {
        bail!("there are no rows: nothing was judged");
    }
    for violation in &verdict.violations {
        eprintln!(
            "{}: {} ({} times), for example:",
            violation.check, violation.says, violation.count
        );
        for line in &violation.witness {
            eprintln!("  {line}");
        }
    }
    println!("{}", serde_json::to_string(&verdict.figures)?);
    Ok(verdict.holds())
}
