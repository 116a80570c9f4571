//! One page of one command.

use super::copy::{Original, json, note, number, write};
use super::{Action, Rewind, columns, read};
use crate::dead_letters::{bind_selection, meant};
use crate::delivery::value::stored;
use crate::erasures::erasure_keeps_out;
use crate::{Error, Pool};
use bytes::Bytes;
use laneway_lane::rewind::{self, Found};
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, Record, TenantId};
use sqlx::{PgConnection, Row};
use std::collections::HashSet;
use uuid::Uuid;

/// Deliveries to one endpoint that were sent again and have no outcome, at most: commands stand in front of nobody
/// (design section 4). A command whose next page could exceed it waits until as many are settled.
pub const MAX_UNSETTLED: i64 = 10_000;
/// Dead letters of a page, and rows of the log that one looks at.
const ROWS: i64 = 1_000;
/// Payload bytes of a page at most, and one row.
const BYTES: i64 = 8 * 1024 * 1024;
/// A command whose page was refused is left so long, in milliseconds: others have their turn.
const REFUSED_PAUSE: i64 = 30_000;
/// Between two looks at what is not settled, in milliseconds.
const WAITING_PAUSE: i64 = 500;

/// What one page came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The command as it is now.
    pub rewind: Rewind,
    /// Deliveries that it was done to in this page.
    pub done: u64,
}

/// What a page has done, and the last place that it has looked at; the end if there is none.
#[derive(Default)]
struct Page {
    done: u64,
    skipped: u64,
    aside: Aside,
    position: Option<i64>,
}

/// Dead letters that cannot be sent again.
#[derive(Default)]
struct Aside {
    count: u64,
    /// The first, and why.
    example: Option<String>,
}

impl Aside {
    fn push(&mut self, delivery: Uuid, why: &str) {
        self.count += 1;
        let example = || format!("{}: {why}", DeliveryId::from_uuid(delivery));
        self.example.get_or_insert_with(example);
    }
}

/// What became of a look for work.
enum Turn {
    Page(Box<Step>),
    /// A command was found that has to wait.
    Waits,
    Nothing,
}

/// Works off one page of the running command that was worked on least recently; `None` if there is none to be had.
/// Commands of one project come one after the other, so that what one sends again stays in its order, and none while
/// something of the project is being erased: what is copied in the middle of that would outlive it.
///
/// A page that fails did not happen. Its command says so ([`Rewind::error`]) and has its next turn behind all others; if
/// the same would come of it again, only after half a minute. A dead letter that cannot be sent again is set aside and
/// fails no page ([`Rewind::set_aside`]). No page is made for an endpoint of which [`MAX_UNSETTLED`] would be exceeded.
pub async fn rewind_step(pool: &Pool) -> Result<Option<Step>, Error> {
    // One that waits is left for a while: this comes to an end.
    loop {
        let mut begun = None;
        match step(pool, &mut begun).await {
            Ok(Turn::Page(step)) => return Ok(Some(*step)),
            Ok(Turn::Waits) => {}
            Ok(Turn::Nothing) => return Ok(None),
            Err(error) => {
                if let Some(rewind) = begun {
                    let pause = if error.is_transient() { 0 } else { REFUSED_PAUSE };
                    // If this fails too, the database is away, and nobody is served by it.
                    let key = (rewind.tenant.as_uuid(), rewind.id.as_uuid());
                    let _ = failed(pool, key, &error.told(), pause).await;
                }
                return Err(error);
            }
        }
    }
}

async fn failed(
    pool: &Pool,
    (tenant, rewind): (Uuid, Uuid),
    error: &str,
    pause: i64,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE laneway_control.rewinds SET error = $3, waits = NULL, updated_at = clock_timestamp(), \
           retry_at = clock_timestamp() + $4 * interval '1 ms' \
         WHERE tenant_id = $1 AND rewind_id = $2 AND state = 'running'",
    )
    .bind(tenant)
    .bind(rewind)
    .bind(error)
    .bind(pause)
    .execute(pool.inner())
    .await
    .map(|_| ())
    .map_err(Error::doing("writing down why a page failed"))
}

