//! Commands over many deliveries (design section 6, C10): send dead letters again, discard them, send again what an
//! endpoint got since a moment. A command is a row ([`rewind_create`]) with its audit entry; it is worked off page by
//! page ([`rewind_step`]), each page in one transaction with the command's own position, so that it goes on wherever
//! and whenever somebody works on it, and a page happens once.
//!
//! What can go wrong between two steps: a page that was not committed did not happen; one that was is behind the
//! position. Two commands that mean the same dead letter: its row is locked and looked at again, so one of them finds
//! it closed. Two workers: the command's row is locked, the second takes another one.

mod copy;
mod preview;
mod step;

pub use preview::{Counted, Preview, Refusal, outbox_is_read, rewind_preview};
pub use step::{MAX_UNSETTLED, Step, rewind_step};

use crate::dead_letters::Selection;
use crate::delivery::value::loaded;
use crate::idempotency::Work;
use crate::stored::stored_as;
use crate::{Error, Pool};
use chrono::{DateTime, Utc};
use laneway_wire::{DeliveryId, RewindId, TenantId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

/// Deliveries that a command may name one by one; a filter has no limit.
pub const MAX_NAMED: usize = 1_000;
/// Commands of a list at most.
pub const MAX_LIMIT: u16 = 1_000;

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Dead letters are sent again, as new deliveries at the back of their lanes (B7).
    Rewind,
    /// Dead letters are given up for good (I33).
    Discard,
    /// What an endpoint was delivered since a moment is sent again.
    Replay,
}

/// How far a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is worked on.
    Running,
    /// A person has stopped it; it can go on.
    Paused,
    /// All of it is done.
    Done,
    /// A person has ended it; what was done stays.
    Cancelled,
}

stored_as!(Action { Rewind = "rewind", Discard = "discard", Replay = "replay" });
stored_as!(State { Running = "running", Paused = "paused", Done = "done", Cancelled = "cancelled" });

/// The columns of a command `r`, and what it waits for.
macro_rules! columns {
    () => {
        "r.*, CASE WHEN r.state <> 'running' THEN NULL \
           WHEN EXISTS (SELECT FROM laneway_control.erasures e WHERE e.tenant_id = r.tenant_id AND e.phase < 3) \
             THEN 'erasure' \
           WHEN EXISTS (SELECT FROM laneway_control.rewinds o WHERE o.tenant_id = r.tenant_id AND o.state = 'running' \
             AND o.rewind_id < r.rewind_id) THEN 'command' \
           ELSE r.waits END AS waits_for"
    };
}
use columns;

/// A command to be written. The caller has checked that a replay names its endpoint and a moment.
#[derive(Debug, Clone, Copy)]
pub struct NewRewind<'a> {
    /// What it does.
    pub action: Action,
    /// To what. Of a replay: `endpoint` and `since` (when its events were emitted), and `event_type`.
    pub selection: &'a Selection,
    /// Why: 1 to 1,000 characters.
    pub reason: &'a str,
    /// Who says so.
    pub actor: &'a str,
}

/// A command and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewind {
    /// Its id.
    pub id: RewindId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What it does.
    pub action: Action,
    /// To what.
    pub selection: Selection,
    /// Why.
    pub reason: String,
    /// Who said so.
    pub actor: String,
    /// How far it is.
    pub state: State,
    /// Deliveries that were meant when it was commanded; `None`: they could not be counted in time.
    pub matched: Option<u64>,
    /// Deliveries that it was done to.
    pub done: u64,
    /// Deliveries that were looked at and left, because somebody was first.
    pub skipped: u64,
    /// Deliveries that cannot be sent again, because their records are not valid; they stay dead letters.
    pub set_aside: u64,
    /// The first of them, and why.
    pub example: Option<String>,
    /// What it waits for: `erasure` (one of the project that is not done), `command` (an earlier one of the project),
    /// `deliveries` (so much of what was sent again has no outcome: [`MAX_UNSETTLED`]).
    pub waits: Option<String>,
    /// Why its last page failed, if it did; it is tried again.
    pub error: Option<String>,
    /// When it was commanded.
    pub created_at: Timestamp,
    /// When it was worked on last.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// Writes a command, whose preview was this, and its audit entry; or says why it is not to be written, and has written
