//! Unknown outcomes by the hundred, under kills, judged by the provider's own ledger.

use crate::Cases;
use anyhow::{Context, Result};
use laneway_system::charges::{self, CHARGE, mood, mostly_silent};
use laneway_system::{EndpointOptions, Options, World};
use laneway_testkit::{Account, First, Provider, Stack, wait_for};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

const LANES: usize = 260;
const PER_LANE: usize = 5;
/// Unknown outcomes that there have to be at least, and kills.
const UNKNOWNS: i64 = 1_000;
const KILLS: usize = 50;
/// Everything together takes less.
const LIMIT: Duration = Duration::from_secs(480);
const S: Duration = Duration::from_secs(1);

/// A world with one endpoint, the provider, that is asked what became of a request.
pub(crate) async fn world(stack: &Stack) -> Result<(World, Provider)> {
    let options = Options {
        settings: charges::settings(),
        log_level: "warn,laneway=info".to_owned(),
        ..Options::default()
    };
    let mut world = World::start(stack, options).await?;
    let provider = Provider::start().await;
    provider.set_first(mostly_silent);
    provider.set_says(charges::says);
    let endpoint = EndpointOptions {
        on_unknown: "lookup",
        timeout: S,
        max_connections: 64,
        ..EndpointOptions::default()
    };
    charges::endpoint(&mut world, &provider, endpoint).await?;
    Ok((world, provider))
}

/// Plays it and gives the figures.
pub(crate) async fn play(
    world: &mut World,
    provider: &Provider,
    cases: &mut Cases,
) -> Result<Value> {
    let began = std::time::Instant::now();
    let mut lanes: Vec<Vec<String>> = vec![Vec::new(); LANES];
    for n in 0..LANES * PER_LANE {
        let lane = n % LANES;
        let id = world.app.emit(CHARGE, Some(&format!("u{lane}")), b"{}").await?;
        lanes[lane].push(laneway_wire::EventId::from_uuid(id).to_string());
    }
    let total = (LANES * PER_LANE) as i64;
    world.up("relay", "relay").await?;
    let names = ["deliver-1", "deliver-2", "reconciler-1", "reconciler-2"];
    for name in names {
        let service = name.split('-').next().context("a service's name")?;
        world.up(service, name).await?;
    }
    // Reconcilers die often; deliver processes now and then, because each death costs its lanes a session.
    let mut kills = 0;
    let mut beat = tokio::time::interval(Duration::from_millis(700));
    while kills < KILLS || world.settled().await? < total {
        beat.tick().await;
        if began.elapsed() > LIMIT {
            break;
        }
        if kills >= KILLS {
            continue;
        }
        let name = match kills % 8 {
            3 => "deliver-1",
            7 => "deliver-2",
            n if n % 2 == 0 => "reconciler-1",
            _ => "reconciler-2",
        };
        world.kill(name);
        kills += 1;
        world.spawn(name.split('-').next().context("a service's name")?, name, &[])?;
    }
    wait_for("every event's outcome", LIMIT, || async {
        world.settled().await.is_ok_and(|settled| settled >= total)
    })
    .await;
    let took = began.elapsed();
    let accounts = provider.accounts();
    let unknowns =
        world.app.number("SELECT count(*) FROM laneway_control.attempts WHERE kind = 3").await?;
    let sum = |field: fn(&Account) -> u32| {
        accounts.values().map(|account| u64::from(field(account))).sum::<u64>()
    };
    let effects = sum(|account| account.effects);
    let repeats = sum(|account| account.repeats_after_effect);
    let early = sum(|account| account.questions_too_early);
    let questions = sum(|account| account.questions);
    let requests = sum(|account| account.requests);
    cases.check("a thousand unknown outcomes", unknowns >= UNKNOWNS, &format!("{unknowns}"));
    cases.check("fifty kills", kills >= KILLS, &format!("{kills}"));
    let once = accounts.values().filter(|account| account.effects == 1).count();
    cases.check(
        "exactly one effect each",
        once as i64 == total && effects as i64 == total,
        &format!("{once} of {total} keys with one, {effects} in all"),
    );
    cases.check("nothing applied is sent again", repeats == 0, &format!("{repeats} repeats"));
    cases.check(
        "nobody is asked too early",
        early == 0,
        &format!("{early} of {questions} questions"),
    );
    let of = |wanted: &dyn Fn(&str) -> bool| -> Vec<&Account> {
        accounts.iter().filter(|(key, _)| wanted(key)).map(|(_, account)| account).collect()
    };
    let applied = of(&|key| {
        matches!(mostly_silent(key), First::ApplyThenCut | First::ApplyLate(_) | First::Answer)
    });
    cases.check(
        "applied: no second request",
        applied.iter().all(|account| account.requests == 1),
        &format!("{} keys", applied.len()),
    );
    let not_applied = of(&|key| matches!(mostly_silent(key), First::CutBefore | First::Silent));
    cases.check(
        "not applied: exactly one more request",
        not_applied.iter().all(|account| account.requests == 2),
        &format!("{} keys", not_applied.len()),
    );
    for (name, wanted) in [("in progress", 0), ("down", 1)] {
        let met = of(&|key| mood(key) == wanted && mostly_silent(key) != First::Answer);
        cases.check(
            &format!("{name}: held and asked again"),
            met.iter().all(|account| account.questions >= 3),
            &format!("{} keys", met.len()),
        );
    }
    let disorder = disorder(&lanes, &accounts);
    cases.check(
        "lanes in order",
        disorder == 0,
        &format!("{disorder} events before an earlier one"),
    );
    let delivered =
        world.app.number("SELECT count(*) FROM laneway_control.inbox WHERE outcome = 1").await?;
    cases.check("all delivered", delivered == total, &format!("{delivered}"));
    let left = world
        .app
        .number("SELECT (SELECT count(*) FROM laneway_control.intents) + (SELECT count(*) FROM laneway_control.parked_lanes)")
        .await?;
    cases.check("nothing is left behind", left == 0, &format!("{left} intents and parked lanes"));
    Ok(json!({
        "events": total, "unknowns": unknowns, "kills": kills, "effects": effects, "requests": requests,
        "repeats_after_effect": repeats, "questions": questions, "questions_too_early": early,
        "order_violations": disorder, "seconds": took.as_secs(),
    }))
}

/// Events that had their effect before an earlier one of their lane.
fn disorder(lanes: &[Vec<String>], accounts: &HashMap<String, Account>) -> usize {
    let place = |key: &String| accounts.get(key).and_then(|account| account.applied).unwrap_or(0);
    lanes
        .iter()
        .flat_map(|lane| lane.windows(2))
        .filter(|two| place(&two[0]) > place(&two[1]))
        .count()
}
