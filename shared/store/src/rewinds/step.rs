//! One page of one command.

use super::{Action, Rewind, read};
use crate::dead_letters::{bind_selection, decode, selected};
use crate::delivery::value::stored;
use crate::erasures::erasure_keeps_out;
use crate::relay::{self, StoredRewind};
use crate::{Error, Pool};
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, Record};
use sqlx::{PgConnection, Row};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// Dead letters of a page, and rows of the log that one looks at.
const ROWS: i64 = 1_000;
/// Payload bytes of a page at most, and one row.
const BYTES: i64 = 8 * 1024 * 1024;
/// A command whose page was refused is left so long, in milliseconds: others have their turn.
const REFUSED_PAUSE: i64 = 30_000;

/// What one page came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The command as it is now.
    pub rewind: Rewind,
    /// Deliveries that it was done to in this page.
    pub done: u64,
}

/// What a page has done, and the last place that it has looked at; the end if there is none.
struct Page {
    done: u64,
    skipped: u64,
    position: Option<i64>,
}

/// Works off one page of the running command that was worked on least recently; `None` if there is none to be had.
/// Commands of one project come one after the other, so that what one sends again stays in its order, and none while
/// something of the project is being erased: what is copied in the middle of that would outlive it.
///
/// A page that fails did not happen. Its command says so ([`Rewind::error`]) and has its next turn behind all others; if
/// the same would come of it again, only after half a minute.
pub async fn rewind_step(pool: &Pool) -> Result<Option<Step>, Error> {
    let mut begun = None;
    let ended = step(pool, &mut begun).await;
    if let (Err(error), Some(rewind)) = (&ended, begun) {
        let pause = if error.is_transient() { 0 } else { REFUSED_PAUSE };
        // If this fails too, the database is away, and nobody is served by it.
        let _ = failed(pool, &rewind, &error.to_string(), pause).await;
    }
    ended
}

