//! One step of one erasure: a page of a sweep, or a look at what is waited for.

use super::{Erasure, dead_meant, parked_meant, read, written_before};
use crate::delivery::value::stored;
use crate::{Error, Pool};
use bytes::Bytes;
use laneway_wire::Record;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// Dead letters of a page, results of a page, and commands to lanes that wait at a time.
const ROWS: i64 = 1_000;
/// Attempts and rows of the outbox that a page looks at.
const LOOKED_AT: i64 = 5_000;
/// Between two looks at what is waited for, in milliseconds: the first ones, and those of an erasure that has waited for
/// more than some minutes.
const PAUSE: i64 = 500;
const LONG_PAUSE: i64 = 10_000;
/// Between the two the pause is so much of the erasure's age.
const PATIENCE: f64 = 0.05;

/// Phases of an erasure.
const WAITING: i16 = 1;
const DONE: i16 = 3;

/// Where an erasure stands.
struct Place {
    erasure: Erasure,
    phase: i16,
    /// Of a sweep: attempts up to this delivery are done.
    attempts: Option<Uuid>,
    /// Rows of the outbox up to this one are done.
    row: i64,
}

/// Works off one step of the erasure that was worked on least recently; `None` if there is none to be had now.
pub async fn erasure_step(pool: &Pool) -> Result<Option<Erasure>, Error> {
    const DOING: &str = "working on an erasure";
    let mut transaction = pool.begin().await?;
    let row = sqlx::query(
        "SELECT * FROM laneway_control.erasures WHERE phase < 3 AND retry_at <= now() \
         ORDER BY updated_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED",
    )
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = row else { return Ok(None) };
    let erasure = read(&row)?;
    let place = || -> Result<(i16, Option<Uuid>, i64), sqlx::Error> {
        Ok((row.try_get("phase")?, row.try_get("place")?, row.try_get("row_id")?))
    };
    let (phase, attempts, last) = place().map_err(Error::doing(DOING))?;
    let place = Place { erasure, phase, attempts, row: last };
    let erasure = if phase == WAITING {
        wait(&mut transaction, &place).await?
    } else {
        sweep(&mut transaction, &place).await?
    };
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok(Some(erasure))
}

/// A page of dead letters, or else of results, or else of attempts; after the last the next phase begins.
async fn sweep(connection: &mut PgConnection, place: &Place) -> Result<Erasure, Error> {
    let erasure = &place.erasure;
    let (dead, unreadable) = dead_letters(connection, erasure).await?;
    let (mut results, mut bodies, mut next) = (0, 0, place.attempts);
    let mut phase = place.phase;
    if dead == 0 {
        results = match erasure.user_key {
            // The answer to a posted event is its id, and nothing of what was posted.
            Some(_) => 0,
            None => self::results(connection, erasure).await?,
        };
    }
    if dead == 0 && results == 0 {
        let page = attempts(connection, place).await?;
        (bodies, next) = (page.0, page.1);
        if next.is_none() {
            phase += 1;
        }
    }
    let row = sqlx::query(
        "WITH e AS (UPDATE laneway_control.erasures SET phase = $3, place = $4, dead_letters = dead_letters + $5, \
             results = results + $6, attempts = attempts + $7, unreadable = unreadable + $10, updated_at = clock_timestamp(), waits = NULL, \
             finished_at = CASE WHEN $3 = $8 THEN clock_timestamp() END \
           WHERE tenant_id = $1 AND erasure_id = $2 RETURNING *), \
         told AS (INSERT INTO laneway_control.audit_log (tenant_id, actor, action, object, detail) \
           SELECT tenant_id, actor, 'erasure.done', $9, jsonb_build_object('reason', reason, 'userKey', user_key, \
             'before', before, 'rows', rows_erased, 'deadLetters', dead_letters, 'attempts', attempts, 'results', results, 'unreadable', unreadable) \
           FROM e WHERE phase = $8) \
         SELECT * FROM e",
    )
    .bind(erasure.tenant.as_uuid())
    .bind(erasure.id.as_uuid())
    .bind(phase)
    .bind(next)
    .bind(dead)
    .bind(results)
    .bind(bodies)
    .bind(DONE)
    .bind(erasure.tenant.to_string())
    .bind(unreadable)
    .fetch_one(connection)
    .await
    .map_err(Error::doing("noting a step of an erasure"))?;
    read(&row)
}

