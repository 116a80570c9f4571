//! Reading deliveries for people and the API. No row says where a delivery stands: that is put together from its
//! inbox row, its parked row, its dead letter and its attempts; one that has none of them yet is waiting, if its event
//! is known and was emitted after a subscription of that endpoint (design 5.2 and 5.4).

use crate::{Error, Pool};
use laneway_wire::{DeliveryId, EndpointId, EventId, TenantId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::time::Duration;
use uuid::Uuid;

/// Endpoints of a project, deleted ones included, whose deliveries of an event are looked for; the newest.
const MAX_CANDIDATES: i64 = 4_000;

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    /// On its way; nothing is recorded yet.
    Waiting,
    /// Tried and failed, in the hands of its owner for a quick retry.
    Retrying,
    /// In a parked lane: behind its head, or the head itself until it is due.
    Parked,
    /// It cannot be told whether the receiver has it; its lane waits for a verdict (P6).
    Unknown,
    /// The receiver has it.
    Delivered,
    /// Given up, kept for people.
    DeadLettered,
    /// Its endpoint was deleted, or a person said so.
    Discarded,
}

impl DeliveryState {
    /// As shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Parked => "parked",
            Self::Unknown => "unknown",
            Self::Delivered => "delivered",
            Self::DeadLettered => "dead_lettered",
            Self::Discarded => "discarded",
        }
    }
}

/// A delivery as it stands now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Its event; unknown only while nothing but attempts is recorded and the event lies in another database.
    pub event: Option<EventId>,
    /// Its endpoint.
    pub endpoint: EndpointId,
    /// Where it stands.
    pub state: DeliveryState,
    /// Attempts that are recorded.
    pub attempts: u32,
    /// Status of the last recorded attempt that got one.
    pub last_status: Option<u16>,
    /// What went wrong at the last recorded attempt.
    pub last_class: Option<String>,
    /// Why it waits or was given up.
    pub reason: Option<String>,
    /// When its lane is due; for the head of a parked lane.
    pub next_attempt_at: Option<Timestamp>,
    /// When it got its final outcome.
    pub settled_at: Option<Timestamp>,
    /// How long the last request took; for final outcomes.
    pub took: Option<Duration>,
}

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptKind {
    /// No byte left.
    NotSent,
    /// A status line came back.
    Responded,
    /// It cannot be told.
    Unknown,
}

impl AttemptKind {
    /// As shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Responded => "responded",
            Self::Unknown => "unknown",
        }
    }
}

/// A recorded attempt: the first ten and the last twenty failures, and the success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its number, from 1; a number may stand twice (P5).
    pub number: u32,
    /// Its place among attempts of the same number; with the number a position to go on from.
    pub row: i64,
    /// What it came to.
    pub kind: AttemptKind,
    /// The status, if there was an answer.
    pub status: Option<u16>,
    /// What went wrong; none for a success.
    pub class: Option<String>,
    /// How long it took.
    pub took: Duration,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The first part of the answer's body, if it was kept.
    pub body: Option<Vec<u8>>,
}

/// An event of the control database's outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownEvent {
    pub(crate) id: EventId,
    pub(crate) event_type: String,
    pub(crate) created_at: Timestamp,
}

