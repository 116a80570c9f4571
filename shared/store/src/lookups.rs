//! Unknown outcomes that an authority is asked about (design 5.5, 5.8, I12–I14).
//!
//! One unknown = (delivery, number of attempts). It becomes a row of `lookups` when it is seen, with the time before
//! which nobody asks: the request may still travel, or be worked on. Who asks takes the row by a random claim for a
//! while, in a transaction of its own; asks with no lock held; and writes what was answered only if the claim is still
//! his *and* the lane still waits for this very unknown *and* nobody else's word on it is on its way. A definite answer
//! becomes a command for the lane's owner; anything else is asked again later.
//!
//! What can go wrong between two steps: killed after the claim: it ends, another asks again (asking changes nothing).
//! Paused between question and answer: the claim is another's, or the lane has gone on: the answer counts for nothing.
//! Killed after the command is written: it is applied once, by whoever owns the lane.

use crate::authorities::Stored;
use crate::delivery::value::{count, millis, uncount};
use crate::inspect::{About, Verdict, command_insert};
use crate::{Error, Pool};
use laneway_wire::authority::Answer;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneId, TenantId};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::time::Duration;
use uuid::Uuid;

/// Unknowns that one look finds.
const MAX_FOUND: i64 = 1_000;
/// A row whose command is on its way is looked at again after this, and goes when its lane has gone on.
const SETTLED_PAUSE: Duration = Duration::from_secs(10);
/// Characters of an answer's detail that are kept.
const MAX_DETAIL: usize = 500;
/// Who speaks in the audit log.
pub const ACTOR: &str = "reconciler";

/// An unknown to be asked about, under a claim.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// Whose it is.
    pub tenant: TenantId,
    /// The endpoint that the request went to.
    pub endpoint: EndpointId,
    /// The delivery.
    pub delivery: DeliveryId,
    /// Its event: the idempotency key of the request.
    pub event: EventId,
    /// Its lane.
    pub lane: LaneId,
    /// How often it was asked about before.
    pub asked: u32,
    /// Whom to ask.
    pub authority: Stored,
    attempts: u32,
    claim: Uuid,
}

impl Lookup {
    /// Bits that nobody knows before: for jitter.
    pub fn draw(&self) -> u64 {
        (self.claim.as_u128() >> 64) as u64
    }
}

/// What an answer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The lane's owner is told.
    Commanded,
    /// It is asked again later.
    Later,
    /// The claim is another's, or the lane does not wait for this any more: nothing was written.
    Stale,
}

/// Looks for unknowns of endpoints with an authority that are not known yet, and gives how many there were. None is to
/// be asked about before its request can have ended: the end that is recorded, or its beginning and the endpoint's
/// deadline, and `grace` after that (I13). With `lately`, only at those that have become unknown so short ago: what is
/// known already is not gone through again. An authority that was set since is seen by a look at all.
pub async fn lookups_find(
    pool: &Pool,
    grace: Duration,
    lately: Option<Duration>,
) -> Result<u64, Error> {
    macro_rules! find {
        ($also:literal) => {
            concat!(
                "INSERT INTO laneway_control.lookups AS k (delivery_id, tenant_id, endpoint_id, lane, attempts, ask_at) \
                 SELECT e.delivery_id, l.tenant_id, l.endpoint_id, l.lane, e.attempts, \
                   greatest(l.due, t.ended_at, t.ended_at - t.took_ms * interval '1 ms' + p.timeout_ms * interval '1 ms') \
                     + $1 * interval '1 ms' \
                 FROM laneway_control.parked_lanes l \
                 JOIN laneway_control.endpoints p ON p.tenant_id = l.tenant_id AND p.endpoint_id = l.endpoint_id \
                   AND p.on_unknown = 'lookup' AND p.state <> 'deleted' \
                 JOIN laneway_control.authorities a ON a.tenant_id = l.tenant_id AND a.endpoint_id = l.endpoint_id \
                 CROSS JOIN LATERAL (SELECT delivery_id, attempts FROM laneway_control.parked_events e \
                   WHERE e.lane = l.lane ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e \
                 LEFT JOIN LATERAL (SELECT ended_at, took_ms FROM laneway_control.attempts t \
                   WHERE t.delivery_id = e.delivery_id ORDER BY t.number DESC, t.id DESC LIMIT 1) t ON true \
                 WHERE l.unknown ",
                        $also,
                        " AND NOT EXISTS (SELECT FROM laneway_control.lookups o \
                   WHERE o.delivery_id = e.delivery_id AND o.attempts >= e.attempts) \
                 LIMIT $2 \
                 ON CONFLICT (delivery_id) DO UPDATE SET attempts = excluded.attempts, ask_at = excluded.ask_at, asked = 0, \
                   claim = NULL, answer = NULL, detail = NULL, asked_at = NULL, created_at = now() \
                 WHERE k.attempts < excluded.attempts"
            )
        };
    }
    let found = match lately {
        None => sqlx::query(find!("")).bind(millis(grace)).bind(MAX_FOUND),
        Some(span) => sqlx::query(find!("AND l.unknown_since >= now() - $3 * interval '1 ms'"))
            .bind(millis(grace))
            .bind(MAX_FOUND)
            .bind(crate::relay::millis(span)),
    };
    let done = found
        .execute(pool.inner())
        .await
        .map_err(Error::doing("looking for unknowns to ask about"))?;
    Ok(done.rows_affected())
}

