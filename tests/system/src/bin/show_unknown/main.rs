//! `make show-unknown`: unknown outcomes, dead letters and broken promises on the real parts (C8, C10, P6, I12–I14).
//!
//! A provider with effects applies requests, or does not, and fails to say so; it can be asked, and at first may be down,
//! busy or talk nonsense. Deliver processes and reconcilers are killed again and again; in the end every event has had
//! exactly one effect ([`storm`]). An authority that stays down keeps one lane waiting, visibly ([`held`]). Thousands of
//! dead letters are sent again under live traffic ([`dead`]). What is broken by hand in the database is found by the audit
//! and named ([`broken`]). A million old rows go while events come in, and one tenant is erased ([`retention`]). The last line
//! of standard output is the verdict as JSON; the exit code is 1 if anything failed. `--only unknown`, `--only dead` and
//! `--only retention` play one part.

#![expect(
    clippy::disallowed_methods,
    reason = "a program around the product: clocks and tasks are used freely"
)]

mod broken;
mod dead;
mod held;
mod retention;
mod storm;

use anyhow::Result;
use laneway_testkit::Stack;
use serde_json::{Value, json};

fn main() -> std::process::ExitCode {
    let play = || -> Result<Value> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let only = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => None,
            ["--only", part @ ("unknown" | "dead" | "retention")] => Some(part),
            _ => anyhow::bail!("expected nothing, or --only unknown|dead|retention"),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(play(only))
    };
    match play() {
        Ok(verdict) => {
            print(&verdict.to_string());
            match verdict["failed"].as_u64() {
                Some(0) => std::process::ExitCode::SUCCESS,
                _ => std::process::ExitCode::FAILURE,
            }
        }
        Err(error) => {
            report(&format!("show-unknown: {error:#}"));
            std::process::ExitCode::FAILURE
        }
    }
}

/// Cases and what became of them.
#[derive(Default)]
struct Cases {
    count: usize,
    failed: Vec<String>,
}

impl Cases {
    fn check(&mut self, name: &str, holds: bool, seen: &str) {
        self.count += 1;
        report(&format!("{} {name}: {seen}", if holds { "ok  " } else { "FAIL" }));
        if !holds {
            self.failed.push(name.to_owned());
        }
    }
}

async fn play(only: Option<&str>) -> Result<Value> {
    let stack = Stack::shared().await;
    let mut cases = Cases::default();
    let wanted = |part| only.is_none_or(|only| only == part);
    let mut figures = json!({});
    if wanted("unknown") {
        let (mut world, provider) = storm::world(stack).await?;
        figures["unknown"] = storm::play(&mut world, &provider, &mut cases).await?;
        held::play(&mut world, &provider, &mut cases).await?;
    }
    if wanted("dead") {
        let (mut world, receiver, dead) = dead::play(stack, &mut cases).await?;
        figures["dead_letters"] = dead;
        broken::play(&mut world, &receiver, &mut cases).await?;
    }
    if wanted("retention") {
        figures["retention"] = retention::play(stack, &mut cases).await?;
    }
    figures["cases"] = json!(cases.count);
    figures["failed"] = json!(cases.failed.len());
    figures["failures"] = json!(cases.failed);
    Ok(figures)
}

#[expect(clippy::print_stdout, reason = "the verdict is this program's result")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "people read how it goes")]
fn report(text: &str) {
    eprintln!("{text}");
}