macro_rules! delivery_query {
    ($parked:literal) => {
        concat!(
            "SELECT c.id, c.endpoint_id, i.endpoint_id, i.event_id, i.outcome, i.status, i.attempts, i.took_ms, \
               (extract(epoch FROM i.settled_at) * 1000)::bigint, \
               d.reason, d.last_class, \
               p.event_id, p.endpoint_id, p.attempts, p.is_head, l.unknown, l.reason, \
               (extract(epoch FROM l.due) * 1000)::bigint, \
               a.endpoint_id, a.number, a.status, a.class, d.state = 'discarded' \
             FROM unnest($2::uuid[], $3::uuid[]) AS c (id, endpoint_id) \
             LEFT JOIN laneway_control.inbox i ON i.delivery_id = c.id AND i.tenant_id = $1 \
             LEFT JOIN laneway_control.dead_letters d ON d.tenant_id = $1 AND d.delivery_id = c.id \
             LEFT JOIN LATERAL ( \
               SELECT q.event_id, q.endpoint_id, q.attempts, q.lane, NOT EXISTS ( \
                 SELECT FROM laneway_control.parked_events o WHERE o.lane = q.lane \
                   AND (o.generation, o.moves, o.log_offset) < (q.generation, q.moves, q.log_offset)) AS is_head \
               FROM laneway_control.parked_events q \
               WHERE q.delivery_id = c.id AND q.tenant_id = $1 AND ",
            $parked,
            ") p ON true \
             LEFT JOIN laneway_control.parked_lanes l ON l.lane = p.lane \
             LEFT JOIN LATERAL ( \
               SELECT t.endpoint_id, t.number, t.status, t.class FROM laneway_control.attempts t \
               WHERE t.delivery_id = c.id AND t.tenant_id = $1 ORDER BY t.number DESC, t.id DESC LIMIT 1) a ON true \
             ORDER BY c.id"
        )
    };
}

/// The deliveries of `event` in the order of their ids, those after `after`, at most `limit`. `None` if `tenant` has
/// no such event: it is not in the control database's outbox and nothing is recorded of it.
pub async fn deliveries_of_event(
    pool: &Pool,
    tenant: TenantId,
    event: EventId,
    after: Option<DeliveryId>,
    limit: u16,
) -> Result<Option<Vec<Delivery>>, Error> {
    let known = crate::events::event_find(pool, tenant, event).await?;
    let mut candidates = candidates(pool, tenant, event, known.as_ref()).await?;
    for (delivery, _, endpoint, _) in
        crate::rewinds::rewound(pool, tenant, Some(event.as_uuid()), None).await?
    {
        let (delivery, endpoint) =
            (DeliveryId::from_uuid(delivery), EndpointId::from_uuid(endpoint));
        candidates.push(Candidate { delivery, endpoint, subscribed: true });
    }
    let mut ids: Vec<Uuid> = Vec::with_capacity(candidates.len());
    let mut endpoints: Vec<Uuid> = Vec::with_capacity(candidates.len());
    for candidate in &candidates {
        ids.push(candidate.delivery.as_uuid());
        endpoints.push(candidate.endpoint.as_uuid());
    }
    let rows = sqlx::query(delivery_query!("q.event_id = $4"))
        .bind(tenant.as_uuid())
        .bind(ids)
        .bind(endpoints)
        .bind(event.as_uuid())
        .fetch_all(pool.inner())
        .await
        .map_err(Error::doing("reading the deliveries of an event"))?;
    let mut found = Vec::new();
    for row in &rows {
        let recorded = read(row).map_err(Error::doing("reading a delivery"))?;
        let candidate = candidates.iter().find(|c| c.delivery == recorded.id);
        if recorded.state != DeliveryState::Waiting || candidate.is_some_and(|c| c.subscribed) {
            found.push(Delivery { event: Some(event), ..recorded });
        }
    }
    if found.is_empty() && known.is_none() {
        return Ok(None);
    }
    found.retain(|delivery| after.is_none_or(|after| delivery.id > after));
    found.truncate(limit.into());
    Ok(Some(found))
}

