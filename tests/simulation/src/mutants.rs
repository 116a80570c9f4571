//! Planted faults: each rule of the core broken on purpose, and which checker sees it how soon.

use crate::run;
use laneway_lane::{Core, Limits};
use std::fmt::Write;

pub use laneway_lane::Mutant;

/// One row of the table.
#[derive(Debug, Clone)]
pub struct Kill {
    /// The fault.
    pub mutant: Mutant,
    /// Schedules up to and including the first that broke something, and the checker that saw it.
    pub first: Option<(u64, &'static str, String)>,
}

/// A core, with a planted fault or without.
pub fn core(limits: Limits, mutant: Option<Mutant>) -> Core {
    match mutant {
        Some(mutant) => Core::with_mutant(limits, mutant),
        None => Core::new(limits),
    }
}

/// Runs schedules with each planted fault until a checker sees it, `most` at most, from seed `from`.
pub fn hunt(from: u64, most: u64) -> Vec<Kill> {
    Mutant::ALL
        .into_iter()
        .map(|mutant| {
            // An assertion inside the core does not count: it is not there in production.
            let first = (0..most).find_map(|n| {
                let report = run::one(crate::plan::Spec::of(from + n), false, Some(mutant));
                let breach = report.breach.filter(|breach| breach.checker != "panic")?;
                Some((n + 1, breach.checker, breach.what))
            });
            Kill { mutant, first }
        })
        .collect()
}

/// The table for docs/mutants.md.
pub fn table(kills: &[Kill]) -> String {
    let mut text = String::from(
        "# Planted faults\n\nEach rule of the core broken on purpose, the checker of the simulator that saw it first, and how many schedules that\ntook. Written by `cargo run -p laneway-simulation --release -- mutants --write docs/mutants.md`; `cargo test -p\nlaneway-simulation` holds that each is caught.\n\n| fault | checker | schedules | what it saw |\n|---|---|---|---|\n",
    );
    for Kill { mutant, first } in kills {
        let row = match first {
            Some((schedules, checker, what)) => {
                let what = what.replace('|', "/");
                writeln!(text, "| {mutant:?} | {checker} | {schedules} | {what} |")
            }
            None => writeln!(text, "| {mutant:?} | **none** | | |"),
        };
        row.expect("writing to a string cannot fail");
    }
    text
}
