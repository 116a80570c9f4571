//! Looks for what is over, or meant, go by an index on tables that are full (no walk over what is open), each of which
//! costs nothing where events flow.

use crate::world::{LIMIT, World};
use laneway_store::audit::{Scope, audit};
use laneway_store::erasures::{erasure_create, erasure_step};
use laneway_store::idempotency::{Answer, Work};
use laneway_store::lookups::lookups_find;
use laneway_store::retention::{Kind, inbox_day_remove, inbox_default_step, retention_step};
use laneway_testkit::{sql, wait_for};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// An endpoint that asks; 20,000 rows of each kind, none of which is old.
const FULL: &str = "\
UPDATE laneway_control.endpoints SET on_unknown = 'lookup'; \
INSERT INTO laneway_control.authorities (tenant_id, endpoint_id, url, method) \
  SELECT tenant_id, endpoint_id, 'x', 'GET' FROM laneway_control.endpoints; \
INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, event_type, reason, \
    attempts, record, first_held, state, closed_at) \
  SELECT tenant_id, gen_random_uuid(), gen_random_uuid(), endpoint_id, '', 'a', 'rejected', 1, '\\x01000000077b2261223a317d', now(), \
    CASE n % 2 WHEN 0 THEN 'open' ELSE 'discarded' END, CASE n % 2 WHEN 1 THEN now() END \
  FROM laneway_control.endpoints, generate_series(1, 20000) n; \
INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor, applied_at) \
  SELECT tenant_id, gen_random_uuid(), '', 0, 'delivered', 'r', 'a', now() \
  FROM laneway_control.endpoints, generate_series(1, 20000) n; \
INSERT INTO laneway_control.rewinds (tenant_id, rewind_id, action, selection, reason, actor, state, matched, position, \
    until, finished_at) \
  SELECT tenant_id, gen_random_uuid(), 'rewind', '{}', 'r', 'a', 'done', 0, 0, 0, now() \
  FROM laneway_control.endpoints, generate_series(1, 20000) n; \
INSERT INTO laneway_control.erasures (tenant_id, erasure_id, reason, actor, before, phase, finished_at) \
  SELECT tenant_id, gen_random_uuid(), 'r', 'a', now(), 3, now() \
  FROM laneway_control.endpoints, generate_series(1, 20000) n; \
INSERT INTO laneway_control.quarantine (generation, partition, log_offset, reason, raw, raw_bytes) \
  SELECT 1, 0, n, 'empty', decode(repeat('00', 200), 'hex'), 200 FROM generate_series(1, 20000) n; \
INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
  SELECT gen_random_uuid(), tenant_id, endpoint_id, gen_random_uuid(), 1, 1, 5 \
  FROM laneway_control.endpoints, generate_series(1, 20000) n; \
INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
  SELECT laneway.uuid_v7(), tenant_id, endpoint_id, gen_random_uuid(), 1 + (n % 100 = 0)::int, 1, 5 \
  FROM laneway_control.endpoints, generate_series(1, 20000) n; \
INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, reason, due, \
    head_held, unknown, unknown_since) \
  SELECT substring(sha256(n::text::bytea) FROM 1 FOR 16), n % 1024, 0, \
    CASE n % 100 WHEN 0 THEN tenant_id ELSE gen_random_uuid() END, endpoint_id, 1, 'k' || n, 'retry', now(), now(), \
    n % 2 = 0, CASE n % 2 WHEN 0 THEN now() - interval '1 h' END \
  FROM laneway_control.endpoints, generate_series(1, 20000) n; \
INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, tenant_id, \
    endpoint_id, event_id, first_held, record) \
  SELECT bucket, laneway.uuid_v7(), lane, 1, 0, 1, tenant_id, endpoint_id, gen_random_uuid(), now(), '\\x01000000077b2261223a317d' \
  FROM laneway_control.parked_lanes; ";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_or_meant_is_found_by_an_index_in_full_tables() {
    let world = World::new().await;
    sql(&world.url, "SELECT laneway_control.inbox_make_partitions(20, 1)").await.unwrap();
    sql(&world.url, FULL).await.unwrap();
    sql(&world.url, "VACUUM (ANALYZE)").await.unwrap();
    let parked = "SELECT seq_scan::text FROM pg_stat_user_tables WHERE relname = 'parked_events'";
    let before = world.value(parked).await;
    for kind in Kind::ALL {
        assert_eq!(retention_step(&world.pool, kind, 10 * DAY).await.unwrap(), 0);
    }
    assert_eq!(inbox_default_step(&world.pool, 10 * DAY).await.unwrap(), 0);
    let days = laneway_store::retention::inbox_days_expired(&world.pool, 10 * DAY).await.unwrap();
    assert!(inbox_day_remove(&world.pool, days[0], 10 * DAY).await.unwrap());
    let used = "SELECT coalesce(string_agg(i.relname, ' ' ORDER BY i.relname), '') FROM ( \
        SELECT coalesce(p.inhparent::regclass::text, s.indexrelid::regclass::text) AS relname \
        FROM pg_stat_user_indexes s LEFT JOIN pg_inherits p ON p.inhrelid = s.indexrelid \
        GROUP BY 1 HAVING sum(s.idx_scan) > 0) i WHERE i.relname IN ( \
          'laneway_control.dead_letters_closed', 'laneway_control.commands_applied', 'laneway_control.rewinds_finished', \
          'laneway_control.erasures_finished', 'laneway_control.quarantine_created', \
          'laneway_control.inbox_default_settled')";
    let wanted = "laneway_control.commands_applied laneway_control.dead_letters_closed \
                  laneway_control.erasures_finished laneway_control.inbox_default_settled \
                  laneway_control.quarantine_created laneway_control.rewinds_finished";
    wait_for("the use of every index", LIMIT, || async {
        let used = world.value(used).await;
        used == wanted || {
            eprintln!("used: {used}");
            false
        }
    })
    .await;
    assert_eq!(world.value(parked).await, before, "parked events are not walked over");

    let scope = Scope { window: 3 * DAY, settled: Duration::from_secs(600) };
    audit(&world.pool, scope).await.unwrap().unwrap();
    by_index(&world, "inbox_given_up").await;

    let mut work = Work::begin(&world.pool, world.tenant).await.unwrap();
    erasure_create(&mut work, Some("k100"), "r", "ann").await.unwrap();
    work.commit(&Answer { status: 200, body: vec![] }, None).await.unwrap();
    let lanes = "SELECT count(*)::text FROM laneway_control.commands WHERE verdict = 'erase'";
    wait_for("a lane that is told", LIMIT, || async {
        erasure_step(&world.pool).await.unwrap();
        world.value(lanes).await != "0"
    })
    .await;
    by_index(&world, "parked_lanes_user").await;

    let minute = Some(Duration::from_secs(60));
    lookups_find(&world.pool, Duration::ZERO, minute).await.unwrap();
    by_index(&world, "parked_lanes_unknown_since").await;
}

/// Waits until an index, or one of its partitions', was used.
async fn by_index(world: &World, index: &str) {
    let used = format!(
        "SELECT (coalesce(sum(s.idx_scan), 0) > 0)::text FROM pg_stat_user_indexes s \
         LEFT JOIN pg_inherits p ON p.inhrelid = s.indexrelid \
         WHERE coalesce(p.inhparent, s.indexrelid) = 'laneway_control.{index}'::regclass"
    );
    wait_for(index, LIMIT, || async { world.value(&used).await == "true" }).await;
}
