//! `make chaos SEED=S MINUTES=M`: faults drawn from a seed on all real parts; the last line is the verdict as JSON, the
//! exit code 1 if a promise was broken or the run itself did not work. The inputs of the verdict stay for a replay.

use anyhow::{Context, Result, bail};
use laneway_system::chaos::{Options, run};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match play() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            report(&format!("chaos: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn play() -> Result<bool> {
    let options = options(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let came = runtime.block_on(run(options)).context("the run could not be made")?;
    report(came.says.trim_end());
    print(&came.line.to_string());
    Ok(came.holds)
}

/// `--seed S --minutes M --rate R`, in any order.
fn options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { seed: 1, length: Duration::from_secs(300), rate: 20 };
    while let Some(flag) = args.next() {
        let value = args.next().with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--seed" => options.seed = value.parse()?,
            "--minutes" => options.length = Duration::from_secs_f64(value.parse::<f64>()? * 60.0),
            "--rate" => options.rate = value.parse()?,
            _ => bail!("usage: laneway-chaos [--seed S] [--minutes M] [--rate R]"),
        }
    }
    Ok(options)
}

#[expect(clippy::print_stdout, reason = "the verdict is this program's result")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "people read what broke and where the inputs lie")]
fn report(text: &str) {
    eprintln!("{text}");
}