/// Dead letters keep who they were for and why they were given up; an open one is closed. How many, and of how many
/// nothing could be read.
async fn dead_letters(
    connection: &mut PgConnection,
    erasure: &Erasure,
) -> Result<(i64, i64), Error> {
    const DOING: &str = "erasing dead letters";
    let found: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(concat!(
        "WITH events AS (SELECT event_id FROM laneway_control.erasure_events WHERE erasure_id = $5), \
         page AS MATERIALIZED (SELECT * FROM (",
        dead_meant!("events"),
        ") m LIMIT $4) \
         SELECT d.delivery_id, laneway_control.record_head(d.record) FROM page \
         JOIN laneway_control.dead_letters d ON d.tenant_id = $1 AND d.delivery_id = page.delivery_id \
         ORDER BY d.place FOR NO KEY UPDATE OF d"
    ))
    .bind(erasure.tenant.as_uuid())
    .bind(erasure.user_key.as_deref())
    .bind(stored(erasure.before))
    .bind(ROWS)
    .bind(erasure.id.as_uuid())
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    let (mut ids, mut records, mut unreadable) = (Vec::with_capacity(found.len()), Vec::new(), 0);
    for (id, head) in found {
        ids.push(id);
        // What cannot be read cannot be told from what was said: nothing of it stays.
        records.push(match Record::decode(&Bytes::from(head)) {
            Ok(record) => record.erased().encode().to_vec(),
            Err(_) => {
                unreadable += 1;
                Vec::new()
            }
        });
    }
    let done = sqlx::query(
        "UPDATE laneway_control.dead_letters d SET record = n.record, erased_at = now(), \
           state = CASE d.state WHEN 'open' THEN 'erased' ELSE d.state END, closed_at = coalesce(d.closed_at, now()) \
         FROM unnest($2::uuid[], $3::bytea[]) n(delivery_id, record) \
         WHERE d.tenant_id = $1 AND d.delivery_id = n.delivery_id",
    )
    .bind(erasure.tenant.as_uuid())
    .bind(&ids)
    .bind(&records)
    .execute(connection)
    .await
    .map_err(Error::doing(DOING))?;
    Ok((i64::try_from(done.rows_affected()).unwrap_or(i64::MAX), unreadable))
}

/// Keys stay used (P12); what was answered is forgotten, and a repeated request is told so.
async fn results(connection: &mut PgConnection, erasure: &Erasure) -> Result<i64, Error> {
    const ERASED: &[u8] = br#"{"type":"/problems/erased","title":"What was answered is erased","status":410,"detail":"the request was done once and is not done again","code":"erased"}"#;
    let done = sqlx::query(
        "UPDATE laneway_control.idempotency_keys SET status = 410, body = $3, sealed = false WHERE ctid = ANY (ARRAY( \
           SELECT ctid FROM laneway_control.idempotency_keys \
           WHERE tenant_id = $1 AND created_at < $2 AND body <> $3 LIMIT $4))",
    )
    .bind(erasure.tenant.as_uuid())
    .bind(stored(erasure.before))
    .bind(ERASED)
    .bind(ROWS)
    .execute(connection)
    .await
    .map_err(Error::doing("erasing results"))?;
    Ok(i64::try_from(done.rows_affected()).unwrap_or(i64::MAX))
}

