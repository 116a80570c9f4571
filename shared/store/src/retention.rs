//! Removing what is over (C17): rows in small transactions, partitions of the inbox whole. Nothing that is not final goes:
//! open dead letters, waiting commands, attempts of deliveries that wait. Windows are the caller's; what they have to
//! stand in relation to is checked where they are configured.

use crate::partitions::INBOX;
use crate::{Error, Pool};
use sqlx::{AssertSqlSafe, PgConnection};
use std::time::Duration;

/// Rows removed in one statement.
const ROWS: i64 = 2_000;
/// How long the tries for the locks of one removal wait for them, in milliseconds: what comes behind a waiting lock waits
/// as long, so the first ones are hardly felt. Between two tries there is a pause of so many times the last.
const LOCK_PATIENCE: [u64; 6] = [20, 40, 80, 160, 320, 500];
const LOCK_PAUSE: u32 = 4;

/// A kind of rows that grow old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Answers kept for `Idempotency-Key`s.
    IdempotencyKeys,
    /// Failed attempts of deliveries that wait no more.
    Attempts,
    /// Which delivery repeats which, once a repeat's day of the inbox is gone.
    Rewound,
    /// Dead letters that were rewound or discarded.
    ClosedDeadLetters,
    /// Commands that were applied or refused, rewinds that have ended, erasures that are done, and what was repaired.
    Commands,
    /// Records that were no deliveries.
    Quarantine,
    /// What operators did.
    AuditLog,
}

/// Removes rows `o` of `$table` with an old `$time` whose delivery's day of the inbox is gone, and which neither wait nor
/// belong to a dead letter. Days go oldest first, and one that is needed stays: what is before the oldest is gone.
macro_rules! outlived {
    ($table:literal, $time:literal) => {
        concat!(
            "WITH oldest AS MATERIALIZED ( \
               SELECT laneway_control.inbox_bound(min(to_date(substr(c.relname, 7), 'YYYYMMDD'))) AS id \
               FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
               WHERE i.inhparent = 'laneway_control.inbox'::regclass AND c.relname ~ '^inbox_[0-9]{8}$'), \
             parked AS MATERIALIZED (SELECT p.id FROM oldest, \
               laneway_control.parked_between('00000000-0000-0000-0000-000000000000', oldest.id) AS p (id)) \
             DELETE FROM ",
            $table,
            " WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM ",
            $table,
            " o WHERE o.",
            $time,
            " < now() - $1 * interval '1 ms' AND o.delivery_id < (SELECT id FROM oldest) \
                 AND NOT EXISTS (SELECT FROM parked p WHERE p.id = o.delivery_id) \
                 AND NOT EXISTS (SELECT FROM laneway_control.dead_letters d \
                   WHERE d.tenant_id = o.tenant_id AND d.delivery_id = o.delivery_id) LIMIT $2))"
        )
    };
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::IdempotencyKeys,
        Self::Attempts,
        Self::Rewound,
        Self::ClosedDeadLetters,
        Self::Commands,
        Self::Quarantine,
        Self::AuditLog,
    ];

    /// As a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IdempotencyKeys => "idempotency_keys",
            Self::Attempts => "attempts",
            Self::Rewound => "rewound",
            Self::ClosedDeadLetters => "dead_letters",
            Self::Commands => "commands",
            Self::Quarantine => "quarantine",
            Self::AuditLog => "audit_log",
        }
    }

    /// Statements that remove at most `$2` rows older than `$1` milliseconds, oldest first where that costs nothing.
    const fn statements(self) -> &'static [&'static str] {
        match self {
            Self::IdempotencyKeys => {
                &["DELETE FROM laneway_control.idempotency_keys WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.idempotency_keys \
                   WHERE created_at < now() - $1 * interval '1 ms' ORDER BY created_at LIMIT $2))"]
            }
            Self::Attempts => &[
                "DELETE FROM laneway_control.attempts WHERE ctid = ANY (ARRAY( \
                   SELECT a.ctid FROM laneway_control.attempts a \
                   WHERE a.ended_at < now() - $1 * interval '1 ms' AND EXISTS ( \
                     SELECT FROM laneway_control.inbox i WHERE i.delivery_id = a.delivery_id) \
                     AND NOT EXISTS (SELECT FROM laneway_control.dead_letters d \
                       WHERE d.tenant_id = a.tenant_id AND d.delivery_id = a.delivery_id) LIMIT $2))",
                // Whose outcome went with its day: of dead letters that were closed later than that.
                outlived!("laneway_control.attempts", "ended_at"),
            ],
            Self::Rewound => &[outlived!("laneway_control.rewound", "created_at")],
            Self::ClosedDeadLetters => {
                &["DELETE FROM laneway_control.dead_letters WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.dead_letters \
                   WHERE state <> 'open' AND closed_at < now() - $1 * interval '1 ms' LIMIT $2))"]
            }
            Self::Commands => &[
                "DELETE FROM laneway_control.commands WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.commands \
                   WHERE applied_at < now() - $1 * interval '1 ms' LIMIT $2))",
                "DELETE FROM laneway_control.rewinds WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.rewinds \
                   WHERE finished_at < now() - $1 * interval '1 ms' LIMIT $2))",
                "DELETE FROM laneway_control.erasures WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.erasures \
                   WHERE finished_at < now() - $1 * interval '1 ms' LIMIT $2))",
                // What an erasure noted for itself goes when it has ended, whatever the window.
                "DELETE FROM laneway_control.erasure_events WHERE ctid = ANY (ARRAY( \
                   SELECT x.ctid FROM laneway_control.erasure_events x WHERE $1::float8 >= 0 AND NOT EXISTS ( \
                     SELECT FROM laneway_control.erasures e WHERE e.erasure_id = x.erasure_id AND e.phase < 3) LIMIT $2))",
                "DELETE FROM laneway_control.repairs WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.repairs \
                   WHERE repaired_at < now() - $1 * interval '1 ms' LIMIT $2))",
            ],
            Self::Quarantine => {
                &["DELETE FROM laneway_control.quarantine WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.quarantine \
                   WHERE created_at < now() - $1 * interval '1 ms' LIMIT $2))"]
            }
            Self::AuditLog => &["DELETE FROM laneway_control.audit_log WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM laneway_control.audit_log \
                   WHERE at < now() - $1 * interval '1 ms' ORDER BY id LIMIT $2))"],
        }
    }
}

