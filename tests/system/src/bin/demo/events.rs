//! What the demo emits: a file of somebody's events, or a set of its own that looks like a shop's.

use anyhow::{Context, Result};
use serde_json::json;
use serde_json::value::RawValue;
use std::path::Path;

/// The demo emits at least so many events: a short input is repeated.
const AT_LEAST: usize = 2_000;
/// User keys of the demo's own set.
const USERS: u64 = 200;

/// One event to be committed.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) event_type: String,
    pub(crate) key: Option<String>,
    pub(crate) payload: Vec<u8>,
}

#[derive(serde::Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    event_type: String,
    key: Option<String>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// The events of `input` (one JSON object a line), or the demo's own; [`AT_LEAST`] of them.
pub(crate) fn events(input: Option<&Path>) -> Result<Vec<Event>> {
    let once = match input {
        Some(path) => read(path)?,
        None => (0..AT_LEAST as u64).map(made_up).collect(),
    };
    anyhow::ensure!(!once.is_empty(), "the input has no events");
    let count = once.len().max(AT_LEAST);
    Ok(once.iter().cycle().take(count).cloned().collect())
}

fn read(path: &Path) -> Result<Vec<Event>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| {
            let line: Line<'_> =
                serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
            let payload = line.payload.get().as_bytes().to_vec();
            Ok(Event { event_type: line.event_type, key: line.key, payload })
        })
        .collect()
}

/// The n-th event of a shop: users come back, and what happens to one of them has an order that matters.
fn made_up(n: u64) -> Event {
    const STORY: [&str; 6] = [
        "customer.created",
        "order.created",
        "order.paid",
        "invoice.finalized",
        "order.shipped",
        "subscription.cancelled",
    ];
    // A user's events are spread over the run, some users have many.
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    let user = if mixed.is_multiple_of(5) { mixed / 5 % 10 } else { mixed % USERS };
    let step = STORY[(n / USERS) as usize % STORY.len()];
    let cents = 500 + mixed % 20_000;
    let payload = json!({
        "id": format!("{}_{n}", step.replace('.', "_")),
        "customer": {"id": format!("user_{user}"), "email": format!("user{user}@example.com"), "locale": "de-DE"},
        "amount": {"value": format!("{}.{:02}", cents / 100, cents % 100), "currency": "EUR"},
        "lines": (0..1 + mixed % 4).map(|line| json!({"sku": format!("SKU-{}", 1000 + (mixed >> line) % 900),
            "quantity": 1 + (mixed >> (8 + line)) % 3})).collect::<Vec<_>>(),
        "step": n / USERS,
    });
    Event {
        event_type: step.to_owned(),
        key: Some(format!("user_{user}")),
        payload: payload.to_string().into_bytes(),
    }
}
