//! What operators look at over all projects: parked lanes and unknown outcomes; and the command by which a person
//! settles an unknown. Everything else here only reads.
//!
//! Live lanes are in memory of their owners and in no table. Lists are bounded by [`MAX_LIMIT`].

use crate::delivery::value::{loaded, stored, uncount};
use crate::stored::stored_as;
use crate::{Error, Pool};
use chrono::{DateTime, Utc};
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneId, LaneMode, TenantId, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// Rows of a list at most.
pub const MAX_LIMIT: u16 = 10_000;
/// Waiting events of a lane are counted up to this.
pub const MAX_COUNT: u32 = 10_000;

const RESOLUTIONS: &str = "listing what was said of an outcome";

/// Which rows of a list; what is not set selects all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Of this project.
    pub tenant: Option<TenantId>,
    /// Of this endpoint.
    pub endpoint: Option<EndpointId>,
    /// At most so many, and [`MAX_LIMIT`].
    pub limit: u16,
}

/// A lane that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Its id.
    pub lane: LaneId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Where it leads.
    pub endpoint: EndpointId,
    /// What orders it.
    pub mode: LaneMode,
    /// Its user key, if it has one.
    pub user_key: Option<String>,
    /// Partition of the topic that it is in.
    pub partition: u32,
    /// Why it waits, a stable code.
    pub reason: String,
    /// Since when it is parked.
    pub parked_at: Timestamp,
    /// When its head is tried next.
    pub due: Timestamp,
    /// When its head was last tried.
    pub last_tried: Option<Timestamp>,
    /// Since when its head's outcome is unknown and held.
    pub unknown_since: Option<Timestamp>,
    /// State of the endpoint's health; none is healthy.
    pub health: Option<String>,
    /// Events that wait, counted up to [`MAX_COUNT`].
    pub waiting: u32,
    /// The first of them.
    pub head: Option<Waiting>,
}

/// An event that waits in a parked lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The delivery.
    pub delivery: DeliveryId,
    /// Its event.
    pub event: EventId,
    /// Recorded attempts.
    pub attempts: u32,
    /// Since when deliver holds it.
    pub first_held: Timestamp,
}

/// An outcome that nobody knows, held for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The lane that waits for it.
    pub lane: Lane,
    /// Whether a command for it is waiting for the lane's owner.
    pub decided: bool,
    /// How often an authority was asked; none if nobody is asked.
    pub asked: Option<u32>,
    /// What it said last, and a word on why.
    pub answer: Option<(String, String)>,
    /// When it is asked next at the earliest.
    pub ask_at: Option<Timestamp>,
}

/// What a person found out about an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was received: the lane goes on.
    Delivered,
    /// It was not: it is sent again under the same ids.
    NotApplied,
    /// Nobody can say, and the lane is to go on: it becomes a dead letter.
    GivenUp,
}

stored_as!(Verdict { Delivered = "delivered", NotApplied = "not_applied", GivenUp = "given_up" });

/// What somebody said of an unknown outcome, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The command.
    pub command: i64,
    /// What was said.
    pub verdict: Verdict,
    /// How they knew.
    pub reason: String,
    /// Who said it.
    pub actor: String,
    /// When.
    pub created_at: Timestamp,
    /// When the lane's owner answered, and what: `applied`, or the code of a refusal.
    pub answer: Option<(Timestamp, String)>,
}

/// What became of a wish to settle an unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolve {
    /// The command is written; its lane's owner applies it.
    Written(Resolution),
    /// A command for this delivery waits already.
    Waiting(i64),
    /// No held unknown has this delivery id.
    NotUnknown,
}

/// Lanes that wait, the next due first.
pub async fn lanes_list(pool: &Pool, filter: Filter) -> Result<Vec<Lane>, Error> {
    const DOING: &str = "listing lanes";
    sqlx::query(
        "SELECT l.lane, l.tenant_id, l.endpoint_id, l.mode, l.user_key, l.partition, l.reason, l.parked_at, l.due, \
           l.last_tried, l.unknown_since, h.state AS health, e.delivery_id, e.event_id, e.attempts, e.first_held, \
           (SELECT count(*) FROM (SELECT FROM laneway_control.parked_events w WHERE w.lane = l.lane LIMIT $4) w) \
             AS waiting \
         FROM (SELECT * FROM laneway_control.parked_lanes \
               WHERE ($1::uuid IS NULL OR tenant_id = $1) AND ($2::uuid IS NULL OR endpoint_id = $2) \
               ORDER BY due, lane LIMIT $3) l \
         LEFT JOIN laneway_control.endpoint_health h USING (endpoint_id) \
         LEFT JOIN LATERAL (SELECT * FROM laneway_control.parked_events e WHERE e.lane = l.lane \
           ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e ON true \
         ORDER BY l.due, l.lane",
    )
    .bind(filter.tenant.map(|id| id.as_uuid()))
    .bind(filter.endpoint.map(|id| id.as_uuid()))
    .bind(i64::from(filter.limit.min(MAX_LIMIT)))
    .bind(i64::from(MAX_COUNT))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?
    .iter()
    .map(|row| read_lane(row, DOING))
    .collect()
}

