//! What waits, where a delivery is, what nobody knows.

use super::connect;
use crate::args::{Deliveries, Lanes, Selection, Unknowns, Verdict};
use crate::failure::{Failure, Result};
use crate::output::{Format, Output, maybe_time, shown, time};
use laneway_platform::ExitCode;
use laneway_platform::config::Origins;
use laneway_store::inspect::{self, Filter, Lane, Resolve, Waiting};
use laneway_store::{Pool, deliveries};
use laneway_wire::{DeliveryId, LaneId, LaneMode};
use serde_json::{Value, json};
use std::time::Duration;

/// How long `unknowns resolve` waits for the lane's owner, and how often it looks.
const APPLY_LIMIT: Duration = Duration::from_secs(30);
const APPLY_POLL: Duration = Duration::from_millis(200);
/// Of an answer's body a table shows so many characters.
const BODY_SHOWN: usize = 60;
/// Attempts of a delivery at most; no more than thirty are kept.
pub(super) const MAX_ATTEMPTS: u16 = 100;

/// `laneway lanes …`
pub(super) async fn lanes(command: Lanes, origins: &Origins, output: Output) -> Result {
    match command {
        Lanes::List(selection) => {
            let pool = connect(&selection.database, origins).await?;
            let rows = inspect::lanes_list(&pool, filter(&selection)).await?;
            let columns = [
                "lane",
                "endpointId",
                "mode",
                "key",
                "reason",
                "health",
                "waiting",
                "attempts",
                "nextTry",
                "head",
            ];
            let rows = rows
                .iter()
                .map(|lane| {
                    vec![
                        shown(lane.lane),
                        shown(lane.endpoint),
                        shown(mode(lane.mode)),
                        json!(lane.user_key),
                        shown(&lane.reason),
                        health(lane),
                        counted(lane.waiting),
                        json!(lane.head.map(|head| head.attempts)),
                        next_try(lane),
                        head(lane),
                    ]
                })
                .collect();
            output.list(&columns, rows)
        }
        Lanes::Show { lane, endpoint, key, limit, database } => {
            let id = match (lane, endpoint, key) {
                (Some(lane), _, _) => lane,
                (None, Some(endpoint), Some(key)) => {
                    LaneId::derive(endpoint, LaneMode::User, key.as_bytes())
                }
                _ => return Err(Failure::new(ExitCode::Usage, "name a lane, or endpoint and key")),
            };
            let pool = connect(&database, origins).await?;
            let Some((lane, events)) = inspect::lane_show(&pool, id, limit).await? else {
                let message = format!("lane {id} does not wait");
                return Err(Failure::new(ExitCode::NotFound, message)
                    .hint("a lane that flows, or is empty, is in no table"));
            };
            show_lane(&lane, &events, output)
        }
    }
}

fn show_lane(lane: &Lane, events: &[Waiting], output: Output) -> Result {
    let mut fields = vec![
        ("lane", shown(lane.lane)),
        ("projectId", shown(lane.tenant)),
        ("endpointId", shown(lane.endpoint)),
        ("mode", shown(mode(lane.mode))),
        ("key", json!(lane.user_key)),
        ("partition", json!(lane.partition)),
        ("reason", shown(&lane.reason)),
        ("health", health(lane)),
        ("waiting", counted(lane.waiting)),
        ("parkedAt", time(lane.parked_at)),
        ("lastTried", maybe_time(lane.last_tried)),
        ("nextTry", next_try(lane)),
        ("unknownSince", maybe_time(lane.unknown_since)),
    ];
    let columns = ["deliveryId", "eventId", "attempts", "heldSince"];
    let rows: Vec<Vec<Value>> = events
        .iter()
        .map(|event| {
            vec![
                shown(event.delivery),
                shown(event.event),
                json!(event.attempts),
                time(event.first_held),
            ]
        })
        .collect();
    with_list(output, &mut fields, "events", &columns, rows)
}

