//! Dead letters, and commands over many deliveries: counted, confirmed, written, watched.

use super::connect;
use super::inspect::{ATTEMPT_COLUMNS, MAX_ATTEMPTS, attempt_rows, with_list};
use crate::args::{
    DeadCommand, DeadFilter, DeadLetters, DeadState, How, Rewind, RewindChange, When,
};
use crate::failure::{Failure, Result};
use crate::output::{Format, Output, maybe_time, shown, time};
use indicatif::{ProgressBar, ProgressStyle};
use laneway_platform::config::Origins;
use laneway_platform::{ExitCode, clock};
use laneway_store::dead_letters::{
    DeadLetter, Selection, State as Dead, Unreadable, dead_letter_get, dead_letters_list,
};
use laneway_store::endpoints::endpoint_get;
use laneway_store::idempotency::{Answer, Work};
use laneway_store::rewinds::{
    self, Action, Counted, MAX_NAMED, NewRewind, Preview, Refusal, State, rewind_change,
    rewind_create, rewind_get, rewind_preview, rewinds_list,
};
use laneway_store::{Pool, deliveries};
use laneway_wire::{RewindId, TenantId, Timestamp};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal};
use std::time::Duration;

/// Above so many deliveries the number has to be typed, not only `y`.
const MANY: u64 = 1_000;
/// What a count may take; a command that means more than can be counted in that time is given all the same.
const COUNT_TIME: Duration = Duration::from_secs(60);
/// How often a command is looked at while it is watched.
const WATCH_POLL: Duration = Duration::from_millis(200);
/// Without a terminal there is a line no more often than this.
const LINE_EVERY: Duration = Duration::from_secs(10);
const TEMPLATE: &str = "{bar:30} {pos}/{len} {per_sec} eta {eta} · {msg}";

/// `laneway dead-letters …`
pub(super) async fn dead_letters(
    command: DeadLetters,
    origins: &Origins,
    output: Output,
) -> Result {
    match command {
        DeadLetters::List { project, filter, state, limit, database } => {
            let pool = connect(&database, origins).await?;
            let selection = selection(&pool, filter).await?;
            let state = state.map(|state| match state {
                DeadState::Open => Dead::Open,
                DeadState::Rewound => Dead::Rewound,
                DeadState::Discarded => Dead::Discarded,
                DeadState::Erased => Dead::Erased,
            });
            let rows = dead_letters_list(&pool, project, &selection, state, None, limit).await?;
            let columns = [
                "deliveryId",
                "eventId",
                "endpointId",
                "type",
                "key",
                "reason",
                "attempts",
                "lastClass",
                "lastStatus",
                "deadAt",
                "state",
            ];
            output.list(&columns, rows.into_iter().map(row).collect())
        }
        DeadLetters::Show { delivery, project, payload, database } => {
            let pool = connect(&database, origins).await?;
            let Some((dead, record)) = dead_letter_get(&pool, project, delivery).await? else {
                return Err(Failure::new(ExitCode::NotFound, format!("no dead letter {delivery}")));
            };
            let history =
                deliveries::attempts_list(&pool, dead.tenant, delivery, None, MAX_ATTEMPTS).await?;
            show(&dead, &record, history, payload, output)
        }
        DeadLetters::Rewind(command) => give(Action::Rewind, command, origins, output).await,
        DeadLetters::Discard(command) => give(Action::Discard, command, origins, output).await,
    }
}

