//! What a command would do: counted before it is given.

use super::Action;
use crate::dead_letters::{Selection, bind_selection, meant};
use crate::delivery::value::{loaded, stored};
use crate::{Error, Pool};
use chrono::{DateTime, Utc};
use laneway_wire::{TenantId, Timestamp};
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use std::time::Duration;
use uuid::Uuid;

const COUNTING: &str = "counting what a command would do";

/// What a command would mean now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// What is meant; `None`: it could not be counted in time.
    pub counted: Option<Counted>,
    /// Of a replay: deliveries since then that cannot be sent again, because their events came from another source or
    /// are older than what the outbox keeps; `None`: they could not be counted in time.
    pub unavailable: Option<u64>,
    /// Why such a command is not written ([`super::rewind_create`]).
    pub refusal: Option<Refusal>,
    /// The place before the first that can be meant, and the last.
    pub(super) span: (i64, i64),
}

/// Deliveries that are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// How many.
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
}

impl Preview {
    /// How many are meant, if they were counted.
    pub fn matched(&self) -> Option<u64> {
        self.counted.map(|counted| counted.matched)
    }
}

/// Why a command that would send something is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Deliveries are meant, and none of their events is in the control database's outbox.
    NothingToReplay,
    /// No relay reads the control database's outbox: what the command writes there would go nowhere.
    OutboxNotRead,
}

impl Refusal {
    /// A stable code, the same in every answer.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NothingToReplay => "nothing_to_replay",
            Self::OutboxNotRead => "outbox_not_read",
        }
    }
}

/// What a replay means, as columns of [`Counted`]. Every event of the project in the log is looked for by its delivery's
/// id: nothing of other projects' outcomes is read. `$1` to `$4`: tenant, endpoint, type, moment.
const REPLAY_COUNT: &str = "WITH log AS MATERIALIZED (SELECT DISTINCT o.event_id FROM laneway.outbox o \
   WHERE o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 AND o.created_at >= $4 AND o.tenant = $1 \
     AND o.rewind IS NULL AND NOT o.erased \
     AND ($3::text IS NULL OR o.type = $3 OR (right($3, 2) = '.*' AND starts_with(o.type, left($3, -1))))), \
 kept AS (SELECT s.settled_at \
   FROM (SELECT laneway_control.first_delivery_id(event_id, $2) AS delivery FROM log OFFSET 0) l \
   CROSS JOIN LATERAL (SELECT i.settled_at FROM laneway_control.inbox i \
     WHERE i.delivery_id = l.delivery AND i.tenant_id = $1 AND i.endpoint_id = $2 AND i.outcome = 1 LIMIT 1) s) \
 SELECT count(*), count(*), 0::bigint, (count(*) > 0)::int::bigint, 0::bigint, min(settled_at), max(settled_at) FROM kept";

/// What was delivered since and is not in the log. No index leads from an endpoint to its outcomes, which every delivery
/// would pay for: this reads those of all projects since then, for as long as a count may take. `$3` is the smallest
/// delivery id of that time.
const REPLAY_GONE: &str = "WITH log AS MATERIALIZED (SELECT laneway_control.first_delivery_id(o.event_id, $2) AS delivery \
   FROM laneway.outbox o WHERE o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 AND o.created_at >= $4 \
     AND o.tenant = $1 AND o.rewind IS NULL AND NOT o.erased) \
 SELECT count(*) FROM laneway_control.inbox i \
 WHERE i.tenant_id = $1 AND i.endpoint_id = $2 AND i.outcome = 1 AND i.delivery_id >= $3 \
   AND NOT EXISTS (SELECT FROM log l WHERE l.delivery = i.delivery_id) \
   AND NOT EXISTS (SELECT FROM laneway_control.rewound w WHERE w.delivery_id = i.delivery_id)";

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

