//! `laneway erase`: counted, confirmed, written, watched.

use super::connect;
use crate::args::{Erase, How};
use crate::failure::{Failure, Result};
use crate::output::{Output, maybe_time, shown, time};
use laneway_platform::config::Origins;
use laneway_platform::{ExitCode, clock};
use laneway_store::Pool;
use laneway_store::erasures::{
    Erasure, Preview, erasure_cancel, erasure_create, erasure_get, erasure_preview,
};
use laneway_store::idempotency::{Answer, Work};
use laneway_wire::{ErasureId, TenantId};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal};
use std::time::Duration;

/// How often an erasure is looked at while it is watched.
const WATCH_POLL: Duration = Duration::from_millis(200);
/// What it waits for is said no more often than this.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Counts, asks, writes and watches an erasure; one of the same that is not done is watched.
pub(super) async fn run(command: Erase, origins: &Origins, output: Output) -> Result {
    let Erase { project, user_key, cancel: ended, how } = command;
    // No event has an empty key: it is a variable that was not set.
    if user_key.as_deref() == Some("") {
        return Err(Failure::new(ExitCode::Usage, "--user-key is empty"));
    }
    let pool = connect(&how.database, origins).await?;
    if let Some(id) = ended {
        return cancel(&pool, project, id, &how, output).await;
    }
    let key = user_key.as_deref();
    let preview = erasure_preview(&pool, project, key).await?;
    if how.dry_run {
        return output.one(preview_fields(preview));
    }
    let reason = reason(&how)?;
    let Preview { rows, parked, dead_letters } = preview;
    output.say(&format!(
        "{rows} events in the outbox, {dead_letters} dead letters; {parked} waiting events will never be sent"
    ));
    if !how.yes {
        confirm(key.unwrap_or(&project.to_string()), output)?;
    }
    let mut work = Work::begin(&pool, project).await?;
    let made =
        erasure_create(&mut work, key, reason, &how.actor).await.map_err(|error| {
            match error.is_foreign_key_violation() {
                true => Failure::new(ExitCode::NotFound, format!("there is no project {project}")),
                false => Failure::from(error),
            }
        })?;
    work.commit(&Answer { status: 202, body: Vec::new() }, None).await?;
    if how.no_wait {
        return output.made(&made.id.to_string(), fields(&made));
    }
    output
        .say(&format!("erasure {} is written; Ctrl-C ends the waiting, not the erasure", made.id));
    watch(&pool, made.id, output).await
}

fn reason(how: &How) -> Result<&str> {
    let reason = how.reason.as_deref().unwrap_or_default();
    super::check_reason(reason)?;
    Ok(reason)
}

/// Ends an erasure where it is.
async fn cancel(
    pool: &Pool,
    project: TenantId,
    id: ErasureId,
    how: &How,
    output: Output,
) -> Result {
    let mut work = Work::begin(pool, project).await?;
    let now = erasure_cancel(&mut work, id, reason(how)?, &how.actor).await?;
    work.commit(&Answer { status: 200, body: Vec::new() }, None).await?;
    match now {
        Some(now) if now.cancelled => output.one(fields(&now)),
        Some(_) => Err(Failure::new(ExitCode::Conflict, format!("erasure {id} is done"))),
        None => Err(Failure::new(ExitCode::NotFound, format!("no erasure {id} of this project"))),
    }
}

/// There is no way back: what is to be erased has to be typed.
fn confirm(wanted: &str, output: Output) -> Result {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(ExitCode::Refused, "not confirmed")
            .hint("give --yes where nobody can be asked"));
    }
    output.warn(&format!("there is no way back; type {wanted} to go on"));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if line.trim() == wanted {
        return Ok(());
    }
    Err(Failure::new(ExitCode::Refused, "not confirmed"))
}

async fn watch(pool: &Pool, id: ErasureId, output: Output) -> Result {
    let mut last_line = clock::monotonic();
    loop {
        let Some(now) = erasure_get(pool, id).await? else {
            return Err(Failure::new(ExitCode::NotFound, format!("no erasure {id}")));
        };
        if now.finished_at.is_some() {
            return output.one(fields(&now));
        }
        if clock::monotonic().saturating_sub(last_line) >= LINE_EVERY {
            last_line = clock::monotonic();
            output.say(&format!("waits for {}", now.waits.as_deref().unwrap_or("its turn")));
        }
        tokio::time::sleep(WATCH_POLL).await;
    }
}

fn fields(erasure: &Erasure) -> Vec<(&'static str, Value)> {
    let state = match (erasure.finished_at, erasure.cancelled) {
        (None, _) => "running",
        (Some(_), false) => "done",
        (Some(_), true) => "cancelled",
    };
    vec![
        ("erasureId", shown(erasure.id)),
        ("projectId", shown(erasure.tenant)),
        ("userKey", json!(erasure.user_key)),
        ("before", time(erasure.before)),
        ("state", shown(state)),
        ("waitsFor", json!(erasure.waits)),
        ("rows", json!(erasure.rows)),
        ("deadLetters", json!(erasure.dead_letters)),
        ("attempts", json!(erasure.attempts)),
        ("results", json!(erasure.results)),
        ("unreadable", json!(erasure.unreadable)),
        ("reason", shown(&erasure.reason)),
        ("actor", shown(&erasure.actor)),
        ("createdAt", time(erasure.created_at)),
        ("finishedAt", maybe_time(erasure.finished_at)),
    ]
}

fn preview_fields(preview: Preview) -> Vec<(&'static str, Value)> {
    vec![
        ("rows", json!(preview.rows)),
        ("parked", json!(preview.parked)),
        ("deadLetters", json!(preview.dead_letters)),
    ]
}