/// Removes rows of `kind` that are older than `window`, a few thousand; gives how many. 0: none is left.
pub async fn retention_step(pool: &Pool, kind: Kind, window: Duration) -> Result<u64, Error> {
    let mut gone = 0;
    for statement in kind.statements() {
        gone += sqlx::query(*statement)
            .bind(crate::relay::millis(window))
            .bind(ROWS)
            .execute(pool.inner())
            .await
            .map_err(Error::doing("removing old rows"))?
            .rows_affected();
    }
    Ok(gone)
}

/// Removes outcomes from the inbox's DEFAULT partition (ids from the far past or future, which no day holds) that are
/// older than `window`, a few thousand, with what belongs to them; gives how many. None while a row of this database's
/// outbox is as old, and none of what waits.
pub async fn inbox_default_step(pool: &Pool, window: Duration) -> Result<u64, Error> {
    let gone: i64 = sqlx::query_scalar(
        "WITH gone AS (DELETE FROM laneway_control.inbox_default WHERE ctid = ANY (ARRAY( \
             SELECT i.ctid FROM laneway_control.inbox_default i WHERE i.settled_at < now() - $1 * interval '1 ms' \
               AND NOT EXISTS (SELECT FROM laneway.outbox o WHERE o.created_at < now() - $1 * interval '1 ms') \
               AND NOT EXISTS (SELECT FROM laneway_control.parked_events p WHERE p.tenant_id = i.tenant_id \
                 AND p.event_id = i.event_id AND p.delivery_id = i.delivery_id) LIMIT $2)) \
           RETURNING tenant_id, delivery_id), \
         alone AS (SELECT g.delivery_id FROM gone g WHERE NOT EXISTS (SELECT FROM laneway_control.dead_letters d \
           WHERE d.tenant_id = g.tenant_id AND d.delivery_id = g.delivery_id)), \
         attempts AS (DELETE FROM laneway_control.attempts a USING alone WHERE a.delivery_id = alone.delivery_id), \
         rewound AS (DELETE FROM laneway_control.rewound r USING alone WHERE r.delivery_id = alone.delivery_id) \
         SELECT count(*) FROM gone",
    )
    .bind(crate::relay::millis(window))
    .bind(ROWS)
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing("removing old outcomes that no day holds"))?;
    Ok(u64::try_from(gone).unwrap_or(0))
}