async fn failed(pool: &Pool, rewind: &Rewind, error: &str, pause: i64) -> Result<(), Error> {
    sqlx::query(
        "UPDATE laneway_control.rewinds SET error = $3, updated_at = clock_timestamp(), \
           retry_at = clock_timestamp() + $4 * interval '1 ms' \
         WHERE tenant_id = $1 AND rewind_id = $2 AND state = 'running'",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(error)
    .bind(pause)
    .execute(pool.inner())
    .await
    .map(|_| ())
    .map_err(Error::doing("writing down why a page failed"))
}

async fn step(pool: &Pool, begun: &mut Option<Rewind>) -> Result<Option<Step>, Error> {
    const DOING: &str = "working on a command";
    let mut transaction = pool.begin().await?;
    let row = sqlx::query(
        "SELECT r.* FROM laneway_control.rewinds r WHERE r.state = 'running' \
           AND (r.retry_at IS NULL OR r.retry_at <= now()) \
           AND NOT EXISTS (SELECT FROM laneway_control.erasures e WHERE e.tenant_id = r.tenant_id AND e.phase < 3) \
           AND NOT EXISTS ( \
           SELECT FROM laneway_control.rewinds o WHERE o.tenant_id = r.tenant_id AND o.state = 'running' \
             AND o.rewind_id < r.rewind_id) \
         ORDER BY r.updated_at LIMIT 1 FOR NO KEY UPDATE OF r SKIP LOCKED",
    )
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = row else { return Ok(None) };
    let found = read(&row)?;
    if erasure_keeps_out(&mut transaction, found.tenant).await? {
        return Ok(None);
    }
    let rewind = begun.insert(found);
    let bounds = || -> Result<(i64, i64), sqlx::Error> {
        Ok((row.try_get("position")?, row.try_get("until")?))
    };
    let (position, until) = bounds().map_err(Error::doing(DOING))?;
    let page = match rewind.action {
        Action::Rewind => rewind_page(&mut transaction, rewind, position, until).await?,
        Action::Discard => discard_page(&mut transaction, rewind, position, until).await?,
        Action::Replay => replay_page(&mut transaction, rewind, position, until).await?,
    };
    let row = sqlx::query(
        "UPDATE laneway_control.rewinds SET done = done + $3, skipped = skipped + $4, \
           position = coalesce($5, until), updated_at = clock_timestamp(), error = NULL, retry_at = NULL, \
           state = CASE WHEN $5 IS NULL THEN 'done' ELSE state END, \
           finished_at = CASE WHEN $5 IS NULL THEN clock_timestamp() END \
         WHERE tenant_id = $1 AND rewind_id = $2 RETURNING *",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(i64::try_from(page.done).unwrap_or(i64::MAX))
    .bind(i64::try_from(page.skipped).unwrap_or(i64::MAX))
    .bind(page.position)
    .fetch_one(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let rewind = read(&row)?;
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok(Some(Step { rewind, done: page.done }))
}

/// The next dead letters that are meant, not locked: (place, delivery), and whether they are the last.
async fn meant(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<(Vec<(i64, Uuid)>, bool), Error> {
    let query = sqlx::query_as(concat!(
        "WITH page AS MATERIALIZED (SELECT d.place, d.delivery_id, octet_length(d.record) AS bytes \
           FROM laneway_control.dead_letters d WHERE d.tenant_id = $1 AND ",
        selected!(),
        " AND d.state = 'open' AND d.place > $11 AND d.place <= $12 \
           AND ($10 OR EXISTS (SELECT FROM laneway_control.endpoints e \
             WHERE e.tenant_id = $1 AND e.endpoint_id = d.endpoint_id AND e.state <> 'deleted')) \
           ORDER BY d.place LIMIT $13), \
         sized AS (SELECT *, count(*) OVER () AS total, sum(bytes) OVER (ORDER BY place) - bytes AS before FROM page) \
         SELECT place, delivery_id, total FROM sized WHERE before <= $14 ORDER BY place"
    ))
    .bind(rewind.tenant.as_uuid());
    let rows: Vec<(i64, Uuid, i64)> = bind_selection!(query, &rewind.selection)
        .bind(rewind.action == Action::Discard)
        .bind(position)
        .bind(until)
        .bind(ROWS)
        .bind(if rewind.action == Action::Discard { i64::MAX } else { BYTES })
        .fetch_all(connection)
        .await
        .map_err(Error::doing("looking for dead letters of a command"))?;
    let total = rows.first().map_or(0, |(_, _, total)| *total);
    let last = total < ROWS && i64::try_from(rows.len()).is_ok_and(|found| found == total);
    Ok((rows.into_iter().map(|(place, delivery, _)| (place, delivery)).collect(), last))
}

/// A page's end: what was found, of which so many were done.
fn page(found: &[(i64, Uuid)], last: bool, done: usize) -> Page {
    let position = found.last().map(|(place, _)| *place).filter(|_| !last);
    Page { done: done as u64, skipped: (found.len() - done) as u64, position }
}

async fn discard_page(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<Page, Error> {
    let (found, last) = meant(connection, rewind, position, until).await?;
    let ids: Vec<Uuid> = found.iter().map(|(_, delivery)| *delivery).collect();
    let done = sqlx::query(
        "UPDATE laneway_control.dead_letters SET state = 'discarded', rewind_id = $2, closed_at = now() \
         WHERE tenant_id = $1 AND state = 'open' AND delivery_id = ANY($3)",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(ids)
    .execute(connection)
    .await
    .map_err(Error::doing("discarding dead letters"))?;
    Ok(page(&found, last, usize::try_from(done.rows_affected()).unwrap_or(found.len())))
}

async fn rewind_page(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<Page, Error> {
    const DOING: &str = "rewinding dead letters";
    let (found, last) = meant(connection, rewind, position, until).await?;
    let ids: Vec<Uuid> = found.iter().map(|(_, delivery)| *delivery).collect();
    // Looked at again under the lock: another command may have been first.
    let rows: Vec<Vec<u8>> = sqlx::query_scalar(
        "SELECT record FROM laneway_control.dead_letters \
         WHERE tenant_id = $1 AND state = 'open' AND delivery_id = ANY($2) ORDER BY place FOR NO KEY UPDATE",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(ids)
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    let records = rows.into_iter().map(decode).collect::<Result<Vec<Record>, _>>()?;
    if records.is_empty() {
        return Ok(page(&found, last, 0));
    }
    let originals: Vec<Original> =
        records.iter().map(|record| Original::of(&record.head)).collect();
    let new = repeat(connection, rewind, &originals).await?;
    let mut columns = Columns::default();
    for (record, new) in records.iter().zip(&new) {
        columns.push(record, new);
    }
    columns.write(connection, rewind).await?;
    sqlx::query(
        "UPDATE laneway_control.dead_letters d SET state = 'rewound', rewind_id = $2, rewound_to = n.new, \
           closed_at = now() FROM unnest($3::uuid[], $4::uuid[]) n(old, new) \
         WHERE d.tenant_id = $1 AND d.delivery_id = n.old",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(new.iter().map(|new| new.of.as_uuid()).collect::<Vec<_>>())
    .bind(new.iter().map(|new| new.delivery.as_uuid()).collect::<Vec<_>>())
    .execute(connection)
    .await
    .map_err(Error::doing(DOING))?;
    Ok(page(&found, last, records.len()))
}

/// A page of the log: its rows are looked at in the order of their ids, those of the project whose delivery to the
/// endpoint is settled as delivered are sent again. What waits or was given up comes on its own road.
async fn replay_page(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<Page, Error> {
    const DOING: &str = "reading the log for a replay";
    let Some(endpoint) = rewind.selection.endpoint else {
        return Ok(Page { done: 0, skipped: 0, position: None });
    };
    let rows: Vec<(i64, Uuid, bool, i64)> = sqlx::query_as(
        "SELECT o.id, o.event_id, o.tenant = $1 AND o.rewind IS NULL AND NOT o.erased AND ($5::text IS NULL OR o.type = $5 \
             OR (right($5, 2) = '.*' AND starts_with(o.type, left($5, -1)))), octet_length(o.payload)::bigint \
         FROM laneway.outbox o WHERE o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 \
           AND o.id > $2 AND o.id <= $3 AND o.created_at >= $4 ORDER BY o.id LIMIT $6",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(position)
    .bind(until)
    .bind(stored(rewind.selection.since.unwrap_or_default()))
    .bind(rewind.selection.event_type.as_deref())
    .bind(ROWS)
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    let first = |event| DeliveryId::first(EventId::from_uuid(event), endpoint);
    let ids: Vec<Uuid> =
        rows.iter().filter(|row| row.2).map(|row| first(row.1).as_uuid()).collect();
    let (low, high) = (ids.iter().min().copied(), ids.iter().max().copied());
    // The range is for the planner: it leaves out the inbox's partitions of other days.
    let delivered: Vec<Uuid> = sqlx::query_scalar(
        "SELECT i.delivery_id FROM laneway_control.inbox i \
         WHERE i.delivery_id = ANY($1) AND i.delivery_id BETWEEN $2 AND $3 AND i.tenant_id = $4 AND i.outcome = 1 \
           AND EXISTS (SELECT FROM laneway_control.endpoints e WHERE e.tenant_id = $4 AND e.endpoint_id = $5 \
             AND e.state <> 'deleted')",
    )
    .bind(&ids)
    .bind(low)
    .bind(high)
    .bind(rewind.tenant.as_uuid())
    .bind(endpoint.as_uuid())
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    let delivered: HashSet<Uuid> = delivered.into_iter().collect();
    // An event that stands twice in the log was sent once, and is so again, whatever page its repetition is in.
    let mut taken: HashSet<Uuid> = sqlx::query_scalar(
        "SELECT of_delivery FROM laneway_control.rewound WHERE rewind_id = $1 AND of_delivery = ANY($2)",
    )
    .bind(rewind.id.as_uuid())
    .bind(&ids)
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?
    .into_iter()
    .collect();
    let (mut wanted, mut originals, mut bytes, mut skipped) = (Vec::new(), Vec::new(), 0, 0);
    let mut end = (rows.len() as i64 == ROWS).then(|| rows.last().map_or(until, |row| row.0));
    for &(id, event, ours, size) in &rows {
        if !ours {
            continue;
        }
        let of = first(event);
        if !delivered.contains(&of.as_uuid()) || taken.contains(&of.as_uuid()) {
            skipped += 1;
            continue;
        }
        if bytes > BYTES {
            // The rest is another page's.
            end = Some(id - 1);
            break;
        }
        bytes += size;
        taken.insert(of.as_uuid());
        wanted.push(id);
        originals.push(Original { event: EventId::from_uuid(event), endpoint, of, mode: None });
    }
    let new = repeat(connection, rewind, &originals).await?;
    let rewinds: Vec<String> = new.iter().map(json).collect();
    sqlx::query(
        "INSERT INTO laneway.outbox (event_id, tenant, type, user_key, payload, content_type, headers, traceparent, \
           rewind) \
         SELECT o.event_id, o.tenant, o.type, o.user_key, o.payload, o.content_type, o.headers, o.traceparent, \
           n.rewind::jsonb || jsonb_build_object('mode', CASE WHEN o.user_key IS NULL THEN $4::int ELSE $5::int END) \
         FROM unnest($2::bigint[], $3::text[]) AS n (id, rewind) JOIN laneway.outbox o ON o.id = n.id \
           AND o.shard = get_byte(sha256(uuid_send($1::uuid)), 0) % 16 ORDER BY o.id",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(&wanted)
    .bind(&rewinds)
    .bind(i32::from(LaneMode::None.as_byte()))
    .bind(i32::from(LaneMode::User.as_byte()))
    .execute(&mut *connection)
    .await
    .map_err(Error::doing("writing a replay"))?;
    Ok(Page { done: new.len() as u64, skipped, position: end })
}

/// A delivery that is to be repeated.
struct Original {
    event: EventId,
    endpoint: EndpointId,
    of: DeliveryId,
    /// The mode of its lane, if it is known.
    mode: Option<LaneMode>,
}

impl Original {
    fn of(head: &laneway_wire::record::Head) -> Self {
        Self {
            event: head.event_id(),
            endpoint: head.endpoint_id(),
            of: head.delivery_id(),
            mode: Some(head.mode),
        }
    }
}

fn json(rewind: &relay::Rewind) -> String {
    serde_json::to_string(&StoredRewind::from(*rewind)).unwrap_or_default()
}

/// Gives each original its next number and the id that follows from it, and writes both down. The table's keys refuse
/// a number or an original that another command has taken meanwhile: the page is then made again.
async fn repeat(
    connection: &mut PgConnection,
    rewind: &Rewind,
    originals: &[Original],
) -> Result<Vec<relay::Rewind>, Error> {
    const DOING: &str = "numbering rewinds";
    if originals.is_empty() {
        return Ok(Vec::new());
    }
    let events: Vec<Uuid> = originals.iter().map(|original| original.event.as_uuid()).collect();
    let endpoints: Vec<Uuid> =
        originals.iter().map(|original| original.endpoint.as_uuid()).collect();
    let known: Vec<(Uuid, Uuid, i32)> = sqlx::query_as(
        "SELECT w.event_id, w.endpoint_id, max(w.number) FROM laneway_control.rewound w \
         WHERE w.tenant_id = $1 AND (w.event_id, w.endpoint_id) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[])) \
         GROUP BY w.event_id, w.endpoint_id",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(&events)
    .bind(&endpoints)
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    let mut numbers: HashMap<(Uuid, Uuid), u32> = known
        .into_iter()
        .map(|(event, endpoint, number)| ((event, endpoint), u32::try_from(number).unwrap_or(0)))
        .collect();
    let new: Vec<relay::Rewind> = originals
        .iter()
        .map(|original| {
            let key = (original.event.as_uuid(), original.endpoint.as_uuid());
            let number = numbers.entry(key).or_insert(0);
            *number += 1;
            let (event, endpoint) = (original.event, original.endpoint);
            let delivery = DeliveryId::derive(event, endpoint, *number, rewind.id.as_uuid());
            let mode = original.mode.unwrap_or(LaneMode::User);
            relay::Rewind { delivery, endpoint, mode, number: *number, of: original.of }
        })
        .collect();
    sqlx::query(
        "INSERT INTO laneway_control.rewound (tenant_id, event_id, endpoint_id, number, delivery_id, of_delivery, \
           rewind_id) \
         SELECT $1, n.event_id, n.endpoint_id, n.number, n.delivery_id, n.of_delivery, $2 \
         FROM unnest($3::uuid[], $4::uuid[], $5::int[], $6::uuid[], $7::uuid[]) \
           n(event_id, endpoint_id, number, delivery_id, of_delivery)",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(&events)
    .bind(&endpoints)
    .bind(new.iter().map(|new| i32::try_from(new.number).unwrap_or(i32::MAX)).collect::<Vec<_>>())
    .bind(new.iter().map(|new| new.delivery.as_uuid()).collect::<Vec<_>>())
    .bind(new.iter().map(|new| new.of.as_uuid()).collect::<Vec<_>>())
    .execute(connection)
    .await
    .map_err(Error::doing(DOING))?;
    Ok(new)
}

/// Rows of the outbox, for one statement.
#[derive(Default)]
struct Columns<'a> {
    events: Vec<Uuid>,
    types: Vec<&'a str>,
    user_keys: Vec<Option<&'a str>>,
    payloads: Vec<&'a [u8]>,
    content_types: Vec<&'a str>,
    headers: Vec<Option<String>>,
    traceparents: Vec<Option<&'a str>>,
    rewinds: Vec<String>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, record: &'a Record, rewind: &relay::Rewind) {
        let head = &record.head;
        let headers: serde_json::Map<String, serde_json::Value> = head
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        self.events.push(head.event);
        self.types.push(&head.event_type);
        self.user_keys.push(head.user_key.as_deref());
        self.payloads.push(&record.payload);
        self.content_types.push(&head.content_type);
        self.headers
            .push((!headers.is_empty()).then(|| serde_json::Value::Object(headers).to_string()));
        self.traceparents.push(head.traceparent.as_deref());
        self.rewinds.push(json(rewind));
    }

    async fn write(&self, connection: &mut PgConnection, rewind: &Rewind) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO laneway.outbox (event_id, tenant, type, user_key, payload, content_type, headers, \
               traceparent, rewind) \
             SELECT n.event, $1, n.type, n.user_key, n.payload, n.content_type, n.headers::jsonb, n.traceparent, \
               n.rewind::jsonb \
             FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[], \
               $9::text[]) WITH ORDINALITY \
               AS n (event, type, user_key, payload, content_type, headers, traceparent, rewind, place) \
             ORDER BY n.place",
        )
        .bind(rewind.tenant.as_uuid())
        .bind(&self.events)
        .bind(&self.types)
        .bind(&self.user_keys)
        .bind(&self.payloads)
        .bind(&self.content_types)
        .bind(&self.headers)
        .bind(&self.traceparents)
        .bind(&self.rewinds)
        .execute(connection)
        .await
        .map_err(Error::doing("writing rewinds into the outbox"))?;
        Ok(())
    }
}
