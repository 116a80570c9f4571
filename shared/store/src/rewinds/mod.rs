//! Commands over many deliveries (design section 6, C10): send dead letters again, discard them, send again what an
//! endpoint got since a moment. A command is a row ([`rewind_create`]) with its audit entry; it is worked off page by
//! page ([`rewind_step`]), each page in one transaction with the command's own position, so that it goes on wherever
//! and whenever somebody works on it, and a page happens once.
//!
//! What can go wrong between two steps: a page that was not committed did not happen; one that was is behind the
//! position. Two commands that mean the same dead letter: its row is locked and looked at again, so one of them finds
//! it closed. Two workers: the command's row is locked, the second takes another one.

mod step;

pub use step::{Step, rewind_step};

use crate::dead_letters::{Selection, bind_selection, selected};
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
/// What a preview of a replay counts up to.
pub const MAX_COUNT: i64 = 1_000_000;
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
    /// Deliveries that were meant when it was commanded; of a replay up to [`MAX_COUNT`].
    pub matched: u64,
    /// Deliveries that it was done to.
    pub done: u64,
    /// Deliveries that were looked at and left, because somebody was first.
    pub skipped: u64,
    /// Why its last page failed, if it did; it is tried again.
    pub error: Option<String>,
    /// When it was commanded.
    pub created_at: Timestamp,
    /// When it was worked on last.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// What a command would mean now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Deliveries; of a replay up to [`MAX_COUNT`].
    pub matched: u64,
    /// Of them, those in lanes of a user key: what came later there may have been delivered before them.
    pub ordered: u64,
    /// Different lanes; of a replay none are counted.
    pub lanes: u64,
    /// Different endpoints.
    pub endpoints: u64,
    /// Bytes that would be sent at least.
    pub bytes: u64,
    /// The first of them.
    pub oldest: Option<Timestamp>,
    /// The last of them.
    pub newest: Option<Timestamp>,
    /// Of a replay: deliveries since then that cannot be sent again, because their events came from another source or
    /// are older than what the outbox keeps; up to [`MAX_COUNT`].
    pub unavailable: u64,
}

/// What a replay means, as columns of a preview: what is in the log, and last what was delivered since then and is not.
/// `$1` to `$6`: tenant, endpoint, the smallest id that it can have, [`MAX_COUNT`], type, moment.
const REPLAY_COUNT: &str = "WITH log AS MATERIALIZED ( \
   SELECT laneway_control.first_delivery_id(o.event_id, $2) AS delivery, \
     $5::text IS NULL OR o.type = $5 OR (right($5, 2) = '.*' AND starts_with(o.type, left($5, -1))) AS meant \
   FROM laneway.outbox o WHERE o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 \
     AND o.created_at >= $6 AND o.tenant = $1 AND o.rewind IS NULL AND NOT o.erased LIMIT $4), \
 sent AS MATERIALIZED (SELECT i.delivery_id, i.settled_at FROM laneway_control.inbox i \
   WHERE i.tenant_id = $1 AND i.endpoint_id = $2 AND i.outcome = 1 AND i.delivery_id >= $3 LIMIT $4), \
 kept AS (SELECT s.settled_at FROM sent s \
   WHERE EXISTS (SELECT FROM log l WHERE l.delivery = s.delivery_id AND l.meant)), \
 gone AS (SELECT count(*) AS unavailable FROM sent s \
   WHERE NOT EXISTS (SELECT FROM log l WHERE l.delivery = s.delivery_id) \
     AND NOT EXISTS (SELECT FROM laneway_control.rewound w WHERE w.delivery_id = s.delivery_id)) \
 SELECT count(*) AS matched, count(*), 0::bigint, (count(*) > 0)::int::bigint, 0::bigint, min(settled_at), \
   max(settled_at), (SELECT unavailable FROM gone) FROM kept";

/// Whether a relay reads the control database's outbox, by the relays' own word of the last five minutes: what a rewind
/// or a replay writes there goes nowhere without.
pub async fn outbox_is_read(pool: &Pool) -> Result<bool, Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM laneway.relay_members WHERE seen_at > now() - interval '5 minutes')",
    )
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing("looking for a relay at the control database"))
}

