//! One dead key among a thousand.

use crate::support::Scene;
use anyhow::Result;
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::{Behaviour, Kind, Receiver};
use std::time::Duration;

const KEYS: usize = 1_000;
const EACH: usize = 20;

/// P3, I21: the others' p99 is within 2 s of a run without the dead key.
#[tokio::test(flavor = "multi_thread")]
async fn one_dead_key_delays_no_other() -> Result<()> {
    // Side by side: whatever else the machine does meanwhile hits both alike.
    let (control, with_dead) = tokio::try_join!(run(false), run(true))?;
    assert!(
        with_dead < control + 2.0,
        "p99 of the others {with_dead:.2} s, without the dead key {control:.2} s"
    );
    Ok(())
}

/// Seconds from the first commit within which 99 % of the living keys' events were answered.
async fn run(dead: bool) -> Result<f64> {
    let mut scene = Scene::shared(Options::default(), vec![EndpointOptions::default()]).await?;
    scene.receivers[0].set_script(move |request| {
        let marked = request.body.starts_with(br#"{"key":"user_7","#);
        if dead && marked { Behaviour::status(503) } else { Behaviour::ok() }
    });
    scene.services(2).await?;
    let start = laneway_system::monotonic_ns();
    scene.emit(KEYS, EACH, 1_000).await?;
    let expected = KEYS * EACH - if dead { EACH } else { 0 };
    scene.world.wait_settled(expected as i64, Duration::from_secs(180)).await;
    Ok(p99(&scene.receivers[0], start))
}

fn p99(receiver: &Receiver, start: u64) -> f64 {
    let mut answered: Vec<u64> = receiver
        .journal()
        .entries()
        .iter()
        .filter(|entry| entry.kind == Kind::Response && entry.status == Some(200))
        .map(|entry| entry.ns - start)
        .collect();
    answered.sort_unstable();
    answered.get(answered.len() * 99 / 100).map_or(f64::MAX, |ns| *ns as f64 / 1e9)
}