/// One lane that waits, and the first `limit` of its events; `None` if it is not parked.
pub async fn lane_show(
    pool: &Pool,
    lane: LaneId,
    limit: u16,
) -> Result<Option<(Lane, Vec<Waiting>)>, Error> {
    const DOING: &str = "reading a lane";
    let row = sqlx::query(
        "SELECT l.*, h.state AS health, e.delivery_id, e.event_id, e.attempts, e.first_held, \
           (SELECT count(*) FROM (SELECT FROM laneway_control.parked_events w WHERE w.lane = l.lane LIMIT $2) w) \
             AS waiting \
         FROM laneway_control.parked_lanes l \
         LEFT JOIN laneway_control.endpoint_health h USING (endpoint_id) \
         LEFT JOIN LATERAL (SELECT * FROM laneway_control.parked_events e WHERE e.lane = l.lane \
           ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e ON true \
         WHERE l.lane = $1",
    )
    .bind(lane.as_bytes().as_slice())
    .bind(i64::from(MAX_COUNT))
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = row else { return Ok(None) };
    let events = sqlx::query(
        "SELECT delivery_id, event_id, attempts, first_held FROM laneway_control.parked_events \
         WHERE lane = $1 ORDER BY generation, moves, log_offset LIMIT $2",
    )
    .bind(lane.as_bytes().as_slice())
    .bind(i64::from(limit.min(MAX_LIMIT)))
    .fetch_all(pool.inner())
    .await
    .and_then(|rows| rows.iter().map(read_waiting).collect())
    .map_err(Error::doing(DOING))?;
    Ok(Some((read_lane(&row, DOING)?, events)))
}

/// Whose delivery `id` is, if anything is recorded of it. For operators, who need not know the project.
pub async fn delivery_tenant(pool: &Pool, id: DeliveryId) -> Result<Option<TenantId>, Error> {
    // As for the API: all buckets are asked, because no index leads from a delivery alone to its parked row.
    sqlx::query_scalar(
        "SELECT tenant_id FROM laneway_control.inbox WHERE delivery_id = $1 \
         UNION ALL SELECT tenant_id FROM laneway_control.attempts WHERE delivery_id = $1 \
         UNION ALL SELECT tenant_id FROM laneway_control.intents WHERE delivery_id = $1 \
         UNION ALL SELECT tenant_id FROM laneway_control.rewound WHERE delivery_id = $1 \
         UNION ALL SELECT tenant_id FROM laneway_control.parked_events WHERE delivery_id = $1 \
           AND bucket = ANY (ARRAY(SELECT b::smallint FROM generate_series(0, 1023) b)) \
         LIMIT 1",
    )
    .bind(id.as_uuid())
    .fetch_optional(pool.inner())
    .await
    .map(|tenant| tenant.map(TenantId::from_uuid))
    .map_err(Error::doing("looking for a delivery's project"))
}

/// Held unknown outcomes, oldest first, from after the one with this age and lane on.
pub async fn unknowns_list(
    pool: &Pool,
    filter: Filter,
    after: Option<(Timestamp, LaneId)>,
) -> Result<Vec<Unknown>, Error> {
    const DOING: &str = "listing unknown outcomes";
    let rows = sqlx::query(
        "SELECT l.*, h.state AS health, e.delivery_id, e.event_id, e.attempts, e.first_held, \
           (SELECT count(*) FROM (SELECT FROM laneway_control.parked_events w WHERE w.lane = l.lane LIMIT $4) w) \
             AS waiting, \
           EXISTS (SELECT FROM laneway_control.commands c WHERE c.bucket = l.bucket AND c.lane = l.lane \
             AND c.delivery_id = e.delivery_id AND c.applied_at IS NULL) AS decided, \
           k.asked, k.answer, k.detail, k.ask_at \
         FROM (SELECT * FROM laneway_control.parked_lanes \
               WHERE unknown AND ($1::uuid IS NULL OR tenant_id = $1) AND ($2::uuid IS NULL OR endpoint_id = $2) \
                 AND ($5::timestamptz IS NULL OR (date_trunc('milliseconds', unknown_since), lane) > ($5, $6)) \
               ORDER BY date_trunc('milliseconds', unknown_since), lane LIMIT $3) l \
         LEFT JOIN laneway_control.endpoint_health h USING (endpoint_id) \
         LEFT JOIN LATERAL (SELECT * FROM laneway_control.parked_events e WHERE e.lane = l.lane \
           ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e ON true \
         LEFT JOIN laneway_control.lookups k ON k.delivery_id = e.delivery_id AND k.attempts = e.attempts \
         ORDER BY date_trunc('milliseconds', l.unknown_since), l.lane",
    )
    .bind(filter.tenant.map(|id| id.as_uuid()))
    .bind(filter.endpoint.map(|id| id.as_uuid()))
    .bind(i64::from(filter.limit.min(MAX_LIMIT)))
    .bind(i64::from(MAX_COUNT))
    .bind(after.map(|(since, _)| stored(since)))
    .bind(after.map(|(_, lane)| lane.as_bytes().to_vec()))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            let lane = read_lane(row, DOING)?;
            let read = || -> Result<Unknown, sqlx::Error> {
                let answer: Option<String> = row.try_get("answer")?;
                let detail: Option<String> = row.try_get("detail")?;
                Ok(Unknown {
                    lane,
                    decided: row.try_get("decided")?,
                    asked: row.try_get::<Option<i32>, _>("asked")?.map(uncount),
                    answer: answer.map(|answer| (answer, detail.unwrap_or_default())),
                    ask_at: row.try_get::<Option<DateTime<Utc>>, _>("ask_at")?.map(loaded),
                })
            };
            read().map_err(Error::doing(DOING))
        })
        .collect()
}

