//! The simulator's command: `run`, `replay`, `mutants`. The last line of `run` is one JSON object.

use anyhow::{Context, Result, bail};
use laneway_simulation::journal::Breach;
use laneway_simulation::plan::{Plan, Spec};
use laneway_simulation::{mutants, relay, run};
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage:
  laneway-simulation run --seeds N [--from S] [--threads T] [--stop-after B] [--relay]
  laneway-simulation replay --seed S [--without BITS] [--deliveries N] [--lines L] [--no-shrink] [--mutant NAME]
  laneway-simulation replay --relay --seed S [--lines L] [--mutant NAME]
  laneway-simulation mutants [--from S] [--seeds N] [--only NAME] [--write FILE]";

/// `--name value` and `--flag` arguments.
struct Args(Vec<String>);

impl Args {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|arg| arg == name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|arg| arg == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn number(&self, name: &str, default: u64) -> Result<u64> {
        self.text(name).map_or(Ok(default), |text| {
            text.replace('_', "").parse().with_context(|| format!("{name} wants a number"))
        })
    }
}

fn main() -> ExitCode {
    match run_command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command() -> Result<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout().lock();
    if args.is_empty() {
        bail!(USAGE);
    }
    let verb = args.remove(0);
    let args = Args(args);
    match verb.as_str() {
        "run" => many(&args, &mut out),
        "replay" => replay(&args, &mut out),
        "mutants" => hunt(&args, &mut out),
        _ => bail!(USAGE),
    }
}

#[expect(clippy::disallowed_methods, reason = "how long the run took is for people only")]
fn many(args: &Args, out: &mut impl Write) -> Result<()> {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let threads = args.number("--threads", threads)? as usize;
    let stop_after = args.number("--stop-after", 20)? as usize;
    let (from, seeds) = (args.number("--from", 0)?, args.number("--seeds", 2_000)?);
    let cores = if args.has("--relay") { 0 } else { seeds };
    let mut total = run::many(from, cores, threads, stop_after, None);
    let relays = run::many_relay(from, seeds, threads, stop_after);
    for (of, part) in [("", &total), ("relay ", &relays)] {
        for (seed, breach) in &part.breaches {
            let Breach { checker, at, what } = breach;
            writeln!(out, "{of}seed {seed}: {checker} at {at} ms: {what}")?;
        }
    }
    let relay_schedules = relays.schedules;
    total.add(relays);
    let line = serde_json::json!({
        "schedules": total.schedules,
        "relay_schedules": relay_schedules,
        "breaches": total.breaches.len(),
        "deliveries": total.deliveries,
        "requests": total.requests,
        "faults": total.faults,
        "virtual_hours": (total.virtual_ms as f64 / 3_600_000.0).round(),
        "seconds": (began.elapsed().as_secs_f64() * 10.0).round() / 10.0,
    });
    writeln!(out, "{line}")?;
    if !total.breaches.is_empty() {
        bail!("{} schedules broke a promise", total.breaches.len());
    }
    Ok(())
}

fn replay(args: &Args, out: &mut impl Write) -> Result<()> {
    let seed = args.number("--seed", 0)?;
    let planted = match args.text("--mutant") {
        None => None,
        Some(name) => Some(
            mutants::Planted::all()
                .find(|planted| planted.name() == name)
                .with_context(|| format!("no planted fault is called {name}"))?,
        ),
    };
    if args.has("--relay") {
        return replay_relay(seed, planted, args, out);
    }
    let mut spec = Spec {
        seed,
        without: args.number("--without", 0)? as u32,
        deliveries: args.number("--deliveries", u64::from(u32::MAX))? as u32,
    };
    if !args.has("--no-shrink") {
        spec = run::shrink(spec, planted);
    }
    let report = run::one(spec, true, planted);
    writeln!(out, "{:?}", Plan::new(spec))?;
    for (at, event) in run::around(&report, args.number("--lines", 120)? as usize) {
        writeln!(out, "{at:>8} {event:?}")?;
    }
    writeln!(
        out,
        "replay of this: --seed {} --without {} --deliveries {} --no-shrink; history {:016x}",
        spec.seed, spec.without, spec.deliveries, report.hash
    )?;
    match &report.breach {
        Some(breach) => bail!("{} at {} ms: {}", breach.checker, breach.at, breach.what),
        None => writeln!(out, "no breach").map_err(Into::into),
    }
}

fn replay_relay(
    seed: u64,
    planted: Option<mutants::Planted>,
    args: &Args,
    out: &mut impl Write,
) -> Result<()> {
    let planted = match planted {
        None => None,
        Some(mutants::Planted::Relay(planted)) => Some(planted),
        Some(other) => bail!("{} is no fault of the relay", other.name()),
    };
    let report = relay::one(seed, true, planted);
    let most = args.number("--lines", 120)? as usize;
    for (at, event) in &report.log[report.log.len().saturating_sub(most)..] {
        writeln!(out, "{at:>8} {event:?}")?;
    }
    match &report.breach {
        Some(breach) => bail!("{} at {} ms: {}", breach.checker, breach.at, breach.what),
        None => writeln!(out, "no breach; history {:016x}", report.hash).map_err(Into::into),
    }
}

fn hunt(args: &Args, out: &mut impl Write) -> Result<()> {
    let kills = mutants::hunt(
        args.number("--from", 0)?,
        args.number("--seeds", 5_000)?,
        args.text("--only"),
    );
    let table = mutants::table(&kills);
    write!(out, "{table}")?;
    if let Some(path) = args.text("--write") {
        std::fs::write(path, table).with_context(|| format!("write {path}"))?;
    }
    let alive = kills.iter().filter(|kill| kill.first.is_none()).count();
    if alive > 0 {
        bail!("{alive} planted faults were not seen");
    }
    Ok(())
}
