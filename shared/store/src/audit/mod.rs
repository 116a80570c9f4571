//! The audit: what is promised about rows, looked up in the rows (P4, I2, I16, I47). It only reads, and sees one
//! snapshot; what moves meanwhile is not older than [`Scope::settled`] and not looked at. What can be repaired without
//! harm is ([`repair`]) if somebody wants it.

mod lost;
mod repair;

pub use repair::repair;

use crate::{Error, Pool};
use lost::{again, first, lost};
use sqlx::PgConnection;
use std::time::Duration;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Outbox rows and outcomes that are at most so old.
    pub window: Duration,
    /// And at least so old: what is younger may be on its way.
    pub settled: Duration,
}

/// One check and what it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name: stable, a label.
    pub check: &'static str,
    /// What it means, for people.
    pub meaning: &'static str,
    /// How many rows break it.
    pub count: u64,
    /// How many of them [`repair`] has published again.
    pub repaired: u64,
    /// The first of them.
    pub examples: Vec<String>,
}

/// Name, meaning, and the rows that break it, each as one text `example`. `$1` is the window, `$2` what is settled, both
/// as intervals' milliseconds.
const CHECKS: &[(&str, &str, &str)] = &[
    (
        "outcome_missing",
        "a committed event has neither an outcome nor a place where it waits, at an endpoint that was subscribed",
        concat!(
            "SELECT format('event %s at endpoint %s, row %s%s', l.event_id, l.endpoint_id, l.row_id, \
               CASE WHEN l.times > 0 THEN format(', published again %s times', l.times) END) AS example FROM ",
            lost!(first!()),
            " l"
        ),
    ),
    (
        "rewind_missing",
        "a rewind was committed and has neither an outcome nor a place where it waits",
        concat!(
            "SELECT format('delivery %s of event %s%s', l.delivery_id, l.event_id, \
               CASE WHEN l.place IS NULL THEN ', whose row is gone' END) AS example FROM ",
            lost!(again!()),
            " l"
        ),
    ),
    (
        "lane_without_events",
        "a lane is parked and has nothing parked",
        "SELECT format('lane %s of endpoint %s', encode(l.lane, 'hex'), l.endpoint_id) AS example \
         FROM laneway_control.parked_lanes l WHERE l.parked_at < now() - $2 * interval '1 ms' AND $1 > 0 \
           AND NOT EXISTS (SELECT FROM laneway_control.parked_events e WHERE e.lane = l.lane)",
    ),
    (
        "events_without_lane",
        "events are parked in a lane that is not: nobody will look for them",
        "SELECT format('lane %s of endpoint %s', encode(e.lane, 'hex'), min(e.endpoint_id::text)) AS example \
         FROM laneway_control.parked_events e WHERE $1 > 0 AND $2 > 0 \
           AND NOT EXISTS (SELECT FROM laneway_control.parked_lanes l WHERE l.lane = e.lane) GROUP BY e.lane",
    ),
    (
        "two_heads",
        "two events of a lane stand in the same place",
        "SELECT format('lane %s at %s/%s/%s', encode(e.lane, 'hex'), e.generation, e.moves, e.log_offset) AS example \
         FROM laneway_control.parked_events e WHERE $1 > 0 AND $2 > 0 \
         GROUP BY e.lane, e.generation, e.moves, e.log_offset HAVING count(*) > 1",
    ),
    (
        "lane_without_owner",
        "lanes are parked in a partition that nobody owns",
        "SELECT format('partition %s: %s lanes', l.partition, count(*)) AS example \
         FROM laneway_control.parked_lanes l WHERE $1 > 0 AND NOT EXISTS ( \
           SELECT FROM laneway_control.partition_owners o WHERE o.partition = l.partition AND o.state = 'owned' \
             AND o.updated_at > now() - greatest($2, 60000) * interval '1 ms') \
         GROUP BY l.partition",
    ),
    (
        "intent_orphaned",
        "a request was to be made, its time is over, and nobody has recorded what became of it",
        "SELECT format('delivery %s of endpoint %s', i.delivery_id, i.endpoint_id) AS example \
         FROM laneway_control.intents i \
         JOIN laneway_control.endpoints p ON p.endpoint_id = i.endpoint_id AND p.state = 'enabled' \
         WHERE $1 > 0 AND NOT EXISTS (SELECT FROM laneway_control.endpoint_health h \
             WHERE h.endpoint_id = i.endpoint_id) \
           AND i.deadline < now() - $2 * interval '1 ms' \
           AND NOT EXISTS (SELECT FROM laneway_control.parked_events e \
             WHERE e.tenant_id = i.tenant_id AND e.delivery_id = i.delivery_id) \
           AND (EXISTS (SELECT FROM next n WHERE n.partition = i.partition AND n.epoch = i.epoch AND n.state = 'owned' \
               AND n.updated_at > now() - $2 * interval '1 ms') \
             OR NOT EXISTS (SELECT FROM pending a WHERE a.partition = coalesce(i.partition, a.partition) \
               AND a.opened_at <= i.created_at))",
    ),
    (
        "dead_letter_missing",
        "a delivery was given up and its dead letter is not there",
        "SELECT format('delivery %s of event %s', i.delivery_id, i.event_id) AS example \
         FROM laneway_control.inbox i WHERE i.outcome = 2 \
           AND i.settled_at >= now() - $1 * interval '1 ms' AND i.settled_at < now() - $2 * interval '1 ms' \
           AND NOT EXISTS (SELECT FROM laneway_control.dead_letters d \
             WHERE d.tenant_id = i.tenant_id AND d.delivery_id = i.delivery_id)",
    ),
    (
        "dead_letter_without_outcome",
        "a dead letter has no outcome: published again, it would be sent",
        "SELECT format('delivery %s of event %s', d.delivery_id, d.event_id) AS example \
         FROM laneway_control.dead_letters d \
         WHERE d.dead_at >= now() - $1 * interval '1 ms' AND d.dead_at < now() - $2 * interval '1 ms' \
           AND NOT EXISTS (SELECT FROM laneway_control.inbox i WHERE i.delivery_id = d.delivery_id)",
    ),
    (
        "erasure_not_done",
        "an erasure was asked for and is not done",
        "SELECT format('erasure %s of project %s waits for %s', x.erasure_id, x.tenant_id, coalesce(x.waits, 'its turn')) \
           AS example \
         FROM laneway_control.erasures x WHERE $1 > 0 AND x.phase < 3 AND x.created_at < now() - $2 * interval '1 ms'",
    ),
    (
        "payload_not_erased",
        "something was erased and its payload is still there",
        "SELECT format('%s of project %s, erasure %s', f.what, x.tenant_id, x.erasure_id) AS example \
         FROM laneway_control.erasures x CROSS JOIN LATERAL ( \
           SELECT format('row %s of the outbox', o.id) AS what FROM laneway.outbox o \
           WHERE o.shard = get_byte(sha256(uuid_send(x.tenant_id)), 0) % 16 AND o.tenant = x.tenant_id AND NOT o.erased \
             AND (x.user_key IS NULL OR o.user_key = x.user_key) AND o.created_at < x.before \
           UNION ALL \
           SELECT format('dead letter %s', d.delivery_id) FROM laneway_control.dead_letters d \
           WHERE d.tenant_id = x.tenant_id AND d.erased_at IS NULL AND (x.user_key IS NULL OR d.user_key = x.user_key) \
             AND coalesce(laneway_control.record_written(d.record), 0) < (extract(epoch FROM x.before) * 1000)::bigint \
           UNION ALL \
           SELECT format('parked event %s', e.delivery_id) \
           FROM laneway_control.parked_lanes l JOIN laneway_control.parked_events e USING (lane) \
           WHERE l.tenant_id = x.tenant_id AND (x.user_key IS NULL OR l.user_key = x.user_key) \
             AND NOT laneway_control.record_is_erased(e.record) \
             AND coalesce(laneway_control.record_written(e.record), 0) < (extract(epoch FROM x.before) * 1000)::bigint) f \
         WHERE x.phase = 3 AND x.finished_at >= now() - $1 * interval '1 ms' \
           AND x.finished_at < now() - $2 * interval '1 ms'",
    ),
    (
        "lane_unreadable",
        "a lane is due at an endpoint that is well, and the record at its head cannot be read: nothing of it is sent",
        "SELECT format('lane %s of endpoint %s, delivery %s', encode(l.lane, 'hex'), l.endpoint_id, e.delivery_id) \
           AS example \
         FROM laneway_control.parked_lanes l \
         JOIN laneway_control.endpoints p ON p.endpoint_id = l.endpoint_id AND p.state = 'enabled' \
         CROSS JOIN LATERAL (SELECT * FROM laneway_control.parked_events e \
           WHERE e.lane = l.lane ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e \
         WHERE $1 > 0 AND NOT l.unknown AND l.due < now() - $2 * interval '1 ms' \
           AND NOT EXISTS (SELECT FROM laneway_control.endpoint_health h WHERE h.endpoint_id = l.endpoint_id) \
           AND (get_byte(e.record || '\\x00'::bytea, 0) <> 1 OR laneway_control.record_written(e.record) IS NULL)",
    ),
    (
        "command_not_applied",
        "what somebody said of an unknown was not applied",
        "SELECT format('command %s on delivery %s', c.command_id, c.delivery_id) AS example \
         FROM laneway_control.commands c WHERE $1 > 0 AND c.applied_at IS NULL \
           AND c.created_at < now() - $2 * interval '1 ms'",
    ),
];

