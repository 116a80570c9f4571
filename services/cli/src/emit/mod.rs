//! `laneway emit`: a file of events into a source database's outbox, in batches of one transaction each.
//!
//! Within a user key the order of lines is the order of events. A line that is bad, or that the database refuses, is
//! told by its number and left out. When a batch's fate is unknown (the connection went while it was committed), the
//! command stops and says which lines are in doubt: sending them again could double them.

mod line;
mod progress;
mod read;

use crate::args;
use crate::command::connect;
use crate::failure::{Failure, Result};
use crate::output::{Format, Output};
use laneway_platform::ExitCode;
use laneway_platform::config::Origins;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::emit::events_emit;
use laneway_store::events::NewEvent;
use laneway_wire::TenantId;
use line::Event;
use progress::Progress;
use read::Batch;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// So many bad lines are told one by one; the rest are counted.
const MAX_TOLD: u64 = 100;

#[derive(Debug, Default)]
struct Tally {
    emitted: u64,
    bad: u64,
}

/// `laneway emit …`
pub(crate) async fn run(args: args::Emit, origins: &Origins, output: Output) -> Result {
    let (input, size) = open(&args.from)?;
    let pool = connect(&args.database, origins).await?;
    let progress = Progress::new(size, output);
    let lines = usize::try_from(args.batch).unwrap_or(1);
    let mut batches = read::in_background(input, lines, args.strict);
    let mut tally = Tally::default();
    while let Some(batch) = batches.recv().await {
        let batch = batch.map_err(|error| Failure::of(&error))?;
        let bytes = batch.bytes;
        let bad_before = tally.bad;
        let done = emit(&pool, args.project, batch, args.strict, &mut tally, &progress).await;
        progress.advance(bytes, tally.emitted, tally.bad);
        done.inspect_err(|_| progress.finish())?;
        if args.strict && tally.bad > bad_before {
            break;
        }
    }
    progress.finish();
    if output.format == Format::Json {
        output.json(&json!({"emitted": tally.emitted, "bad": tally.bad}))?;
    } else {
        output.say(&format!("emitted {} events, left out {} bad lines", tally.emitted, tally.bad));
    }
    if tally.bad > 0 { Err(Failure::silent(ExitCode::Failure)) } else { Ok(()) }
}

/// The input, and its size if it has one.
fn open(from: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>)> {
    if from == Path::new("-") {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let cannot = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ExitCode::NotFound,
            _ => ExitCode::Failure,
        };
        Failure::new(code, format!("cannot read {}: {error}", from.display()))
    };
    let file = File::open(from).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    let size = metadata.is_file().then_some(metadata.len());
    Ok((Box::new(file), size))
}

async fn emit(
    pool: &Pool,
    project: TenantId,
    batch: Batch,
    strict: bool,
    tally: &mut Tally,
    progress: &Progress,
) -> Result {
    if !batch.events.is_empty() {
        match events_emit(pool, project, &rows(&batch.events)).await {
            Ok(_) => tally.emitted += batch.events.len() as u64,
            Err(error) if error.is_value_refused() => {
                one_by_one(pool, project, &batch.events, strict, tally, progress).await?;
            }
            Err(error) => return Err(stopped(error, &batch.events)),
        }
    }
    for (number, problem) in &batch.bad {
        tell(tally, progress, *number, problem);
    }
    Ok(())
}

/// The database refused something in a batch: each event by itself shows which. Nothing of the batch was committed.
async fn one_by_one(
    pool: &Pool,
    project: TenantId,
    events: &[Event],
    strict: bool,
    tally: &mut Tally,
    progress: &Progress,
) -> Result {
    for event in events {
        let one = std::slice::from_ref(event);
        match events_emit(pool, project, &rows(one)).await {
            Ok(_) => tally.emitted += 1,
            Err(error) if error.is_value_refused() => {
                // The outbox's constraints are named by what they want.
                let problem = error.constraint().map_or_else(
                    || Chain(&error).to_string(),
                    |constraint| format!("refused: {}", constraint.replace('_', " ")),
                );
                tell(tally, progress, event.line, &problem);
                if strict {
                    return Ok(());
                }
            }
            Err(error) => return Err(stopped(error, one)),
        }
    }
    Ok(())
}

fn tell(tally: &mut Tally, progress: &Progress, number: u64, problem: &str) {
    tally.bad += 1;
    if tally.bad <= MAX_TOLD {
        progress.warn(&format!("line {number}: {problem}"));
    } else if tally.bad == MAX_TOLD + 1 {
        progress.warn("more bad lines are only counted");
    }
}

fn stopped(error: laneway_store::Error, events: &[Event]) -> Failure {
    let in_doubt = error.is_connection_lost();
    if error.is_schema_missing() {
        return Failure::from(error);
    }
    let failure = Failure::from(error);
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return failure };
    let (first, last) = (first.line, last.line);
    failure.hint(if in_doubt {
        format!(
            "all good lines before {first} are emitted; lines {first} to {last} may or may not be: \
             look before you send them again"
        )
    } else {
        format!("all good lines before {first} are emitted, none from there on")
    })
}

fn rows(events: &[Event]) -> Vec<NewEvent<'_>> {
    events
        .iter()
        .map(|event| NewEvent {
            event_type: &event.event_type,
            user_key: event.key.as_deref(),
            payload: &event.payload,
            dedupe_key: None,
            traceparent: None,
        })
        .collect()
}