async fn step(pool: &Pool, begun: &mut Option<Rewind>) -> Result<Turn, Error> {
    const DOING: &str = "working on a command";
    let mut transaction = pool.begin().await?;
    let row = sqlx::query(concat!(
        "SELECT ",
        columns!(),
        " FROM laneway_control.rewinds r WHERE r.state = 'running' \
           AND (r.retry_at IS NULL OR r.retry_at <= now()) \
           AND NOT EXISTS (SELECT FROM laneway_control.erasures e WHERE e.tenant_id = r.tenant_id AND e.phase < 3) \
           AND NOT EXISTS ( \
           SELECT FROM laneway_control.rewinds o WHERE o.tenant_id = r.tenant_id AND o.state = 'running' \
             AND o.rewind_id < r.rewind_id) \
         ORDER BY r.updated_at LIMIT 1 FOR NO KEY UPDATE OF r SKIP LOCKED"
    ))
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = row else { return Ok(Turn::Nothing) };
    let found = match read(&row) {
        Ok(found) => found,
        // Nobody can work on it, and it must not be the next one for ever.
        Err(error) => {
            let key = || -> Result<(Uuid, Uuid), sqlx::Error> {
                Ok((row.try_get("tenant_id")?, row.try_get("rewind_id")?))
            };
            let (tenant, id) = key().map_err(Error::doing(DOING))?;
            tracing::error!(%tenant, rewind = %id, %error, "a command cannot be read and is left");
            transaction.commit().await.map_err(Error::doing(DOING))?;
            failed(pool, (tenant, id), "the command cannot be read", REFUSED_PAUSE).await?;
            return Ok(Turn::Waits);
        }
    };
    if erasure_keeps_out(&mut transaction, found.tenant).await? {
        return Ok(Turn::Nothing);
    }
    let rewind = begun.insert(found);
    let bounds = || -> Result<(i64, i64), sqlx::Error> {
        Ok((row.try_get("position")?, row.try_get("until")?))
    };
    let (position, until) = bounds().map_err(Error::doing(DOING))?;
    let page = match rewind.action {
        Action::Rewind => rewind_page(&mut transaction, rewind, position, until).await?,
        Action::Discard => Some(discard_page(&mut transaction, rewind, position, until).await?),
        Action::Replay => replay_page(&mut transaction, rewind, position, until).await?,
    };
    let Some(page) = page else {
        wait(&mut transaction, rewind).await?;
        transaction.commit().await.map_err(Error::doing(DOING))?;
        return Ok(Turn::Waits);
    };
    let row = sqlx::query(concat!(
        // What others were first to take before this one came to look is skipped as well: known by what was counted.
        "UPDATE laneway_control.rewinds AS r SET done = done + $3, set_aside = set_aside + $6, \
           skipped = greatest(skipped + $4, CASE WHEN $5 IS NULL AND action <> 'replay' \
             THEN matched - done - $3 - set_aside - $6 END), \
           example = coalesce(example, $7), position = coalesce($5, until), updated_at = clock_timestamp(), \
           error = NULL, waits = NULL, retry_at = NULL, \
           state = CASE WHEN $5 IS NULL THEN 'done' ELSE state END, \
           finished_at = CASE WHEN $5 IS NULL THEN clock_timestamp() END \
         WHERE tenant_id = $1 AND rewind_id = $2 RETURNING ",
        columns!()
    ))
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(i64::try_from(page.done).unwrap_or(i64::MAX))
    .bind(i64::try_from(page.skipped).unwrap_or(i64::MAX))
    .bind(page.position)
    .bind(i64::try_from(page.aside.count).unwrap_or(i64::MAX))
    .bind(page.aside.example)
    .fetch_one(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let rewind = read(&row)?;
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok(Turn::Page(Box::new(Step { rewind, done: page.done })))
}

/// Notes that too much is not settled; others have their turn meanwhile.
async fn wait(connection: &mut PgConnection, rewind: &Rewind) -> Result<(), Error> {
    sqlx::query(
        "UPDATE laneway_control.rewinds SET waits = 'deliveries', error = NULL, updated_at = clock_timestamp(), \
           retry_at = clock_timestamp() + $3 * interval '1 ms' WHERE tenant_id = $1 AND rewind_id = $2",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(WAITING_PAUSE)
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(Error::doing("noting what a command waits for"))
}

/// Of these endpoints, those for which a page would exceed [`MAX_UNSETTLED`]. Outcomes are looked for only when an
/// endpoint seems to be one, and noted, so that each is found once.
async fn full(
    connection: &mut PgConnection,
    tenant: TenantId,
    endpoints: &HashSet<Uuid>,
) -> Result<HashSet<Uuid>, Error> {
    const DOING: &str = "counting what is not settled";
    const FULL: &str = "SELECT w.endpoint_id FROM laneway_control.rewound w \
                        WHERE w.tenant_id = $1 AND NOT w.settled AND w.endpoint_id = ANY($2) \
                        GROUP BY w.endpoint_id HAVING count(*) > $3";
    let mut full: Vec<Uuid> = endpoints.iter().copied().collect();
    for look in 0..2 {
        if full.is_empty() {
            break;
        }
        if look == 1 {
            // LIMIT: each by its id, whatever the planner knows of the table. A dead letter outlives its day of the inbox.
            sqlx::query(
                "UPDATE laneway_control.rewound w SET settled = true \
                 FROM (SELECT delivery_id FROM laneway_control.rewound \
                   WHERE tenant_id = $1 AND NOT settled AND endpoint_id = ANY($2) OFFSET 0) o \
                 CROSS JOIN LATERAL (SELECT 1 FROM laneway_control.inbox i WHERE i.delivery_id = o.delivery_id \
                   UNION ALL SELECT 1 FROM laneway_control.dead_letters d \
                   WHERE d.tenant_id = $1 AND d.delivery_id = o.delivery_id LIMIT 1) s \
                 WHERE w.delivery_id = o.delivery_id",
            )
            .bind(tenant.as_uuid())
            .bind(&full)
            .execute(&mut *connection)
            .await
            .map_err(Error::doing(DOING))?;
        }
        full = sqlx::query_scalar(FULL)
            .bind(tenant.as_uuid())
            .bind(&full)
            .bind(MAX_UNSETTLED - ROWS)
            .fetch_all(&mut *connection)
            .await
            .map_err(Error::doing(DOING))?;
    }
    Ok(full.into_iter().collect())
}

/// The next dead letters that are meant, not locked, and whether they are the last.
async fn meant(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<(Vec<Found>, bool), Error> {
    let query = sqlx::query_as(concat!(
        "WITH page AS MATERIALIZED (SELECT d.place, d.delivery_id, d.endpoint_id, octet_length(d.record) AS bytes \
           FROM laneway_control.dead_letters d WHERE d.tenant_id = $1 AND ",
        meant!(),
        " AND d.place > $11 AND d.place <= $12 \
           ORDER BY d.place LIMIT $13), \
         sized AS (SELECT *, count(*) OVER () AS total, sum(bytes) OVER (ORDER BY place) - bytes AS before FROM page) \
         SELECT place, delivery_id, endpoint_id, total FROM sized WHERE before <= $14 ORDER BY place"
    ))
    .bind(rewind.tenant.as_uuid());
    let rows: Vec<(i64, Uuid, Uuid, i64)> = bind_selection!(query, &rewind.selection)
        .bind(rewind.action == Action::Discard)
        .bind(position)
        .bind(until)
        .bind(ROWS)
        .bind(if rewind.action == Action::Discard { i64::MAX } else { BYTES })
        .fetch_all(connection)
        .await
        .map_err(Error::doing("looking for dead letters of a command"))?;
    let total = rows.first().map_or(0, |row| row.3);
    let last = total < ROWS && i64::try_from(rows.len()).is_ok_and(|found| found == total);
    let found = rows.into_iter().map(|(place, delivery, endpoint, _)| Found {
        place,
        delivery: DeliveryId::from_uuid(delivery),
        endpoint: EndpointId::from_uuid(endpoint),
    });
    Ok((found.collect(), last))
}

/// A page's end: of what was looked at, so many were done and these set aside; it goes on behind `position`.
fn page(looked_at: usize, position: Option<i64>, done: usize, aside: Aside) -> Page {
    let skipped = (looked_at as u64).saturating_sub(done as u64).saturating_sub(aside.count);
    Page { done: done as u64, skipped, aside, position }
}

async fn discard_page(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<Page, Error> {
    let (found, last) = meant(connection, rewind, position, until).await?;
    let ids: Vec<Uuid> = found.iter().map(|found| found.delivery.as_uuid()).collect();
    let position = rewind::page(&found, last, |_| false).and_then(|page| page.position);
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
    let done = usize::try_from(done.rows_affected()).unwrap_or(found.len());
    Ok(page(found.len(), position, done, Aside::default()))
}

/// `None`: the endpoint of the next dead letter has too much that is not settled.
async fn rewind_page(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<Option<Page>, Error> {
    const DOING: &str = "rewinding dead letters";
    let (found, last) = meant(connection, rewind, position, until).await?;
    let endpoints: HashSet<Uuid> = found.iter().map(|found| found.endpoint.as_uuid()).collect();
    let full = full(connection, rewind.tenant, &endpoints).await?;
    let Some(rewind::Page { take, position }) =
        rewind::page(&found, last, |endpoint| full.contains(&endpoint.as_uuid()))
    else {
        return Ok(None);
    };
    let ids: Vec<Uuid> = found[..take].iter().map(|found| found.delivery.as_uuid()).collect();
    // Looked at again under the lock: another command may have been first.
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "SELECT delivery_id, record FROM laneway_control.dead_letters \
         WHERE tenant_id = $1 AND state = 'open' AND delivery_id = ANY($2) ORDER BY place FOR NO KEY UPDATE",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(ids)
    .fetch_all(&mut *connection)
    .await
    .map_err(Error::doing(DOING))?;
    let mut aside = Aside::default();
    let mut records = Vec::with_capacity(rows.len());
    for (delivery, record) in rows {
        match Record::decode(&Bytes::from(record)) {
            Ok(record) if record.head.delivery == delivery => records.push(record),
            Ok(_) => aside.push(delivery, "of_another_delivery"),
            Err(error) => aside.push(delivery, error.code()),
        }
    }
    let originals: Vec<Original> =
        records.iter().map(|record| Original::of(&record.head)).collect();
    let new = number(connection, rewind, &originals).await?;
    let refused = write(connection, rewind, &records, &new).await?;
    let mut written = Vec::with_capacity(new.len());
    for (place, (record, new)) in records.iter().zip(new).enumerate() {
        match refused.get(&place) {
            Some(why) => aside.push(record.head.delivery, why),
            None => written.push(new),
        }
    }
    note(connection, rewind, &written).await?;
    sqlx::query(
        "UPDATE laneway_control.dead_letters d SET state = 'rewound', rewind_id = $2, rewound_to = n.new, \
           closed_at = now() FROM unnest($3::uuid[], $4::uuid[]) n(old, new) \
         WHERE d.tenant_id = $1 AND d.delivery_id = n.old",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(written.iter().map(|(_, new)| new.of.as_uuid()).collect::<Vec<_>>())
    .bind(written.iter().map(|(_, new)| new.delivery.as_uuid()).collect::<Vec<_>>())
    .execute(connection)
    .await
    .map_err(Error::doing(DOING))?;
    Ok(Some(page(take, position, written.len(), aside)))
}

/// A page of the log: its rows are looked at in the order of their ids, those of the project whose delivery to the
/// endpoint is settled as delivered are sent again. What waits or was given up comes on its own road. `None`: the endpoint
/// has too much that is not settled.
async fn replay_page(
    connection: &mut PgConnection,
    rewind: &Rewind,
    position: i64,
    until: i64,
) -> Result<Option<Page>, Error> {
    const DOING: &str = "reading the log for a replay";
    let Some(endpoint) = rewind.selection.endpoint else {
        return Ok(Some(Page::default()));
    };
    if !full(connection, rewind.tenant, &HashSet::from([endpoint.as_uuid()])).await?.is_empty() {
        return Ok(None);
    }
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
    let new = number(connection, rewind, &originals).await?;
    note(connection, rewind, &new).await?;
    let rewinds: Vec<String> = new.iter().map(|(_, new)| json(new)).collect();
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
    Ok(Some(Page { done: new.len() as u64, skipped, aside: Aside::default(), position: end }))
}