/// One thing with a list below it: in JSON the list is a field of the thing.
pub(super) fn with_list(
    output: Output,
    fields: &mut Vec<(&str, Value)>,
    name: &'static str,
    columns: &[&str],
    rows: Vec<Vec<Value>>,
) -> Result {
    if output.format == Format::Json {
        let list = rows
            .into_iter()
            .map(|row| columns.iter().map(|name| (*name).to_owned()).zip(row).collect())
            .map(Value::Object)
            .collect();
        fields.push((name, Value::Array(list)));
        return output.one(std::mem::take(fields));
    }
    output.one(std::mem::take(fields))?;
    if rows.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.list(columns, rows)
}

/// `laneway deliveries …`
pub(super) async fn deliveries(command: Deliveries, origins: &Origins, output: Output) -> Result {
    let Deliveries::Show { delivery: id, project, database } = command;
    let pool = connect(&database, origins).await?;
    let nothing = || {
        let message = format!("nothing is recorded of delivery {id}");
        Failure::new(ExitCode::NotFound, message)
            .hint("with --project, deliveries on their way are found too")
    };
    let tenant = match project {
        Some(project) => project,
        None => inspect::delivery_tenant(&pool, id).await?.ok_or_else(nothing)?,
    };
    let Some(found) = deliveries::delivery_get(&pool, tenant, id).await? else {
        return Err(nothing());
    };
    let history = deliveries::attempts_list(&pool, tenant, id, None, MAX_ATTEMPTS).await?;
    let mut fields = vec![
        ("deliveryId", shown(found.id)),
        ("projectId", shown(tenant)),
        ("endpointId", shown(found.endpoint)),
        ("eventId", found.event.map_or(Value::Null, shown)),
        ("state", shown(found.state.as_str())),
        ("reason", json!(found.reason)),
        ("attempts", json!(found.attempts)),
        ("lastStatus", json!(found.last_status)),
        ("lastClass", json!(found.last_class)),
        ("nextTry", maybe_time(found.next_attempt_at)),
        ("settledAt", maybe_time(found.settled_at)),
    ];
    let rows = attempt_rows(history, true, output);
    with_list(output, &mut fields, "history", &ATTEMPT_COLUMNS, rows)
}

pub(super) const ATTEMPT_COLUMNS: [&str; 7] =
    ["attempt", "endedAt", "kind", "status", "class", "tookMs", "body"];

/// Attempts as rows under [`ATTEMPT_COLUMNS`], with or without what the receiver answered.
pub(super) fn attempt_rows(
    history: Vec<deliveries::Attempt>,
    bodies: bool,
    output: Output,
) -> Vec<Vec<Value>> {
    let row = |attempt: deliveries::Attempt| {
        let body = attempt.body.filter(|_| bodies);
        let body = body.map(|body| String::from_utf8_lossy(&body).into_owned());
        let body = match output.format {
            Format::Json => body,
            Format::Table => body.map(|body| body.chars().take(BODY_SHOWN).collect()),
        };
        vec![
            json!(attempt.number),
            time(attempt.ended_at),
            shown(attempt.kind.as_str()),
            json!(attempt.status),
            json!(attempt.class),
            json!(attempt.took.as_millis()),
            json!(body),
        ]
    };
    history.into_iter().map(row).collect()
}

