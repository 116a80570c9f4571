//! What can be repaired without harm: a lost delivery is published again, under its own id, by a row of the outbox that
//! names it as a rewind does. If it was not lost after all, the inbox knows it and nothing is sent (P5).
//!
//! Without harm means: its endpoint takes a resend (what `hold` and `lookup` are for, nobody but a person can say), no
//! attempt of it was answered with success, it is no dead letter, its row is there, and nothing of its project is being
//! erased. Everything else is only told.

use super::lost::{SHARED, again, first, lost};
use super::{Finding, Scope, alone};
use crate::erasures::erasure_keeps_out;
use crate::{Error, Pool};
use laneway_wire::{LaneMode, TenantId};
use std::collections::BTreeMap;
use uuid::Uuid;

const DOING: &str = "publishing again what is missing";
/// Deliveries of one call at most: what is more is found by the next.
const ROWS: i64 = 1_000;

/// Deliveries of one project that are lost.
#[derive(Default)]
struct Lost {
    deliveries: Vec<Uuid>,
    endpoints: Vec<Uuid>,
    rows: Vec<i64>,
    times: Vec<i32>,
}

/// Publishes again what `findings`' audit missed and what is still missing, and writes into them how much; `actor` is for
/// the audit log. Twice is as good as once: what was published again waits in the outbox like anything else, and is not
/// lost before its record was passed.
pub async fn repair(
    pool: &Pool,
    scope: Scope,
    actor: &str,
    findings: &mut [Finding],
) -> Result<(), Error> {
    let missed = |finding: &Finding| {
        matches!(finding.check, "outcome_missing" | "rewind_missing") && finding.count > 0
    };
    if !findings.iter().any(missed) {
        return Ok(());
    }
    for (tenant, lost) in find(pool, scope).await? {
        let (first, again) = publish(pool, tenant, &lost, actor).await?;
        for finding in findings.iter_mut() {
            finding.repaired += match finding.check {
                "outcome_missing" => first,
                "rewind_missing" => again,
                _ => 0,
            };
        }
    }
    Ok(())
}

async fn find(pool: &Pool, scope: Scope) -> Result<BTreeMap<Uuid, Lost>, Error> {
    let text = format!(
        "WITH {SHARED} SELECT l.tenant, l.delivery_id, l.endpoint_id, l.row_id, l.times FROM {} l \
         JOIN laneway_control.endpoints e ON e.endpoint_id = l.endpoint_id AND e.on_unknown = 'resend' \
         WHERE l.row_id IS NOT NULL ORDER BY l.tenant, l.row_id LIMIT $3",
        lost!(first!(), " UNION ALL ", again!())
    );
    // Made of constants of this module alone.
    let rows: Vec<(Uuid, Uuid, Uuid, i64, i32)> = sqlx::query_as(sqlx::AssertSqlSafe(text))
        .bind(crate::relay::millis(scope.window))
        .bind(crate::relay::millis(scope.settled))
        .bind(ROWS)
        .fetch_all(pool.inner())
        .await
        .map_err(Error::doing(DOING))?;
    let mut found: BTreeMap<Uuid, Lost> = BTreeMap::new();
    for (tenant, delivery, endpoint, row, times) in rows {
        let lost = found.entry(tenant).or_default();
        lost.deliveries.push(delivery);
        lost.endpoints.push(endpoint);
        lost.rows.push(row);
        lost.times.push(times);
    }
    Ok(found)
}

/// Deliveries of one project in one transaction; how many first ones and how many of rewinds. What has got an outcome, or
/// was published again by another, since it was found is left.
async fn publish(pool: &Pool, tenant: Uuid, lost: &Lost, actor: &str) -> Result<(u64, u64), Error> {
    let mut transaction = pool.begin().await?;
    if !alone(&mut transaction).await?
        || erasure_keeps_out(&mut transaction, TenantId::from_uuid(tenant)).await?
    {
        return Ok((0, 0));
    }
    let (first, again): (i64, i64) = sqlx::query_as(
        "WITH new AS (INSERT INTO laneway.outbox (event_id, tenant, type, user_key, payload, content_type, headers, \
             traceparent, erased, rewind) \
           SELECT o.event_id, o.tenant, o.type, o.user_key, o.payload, o.content_type, o.headers, o.traceparent, o.erased, \
             coalesce(o.rewind, jsonb_build_object('delivery', l.delivery, 'endpoint', l.endpoint, 'number', 0, \
               'of', l.delivery, 'mode', CASE WHEN o.user_key IS NULL THEN $7::int ELSE $8::int END)) \
           FROM unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::int[]) AS l (delivery, endpoint, id, times) \
           JOIN laneway.outbox o ON o.id = l.id AND o.tenant = $1 \
             AND o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 \
           JOIN laneway_control.endpoints e ON e.tenant_id = $1 AND e.endpoint_id = l.endpoint \
             AND e.state <> 'deleted' AND e.on_unknown = 'resend' \
           WHERE NOT EXISTS (SELECT FROM laneway_control.inbox i WHERE i.delivery_id = l.delivery) \
             AND NOT EXISTS (SELECT FROM laneway_control.parked_events p WHERE p.tenant_id = $1 \
               AND p.event_id = o.event_id AND p.delivery_id = l.delivery) \
             AND NOT EXISTS (SELECT FROM laneway_control.dead_letters d WHERE d.tenant_id = $1 \
               AND d.delivery_id = l.delivery) \
             AND NOT EXISTS (SELECT FROM laneway_control.attempts a WHERE a.delivery_id = l.delivery AND a.kind = 2 \
               AND a.status BETWEEN 200 AND 299) \
             AND NOT EXISTS (SELECT FROM laneway_control.repairs r WHERE r.delivery_id = l.delivery \
               AND r.times > l.times) \
           ORDER BY o.id RETURNING id, shard, xid, event_id, rewind), \
         noted AS (INSERT INTO laneway_control.repairs AS r (delivery_id, tenant_id, endpoint_id, event_id, shard, row_id, \
             xid) \
           SELECT (rewind ->> 'delivery')::uuid, $1, (rewind ->> 'endpoint')::uuid, event_id, shard, id, xid FROM new \
           ON CONFLICT (delivery_id) DO UPDATE SET shard = excluded.shard, row_id = excluded.row_id, \
             xid = excluded.xid, times = r.times + 1, repaired_at = now()), \
         told AS (INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
           SELECT $1, $6, 'delivery.republish', $9, jsonb_build_object('deliveries', \
             jsonb_agg(rewind ->> 'delivery' ORDER BY id)) FROM new HAVING count(*) > 0) \
         SELECT count(*) FILTER (WHERE (rewind ->> 'number')::int = 0), \
           count(*) FILTER (WHERE (rewind ->> 'number')::int > 0) FROM new",
    )
    .bind(tenant)
    .bind(&lost.deliveries)
    .bind(&lost.endpoints)
    .bind(&lost.rows)
    .bind(&lost.times)
    .bind(actor)
    .bind(i32::from(LaneMode::None.as_byte()))
    .bind(i32::from(LaneMode::User.as_byte()))
    .bind(TenantId::from_uuid(tenant).to_string())
    .fetch_one(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok((u64::try_from(first).unwrap_or(0), u64::try_from(again).unwrap_or(0)))
}