/// Names of all checks.
pub fn checks() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _, _)| *name)
}

/// Makes every check; those that found nothing are in the answer too. `None`: somebody else is at it.
pub async fn audit(pool: &Pool, scope: Scope) -> Result<Option<Vec<Finding>>, Error> {
    const DOING: &str = "auditing";
    let mut transaction = pool.begin().await?;
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut *transaction)
        .await
        .map_err(Error::doing(DOING))?;
    if !alone(&mut transaction).await? {
        return Ok(None);
    }
    let mut findings = Vec::with_capacity(CHECKS.len());
    for &(check, meaning, rows) in CHECKS {
        let text = format!(
            "WITH {}, bad AS MATERIALIZED ({rows}) \
             SELECT count(*), coalesce((SELECT array_agg(example) FROM (SELECT example FROM bad LIMIT 5) f), '{{}}') FROM bad",
            lost::SHARED
        );
        // Made of constants of this module alone.
        let (count, examples): (i64, Vec<String>) = sqlx::query_as(sqlx::AssertSqlSafe(text))
            .bind(crate::relay::millis(scope.window))
            .bind(crate::relay::millis(scope.settled))
            .fetch_one(&mut *transaction)
            .await
            .map_err(Error::doing(DOING))?;
        let count = u64::try_from(count).unwrap_or(0);
        findings.push(Finding { check, meaning, count, repaired: 0, examples });
    }
    // Not left to the pool: whoever comes next would meet this one.
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok(Some(findings))
}

/// One at a time: two walks over the same rows find the same. Until the transaction ends.
async fn alone(connection: &mut PgConnection) -> Result<bool, Error> {
    sqlx::query_scalar("SELECT pg_try_advisory_xact_lock(hashtext('laneway_control.audit'))")
        .fetch_one(connection)
        .await
        .map_err(Error::doing("looking for another audit"))
}