/// nothing. One that means nothing is done at once. A dead letter that came after the preview does not belong to it.
pub async fn rewind_create(
    work: &mut Work,
    new: NewRewind<'_>,
    preview: &Preview,
) -> Result<Result<Rewind, Refusal>, Error> {
    if let Some(refusal) = preview.refusal {
        return Ok(Err(refusal));
    }
    let tenant = work.tenant();
    let matched = preview.matched();
    let (position, until) = preview.span;
    let row = sqlx::query(concat!(
        "INSERT INTO laneway_control.rewinds AS r (tenant_id, rewind_id, action, selection, reason, actor, matched, \
           position, until, state, finished_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, CASE WHEN $10 THEN 'done' ELSE 'running' END, \
           CASE WHEN $10 THEN now() END) RETURNING ",
        columns!()
    ))
    .bind(tenant.as_uuid())
    .bind(Uuid::now_v7())
    .bind(new.action.as_str())
    .bind(sqlx::types::Json(new.selection))
    .bind(new.reason)
    .bind(new.actor)
    .bind(matched.map(|matched| i64::try_from(matched).unwrap_or(i64::MAX)))
    .bind(position)
    .bind(until)
    .bind(matched == Some(0))
    .fetch_one(work.connection())
    .await
    .map_err(Error::doing("writing a command"))?;
    let made = read(&row)?;
    let action = match new.action {
        Action::Rewind => "dead_letters.rewind",
        Action::Discard => "dead_letters.discard",
        Action::Replay => "endpoint.replay",
    };
    audit(work, new.actor, action, made.id, new.reason, Some((new.selection, made.matched)))
        .await?;
    Ok(Ok(made))
}

/// Pauses, resumes or cancels a command, audited. `None` if `tenant` has none of this id; else what it is now, which
/// is not `to` if it had ended.
pub async fn rewind_change(
    work: &mut Work,
    id: RewindId,
    to: State,
    actor: &str,
    reason: &str,
) -> Result<Option<Rewind>, Error> {
    const DOING: &str = "changing a command";
    let tenant = work.tenant();
    let row = sqlx::query(concat!(
        "UPDATE laneway_control.rewinds AS r SET state = $3, updated_at = now(), \
           finished_at = CASE WHEN $3 = 'cancelled' THEN now() END \
         WHERE tenant_id = $1 AND rewind_id = $2 AND state IN ('running', 'paused') AND state <> $3 RETURNING ",
        columns!()
    ))
    .bind(tenant.as_uuid())
    .bind(id.as_uuid())
    .bind(to.as_str())
    .fetch_optional(work.connection())
    .await
    .map_err(Error::doing(DOING))?;
    if let Some(row) = row {
        let action = match to {
            State::Paused => "rewind.pause",
            State::Running => "rewind.resume",
            State::Cancelled | State::Done => "rewind.cancel",
        };
        audit(work, actor, action, id, reason, None).await?;
        return read(&row).map(Some);
    }
    sqlx::query(concat!(
        "SELECT ",
        columns!(),
        " FROM laneway_control.rewinds r WHERE r.tenant_id = $1 AND r.rewind_id = $2"
    ))
    .bind(tenant.as_uuid())
    .bind(id.as_uuid())
    .fetch_optional(work.connection())
    .await
    .map_err(Error::doing(DOING))?
    .map(|row| read(&row))
    .transpose()
}

/// One command; of `tenant`, or of all.
pub async fn rewind_get(
    pool: &Pool,
    tenant: Option<TenantId>,
    id: RewindId,
) -> Result<Option<Rewind>, Error> {
    sqlx::query(concat!(
        "SELECT ",
        columns!(),
        " FROM laneway_control.rewinds r WHERE ($1::uuid IS NULL OR r.tenant_id = $1) AND r.rewind_id = $2 LIMIT 1"
    ))
    .bind(tenant.map(|id| id.as_uuid()))
    .bind(id.as_uuid())
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing("reading a command"))?
    .map(|row| read(&row))
    .transpose()
}

