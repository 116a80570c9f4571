//! Erasure of one project's or one user key's payloads (C17): of what was written before a moment, nothing is kept that
//! an application has said. A command is a row ([`erasure_create`]) with its entry in the audit log, worked off in small
//! transactions ([`erasure_step`]) by whoever looks for it; a second, identical command joins the first.
//!
//! | phase | what | then |
//! |---|---|---|
//! | sweep | dead letters, answers' bodies, results of idempotent requests: at once | wait |
//! | wait | rows of the outbox as soon as they are published; parked lanes by commands that their owners apply, which end their events as dead letters `erased` (design 5.8) | sweep again, when nothing can come any more |
//! | sweep again | what became of the events meanwhile | done |
//!
//! What can happen between two steps:
//! * A record cannot be read: it is taken for old and erased unread (a dead letter keeps what its row says, and nothing of
//!   the record; a parked one ends as the stand-in that the owner is given for it).
//! * It is killed: a step that was not committed did not happen, and doing one twice is the same as once.
//! * A user key is erased: lanes and dead letters of endpoints that order nothing do not say whose they are. The key's events
//!   are noted while the outbox is gone through, page by page, and these are looked for by them.
//! * An event is published and in no parked lane yet: it lies in the topic or in an owner's memory, where it is delivered,
//!   parked or given up like any other. The topic's marks are noted when the last row was published; only when every owner
//!   has passed them, and nothing is parked any more, the second sweep begins.
//! * A head is in memory or under way: its owner ends it, when its request has ended; a request that succeeds is delivered.
//! * Something is sent again: no page of a rewind or replay of the project is made from the command to its end, and a page
//!   that had begun is waited for (`erasure_keeps_out`). Afterwards there is nothing to copy: dead letters are closed,
//!   rows say that they are erased.
//! * A person ends it ([`erasure_cancel`]): what is erased stays so, and what an owner was told may still end.
//! * The log is lost: marks of another generation count for nothing, and rows that a shard goes back to are waited for
//!   again. What is published of an erased row says so, and ends unsent in its place.

mod step;

pub use step::erasure_step;

use crate::delivery::value::loaded;
use crate::idempotency::Work;
use crate::{Error, Pool};
use chrono::{DateTime, Utc};
use laneway_wire::{ErasureId, TenantId, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// Class of the advisory locks that keep pages of rewinds and the beginning of an erasure of one project apart.
const LOCK: i32 = 0x4c61_6e03;

/// The phase of one that a person has ended.
const CANCELLED: i16 = 4;

/// An erasure and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// Its id.
    pub id: ErasureId,
    /// Whose payloads.
    pub tenant: TenantId,
    /// Of this user key alone.
    pub user_key: Option<String>,
    /// Why.
    pub reason: String,
    /// Who said so.
    pub actor: String,
    /// What was written before this is erased.
    pub before: Timestamp,
    /// What it waits for: `writers` (transactions that were under way), `relay` (rows that are not published), `deliver`
    /// (owners that have not passed them), `lanes` (parked events).
    pub waits: Option<String>,
    /// Rows of the outbox that were erased.
    pub rows: u64,
    /// Dead letters that were erased, those included that were made of waiting events.
    pub dead_letters: u64,
    /// Answers' bodies that were erased.
    pub attempts: u64,
    /// Results of idempotent requests that were erased.
    pub results: u64,
    /// Of the dead letters, those whose records could not be read: nothing is kept of what they were.
    pub unreadable: u64,
    /// When it was commanded.
    pub created_at: Timestamp,
    /// When it was done or cancelled.
    pub finished_at: Option<Timestamp>,
    /// A person has ended it before it was done.
    pub cancelled: bool,
}

/// What an erasure would erase now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preview {
    /// Rows of the control database's outbox.
    pub rows: u64,
    /// Waiting events, which would end as dead letters.
    pub parked: u64,
    /// Dead letters, open and closed.
    pub dead_letters: u64,
}

/// The condition that the record of `$event` was written before the moment `$3`. One that does not say when is old.
macro_rules! written_before {
    ($event:literal) => {
        concat!(
            "coalesce(laneway_control.record_written(",
            $event,
            ".record), 0) < (extract(epoch FROM $3::timestamptz) * 1000)::bigint"
        )
    };
}
use written_before;