/// How many questions may be claimed.
#[derive(Debug, Clone, Copy)]
pub struct Room<'a> {
    /// In all.
    pub questions: u32,
    /// Of one endpoint, those that are under way among them: what is claimed is asked at once.
    pub of_endpoint: u32,
    /// What is under way.
    pub under_way: &'a [(EndpointId, u32)],
}

/// Claims unknowns whose time has come, for `span`, as far as there is room; endpoints of which least is under way come
/// first. One whose lane has gone on is forgotten; one that somebody's command is on its way for is left alone. A claim is
/// no question yet: it changes nothing but who may ask.
pub async fn lookups_claim(
    pool: &Pool,
    room: Room<'_>,
    span: Duration,
) -> Result<Vec<Lookup>, Error> {
    const DOING: &str = "claiming unknowns to ask about";
    let endpoints: Vec<Uuid> = room.under_way.iter().map(|(id, _)| id.as_uuid()).collect();
    let under_way: Vec<i64> = room.under_way.iter().map(|(_, count)| i64::from(*count)).collect();
    let rows = sqlx::query(
        "WITH RECURSIVE endpoints AS ( \
             (SELECT tenant_id, endpoint_id FROM laneway_control.lookups ORDER BY 1, 2 LIMIT 1) \
           UNION ALL \
             SELECT n.tenant_id, n.endpoint_id FROM endpoints e CROSS JOIN LATERAL ( \
               SELECT k.tenant_id, k.endpoint_id FROM laneway_control.lookups k \
               WHERE (k.tenant_id, k.endpoint_id) > (e.tenant_id, e.endpoint_id) ORDER BY 1, 2 LIMIT 1) n), \
         turn AS MATERIALIZED (SELECT n.delivery_id FROM endpoints e \
           LEFT JOIN unnest($5::uuid[], $6::bigint[]) AS b (endpoint_id, count) USING (endpoint_id) \
           CROSS JOIN LATERAL (SELECT d.*, row_number() OVER (ORDER BY d.ask_at) + coalesce(b.count, 0) AS place \
             FROM (SELECT k.delivery_id, k.ask_at FROM laneway_control.lookups k \
               WHERE k.tenant_id = e.tenant_id AND k.endpoint_id = e.endpoint_id AND k.ask_at <= now() \
               ORDER BY k.ask_at LIMIT greatest($4 - coalesce(b.count, 0), 0)) d) n \
           ORDER BY n.place, n.ask_at LIMIT $1), \
         due AS (SELECT k.delivery_id, l.lane IS NOT NULL AND e.delivery_id = k.delivery_id \
               AND e.attempts = k.attempts AND a.endpoint_id IS NOT NULL AS waits, \
             EXISTS (SELECT FROM laneway_control.commands c WHERE c.bucket = l.bucket \
               AND c.delivery_id = k.delivery_id AND c.applied_at IS NULL) AS decided \
           FROM turn t JOIN laneway_control.lookups k USING (delivery_id) \
           LEFT JOIN laneway_control.parked_lanes l ON l.lane = k.lane AND l.unknown \
           LEFT JOIN laneway_control.authorities a ON a.tenant_id = k.tenant_id AND a.endpoint_id = k.endpoint_id \
           LEFT JOIN LATERAL (SELECT delivery_id, attempts FROM laneway_control.parked_events e \
             WHERE e.lane = k.lane ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e ON true \
           WHERE k.ask_at <= now() FOR NO KEY UPDATE OF k SKIP LOCKED), \
         gone AS (DELETE FROM laneway_control.lookups k USING due \
           WHERE k.delivery_id = due.delivery_id AND NOT due.waits), \
         left_alone AS (UPDATE laneway_control.lookups k SET ask_at = now() + $3 * interval '1 ms', claim = NULL \
           FROM due WHERE k.delivery_id = due.delivery_id AND due.waits AND due.decided), \
         claimed AS (UPDATE laneway_control.lookups k SET claim = gen_random_uuid(), \
             ask_at = now() + $2 * interval '1 ms' \
           FROM due WHERE k.delivery_id = due.delivery_id AND due.waits AND NOT due.decided RETURNING k.*) \
         SELECT k.tenant_id, k.endpoint_id, k.delivery_id, k.lane, k.asked, k.attempts, k.claim, e.event_id, \
           a.url, a.method, a.body, a.header_name, a.header_value, a.rules, a.revision \
         FROM claimed k JOIN laneway_control.authorities a USING (tenant_id, endpoint_id) \
         CROSS JOIN LATERAL (SELECT event_id FROM laneway_control.parked_events e \
           WHERE e.lane = k.lane ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e",
    )
    .bind(i64::from(room.questions))
    .bind(millis(span))
    .bind(millis(SETTLED_PAUSE))
    .bind(i64::from(room.of_endpoint))
    .bind(endpoints)
    .bind(under_way)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    // One that cannot be read (an authority's rules of a later version) keeps no other from being asked about.
    let told = |error: &Error| tracing::error!(%error, "an unknown cannot be asked about");
    Ok(rows.iter().filter_map(|row| read(row).inspect_err(told).ok()).collect())
}

