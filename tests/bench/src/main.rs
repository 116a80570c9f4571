//! The measurements of `make bench`: real processes on the local stack, printed with environment and workload.
//!
//! What each figure means is in `docs/benchmarks.md`. Nothing here is a test: no figure fails anything. A part that
//! fails leaves its fields null with a note, and the next part runs.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a measuring program: its output is its purpose, clocks and environment are used freely"
)]

mod end_to_end;
mod engine;
mod environment;
mod parked;
mod peer;
mod process;
mod relay;
mod report;
mod sink;
mod workload;

use clap::{Parser, ValueEnum};
use laneway_testkit::Stack;
use report::Report;
use std::path::{Path, PathBuf};

/// Measures Laneway on the stack of `deploy/dev/stack run DIR -- laneway-bench`.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// A tenth of every size: to see that it runs, not for figures.
    #[arg(long)]
    quick: bool,
    /// Pairs of engine and Parallel Consumer.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pairs: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Engine,
    Relay,
    #[value(name = "e2e")]
    EndToEnd,
    Parked,
}

impl Part {
    const ALL: [Self; 4] = [Self::Engine, Self::Relay, Self::EndToEnd, Self::Parked];

    /// The fields of the last line that this part fills.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Engine => &[
                "engine_vs_parallel_consumer",
                "engine_vs_http_ceiling",
                "cpu_us_per_delivery",
                "engine_deliveries_per_s",
                "parallel_consumer_per_s",
                "http_ceiling_per_s",
            ],
            Self::Relay => &["relay_rows_per_s"],
            Self::EndToEnd => {
                &["end_to_end_events_per_s", "end_to_end_p50_ms", "end_to_end_p99_ms"]
            }
            Self::Parked => &["parked_lanes_rss_mb", "parked_lanes_ready_s"],
        }
    }
}

/// How much of everything.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// 1, or 10 with `--quick`.
    divisor: u32,
    pairs: u16,
}

impl Sizes {
    const fn of(self, full: u32) -> u32 {
        full / self.divisor
    }
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let sizes = Sizes { divisor: if args.quick { 10 } else { 1 }, pairs: args.pairs };
    let stack = Stack::shared().await;
    environment::print(stack).await;
    let report = Report::default();
    for part in Part::ALL {
        if !args.only.is_empty() && !args.only.contains(&part) {
            report.skipped(part.fields(), "not asked for (--only)");
            continue;
        }
        report::say(format!("== {part:?}; {}", environment::load()));
        let own = report.clone();
        // A task of its own: a panic in a part is a failure of that part.
        let run = tokio::spawn(async move {
            match part {
                Part::Engine => engine::measure(stack, sizes, &own).await,
                Part::Relay => relay::measure(stack, sizes, &own).await,
                Part::EndToEnd => end_to_end::measure(stack, sizes, &own).await,
                Part::Parked => parked::measure(stack, sizes, &own).await,
            }
        });
        let why = match run.await {
            Ok(Ok(())) => "not measured".to_owned(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => format!("{panic}"),
        };
        report.skipped(part.fields(), &why);
    }
    report::say(format!("end; {}", environment::load()));
    println!("{}", report.json(Part::ALL.iter().flat_map(|part| part.fields()), args.quick));
}

/// The repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.canonicalize().unwrap_or(here)
}
