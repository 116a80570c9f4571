//! An authority that stays down: the lane waits and is seen, another goes on, a person ends it.

use crate::Cases;
use anyhow::{Context, Result};
use laneway_system::World;
use laneway_testkit::{First, Provider, Says, wait_for};
use std::time::Duration;

/// Plays it.
pub(crate) async fn play(world: &mut World, provider: &Provider, cases: &mut Cases) -> Result<()> {
    let text = |id| laneway_wire::EventId::from_uuid(id).to_string();
    let stuck = text(world.app.emit("charge.made", Some("stuck"), b"{}").await?);
    let behind = text(world.app.emit("charge.made", Some("stuck"), b"{}").await?);
    let (down, after) = (stuck.clone(), behind.clone());
    provider.set_says(move |key, _| if key == down { Says::Down } else { Says::Truth });
    let first = stuck.clone();
    provider.set_first(move |key| if key == first { First::ApplyThenCut } else { First::Answer });
    let other = text(world.app.emit("charge.made", Some("other"), b"{}").await?);
    wait_for("questions to an authority that is down", Duration::from_secs(90), || async {
        provider.account(&stuck).questions >= 4 && provider.account(&other).effects == 1
    })
    .await;
    let waits = provider.account(&after).requests == 0;
    cases.check("later events of the lane wait", waits, "behind an authority that is down");
    let listed = world.cli_json(&["unknowns", "list"])?;
    let row = listed.as_array().and_then(|rows| rows.first()).cloned().unwrap_or_default();
    let seen =
        row["answer"] == "unknown" && row["asked"].as_u64() >= Some(3) && row["waitingBehind"] == 1;
    cases.check("it is visible", seen, &row.to_string());
    let mut age = 0.0_f64;
    for name in ["deliver-1", "deliver-2"] {
        age = age.max(world.metric(name, "laneway_unknown_oldest_seconds").await.unwrap_or(0.0));
    }
    let mut waiting = 0.0_f64;
    for name in ["reconciler-1", "reconciler-2"] {
        waiting = waiting.max(world.metric(name, "laneway_lookups_waiting").await.unwrap_or(0.0));
    }
    cases.check(
        "its age is measured for the alert",
        age > 0.0 && waiting > 0.0,
        &format!("{age:.1} s, {waiting} waiting"),
    );
    let delivery = row["deliveryId"].as_str().context("a delivery's id")?.to_owned();
    world.cli(&[
        "unknowns",
        "resolve",
        &delivery,
        "--as",
        "delivered",
        "--reason",
        "seen in their records",
        "--actor",
        "ann",
    ])?;
    wait_for("the next event of the lane", Duration::from_secs(60), || async {
        provider.account(&behind).effects == 1
    })
    .await;
    let account = provider.account(&stuck);
    let once = account.requests == 1 && account.effects == 1;
    cases.check(
        "a person's word ends it without a second request",
        once,
        &format!("{} request", account.requests),
    );
    let audited = world
        .app
        .number("SELECT count(*) FROM laneway_control.audit_log WHERE action = 'unknown.resolve' AND actor = 'ann'")
        .await?;
    cases.check("and is in the audit log", audited == 1, &format!("{audited} entry"));
    Ok(())
}