/// One delivery of `tenant`, if anything is recorded of it or its event lies in the control database's outbox.
pub async fn delivery_get(
    pool: &Pool,
    tenant: TenantId,
    id: DeliveryId,
) -> Result<Option<Delivery>, Error> {
    // No index leads from a delivery to its parked row but with the bucket in front: all of them are asked.
    let row = sqlx::query(delivery_query!(
        "q.bucket = ANY (ARRAY(SELECT b::smallint FROM generate_series(0, 1023) b))"
    ))
    .bind(tenant.as_uuid())
    .bind(vec![id.as_uuid()])
    .bind(vec![None::<Uuid>])
    .fetch_one(pool.inner())
    .await
    .map_err(Error::doing("reading a delivery"))?;
    let recorded = read(&row).map_err(Error::doing("reading a delivery"))?;
    if recorded.event.is_some() {
        return Ok(Some(recorded));
    }
    if let Some((_, event, endpoint, _)) =
        crate::rewinds::rewound(pool, tenant, None, Some(id)).await?.first()
    {
        let (event, endpoint) = (EventId::from_uuid(*event), EndpointId::from_uuid(*endpoint));
        return Ok(Some(Delivery { event: Some(event), endpoint, ..recorded }));
    }
    // The id begins with the event's time: its event, if it is here, is one of that millisecond.
    for known in crate::events::events_of_millisecond(pool, tenant, id).await? {
        for candidate in candidates(pool, tenant, known.id, Some(&known)).await? {
            if candidate.delivery == id
                && (candidate.subscribed || recorded.state != DeliveryState::Waiting)
            {
                let (event, endpoint) = (Some(known.id), candidate.endpoint);
                return Ok(Some(Delivery { event, endpoint, ..recorded }));
            }
        }
    }
    Ok((recorded.state != DeliveryState::Waiting).then_some(recorded))
}

/// The recorded attempts of a delivery in their order, those after the position `after` (number, row), at most
/// `limit`. Empty also if there is no such delivery.
pub async fn attempts_list(
    pool: &Pool,
    tenant: TenantId,
    id: DeliveryId,
    after: Option<(u32, i64)>,
    limit: u16,
) -> Result<Vec<Attempt>, Error> {
    let (number, row) = after.unwrap_or((0, 0));
    // A success stands in the inbox row alone.
    sqlx::query(
        "SELECT number, id, kind, status, class, took_ms, (extract(epoch FROM ended_at) * 1000)::bigint, body FROM ( \
           SELECT number, id, kind, status, class, took_ms, ended_at, body FROM laneway_control.attempts \
           WHERE delivery_id = $2 AND tenant_id = $1 \
           UNION ALL \
           SELECT attempts, 9223372036854775807, 2, status, NULL, took_ms, settled_at, NULL \
           FROM laneway_control.inbox \
           WHERE delivery_id = $2 AND tenant_id = $1 AND outcome = 1 AND status IS NOT NULL) recorded \
         WHERE (number, id) > ($3, $4) ORDER BY number, id LIMIT $5",
    )
    .bind(tenant.as_uuid())
    .bind(id.as_uuid())
    .bind(i32::try_from(number).unwrap_or(i32::MAX))
    .bind(row)
    .bind(i32::from(limit))
    .fetch_all(pool.inner())
    .await
    .and_then(|rows| rows.iter().map(read_attempt).collect())
    .map_err(Error::doing("reading attempts"))
}

struct Candidate {
    delivery: DeliveryId,
    endpoint: EndpointId,
    /// A valid subscription of the endpoint matches the event and is older than it.
    subscribed: bool,
}

async fn candidates(
    pool: &Pool,
    tenant: TenantId,
    event: EventId,
    known: Option<&KnownEvent>,
) -> Result<Vec<Candidate>, Error> {
    let rows: Vec<(Uuid, bool)> = sqlx::query_as(
        "SELECT e.endpoint_id, e.state <> 'deleted' AND EXISTS ( \
           SELECT FROM laneway_control.subscriptions s \
           WHERE s.tenant_id = $1 AND s.endpoint_id = e.endpoint_id AND s.until_version IS NULL \
             AND s.created_at <= to_timestamp($3::double precision / 1000) + interval '1 millisecond' \
             AND (s.event_type IN ('*', $2) \
                  OR (right(s.event_type, 2) = '.*' AND starts_with($2, left(s.event_type, -1))))) \
         FROM laneway_control.endpoints e WHERE e.tenant_id = $1 ORDER BY e.endpoint_id DESC LIMIT $4",
    )
    .bind(tenant.as_uuid())
    .bind(known.map(|known| known.event_type.as_str()))
    .bind(known.map(|known| known.created_at.as_millis() as f64))
    .bind(MAX_CANDIDATES)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing("looking for the endpoints of an event"))?;
    Ok(rows
        .into_iter()
        .map(|(endpoint, subscribed)| {
            let endpoint = EndpointId::from_uuid(endpoint);
            Candidate { delivery: DeliveryId::first(event, endpoint), endpoint, subscribed }
        })
        .collect())
}