/// `laneway rewind …`
pub(super) async fn rewind(command: Rewind, origins: &Origins, output: Output) -> Result {
    match command {
        Rewind::List { project, limit, database } => {
            let pool = connect(&database, origins).await?;
            let rows = rewinds_list(&pool, project, None, limit).await?;
            let columns = [
                "rewindId",
                "projectId",
                "action",
                "state",
                "matched",
                "done",
                "skipped",
                "setAside",
                "waitsFor",
                "actor",
                "createdAt",
            ];
            let rows = rows
                .iter()
                .map(|rewind| {
                    vec![
                        shown(rewind.id),
                        shown(rewind.tenant),
                        shown(rewind.action.as_str()),
                        shown(rewind.state.as_str()),
                        json!(rewind.matched),
                        json!(rewind.done),
                        json!(rewind.skipped),
                        json!(rewind.set_aside),
                        json!(rewind.waits),
                        shown(&rewind.actor),
                        time(rewind.created_at),
                    ]
                })
                .collect();
            output.list(&columns, rows)
        }
        Rewind::Show(name) => {
            let pool = connect(&name.database, origins).await?;
            output.one(fields(&find(&pool, name.rewind).await?))
        }
        Rewind::Watch(name) => {
            let pool = connect(&name.database, origins).await?;
            watch(&pool, name.rewind, output).await
        }
        Rewind::Pause(change) => alter(change, State::Paused, origins, output).await,
        Rewind::Resume(change) => alter(change, State::Running, origins, output).await,
        Rewind::Cancel(change) => alter(change, State::Cancelled, origins, output).await,
        Rewind::Replay { project, endpoint, since, event_type, how } => {
            let pool = connect(&how.database, origins).await?;
            let since = moment(&pool, since).await?;
            if since > pool.now().await? {
                let message = "--since lies in the future: nothing was sent since then";
                return Err(Failure::new(ExitCode::Usage, message));
            }
            if endpoint_get(&pool, project, endpoint).await?.is_none() {
                let message = format!("project {project} has no endpoint {endpoint}");
                return Err(Failure::new(ExitCode::NotFound, message)
                    .hint("`laneway endpoints list` shows which there are"));
            }
            let since = Some(since);
            let selection =
                Selection { endpoint: Some(endpoint), since, event_type, ..Selection::default() };
            command_to(&pool, project, Action::Replay, &selection, how, output).await
        }
    }
}

async fn give(action: Action, command: DeadCommand, origins: &Origins, output: Output) -> Result {
    let DeadCommand { project, filter, how } = command;
    let pool = connect(&how.database, origins).await?;
    let selection = selection(&pool, filter).await?;
    command_to(&pool, project, action, &selection, how, output).await
}

/// Counts, asks, writes and watches a command.
async fn command_to(
    pool: &Pool,
    project: TenantId,
    action: Action,
    selection: &Selection,
    how: How,
    output: Output,
) -> Result {
    let preview = rewind_preview(pool, project, action, selection, COUNT_TIME).await?;
    if how.dry_run {
        return output.one(preview_fields(action, &preview));
    }
    let reason = how.reason.unwrap_or_default();
    super::check_reason(&reason)?;
    output.say(&told(action, &preview));
    // Nobody is asked to confirm what is going to be refused.
    if let Some(refusal) = preview.refusal {
        return Err(refused(refusal));
    }
    if preview.matched() == Some(0) {
        return match output.format {
            Format::Json => output.one(preview_fields(action, &preview)),
            Format::Table => Ok(()),
        };
    }
    if !how.yes {
        confirm(action, &preview, output)?;
    }
    let mut work = Work::begin(pool, project).await?;
    let new = NewRewind { action, selection, reason: &reason, actor: &how.actor };
    let made = rewind_create(&mut work, new, &preview).await?.map_err(refused)?;
    work.commit(&Answer { status: 202, body: Vec::new() }, None).await?;
    if how.no_wait {
        return output.made(&made.id.to_string(), fields(&made));
    }
    output
        .say(&format!("command {} is written; Ctrl-C ends the waiting, not the command", made.id));
    watch(pool, made.id, output).await
}

fn refused(refusal: Refusal) -> Failure {
    let (message, hint) = match refusal {
        Refusal::NothingToReplay => (
            "what was delivered is not in the control database's outbox",
            "events of other source databases, and those older than relay.window, are not replayed",
        ),
        Refusal::OutboxNotRead => (
            "no relay has read the control database's outbox for five minutes",
            "start `laneway relay`; if it lists sources, the control database has to be among them",
        ),
    };
    Failure::new(ExitCode::Refused, format!("{}: {message}", refusal.code())).hint(hint)
}

/// What a command would do, in a line for people.
fn told(action: Action, preview: &Preview) -> String {
    let Some(Counted { matched, ordered, lanes, endpoints, oldest, .. }) = preview.counted else {
        return format!("more than can be counted in {} s", COUNT_TIME.as_secs());
    };
    let mut line = match action {
        Action::Replay => format!("matched {matched} delivered events"),
        Action::Rewind | Action::Discard => {
            format!("matched {matched} dead letters in {lanes} lanes on {endpoints} endpoints")
        }
    };
    if let Some(oldest) = oldest {
        line += &format!("; oldest {}", time(oldest).as_str().unwrap_or_default());
    }
    match preview.unavailable {
        Some(0) => {}
        Some(gone) => {
            line += &format!(
                "; {gone} more cannot be sent again: from another source database, or older than the outbox keeps"
            );
        }
        None => line += "; not counted: what cannot be sent again",
    }
    if ordered > 0 && action != Action::Discard {
        line +=
            "; what came after them in their lanes may have been delivered: they arrive behind it";
    }
    line
}

