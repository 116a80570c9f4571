//! All parts under faults drawn from a fixed seed: what `make chaos` does, for as long as a test run can bear.

use anyhow::Result;
use laneway_system::chaos::{Options, run};
use std::time::Duration;

/// Another one: `make chaos SEED=s`.
const SEED: u64 = 4;
const MINUTES: f64 = 5.0;
/// Beside the other tests.
const RATE: u32 = 10;

/// P1 to P5, P13: nothing lost, nothing out of order, no repeat without an explanation.
/// `LANEWAY_CHAOS_MINUTES` makes it longer or shorter.
#[ignore = "five minutes alone on the machine: `make chaos` runs the same"]
#[tokio::test(flavor = "multi_thread")]
async fn faults_drawn_from_a_fixed_seed_lose_and_reorder_nothing() -> Result<()> {
    let minutes = std::env::var("LANEWAY_CHAOS_MINUTES").ok();
    let minutes = minutes.and_then(|minutes| minutes.parse().ok()).unwrap_or(MINUTES);
    let length = Duration::from_secs_f64(minutes * 60.0);
    let report = run(Options { seed: SEED, length, rate: RATE }).await?;
    assert!(report.holds, "{}\n{}", report.line, report.says);
    Ok(())
}