/// Counts what a command would do now, and tells whether it is to be refused; changes nothing. No statement takes longer
/// than `within`: what was not counted by then is not told, and the command can be given all the same.
///
/// Not to be called while a transaction of the caller is open: the server ends one that is silent for as long as this may
/// take.
pub async fn rewind_preview(
    pool: &Pool,
    tenant: TenantId,
    action: Action,
    selection: &Selection,
    within: Duration,
) -> Result<Preview, Error> {
    let span = span(pool, tenant, action).await?;
    let (counted, unavailable) = match action {
        Action::Rewind | Action::Discard => {
            let query = sqlx::query(concat!(
                "SELECT count(*), count(d.user_key), count(DISTINCT d.lane), count(DISTINCT d.endpoint_id), \
                   coalesce(sum(octet_length(d.record)), 0)::bigint, min(d.dead_at), max(d.dead_at) \
                 FROM laneway_control.dead_letters d WHERE d.tenant_id = $1 AND ",
                meant!(),
                " AND d.place <= $11"
            ))
            .bind(tenant.as_uuid());
            let query =
                bind_selection!(query, selection).bind(action == Action::Discard).bind(span.1);
            (count(pool, query, within).await?.as_ref().map(counted).transpose()?, Some(0))
        }
        Action::Replay => {
            let since = selection.since.unwrap_or_default();
            let endpoint = selection.endpoint.map(|id| id.as_uuid());
            let query = sqlx::query(REPLAY_COUNT)
                .bind(tenant.as_uuid())
                .bind(endpoint)
                .bind(selection.event_type.as_deref())
                .bind(stored(since));
            let counted = count(pool, query, within).await?.as_ref().map(counted).transpose()?;
            let query = sqlx::query(REPLAY_GONE)
                .bind(tenant.as_uuid())
                .bind(endpoint)
                .bind(first_id(since))
                .bind(stored(since));
            // What is left to be counted is at least as much.
            let gone = match counted {
                Some(_) => count(pool, query, within).await?,
                None => None,
            };
            let gone = gone.map(|row| row.try_get::<i64, _>(0)).transpose();
            let gone = gone.map_err(Error::doing(COUNTING))?;
            (counted, gone.map(|gone| u64::try_from(gone).unwrap_or(0)))
        }
    };
    let refusal =
        refusal(pool, action, counted.map(|counted| counted.matched), unavailable).await?;
    Ok(Preview { counted, unavailable, refusal, span })
}

/// The place before the first that a command of this moment can mean, and the last: ends of indexes, whatever lies between.
async fn span(pool: &Pool, tenant: TenantId, action: Action) -> Result<(i64, i64), Error> {
    sqlx::query_as(match action {
        Action::Rewind | Action::Discard => {
            "SELECT coalesce(min(place), 0) - 1, coalesce(max(place), 0) \
             FROM laneway_control.dead_letters WHERE tenant_id = $1"
        }
        // The last row of the outbox that is visible now is the last that can have been delivered.
        Action::Replay => {
            "SELECT 0::bigint, coalesce(max(id), 0) FROM laneway.outbox \
             WHERE shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16"
        }
    })
    .bind(tenant.as_uuid())
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(COUNTING))
}

/// One row of a count that ends within this time; else none.
async fn count(
    pool: &Pool,
    query: Query<'_, Postgres, PgArguments>,
    within: Duration,
) -> Result<Option<PgRow>, Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query("SELECT set_config('statement_timeout', $1, true)")
        .bind(format!("{}ms", within.as_millis().max(1)))
        .execute(&mut *transaction)
        .await
        .map_err(Error::doing(COUNTING))?;
    match query.fetch_one(&mut *transaction).await.map_err(Error::doing(COUNTING)) {
        Ok(row) => Ok(Some(row)),
        Err(error) if error.is_statement_timeout() => Ok(None),
        Err(error) => Err(error),
    }
}

fn counted(row: &PgRow) -> Result<Counted, Error> {
    let read = || -> Result<Counted, sqlx::Error> {
        let count = |index| row.try_get::<i64, _>(index).map(|n| u64::try_from(n).unwrap_or(0));
        let time = |index| -> Result<Option<Timestamp>, sqlx::Error> {
            Ok(row.try_get::<Option<DateTime<Utc>>, _>(index)?.map(loaded))
        };
        Ok(Counted {
            matched: count(0)?,
            ordered: count(1)?,
            lanes: count(2)?,
            endpoints: count(3)?,
            bytes: count(4)?,
            oldest: time(5)?,
            newest: time(6)?,
        })
    };
    read().map_err(Error::doing(COUNTING))
}

/// A discard sends nothing, and a command that means nothing is done at once.
async fn refusal(
    pool: &Pool,
    action: Action,
    matched: Option<u64>,
    unavailable: Option<u64>,
) -> Result<Option<Refusal>, Error> {
    if matched == Some(0) {
        let elsewhere = unavailable.is_some_and(|gone| gone > 0);
        return Ok(elsewhere.then_some(Refusal::NothingToReplay));
    }
    let goes_out = action == Action::Discard || outbox_is_read(pool).await?;
    Ok((!goes_out).then_some(Refusal::OutboxNotRead))
}

/// The smallest id that an event of this time can have.
fn first_id(since: Timestamp) -> Uuid {
    let millis = u128::try_from(since.as_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}