/// Gives back a claim under which nothing was asked: it is due again after `pause`, as if there had been none.
pub async fn lookup_release(pool: &Pool, lookup: &Lookup, pause: Duration) -> Result<(), Error> {
    sqlx::query(
        "UPDATE laneway_control.lookups SET claim = NULL, ask_at = now() + $3 * interval '1 ms' \
         WHERE delivery_id = $1 AND claim = $2",
    )
    .bind(lookup.delivery.as_uuid())
    .bind(lookup.claim)
    .bind(millis(pause))
    .execute(pool.inner())
    .await
    .map(|_| ())
    .map_err(Error::doing("giving back a claim"))
}

/// Writes what was answered. A definite answer becomes a command with its audit entry; anything else is asked again
/// after `pause`.
pub async fn lookup_settle(
    pool: &Pool,
    lookup: &Lookup,
    answer: Answer,
    detail: &str,
    pause: Duration,
) -> Result<Settled, Error> {
    const DOING: &str = "writing an authority's answer";
    let detail: String = detail.chars().take(MAX_DETAIL).collect();
    let verdict = match answer {
        Answer::Applied => Some(Verdict::Delivered),
        Answer::NotApplied => Some(Verdict::NotApplied),
        Answer::InProgress | Answer::Unknown => None,
    };
    let mut transaction = pool.begin().await?;
    let pause = if verdict.is_some() { SETTLED_PAUSE } else { pause };
    let ours = sqlx::query(
        "UPDATE laneway_control.lookups SET claim = NULL, answer = $3, detail = $4, asked = asked + 1, \
           asked_at = now(), ask_at = now() + $5 * interval '1 ms' WHERE delivery_id = $1 AND claim = $2",
    )
    .bind(lookup.delivery.as_uuid())
    .bind(lookup.claim)
    .bind(answer.as_str())
    .bind(&detail)
    .bind(millis(pause))
    .execute(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    if ours.rows_affected() == 0 {
        return Ok(Settled::Stale);
    }
    let Some(verdict) = verdict else {
        transaction.commit().await.map_err(Error::doing(DOING))?;
        return Ok(Settled::Later);
    };
    // The lane's row is locked, so that a person cannot say something else at the same time.
    let bucket: Option<i16> = sqlx::query_scalar(
        "SELECT l.bucket FROM laneway_control.parked_lanes l WHERE l.lane = $1 AND l.unknown \
           AND ($2, $3) = (SELECT e.delivery_id, e.attempts FROM laneway_control.parked_events e \
             WHERE e.lane = l.lane ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) \
         FOR NO KEY UPDATE OF l",
    )
    .bind(lookup.lane.as_bytes().as_slice())
    .bind(lookup.delivery.as_uuid())
    .bind(count(lookup.attempts))
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let Some(bucket) = bucket else { return Ok(Settled::Stale) };
    let decided: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM laneway_control.commands \
         WHERE bucket = $1 AND delivery_id = $2 AND applied_at IS NULL)",
    )
    .bind(bucket)
    .bind(lookup.delivery.as_uuid())
    .fetch_one(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    if decided {
        return Ok(Settled::Stale);
    }
    let reason = format!("the authority said {}: {detail}", answer.as_str());
    let about = About {
        delivery: lookup.delivery,
        attempts: count(lookup.attempts),
        lane: lookup.lane.as_bytes().as_slice(),
        bucket,
    };
    command_insert(&mut transaction, lookup.tenant, about, verdict, &reason, ACTOR).await?;
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok(Settled::Commanded)
}