/// Writes the command that settles a held unknown, and its audit row, in one transaction. The lane's owner applies it
/// in its next settle transaction (design 5.8); [`command_result`] says when.
///
/// `reason` has 1 to 1,000 characters (a CHECK refuses others). With a `tenant`, other projects' deliveries are no
/// unknowns.
pub async fn unknown_resolve(
    pool: &Pool,
    tenant: Option<TenantId>,
    delivery: DeliveryId,
    verdict: Verdict,
    reason: &str,
    actor: &str,
) -> Result<Resolve, Error> {
    const DOING: &str = "writing a command";
    let mut transaction = pool.begin().await?;
    // The lane's row is locked, so that two people cannot write two verdicts. What was written by who had the lock before is
    // seen by a statement that begins under it, and by no other.
    let found = sqlx::query(
        "SELECT l.tenant_id, l.lane, l.bucket, h.attempts FROM laneway_control.parked_lanes l CROSS JOIN LATERAL ( \
           SELECT e.delivery_id, e.attempts FROM laneway_control.parked_events e WHERE e.lane = l.lane \
           ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) h \
         WHERE l.unknown AND h.delivery_id = $1 AND ($2::uuid IS NULL OR l.tenant_id = $2) \
         FOR NO KEY UPDATE OF l",
    )
    .bind(delivery.as_uuid())
    .bind(tenant.map(|id| id.as_uuid()))
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = found else { return Ok(Resolve::NotUnknown) };
    let read = || -> Result<(Uuid, Vec<u8>, i16, i32), sqlx::Error> {
        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
    };
    let (tenant, lane, bucket, attempts) = read().map_err(Error::doing(DOING))?;
    let waiting: Option<i64> = sqlx::query_scalar(
        "SELECT command_id FROM laneway_control.commands \
         WHERE bucket = $1 AND delivery_id = $2 AND applied_at IS NULL LIMIT 1",
    )
    .bind(bucket)
    .bind(delivery.as_uuid())
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    if let Some(waiting) = waiting {
        return Ok(Resolve::Waiting(waiting));
    }
    let tenant = TenantId::from_uuid(tenant);
    let about = About { delivery, attempts, lane: &lane, bucket };
    let (command, created_at) =
        command_insert(&mut transaction, tenant, about, verdict, reason, actor).await?;
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok(Resolve::Written(Resolution {
        command,
        verdict,
        reason: reason.to_owned(),
        actor: actor.to_owned(),
        created_at,
        answer: None,
    }))
}

/// What is held: an attempt of a delivery, in its lane. Who has the lane's row knows it, or what it was before; a word on
/// what it was is refused by the owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) delivery: DeliveryId,
    pub(crate) attempts: i32,
    pub(crate) lane: &'a [u8],
    pub(crate) bucket: i16,
}