/// Counts what a command would do now; changes nothing.
pub async fn rewind_preview(
    pool: &Pool,
    tenant: TenantId,
    action: Action,
    selection: &Selection,
) -> Result<Preview, Error> {
    const DOING: &str = "counting what a command would do";
    let row = match action {
        Action::Rewind | Action::Discard => {
            let query = sqlx::query(concat!(
                "SELECT count(*), count(d.user_key), count(DISTINCT d.lane), count(DISTINCT d.endpoint_id), \
                   coalesce(sum(octet_length(d.record)), 0)::bigint, min(d.dead_at), max(d.dead_at), 0::bigint \
                 FROM laneway_control.dead_letters d WHERE d.tenant_id = $1 AND ",
                selected!(),
                " AND d.state = 'open' AND ($10 OR EXISTS (SELECT FROM laneway_control.endpoints e \
                   WHERE e.tenant_id = $1 AND e.endpoint_id = d.endpoint_id AND e.state <> 'deleted'))"
            ))
            .bind(tenant.as_uuid());
            bind_selection!(query, selection)
                .bind(action == Action::Discard)
                .fetch_one(pool.inner())
                .await
        }
        Action::Replay => {
            let since = selection.since.unwrap_or_default();
            sqlx::query(REPLAY_COUNT)
                .bind(tenant.as_uuid())
                .bind(selection.endpoint.map(|id| id.as_uuid()))
                .bind(first_id(since))
                .bind(MAX_COUNT)
                .bind(selection.event_type.as_deref())
                .bind(crate::delivery::value::stored(since))
                .fetch_one(pool.inner())
                .await
        }
    }
    .map_err(Error::doing(DOING))?;
    let read = || -> Result<Preview, sqlx::Error> {
        let count = |index| row.try_get::<i64, _>(index).map(|n| u64::try_from(n).unwrap_or(0));
        let time = |index| -> Result<Option<Timestamp>, sqlx::Error> {
            Ok(row.try_get::<Option<DateTime<Utc>>, _>(index)?.map(loaded))
        };
        Ok(Preview {
            matched: count(0)?,
            ordered: count(1)?,
            lanes: count(2)?,
            endpoints: count(3)?,
            bytes: count(4)?,
            oldest: time(5)?,
            newest: time(6)?,
            unavailable: count(7)?,
        })
    };
    read().map_err(Error::doing(DOING))
}

/// Why a command that would send something is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Deliveries are meant, and none of their events is in the control database's outbox.
    NothingToReplay,
    /// No relay reads the control database's outbox: what the command writes there would go nowhere.
    OutboxNotRead,
}

/// Whether a command whose preview is this is to be refused. A discard sends nothing, and a command that means nothing is
/// done at once.
pub async fn rewind_refusal(
    pool: &Pool,
    action: Action,
    preview: &Preview,
) -> Result<Option<Refusal>, Error> {
    if preview.matched == 0 {
        let elsewhere = preview.unavailable > 0;
        return Ok(elsewhere.then_some(Refusal::NothingToReplay));
    }
    let goes_out = action == Action::Discard || outbox_is_read(pool).await?;
    Ok((!goes_out).then_some(Refusal::OutboxNotRead))
}