/// Parked events `delivery_id`, `lane` that are meant, for `$1`, `$2`, `$3`: tenant, user key and the moment. Lanes without
/// a user key (of endpoints that order nothing) are looked for by `$events`, those of the user key.
macro_rules! parked_meant {
    ($events:literal) => {
        concat!(
            "SELECT e.delivery_id, e.lane FROM laneway_control.parked_lanes l \
               JOIN laneway_control.parked_events e USING (lane) \
             WHERE l.tenant_id = $1 AND ($2::text IS NULL OR l.user_key = $2) AND ",
            written_before!("e"),
            " UNION ALL SELECT e.delivery_id, e.lane FROM ",
            $events,
            " x JOIN laneway_control.parked_events e ON e.tenant_id = $1 AND e.event_id = x.event_id \
               JOIN laneway_control.parked_lanes l ON l.lane = e.lane AND l.user_key IS NULL \
             WHERE $2::text IS NOT NULL AND ",
            written_before!("e")
        )
    };
}
use parked_meant;

/// The same of dead letters that are not erased: `delivery_id`.
macro_rules! dead_meant {
    ($events:literal) => {
        concat!(
            "SELECT d.delivery_id FROM laneway_control.dead_letters d \
             WHERE d.tenant_id = $1 AND d.erased_at IS NULL AND ($2::text IS NULL OR d.user_key = $2) AND ",
            written_before!("d"),
            " UNION ALL SELECT d.delivery_id FROM ",
            $events,
            " x JOIN laneway_control.dead_letters d ON d.tenant_id = $1 AND d.event_id = x.event_id \
               AND d.user_key IS NULL AND d.erased_at IS NULL WHERE $2::text IS NOT NULL AND ",
            written_before!("d")
        )
    };
}
use dead_meant;

/// Counts what an erasure would erase now; changes nothing.
pub async fn erasure_preview(
    pool: &Pool,
    tenant: TenantId,
    user_key: Option<&str>,
) -> Result<Preview, Error> {
    const DOING: &str = "counting what would be erased";
    let before = pool.now().await?;
    let (rows, parked, dead): (i64, i64, i64) = sqlx::query_as(concat!(
        "WITH said AS MATERIALIZED (SELECT o.event_id, o.erased FROM laneway.outbox o \
           WHERE o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 AND o.tenant = $1 \
             AND ($2::text IS NULL OR o.user_key = $2) AND o.created_at < $3), \
         events AS MATERIALIZED (SELECT DISTINCT event_id FROM said WHERE $2::text IS NOT NULL) \
         SELECT (SELECT count(*) FROM said WHERE NOT erased), (SELECT count(*) FROM (",
        parked_meant!("events"),
        ") p), (SELECT count(*) FROM (",
        dead_meant!("events"),
        ") d)"
    ))
    .bind(tenant.as_uuid())
    .bind(user_key)
    .bind(crate::delivery::value::stored(before))
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let count = |n| u64::try_from(n).unwrap_or(0);
    Ok(Preview { rows: count(rows), parked: count(parked), dead_letters: count(dead) })
}

/// Writes an erasure of what was written before now, and the tombstone in the audit log; or gives the one of the same
/// project and user key that is not done yet. Fails with [`Error::is_foreign_key_violation`] if there is no such project.
pub async fn erasure_create(
    work: &mut Work,
    user_key: Option<&str>,
    reason: &str,
    actor: &str,
) -> Result<Erasure, Error> {
    const DOING: &str = "writing an erasure";
    let tenant = work.tenant().as_uuid();
    // Pages of rewinds that have begun end first, so that what they wrote was written before.
    let (before,): (DateTime<Utc>,) = sqlx::query_as(
        "SELECT date_trunc('milliseconds', clock_timestamp()) + interval '1 ms' \
         FROM (SELECT pg_advisory_xact_lock($1, hashtext($2::uuid::text)) OFFSET 0) AS held",
    )
    .bind(LOCK)
    .bind(tenant)
    .fetch_one(work.connection())
    .await
    .map_err(Error::doing(DOING))?;
    let open = sqlx::query(
        "SELECT * FROM laneway_control.erasures \
         WHERE tenant_id = $1 AND user_key IS NOT DISTINCT FROM $2 AND phase < 3",
    )
    .bind(tenant)
    .bind(user_key)
    .fetch_optional(work.connection())
    .await
    .map_err(Error::doing(DOING))?;
    if let Some(open) = open {
        return read(&open);
    }
    let row = sqlx::query(
        "WITH made AS (INSERT INTO laneway_control.erasures (tenant_id, erasure_id, user_key, reason, actor, before) \
           VALUES ($1, $2, $3, $4, $5, $6) RETURNING *), \
         told AS (INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
           SELECT $1, $5, 'erasure.begin', $7, jsonb_build_object('reason', $4::text, 'userKey', $3::text, 'before', $6) \
           FROM made) \
         SELECT * FROM made",
    )
    .bind(tenant)
    .bind(Uuid::now_v7())
    .bind(user_key)
    .bind(reason)
    .bind(actor)
    .bind(before)
    .bind(work.tenant().to_string())
    .fetch_one(work.connection())
    .await
    .map_err(Error::doing(DOING))?;
    read(&row)
}