/// What is asked about now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Unknowns.
    pub unknowns: u64,
    /// Age of the oldest, from when it was seen.
    pub oldest: Duration,
}

/// Counts what has no definite answer yet.
pub async fn lookups_waiting(pool: &Pool) -> Result<Waiting, Error> {
    const DOING: &str = "counting unknowns that are asked about";
    let (unknowns, oldest): (i64, i64) = sqlx::query_as(
        "SELECT count(*), coalesce((extract(epoch FROM now() - min(created_at)) * 1000)::bigint, 0) \
         FROM laneway_control.lookups WHERE answer IS NULL OR answer NOT IN ('applied', 'not_applied')",
    )
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    Ok(Waiting {
        unknowns: u64::try_from(unknowns).unwrap_or(0),
        oldest: Duration::from_millis(u64::try_from(oldest).unwrap_or(0)),
    })
}

fn read(row: &PgRow) -> Result<Lookup, Error> {
    const DOING: &str = "reading an unknown to ask about";
    let lane: Vec<u8> = row.try_get("lane").map_err(Error::doing(DOING))?;
    let lane = crate::delivery::value::lane(&lane)?;
    let authority = crate::authorities::read(row)?;
    let read = || -> Result<Lookup, sqlx::Error> {
        Ok(Lookup {
            tenant: TenantId::from_uuid(row.try_get("tenant_id")?),
            endpoint: EndpointId::from_uuid(row.try_get("endpoint_id")?),
            delivery: DeliveryId::from_uuid(row.try_get("delivery_id")?),
            event: EventId::from_uuid(row.try_get("event_id")?),
            lane,
            asked: uncount(row.try_get("asked")?),
            authority,
            attempts: uncount(row.try_get("attempts")?),
            claim: row.try_get("claim")?,
        })
    };
    read().map_err(Error::doing(DOING))
}