fn read(row: &PgRow) -> Result<Delivery, sqlx::Error> {
    let millis = |index| row.try_get::<Option<i64>, _>(index).map(|at| at.map(Timestamp));
    let uuid = |index| row.try_get::<Option<Uuid>, _>(index);
    let status = |index| -> Result<Option<u16>, sqlx::Error> {
        Ok(row.try_get::<Option<i16>, _>(index)?.and_then(|status| u16::try_from(status).ok()))
    };
    let count = |index| -> Result<Option<u32>, sqlx::Error> {
        Ok(row.try_get::<Option<i32>, _>(index)?.and_then(|count| u32::try_from(count).ok()))
    };
    let outcome: Option<i16> = row.try_get(4)?;
    let is_head: Option<bool> = row.try_get(14)?;
    let is_head = is_head == Some(true);
    let lane_unknown = row.try_get::<Option<bool>, _>(15)? == Some(true);
    let parked_event = uuid(11)?;
    let attempt = count(19)?;
    let state = match outcome {
        Some(1) => DeliveryState::Delivered,
        // What a person does with a dead letter is in its own row; its outcome in the inbox stays.
        Some(2) if row.try_get::<Option<bool>, _>(22)? != Some(true) => DeliveryState::DeadLettered,
        Some(_) => DeliveryState::Discarded,
        None if parked_event.is_some() && is_head && lane_unknown => DeliveryState::Unknown,
        None if parked_event.is_some() => DeliveryState::Parked,
        None if attempt.is_some() => DeliveryState::Retrying,
        None => DeliveryState::Waiting,
    };
    let settled = outcome.is_some();
    let dead_reason: Option<String> = row.try_get(9)?;
    let parked_reason: Option<String> = row.try_get(16)?;
    let endpoint = [uuid(1)?, uuid(2)?, uuid(12)?, uuid(18)?].into_iter().flatten().next();
    Ok(Delivery {
        id: DeliveryId::from_uuid(row.try_get(0)?),
        event: uuid(3)?.or(parked_event).map(EventId::from_uuid),
        endpoint: EndpointId::from_uuid(endpoint.unwrap_or_default()),
        state,
        attempts: count(6)?.or(count(13)?).into_iter().chain(attempt).max().unwrap_or(0),
        last_status: status(5)?.or(status(20)?),
        last_class: match state {
            DeliveryState::Delivered => None,
            _ => row.try_get::<Option<String>, _>(10)?.or(row.try_get(21)?),
        },
        reason: if settled { dead_reason } else { parked_reason },
        next_attempt_at: if is_head && !lane_unknown && !settled { millis(17)? } else { None },
        settled_at: millis(8)?,
        took: row
            .try_get::<Option<i32>, _>(7)?
            .map(|took| Duration::from_millis(u64::try_from(took).unwrap_or(0))),
    })
}

fn read_attempt(row: &PgRow) -> Result<Attempt, sqlx::Error> {
    Ok(Attempt {
        number: u32::try_from(row.try_get::<i32, _>(0)?).unwrap_or(0),
        row: row.try_get(1)?,
        kind: match row.try_get::<i32, _>(2)? {
            1 => AttemptKind::NotSent,
            2 => AttemptKind::Responded,
            _ => AttemptKind::Unknown,
        },
        status: row.try_get::<Option<i16>, _>(3)?.and_then(|status| u16::try_from(status).ok()),
        class: row.try_get(4)?,
        took: Duration::from_millis(u64::try_from(row.try_get::<i32, _>(5)?).unwrap_or(0)),
        ended_at: Timestamp(row.try_get(6)?),
        body: row.try_get(7)?,
    })
}