/// A page of attempts loses its bodies: how many, and where the next begins. Whose a settled delivery was is not kept as
/// long as its attempts: for one user key, all go but those of deliveries that wait or are kept as dead letters, which by
/// the second sweep are others'.
async fn attempts(
    connection: &mut PgConnection,
    place: &Place,
) -> Result<(i64, Option<Uuid>), Error> {
    macro_rules! page {
        ($also:literal) => {
            concat!(
                "WITH page AS MATERIALIZED (SELECT max(delivery_id::text)::uuid AS last, count(*) AS looked FROM ( \
                     SELECT delivery_id FROM laneway_control.attempts WHERE delivery_id > $2 \
                     ORDER BY delivery_id LIMIT $3) p), \
                 parked AS MATERIALIZED (SELECT p.id FROM page, \
                   laneway_control.parked_between($2, page.last) AS p (id)), \
                 gone AS (UPDATE laneway_control.attempts a SET body = NULL FROM page \
                   WHERE a.delivery_id > $2 AND a.delivery_id <= page.last AND a.tenant_id = $1 AND a.body IS NOT NULL ",
                $also,
                " RETURNING 1) \
                 SELECT (SELECT count(*) FROM gone), CASE WHEN looked = $3 THEN last END FROM page"
            )
        };
    }
    let statement = match place.erasure.user_key {
        None => page!(""),
        Some(_) => page!(
            "AND NOT EXISTS (SELECT FROM laneway_control.dead_letters d WHERE d.tenant_id = a.tenant_id \
               AND d.delivery_id = a.delivery_id AND d.erased_at IS NULL) \
             AND NOT EXISTS (SELECT FROM parked p WHERE p.id = a.delivery_id)"
        ),
    };
    sqlx::query_as(statement)
        .bind(place.erasure.tenant.as_uuid())
        .bind(place.attempts.unwrap_or_default())
        .bind(LOOKED_AT)
        .fetch_one(connection)
        .await
        .map_err(Error::doing("erasing answers' bodies"))
}

/// Rows that are published lose their payload, lanes are told, and what is still waited for is noted.
async fn wait(connection: &mut PgConnection, place: &Place) -> Result<Erasure, Error> {
    const DOING: &str = "looking what an erasure waits for";
    let erasure = &place.erasure;
    let tenant = erasure.tenant.as_uuid();
    // Whoever has written before the moment began before a snapshot that was taken after it: when all in it have ended,
    // every row is visible, and reading by ids misses none.
    let writers: bool = sqlx::query_scalar(
        "UPDATE laneway_control.erasures SET \
           snapshot = coalesce(snapshot, CASE WHEN now() >= before THEN pg_current_snapshot() END) \
         WHERE tenant_id = $1 AND erasure_id = $2 \
         RETURNING snapshot IS NULL OR pg_snapshot_xmin(pg_current_snapshot()) < pg_snapshot_xmax(snapshot)",
    )
    .bind(tenant)
    .bind(erasure.id.as_uuid())
    .fetch_one(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    if writers {
        return note(connection, place, Some("writers"), (0, place.row), false).await;
    }
    let page = outbox(connection, place).await?;
    lanes(connection, erasure).await?;
    if page.more {
        return note(connection, place, Some("relay"), (page.erased, page.row), true).await;
    }
    let waits: Option<&'static str> = if page.unpublished || behind(connection, erasure).await? {
        Some("relay")
    } else if unpassed(connection, erasure).await? {
        Some("deliver")
    } else {
        let parked: bool = sqlx::query_scalar(concat!(
            "WITH events AS (SELECT event_id FROM laneway_control.erasure_events WHERE erasure_id = $4) \
             SELECT EXISTS (",
            parked_meant!("events"),
            ")"
        ))
        .bind(tenant)
        .bind(erasure.user_key.as_deref())
        .bind(stored(erasure.before))
        .bind(erasure.id.as_uuid())
        .fetch_one(&mut *connection)
        .await
        .map_err(Error::doing(DOING))?;
        parked.then_some("lanes")
    };
    note(connection, place, waits, (page.erased, page.row), false).await
}

struct Page {
    erased: i64,
    /// Rows up to this one are done.
    row: i64,
    /// The page was full.
    more: bool,
    /// A row is not published, or held by the relay.
    unpublished: bool,
}