/// Commands, newest first: of `tenant`, or of all; those before `before`; [`MAX_LIMIT`] at most.
pub async fn rewinds_list(
    pool: &Pool,
    tenant: Option<TenantId>,
    before: Option<RewindId>,
    limit: u16,
) -> Result<Vec<Rewind>, Error> {
    sqlx::query(concat!(
        "SELECT ",
        columns!(),
        " FROM laneway_control.rewinds r WHERE ($1::uuid IS NULL OR r.tenant_id = $1) \
         AND ($2::uuid IS NULL OR r.rewind_id < $2) ORDER BY r.rewind_id DESC LIMIT $3"
    ))
    .bind(tenant.map(|id| id.as_uuid()))
    .bind(before.map(|id| id.as_uuid()))
    .bind(i64::from(limit.min(MAX_LIMIT)))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing("listing commands"))?
    .iter()
    .map(read)
    .collect()
}

/// Deliveries that repeat others: (delivery, event, endpoint, the delivery that it repeats), of an event or by id.
pub(crate) async fn rewound(
    pool: &Pool,
    tenant: TenantId,
    event: Option<Uuid>,
    delivery: Option<DeliveryId>,
) -> Result<Vec<(Uuid, Uuid, Uuid, Uuid)>, Error> {
    sqlx::query_as(
        "SELECT delivery_id, event_id, endpoint_id, of_delivery FROM laneway_control.rewound \
         WHERE tenant_id = $1 AND ($2::uuid IS NULL OR event_id = $2) AND ($3::uuid IS NULL OR delivery_id = $3) \
         ORDER BY delivery_id LIMIT 10000",
    )
    .bind(tenant.as_uuid())
    .bind(event)
    .bind(delivery.map(|id| id.as_uuid()))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing("looking for rewinds"))
}

async fn audit(
    work: &mut Work,
    actor: &str,
    action: &'static str,
    object: RewindId,
    reason: &str,
    meant: Option<(&Selection, Option<u64>)>,
) -> Result<(), Error> {
    let mut detail = serde_json::json!({ "reason": reason });
    if let Some((selection, matched)) = meant {
        detail["selection"] = serde_json::to_value(selection).unwrap_or_default();
        detail["matched"] = matched.into();
    }
    let tenant = work.tenant();
    sqlx::query(
        "INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
         VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(tenant.as_uuid())
    .bind(actor)
    .bind(action)
    .bind(object.to_string())
    .bind(detail)
    .execute(work.connection())
    .await
    .map_err(Error::doing("writing the audit log"))?;
    Ok(())
}

fn read(row: &PgRow) -> Result<Rewind, Error> {
    const DOING: &str = "reading a command";
    let words = || -> Result<(String, String), sqlx::Error> {
        Ok((row.try_get("action")?, row.try_get("state")?))
    };
    let (action, state) = words().map_err(Error::doing(DOING))?;
    let action = Action::parse(&action)
        .ok_or(Error::Stored { what: "action of a command", value: action })?;
    let state =
        State::parse(&state).ok_or(Error::Stored { what: "state of a command", value: state })?;
    let read = || -> Result<Rewind, sqlx::Error> {
        let count = |name| row.try_get::<i64, _>(name).map(|n| u64::try_from(n).unwrap_or(0));
        let time = |name| row.try_get::<DateTime<Utc>, _>(name).map(loaded);
        Ok(Rewind {
            id: RewindId::from_uuid(row.try_get("rewind_id")?),
            tenant: TenantId::from_uuid(row.try_get("tenant_id")?),
            action,
            selection: row.try_get::<sqlx::types::Json<_>, _>("selection")?.0,
            reason: row.try_get("reason")?,
            actor: row.try_get("actor")?,
            state,
            matched: row
                .try_get::<Option<i64>, _>("matched")?
                .map(|n| u64::try_from(n).unwrap_or(0)),
            done: count("done")?,
            skipped: count("skipped")?,
            set_aside: count("set_aside")?,
            example: row.try_get("example")?,
            waits: row.try_get("waits_for")?,
            error: row.try_get("error")?,
            created_at: time("created_at")?,
            updated_at: time("updated_at")?,
            finished_at: row.try_get::<Option<DateTime<Utc>>, _>("finished_at")?.map(loaded),
        })
    };
    read().map_err(Error::doing(DOING))
}
