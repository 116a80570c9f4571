//! Endpoints with effects: a provider that often does not say what it did, and can be asked. Its ledger is what unknown
//! outcomes are judged by; `make show-unknown` and `make chaos` share what it is like.

use crate::world::{EndpointOptions, World};
use anyhow::Result;
use laneway_testkit::{First, Provider, Says};
use serde_json::json;
use std::time::Duration;

/// The type of its events.
pub const CHARGE: &str = "charge.made";

/// Settings of a world in which authorities are asked soon and often.
pub fn settings() -> Vec<(&'static str, String)> {
    let setting = |name, value: &str| (name, value.to_owned());
    vec![
        setting("LANEWAY_RECONCILER__POLL", "100ms"),
        // The provider works for 0.7 s of a request's time; on a busy machine it may read it a second late.
        setting("LANEWAY_RECONCILER__LOOKUP_GRACE", "2s"),
        setting("LANEWAY_RECONCILER__LOOKUP_FIRST", "200ms"),
        setting("LANEWAY_RECONCILER__LOOKUP_MAX", "2s"),
        setting("LANEWAY_RECONCILER__LOOKUP_DEADLINE", "2s"),
    ]
}

/// Makes an endpoint of a provider; with `lookup` the provider is asked by the product.
///
/// # Errors
/// When the API refuses.
pub async fn endpoint(
    world: &mut World,
    provider: &Provider,
    options: EndpointOptions,
) -> Result<()> {
    let is_asked = options.on_unknown == "lookup";
    let id = world.endpoint_for(&provider.url(), CHARGE, options).await?;
    if is_asked {
        let authority = json!({
            "url": provider.authority(), "headerName": "authorization", "headerValue": "Bearer t",
        });
        world.client()?.authority_set(id, &authority).await?;
    }
    Ok(())
}

/// A number of a key that says nothing about it.
fn draw(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }) >> 17
}

/// A number from 0 to 7: what the authority is like when it is first asked about a key.
pub fn mood(key: &str) -> u64 {
    draw(key) / 100 % 8
}

/// What is said at the nth question about a key.
pub fn says(key: &str, asked: u32) -> Says {
    match (mood(key), asked) {
        (0, 0..=1) => Says::InProgress,
        (1, 0..=1) => Says::Down,
        (2, 0) => Says::Nonsense,
        (3, 0) => Says::Cut,
        _ => Says::Truth,
    }
}

/// What becomes of the first request of a key: nine in ten end without an answer.
pub fn mostly_silent(key: &str) -> First {
    match draw(key) % 100 {
        0..45 => First::ApplyThenCut,
        45..70 => First::CutBefore,
        70..80 => First::ApplyLate(Duration::from_millis(700)),
        80..90 => First::Silent,
        _ => First::Answer,
    }
}

/// The same, three in ten.
pub fn sometimes_silent(key: &str) -> First {
    if draw(key) / 1_000 % 10 < 3 { mostly_silent(key) } else { First::Answer }
}