/// Days of the inbox whose partition ended more than `window` ago, oldest first.
pub async fn inbox_days_expired(
    pool: &Pool,
    window: Duration,
) -> Result<Vec<crate::source::Day>, Error> {
    sqlx::query_scalar(
        "SELECT day FROM (SELECT to_date(substr(c.relname, 7), 'YYYYMMDD') AS day \
           FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
           WHERE i.inhparent = 'laneway_control.inbox'::regclass AND c.relname ~ '^inbox_[0-9]{8}$') d \
         WHERE (day + 1)::timestamp AT TIME ZONE 'UTC' + $1 * interval '1 ms' <= now() ORDER BY day",
    )
    .bind(crate::relay::millis(window))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing("looking for old partitions of the inbox"))
}

/// Removes a day of the inbox: the range of ids that were made on it. `false`: something can still need it, a row of
/// this database's outbox of that day or before, or a parked event with such an id; or something with such an id ended
/// within `window` (what a rewind sends has the time of its command); or its locks were not to be had, with growing
/// patience, within a few seconds. The window, which is longer than any other source's and than the topic's own, speaks for
/// those.
pub async fn inbox_day_remove(
    pool: &Pool,
    day: crate::source::Day,
    window: Duration,
) -> Result<bool, Error> {
    for patience in LOCK_PATIENCE {
        match remove(pool, day, window, patience).await {
            Err(error) if error.is_lock_not_available() => {
                tokio::time::sleep(Duration::from_millis(patience) * LOCK_PAUSE).await;
            }
            ended => return ended,
        }
    }
    Ok(false)
}

async fn remove(
    pool: &Pool,
    day: crate::source::Day,
    window: Duration,
    patience: u64,
) -> Result<bool, Error> {
    const DOING: &str = "removing an old partition of the inbox";
    let mut transaction = pool.begin().await?;
    if needed(&mut transaction, day, window).await? {
        return Ok(false);
    }
    // Waiting stops every settle transaction that comes behind it; not waiting never finds a busy inbox free.
    sqlx::query(AssertSqlSafe(format!("SET LOCAL lock_timeout = '{patience}ms'")))
        .execute(&mut *transaction)
        .await
        .map_err(Error::doing(DOING))?;
    INBOX.lock(&mut transaction, day, "").await?;
    INBOX.detach(&mut transaction, day).await?;
    transaction.commit().await.map_err(Error::doing(DOING))?;
    inbox_drop_detached(pool).await?;
    Ok(true)
}

/// Drops what [`inbox_day_remove`] has detached and did not live to drop.
pub async fn inbox_drop_detached(pool: &Pool) -> Result<(), Error> {
    INBOX.drop_detached(pool).await
}

async fn needed(
    connection: &mut PgConnection,
    day: crate::source::Day,
    window: Duration,
) -> Result<bool, Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM laneway.outbox WHERE created_at < ($1::date + 1)::timestamp AT TIME ZONE 'UTC') \
           OR EXISTS (SELECT FROM laneway_control.parked_between(laneway_control.inbox_bound($1), \
             laneway_control.inbox_bound($1 + 1))) \
           OR EXISTS (SELECT FROM laneway_control.inbox \
             WHERE delivery_id >= laneway_control.inbox_bound($1) AND delivery_id < laneway_control.inbox_bound($1 + 1) \
               AND settled_at > now() - $2 * interval '1 ms')",
    )
    .bind(day)
    .bind(crate::relay::millis(window))
    .fetch_one(connection)
    .await
    .map_err(Error::doing("looking whether a day of the inbox is needed"))
}