/// `laneway unknowns …`
pub(super) async fn unknowns(command: Unknowns, origins: &Origins, output: Output) -> Result {
    match command {
        Unknowns::List(selection) => {
            let pool = connect(&selection.database, origins).await?;
            let rows = inspect::unknowns_list(&pool, filter(&selection), None)
                .await?
                .iter()
                .map(|unknown| {
                    vec![
                        head(&unknown.lane),
                        shown(unknown.lane.endpoint),
                        json!(unknown.lane.user_key),
                        maybe_time(unknown.lane.unknown_since),
                        json!(unknown.lane.head.map(|head| head.attempts)),
                        counted(unknown.lane.waiting.saturating_sub(1)),
                        json!(unknown.decided),
                        json!(unknown.asked),
                        json!(unknown.answer.as_ref().map(|(answer, _)| answer)),
                        json!(unknown.answer.as_ref().map(|(_, detail)| detail)),
                        maybe_time(unknown.ask_at),
                    ]
                })
                .collect();
            let columns = [
                "deliveryId",
                "endpointId",
                "key",
                "since",
                "attempts",
                "waitingBehind",
                "decided",
                "asked",
                "answer",
                "detail",
                "askAt",
            ];
            output.list(&columns, rows)
        }
        Unknowns::Resolve { delivery, verdict, reason, actor, no_wait, database } => {
            super::check_reason(&reason)?;
            let pool = connect(&database, origins).await?;
            resolve(&pool, delivery, verdict, &reason, &actor, no_wait, output).await
        }
    }
}

async fn resolve(
    pool: &Pool,
    delivery: DeliveryId,
    verdict: Verdict,
    reason: &str,
    actor: &str,
    no_wait: bool,
    output: Output,
) -> Result {
    let verdict = match verdict {
        Verdict::Delivered => inspect::Verdict::Delivered,
        Verdict::NotApplied => inspect::Verdict::NotApplied,
        Verdict::GivenUp => inspect::Verdict::GivenUp,
    };
    let command =
        match inspect::unknown_resolve(pool, None, delivery, verdict, reason, actor).await? {
            Resolve::Written(resolution) => resolution.command,
            Resolve::Waiting(command) => {
                let message = format!("command {command} for {delivery} is still waiting");
                return Err(Failure::new(ExitCode::Conflict, message)
                    .hint("the owner of its lane applies it; is deliver running?"));
            }
            Resolve::NotUnknown => {
                let is_known = inspect::delivery_tenant(pool, delivery).await?.is_some();
                let code = if is_known { ExitCode::Conflict } else { ExitCode::NotFound };
                let message = format!("the outcome of {delivery} is not a held unknown");
                return Err(
                    Failure::new(code, message).hint("`laneway deliveries show` says where it is")
                );
            }
        };
    if no_wait {
        output.say(&format!("command {command} is written; the owner of the lane will apply it"));
        return Ok(());
    }
    output.say("waiting for the owner of the lane …");
    let applied = tokio::time::timeout(APPLY_LIMIT, async {
        loop {
            if let Some(result) = inspect::command_result(pool, command).await? {
                return Ok::<String, Failure>(result);
            }
            tokio::time::sleep(APPLY_POLL).await;
        }
    });
    match applied.await {
        Ok(Ok(result)) if result == "applied" => {
            output.say("applied");
            Ok(())
        }
        Ok(Ok(result)) => {
            Err(Failure::new(ExitCode::Refused, format!("command {command} was refused: {result}")))
        }
        Ok(Err(failure)) => Err(failure),
        Err(_) => Err(Failure::new(
            ExitCode::Unavailable,
            format!("command {command} is written but was not applied within {APPLY_LIMIT:?}"),
        )
        .hint("it stays; the next owner of the lane applies it")),
    }
}

fn filter(selection: &Selection) -> Filter {
    Filter { tenant: selection.project, endpoint: selection.endpoint, limit: selection.limit }
}

fn mode(mode: LaneMode) -> &'static str {
    match mode {
        LaneMode::User => "user",
        LaneMode::Total => "total",
        LaneMode::None => "none",
    }
}

fn health(lane: &Lane) -> Value {
    shown(lane.health.as_deref().unwrap_or("healthy"))
}

fn head(lane: &Lane) -> Value {
    lane.head.map_or(Value::Null, |head| shown(head.delivery))
}

/// A held unknown is not tried.
fn next_try(lane: &Lane) -> Value {
    if lane.unknown_since.is_some() { Value::Null } else { time(lane.due) }
}

/// A count that stops at [`inspect::MAX_COUNT`].
fn counted(count: u32) -> Value {
    if count >= inspect::MAX_COUNT { shown(format!("{count}+")) } else { json!(count) }
}