/// Writes a command on what is held, and its audit entry.
pub(crate) async fn command_insert(
    connection: &mut PgConnection,
    tenant: TenantId,
    about: About<'_>,
    verdict: Verdict,
    reason: &str,
    actor: &str,
) -> Result<(i64, Timestamp), Error> {
    const DOING: &str = "writing a command";
    let tenant = tenant.as_uuid();
    let word = verdict.as_str();
    let (command, created_at): (i64, DateTime<Utc>) = sqlx::query_as(
        "INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, attempts, verdict, reason, actor) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING command_id, created_at",
    )
    .bind(tenant)
    .bind(about.delivery.as_uuid())
    .bind(about.lane)
    .bind(about.bucket)
    .bind(about.attempts)
    .bind(word)
    .bind(reason)
    .bind(actor)
    .fetch_one(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    sqlx::query(
        "INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
         VALUES ($1, $2, 'unknown.resolve', $3, jsonb_build_object('verdict', $4::text, 'reason', $5::text))",
    )
    .bind(tenant)
    .bind(actor)
    .bind(about.delivery.to_string())
    .bind(word)
    .bind(reason)
    .execute(connection)
    .await
    .map_err(Error::doing(DOING))?;
    Ok((command, loaded(created_at)))
}

/// What became of a command: `None` while it waits, else `applied` or the code of a refusal.
pub async fn command_result(pool: &Pool, command: i64) -> Result<Option<String>, Error> {
    sqlx::query_scalar(
        "SELECT coalesce(result, 'applied') FROM laneway_control.commands \
         WHERE command_id = $1 AND applied_at IS NOT NULL",
    )
    .bind(command)
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing("reading a command"))
}

/// What was said of the outcome of a delivery, newest first, `limit` at most.
pub async fn resolutions_list(
    pool: &Pool,
    tenant: TenantId,
    delivery: DeliveryId,
    limit: u16,
) -> Result<Vec<Resolution>, Error> {
    sqlx::query(
        "SELECT command_id, verdict, reason, actor, created_at, applied_at, coalesce(result, 'applied') AS result \
         FROM laneway_control.commands WHERE delivery_id = $1 AND tenant_id = $2 AND verdict <> 'erase' \
         ORDER BY command_id DESC LIMIT $3",
    )
    .bind(delivery.as_uuid())
    .bind(tenant.as_uuid())
    .bind(i64::from(limit.min(MAX_LIMIT)))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(RESOLUTIONS))?
    .iter()
    .map(read_resolution)
    .collect()
}

fn read_resolution(row: &PgRow) -> Result<Resolution, Error> {
    let word: String = row.try_get("verdict").map_err(Error::doing(RESOLUTIONS))?;
    let Some(verdict) = Verdict::parse(&word) else {
        return Err(Error::Stored { what: "verdict", value: word });
    };
    let read = || -> Result<Resolution, sqlx::Error> {
        let applied_at: Option<DateTime<Utc>> = row.try_get("applied_at")?;
        let result: String = row.try_get("result")?;
        Ok(Resolution {
            command: row.try_get("command_id")?,
            verdict,
            reason: row.try_get("reason")?,
            actor: row.try_get("actor")?,
            created_at: loaded(row.try_get("created_at")?),
            answer: applied_at.map(|at| (loaded(at), result)),
        })
    };
    read().map_err(Error::doing(RESOLUTIONS))
}

fn read_lane(row: &PgRow, doing: &'static str) -> Result<Lane, Error> {
    let read = || -> Result<(Vec<u8>, i16), sqlx::Error> {
        Ok((row.try_get("lane")?, row.try_get("mode")?))
    };
    let (lane, mode) = read().map_err(Error::doing(doing))?;
    let lane = crate::delivery::value::lane(&lane)?;
    let mode = u8::try_from(mode)
        .ok()
        .and_then(LaneMode::from_byte)
        .ok_or_else(|| Error::Stored { what: "lane mode", value: mode.to_string() })?;
    let read = || -> Result<Lane, sqlx::Error> {
        let time = |column: &str| row.try_get::<DateTime<Utc>, _>(column).map(loaded);
        let maybe =
            |column: &str| row.try_get::<Option<DateTime<Utc>>, _>(column).map(|at| at.map(loaded));
        let head = match row.try_get::<Option<Uuid>, _>("delivery_id")? {
            Some(_) => Some(read_waiting(row)?),
            None => None,
        };
        Ok(Lane {
            lane,
            tenant: TenantId::from_uuid(row.try_get("tenant_id")?),
            endpoint: EndpointId::from_uuid(row.try_get("endpoint_id")?),
            mode,
            user_key: row.try_get("user_key")?,
            partition: uncount(row.try_get("partition")?),
            reason: row.try_get("reason")?,
            parked_at: time("parked_at")?,
            due: time("due")?,
            last_tried: maybe("last_tried")?,
            unknown_since: maybe("unknown_since")?,
            health: row.try_get("health")?,
            waiting: counted(row.try_get("waiting")?),
            head,
        })
    };
    read().map_err(Error::doing(doing))
}

fn read_waiting(row: &PgRow) -> Result<Waiting, sqlx::Error> {
    Ok(Waiting {
        delivery: DeliveryId::from_uuid(row.try_get("delivery_id")?),
        event: EventId::from_uuid(row.try_get("event_id")?),
        attempts: uncount(row.try_get("attempts")?),
        first_held: loaded(row.try_get("first_held")?),
    })
}

fn counted(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