/// Ends an erasure that is not done, audited: nothing more of it happens, and what is erased stays so. What was told to
/// the owners of lanes is withdrawn, but for what they have taken up. `None` if the project has none of this id; else what
/// it is now, which is not cancelled if it was done.
pub async fn erasure_cancel(
    work: &mut Work,
    id: ErasureId,
    reason: &str,
    actor: &str,
) -> Result<Option<Erasure>, Error> {
    const DOING: &str = "cancelling an erasure";
    let tenant = work.tenant().as_uuid();
    let row = sqlx::query(
        "WITH ended AS (UPDATE laneway_control.erasures SET phase = $3, waits = NULL, updated_at = clock_timestamp(), \
             finished_at = clock_timestamp() WHERE tenant_id = $1 AND erasure_id = $2 AND phase < 3 RETURNING *), \
         told AS (INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
           SELECT $1, $5, 'erasure.cancel', $6, jsonb_build_object('reason', $4::text, 'userKey', user_key) FROM ended), \
         withdrawn AS (UPDATE laneway_control.commands c SET applied_at = now(), result = 'cancelled' FROM ended e \
           WHERE c.tenant_id = $1 AND c.verdict = 'erase' AND c.applied_at IS NULL AND c.before = e.before) \
         SELECT * FROM ended",
    )
    .bind(tenant)
    .bind(id.as_uuid())
    .bind(CANCELLED)
    .bind(reason)
    .bind(actor)
    .bind(work.tenant().to_string())
    .fetch_optional(work.connection())
    .await
    .map_err(Error::doing(DOING))?;
    if let Some(row) = row {
        return read(&row).map(Some);
    }
    sqlx::query("SELECT * FROM laneway_control.erasures WHERE tenant_id = $1 AND erasure_id = $2")
        .bind(tenant)
        .bind(id.as_uuid())
        .fetch_optional(work.connection())
        .await
        .map_err(Error::doing(DOING))?
        .map(|row| read(&row))
        .transpose()
}

/// One erasure.
pub async fn erasure_get(pool: &Pool, id: ErasureId) -> Result<Option<Erasure>, Error> {
    sqlx::query("SELECT * FROM laneway_control.erasures WHERE erasure_id = $1")
        .bind(id.as_uuid())
        .fetch_optional(pool.inner())
        .await
        .map_err(Error::doing("reading an erasure"))?
        .map(|row| read(&row))
        .transpose()
}

/// Keeps erasures of `tenant` from beginning until this transaction ends; true: one has begun, and nothing of the project
/// may be copied.
pub(crate) async fn erasure_keeps_out(
    connection: &mut PgConnection,
    tenant: TenantId,
) -> Result<bool, Error> {
    const DOING: &str = "looking for erasures";
    sqlx::query("SELECT pg_advisory_xact_lock_shared($1, hashtext($2::uuid::text))")
        .bind(LOCK)
        .bind(tenant.as_uuid())
        .execute(&mut *connection)
        .await
        .map_err(Error::doing(DOING))?;
    // A statement of its own sees one that the lock was waited for.
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM laneway_control.erasures WHERE tenant_id = $1 AND phase < 3)",
    )
    .bind(tenant.as_uuid())
    .fetch_one(connection)
    .await
    .map_err(Error::doing(DOING))
}

fn read(row: &PgRow) -> Result<Erasure, Error> {
    let read = || -> Result<Erasure, sqlx::Error> {
        let count = |name| row.try_get::<i64, _>(name).map(|n| u64::try_from(n).unwrap_or(0));
        let time = |name| row.try_get::<DateTime<Utc>, _>(name).map(loaded);
        Ok(Erasure {
            id: ErasureId::from_uuid(row.try_get("erasure_id")?),
            tenant: TenantId::from_uuid(row.try_get("tenant_id")?),
            user_key: row.try_get("user_key")?,
            reason: row.try_get("reason")?,
            actor: row.try_get("actor")?,
            before: time("before")?,
            waits: row.try_get("waits")?,
            rows: count("rows_erased")?,
            dead_letters: count("dead_letters")?,
            attempts: count("attempts")?,
            results: count("results")?,
            unreadable: count("unreadable")?,
            created_at: time("created_at")?,
            finished_at: row.try_get::<Option<DateTime<Utc>>, _>("finished_at")?.map(loaded),
            cancelled: row.try_get::<i16, _>("phase")? == CANCELLED,
        })
    };
    read().map_err(Error::doing("reading an erasure"))
}