/// A page of the outbox: rows that the relay's cursor has passed and does not hold. The relay tells rows by their stored
/// `xid`, which an UPDATE does not change. The events of a user key are noted, those included that are erased already.
async fn outbox(connection: &mut PgConnection, place: &Place) -> Result<Page, Error> {
    let (erased, looked, last, stop): (i64, i64, Option<i64>, Option<i64>) = sqlx::query_as(
        "WITH page AS MATERIALIZED (SELECT o.id, o.created_at, o.event_id, o.tenant = $1 AND o.user_key = $2 AS said, \
             o.tenant = $1 AND ($2::text IS NULL OR o.user_key = $2) AND NOT o.erased AS meant, \
             CASE WHEN c.s1 IS NULL THEN o.id <= c.floor_id AND o.id <= c.last_id \
               ELSE o.id <= c.floor_id OR pg_visible_in_snapshot(o.xid, c.s1) \
                 OR pg_visible_in_snapshot(o.xid, c.s2) AND o.id <= c.last_id END \
             AND NOT EXISTS (SELECT FROM laneway.relay_held h \
               WHERE h.shard = o.shard AND h.row_id = o.id AND h.left_entry IS NULL) AS published \
           FROM laneway.outbox o JOIN laneway.relay_cursors c USING (shard) \
           WHERE o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 AND o.id > $3 AND o.created_at < $4 \
           ORDER BY o.id LIMIT $5), \
         gone AS (UPDATE laneway.outbox o SET payload = '', headers = NULL, erased = true FROM page p \
           WHERE o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 AND o.id = p.id \
             AND o.created_at = p.created_at AND p.meant AND p.published RETURNING 1), \
         noted AS (INSERT INTO laneway_control.erasure_events (erasure_id, event_id) \
           SELECT DISTINCT $6::uuid, event_id FROM page WHERE said ON CONFLICT DO NOTHING) \
         SELECT (SELECT count(*) FROM gone), count(*), max(id), min(id) FILTER (WHERE meant AND NOT published) FROM page",
    )
    .bind(place.erasure.tenant.as_uuid())
    .bind(place.erasure.user_key.as_deref())
    .bind(place.row)
    .bind(stored(place.erasure.before))
    .bind(LOOKED_AT)
    .bind(place.erasure.id.as_uuid())
    .fetch_one(connection)
    .await
    .map_err(Error::doing("erasing rows of the outbox"))?;
    let row = stop.map(|id| id - 1).or(last).unwrap_or(place.row);
    Ok(Page {
        erased,
        row,
        more: looked == LOOKED_AT && stop.is_none(),
        unpublished: stop.is_some(),
    })
}

/// Whether the project's shard has still to look at a loss of the log: it may go back to rows that were published.
async fn behind(connection: &mut PgConnection, erasure: &Erasure) -> Result<bool, Error> {
    sqlx::query_scalar(
        "SELECT c.generation < (SELECT coalesce(max(generation), 0) FROM laneway_control.topic_generations) \
         FROM laneway.relay_cursors c WHERE c.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16",
    )
    .bind(erasure.tenant.as_uuid())
    .fetch_one(connection)
    .await
    .map_err(Error::doing("looking for a lost log"))
}

/// Whether an owner has not passed what had been published when all rows were. The marks are noted at the first look.
async fn unpassed(connection: &mut PgConnection, erasure: &Erasure) -> Result<bool, Error> {
    const DOING: &str = "comparing positions with marks";
    sqlx::query(
        "UPDATE laneway_control.erasures SET generation = g.generation, \
           marks = (SELECT coalesce(jsonb_object_agg(m.partition, m.acked), '{}') FROM laneway_control.topic_marks m \
             WHERE m.generation = g.generation) \
         FROM (SELECT max(generation) AS generation FROM laneway_control.topic_generations) g \
         WHERE tenant_id = $1 AND erasure_id = $2 AND g.generation IS DISTINCT FROM erasures.generation",
    )
    .bind(erasure.tenant.as_uuid())
    .bind(erasure.id.as_uuid())
    .execute(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM laneway_control.erasures e CROSS JOIN LATERAL jsonb_each_text(e.marks) m \
         LEFT JOIN laneway_control.partition_owners w ON w.generation = e.generation AND w.partition = m.key::int \
         WHERE e.tenant_id = $1 AND e.erasure_id = $2 AND m.value::bigint >= coalesce(w.next_offset, 0))",
    )
    .bind(erasure.tenant.as_uuid())
    .bind(erasure.id.as_uuid())
    .fetch_one(connection)
    .await
    .map_err(Error::doing(DOING))
}