/// Writes a command, whose preview was this, and its audit entry. One that means nothing is done at once. A dead letter
/// that comes later does not belong to it.
pub async fn rewind_create(
    work: &mut Work,
    new: NewRewind<'_>,
    preview: &Preview,
) -> Result<Rewind, Error> {
    const DOING: &str = "writing a command";
    let tenant = work.tenant();
    // How many are meant, the place before the first, and the last place that can be.
    let (matched, position, until): (i64, i64, i64) = match new.action {
        Action::Rewind | Action::Discard => {
            let query = sqlx::query_as(concat!(
                "SELECT count(*), coalesce(min(d.place), 0) - 1, coalesce(max(d.place), 0) \
                 FROM laneway_control.dead_letters d WHERE d.tenant_id = $1 AND ",
                selected!(),
                " AND d.state = 'open' AND ($10 OR EXISTS (SELECT FROM laneway_control.endpoints e \
                   WHERE e.tenant_id = $1 AND e.endpoint_id = d.endpoint_id AND e.state <> 'deleted'))"
            ))
            .bind(tenant.as_uuid());
            bind_selection!(query, new.selection)
                .bind(new.action == Action::Discard)
                .fetch_one(work.connection())
                .await
        }
        // The last row of the outbox that is visible now is the last that can have been delivered.
        Action::Replay => {
            sqlx::query_as(
                "SELECT $3::bigint, coalesce(min(id), 0) - 1, coalesce(max(id), 0) FROM laneway.outbox \
                 WHERE shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 AND created_at >= $2",
            )
            .bind(tenant.as_uuid())
            .bind(crate::delivery::value::stored(new.selection.since.unwrap_or_default()))
            .bind(i64::try_from(preview.matched).unwrap_or(i64::MAX))
            .fetch_one(work.connection())
            .await
        }
    }
    .map_err(Error::doing(DOING))?;
    let over = if new.action == Action::Replay { until == 0 } else { matched == 0 };
    let row = sqlx::query(
        "INSERT INTO laneway_control.rewinds AS r (tenant_id, rewind_id, action, selection, reason, actor, matched, \
           position, until, state, finished_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, CASE WHEN $10 THEN 'done' ELSE 'running' END, \
           CASE WHEN $10 THEN now() END) RETURNING r.*",
    )
    .bind(tenant.as_uuid())
    .bind(Uuid::now_v7())
    .bind(new.action.as_str())
    .bind(sqlx::types::Json(new.selection))
    .bind(new.reason)
    .bind(new.actor)
    .bind(matched)
    .bind(position)
    .bind(until)
    .bind(over)
    .fetch_one(work.connection())
    .await
    .map_err(Error::doing(DOING))?;
    let made = read(&row)?;
    let action = match new.action {
        Action::Rewind => "dead_letters.rewind",
        Action::Discard => "dead_letters.discard",
        Action::Replay => "endpoint.replay",
    };
    audit(work, new.actor, action, made.id, new.reason, Some((new.selection, made.matched)))
        .await?;
    Ok(made)
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
    let row = sqlx::query(
        "UPDATE laneway_control.rewinds SET state = $3, updated_at = now(), \
           finished_at = CASE WHEN $3 = 'cancelled' THEN now() END \
         WHERE tenant_id = $1 AND rewind_id = $2 AND state IN ('running', 'paused') AND state <> $3 RETURNING *",
    )
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
    sqlx::query("SELECT * FROM laneway_control.rewinds WHERE tenant_id = $1 AND rewind_id = $2")
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
    sqlx::query(
        "SELECT * FROM laneway_control.rewinds \
         WHERE ($1::uuid IS NULL OR tenant_id = $1) AND rewind_id = $2 LIMIT 1",
    )
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
    sqlx::query(
        "SELECT * FROM laneway_control.rewinds WHERE ($1::uuid IS NULL OR tenant_id = $1) \
         AND ($2::uuid IS NULL OR rewind_id < $2) ORDER BY rewind_id DESC LIMIT $3",
    )
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

/// The smallest id that an event of this time can have.
fn first_id(since: Timestamp) -> Uuid {
    let millis = u128::try_from(since.as_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

async fn audit(
    work: &mut Work,
    actor: &str,
    action: &'static str,
    object: RewindId,
    reason: &str,
    meant: Option<(&Selection, u64)>,
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
            matched: count("matched")?,
            done: count("done")?,
            skipped: count("skipped")?,
            error: row.try_get("error")?,
            created_at: time("created_at")?,
            updated_at: time("updated_at")?,
            finished_at: row.try_get::<Option<DateTime<Utc>>, _>("finished_at")?.map(loaded),
        })
    };
    read().map_err(Error::doing(DOING))
}