fn confirm(action: Action, preview: &Preview, output: Output) -> Result {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(ExitCode::Refused, "not confirmed")
            .hint("give --yes where nobody can be asked"));
    }
    let wanted = match preview.matched() {
        Some(matched) if matched > MANY || action == Action::Discard => matched.to_string(),
        Some(_) => "y".to_owned(),
        None => action.as_str().to_owned(),
    };
    output.warn(&format!("{} them? type {wanted} to go on", action.as_str()));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if line.trim() == wanted {
        return Ok(());
    }
    Err(Failure::new(ExitCode::Refused, "not confirmed"))
}

/// Waits until the command has ended and shows it.
async fn watch(pool: &Pool, id: RewindId, output: Output) -> Result {
    let first = find(pool, id).await?;
    let bar = (std::io::stderr().is_terminal() && !output.quiet).then(|| {
        let bar = match first.matched {
            Some(matched) => ProgressBar::new(matched),
            None => ProgressBar::no_length(),
        };
        // The template is fixed and tested; without a style the bar is plainer.
        match ProgressStyle::with_template(TEMPLATE) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    });
    let mut last_line = clock::monotonic();
    loop {
        let now = find(pool, id).await?;
        let mut line = format!("ok {} · skipped {}", now.done, now.skipped);
        if now.set_aside > 0 {
            line += &format!(" · set aside {}", now.set_aside);
        }
        if let Some(waits) = &now.waits {
            line += &format!(" · waits for {waits}");
        }
        if let Some(error) = &now.error {
            line += &format!(" · failed, is tried again: {error}");
        }
        if let Some(bar) = &bar {
            bar.set_position(now.done + now.skipped + now.set_aside);
            bar.set_message(line);
        } else if clock::monotonic().saturating_sub(last_line) >= LINE_EVERY {
            last_line = clock::monotonic();
            match now.matched {
                Some(matched) => output.say(&format!("{line} of {matched}")),
                None => output.say(&line),
            }
        }
        if now.state != State::Running {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            return output.one(fields(&now));
        }
        tokio::time::sleep(WATCH_POLL).await;
    }
}

async fn alter(change: RewindChange, to: State, origins: &Origins, output: Output) -> Result {
    let RewindChange { rewind, reason, actor, database } = change;
    super::check_reason(&reason)?;
    let pool = connect(&database, origins).await?;
    let tenant = find(&pool, rewind).await?.tenant;
    let mut work = Work::begin(&pool, tenant).await?;
    let now = rewind_change(&mut work, rewind, to, &actor, &reason).await?;
    work.commit(&Answer { status: 200, body: Vec::new() }, None).await?;
    match now {
        Some(now) if now.state == to => output.one(fields(&now)),
        Some(now) => {
            let message = format!("command {rewind} is {}", now.state.as_str());
            Err(Failure::new(ExitCode::Conflict, message))
        }
        None => Err(none(rewind)),
    }
}

async fn find(pool: &Pool, id: RewindId) -> Result<rewinds::Rewind> {
    rewind_get(pool, None, id).await?.ok_or_else(|| none(id))
}

fn none(id: RewindId) -> Failure {
    Failure::new(ExitCode::NotFound, format!("no command {id}"))
}

async fn selection(pool: &Pool, filter: DeadFilter) -> Result<Selection> {
    let DeadFilter { deliveries, endpoint, lane, key, event_type, cause, since, until } = filter;
    if deliveries.len() > MAX_NAMED {
        let message = format!("at most {MAX_NAMED} deliveries can be named, use a filter");
        return Err(Failure::new(ExitCode::Usage, message));
    }
    let since = match since {
        Some(since) => Some(moment(pool, since).await?),
        None => None,
    };
    let until = match until {
        Some(until) => Some(moment(pool, until).await?),
        None => None,
    };
    let deliveries = (!deliveries.is_empty()).then_some(deliveries);
    let selection =
        Selection { deliveries, endpoint, lane, user_key: key, event_type, cause, since, until };
    if selection.is_backwards() {
        return Err(Failure::new(ExitCode::Usage, "--until is not after --since"));
    }
    Ok(selection)
}

/// On the database's clock.
async fn moment(pool: &Pool, when: When) -> Result<Timestamp> {
    Ok(match when {
        When::At(at) => at,
        When::Ago(span) => pool.now().await? - span,
    })
}