/// Tells the owners of parked lanes whose head is meant; so many at a time as they take in a while. What an earlier
/// erasure told them counts as far as it reaches.
async fn lanes(connection: &mut PgConnection, erasure: &Erasure) -> Result<(), Error> {
    sqlx::query(concat!(
        "WITH heads AS (SELECT l.lane, l.bucket, e.delivery_id FROM laneway_control.parked_lanes l \
             CROSS JOIN LATERAL (SELECT * FROM laneway_control.parked_events e \
               WHERE e.lane = l.lane ORDER BY e.generation, e.moves, e.log_offset LIMIT 1) e \
             WHERE l.tenant_id = $1 AND ($2::text IS NULL OR l.user_key = $2) AND ",
        written_before!("e"),
        " UNION ALL SELECT l.lane, l.bucket, e.delivery_id FROM laneway_control.erasure_events x \
             JOIN laneway_control.parked_events e ON e.tenant_id = $1 AND e.event_id = x.event_id \
             JOIN laneway_control.parked_lanes l ON l.lane = e.lane AND l.user_key IS NULL \
             WHERE x.erasure_id = $7 AND $2::text IS NOT NULL AND ",
        written_before!("e"),
        " AND NOT EXISTS (SELECT FROM laneway_control.parked_events b WHERE b.lane = e.lane \
                 AND (b.generation, b.moves, b.log_offset) < (e.generation, e.moves, e.log_offset))) \
         INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, before, reason, actor) \
         SELECT $1, l.delivery_id, l.lane, l.bucket, 'erase', $3, $4, $5 FROM heads l \
         WHERE NOT EXISTS (SELECT FROM laneway_control.commands c WHERE c.bucket = l.bucket AND c.lane = l.lane \
             AND c.verdict = 'erase' AND c.applied_at IS NULL AND c.before >= $3) \
         LIMIT greatest(0, $6 - (SELECT count(*) FROM laneway_control.commands c \
           WHERE c.applied_at IS NULL AND c.verdict = 'erase'))"
    ))
    .bind(erasure.tenant.as_uuid())
    .bind(erasure.user_key.as_deref())
    .bind(stored(erasure.before))
    .bind(&erasure.reason)
    .bind(&erasure.actor)
    .bind(ROWS)
    .bind(erasure.id.as_uuid())
    .execute(connection)
    .await
    .map_err(Error::doing("telling owners of lanes to erase"))?;
    Ok(())
}

/// Notes what is waited for and what of the outbox is done; with nothing to wait for, the second sweep begins.
async fn note(
    connection: &mut PgConnection,
    place: &Place,
    waits: Option<&'static str>,
    (erased, row): (i64, i64),
    at_once: bool,
) -> Result<Erasure, Error> {
    let row = sqlx::query(
        "UPDATE laneway_control.erasures SET waits = $3, rows_erased = rows_erased + $4, row_id = $5, \
           phase = CASE WHEN $3::text IS NULL THEN phase + 1 ELSE phase END, place = NULL, \
           updated_at = clock_timestamp(), retry_at = clock_timestamp() + CASE WHEN $6 THEN interval '0' \
             ELSE greatest($7 * interval '1 ms', least($8 * interval '1 ms', $9 * (now() - created_at))) END \
         WHERE tenant_id = $1 AND erasure_id = $2 RETURNING *",
    )
    .bind(place.erasure.tenant.as_uuid())
    .bind(place.erasure.id.as_uuid())
    .bind(waits)
    .bind(erased)
    .bind(row)
    .bind(at_once || waits.is_none())
    .bind(PAUSE)
    .bind(LONG_PAUSE)
    .bind(PATIENCE)
    .fetch_one(connection)
    .await
    .map_err(Error::doing("noting what an erasure waits for"))?;
    read(&row)
}