fn fields(rewind: &rewinds::Rewind) -> Vec<(&'static str, Value)> {
    vec![
        ("rewindId", shown(rewind.id)),
        ("projectId", shown(rewind.tenant)),
        ("action", shown(rewind.action.as_str())),
        ("state", shown(rewind.state.as_str())),
        ("matched", json!(rewind.matched)),
        ("done", json!(rewind.done)),
        ("skipped", json!(rewind.skipped)),
        ("setAside", json!(rewind.set_aside)),
        ("setAsideExample", json!(rewind.example)),
        ("waitsFor", json!(rewind.waits)),
        ("error", rewind.error.as_ref().map_or(Value::Null, shown)),
        ("reason", shown(&rewind.reason)),
        ("actor", shown(&rewind.actor)),
        ("selection", shown(json!(rewind.selection))),
        ("createdAt", time(rewind.created_at)),
        ("finishedAt", maybe_time(rewind.finished_at)),
    ]
}

fn preview_fields(action: Action, preview: &Preview) -> Vec<(&'static str, Value)> {
    let counted = preview.counted;
    let of = |count: fn(Counted) -> u64| json!(counted.map(count));
    // Of a replay they are not counted: no number is not 0.
    let all = |count: fn(Counted) -> u64| match action {
        Action::Replay => Value::Null,
        Action::Rewind | Action::Discard => of(count),
    };
    vec![
        ("matched", of(|counted| counted.matched)),
        ("inOrderedLanes", of(|counted| counted.ordered)),
        ("lanes", all(|counted| counted.lanes)),
        ("endpoints", of(|counted| counted.endpoints)),
        ("bytes", all(|counted| counted.bytes)),
        ("oldest", maybe_time(counted.and_then(|counted| counted.oldest))),
        ("newest", maybe_time(counted.and_then(|counted| counted.newest))),
        ("unavailable", json!(preview.unavailable)),
    ]
}

fn row(dead: DeadLetter) -> Vec<Value> {
    vec![
        shown(dead.delivery),
        shown(dead.event),
        shown(dead.endpoint),
        shown(dead.event_type),
        json!(dead.user_key),
        shown(dead.cause),
        json!(dead.attempts),
        json!(dead.last_class),
        json!(dead.last_status),
        time(dead.dead_at),
        shown(dead.state.as_str()),
    ]
}

fn show(
    dead: &DeadLetter,
    record: &std::result::Result<laneway_wire::Record, Unreadable>,
    history: Vec<deliveries::Attempt>,
    payload: bool,
    output: Output,
) -> Result {
    let mut fields = vec![
        ("deliveryId", shown(dead.delivery)),
        ("projectId", shown(dead.tenant)),
        ("endpointId", shown(dead.endpoint)),
        ("eventId", shown(dead.event)),
        ("type", shown(&dead.event_type)),
        ("lane", shown(dead.lane)),
        ("key", json!(dead.user_key)),
        ("state", shown(dead.state.as_str())),
        ("reason", shown(&dead.cause)),
        ("attempts", json!(dead.attempts)),
        ("firstClass", json!(dead.first_class)),
        ("lastClass", json!(dead.last_class)),
        ("lastStatus", json!(dead.last_status)),
        ("firstHeld", time(dead.first_held)),
        ("deadAt", time(dead.dead_at)),
        (
            "rewoundFrom",
            record
                .as_ref()
                .ok()
                .and_then(|record| record.head.replay_of)
                .map_or(Value::Null, |of| shown(laneway_wire::DeliveryId::from_uuid(of))),
        ),
        ("rewoundTo", dead.rewound_to.map_or(Value::Null, shown)),
        ("rewindId", dead.rewind.map_or(Value::Null, shown)),
        ("closedAt", maybe_time(dead.closed_at)),
    ];
    match record {
        Ok(record) => {
            fields.push(("contentType", shown(&record.head.content_type)));
            fields.push(("payloadBytes", json!(record.payload.len())));
            if payload {
                fields.push(("payload", shown(String::from_utf8_lossy(&record.payload))));
            }
        }
        Err(Unreadable { code, bytes }) => {
            fields.push(("unreadable", shown(code)));
            fields.push(("recordBytes", json!(bytes)));
        }
    }
    let rows = attempt_rows(history, payload, output);
    with_list(output, &mut fields, "history", &ATTEMPT_COLUMNS, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_understood() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
