//! The rows of what is sent again: numbered, noted, written into the outbox.

use super::Rewind;
use crate::Error;
use crate::relay::{self, StoredRewind};
use laneway_lane::rewind;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, Record};
use sqlx::{Connection, PgConnection};
use std::collections::HashMap;
use uuid::Uuid;

/// A delivery that is to be repeated.
pub(super) struct Original {
    pub(super) event: EventId,
    pub(super) endpoint: EndpointId,
    pub(super) of: DeliveryId,
    /// The mode of its lane, if it is known.
    pub(super) mode: Option<LaneMode>,
}

impl Original {
    pub(super) fn of(head: &laneway_wire::record::Head) -> Self {
        Self {
            event: head.event_id(),
            endpoint: head.endpoint_id(),
            of: head.delivery_id(),
            mode: Some(head.mode),
        }
    }
}

pub(super) fn json(rewind: &relay::Rewind) -> String {
    serde_json::to_string(&StoredRewind::from(*rewind)).unwrap_or_default()
}

/// Gives each original its next number and the id that follows from it, with its event.
pub(super) async fn number(
    connection: &mut PgConnection,
    rewind: &Rewind,
    originals: &[Original],
) -> Result<Vec<(EventId, relay::Rewind)>, Error> {
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
    .map_err(Error::doing("numbering rewinds"))?;
    let numbers: HashMap<(Uuid, Uuid), u32> = known
        .into_iter()
        .map(|(event, endpoint, number)| ((event, endpoint), u32::try_from(number).unwrap_or(0)))
        .collect();
    let last = |event: EventId, endpoint: EndpointId| {
        numbers.get(&(event.as_uuid(), endpoint.as_uuid())).copied().unwrap_or(0)
    };
    let plain: Vec<rewind::Original> = originals
        .iter()
        .map(|&Original { event, endpoint, of, .. }| rewind::Original {
            event,
            endpoint,
            delivery: of,
        })
        .collect();
    let repeats = rewind::number(rewind.id, &plain, last);
    let new = originals.iter().zip(repeats).map(|(original, repeat)| {
        let &Original { event, endpoint, of, mode } = original;
        let mode = mode.unwrap_or(LaneMode::User);
        let rewind::Repeat { delivery, number } = repeat;
        (event, relay::Rewind { delivery, endpoint, mode, number, of })
    });
    Ok(new.collect())
}

/// Writes down which delivery repeats which. The table's keys refuse a number or an original that another command has
/// taken meanwhile: the page is then made again.
pub(super) async fn note(
    connection: &mut PgConnection,
    rewind: &Rewind,
    new: &[(EventId, relay::Rewind)],
) -> Result<(), Error> {
    let ids = |id: fn(&(EventId, relay::Rewind)) -> Uuid| new.iter().map(id).collect::<Vec<_>>();
    let numbers: Vec<i32> =
        new.iter().map(|(_, new)| i32::try_from(new.number).unwrap_or(i32::MAX)).collect();
    sqlx::query(
        "INSERT INTO laneway_control.rewound (tenant_id, event_id, endpoint_id, number, delivery_id, of_delivery, \
           rewind_id) \
         SELECT $1, n.event_id, n.endpoint_id, n.number, n.delivery_id, n.of_delivery, $2 \
         FROM unnest($3::uuid[], $4::uuid[], $5::int[], $6::uuid[], $7::uuid[]) \
           n(event_id, endpoint_id, number, delivery_id, of_delivery)",
    )
    .bind(rewind.tenant.as_uuid())
    .bind(rewind.id.as_uuid())
    .bind(ids(|(event, _)| event.as_uuid()))
    .bind(ids(|(_, new)| new.endpoint.as_uuid()))
    .bind(numbers)
    .bind(ids(|(_, new)| new.delivery.as_uuid()))
    .bind(ids(|(_, new)| new.of.as_uuid()))
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(Error::doing("noting rewinds"))
}

/// Writes rows of the outbox in the order of their records, and tells which of them the outbox refuses, and why: the
/// others are written all the same.
pub(super) async fn write(
    connection: &mut PgConnection,
    rewind: &Rewind,
    records: &[Record],
    new: &[(EventId, relay::Rewind)],
) -> Result<HashMap<usize, String>, Error> {
    const DOING: &str = "writing rewinds into the outbox";
    let mut refused = HashMap::new();
    // What is refused together is tried again in halves, the first half first.
    let mut parts: Vec<_> = std::iter::once(0..records.len()).collect();
    while let Some(part) = parts.pop() {
        if part.is_empty() {
            continue;
        }
        let mut columns = Columns::default();
        for (record, (_, new)) in records[part.clone()].iter().zip(&new[part.clone()]) {
            columns.push(record, new);
        }
        let mut attempt = connection.begin().await.map_err(Error::doing(DOING))?;
        match columns.write(&mut attempt, rewind).await {
            Ok(()) => attempt.commit().await.map_err(Error::doing(DOING))?,
            Err(error) if error.is_value_refused() => {
                attempt.rollback().await.map_err(Error::doing(DOING))?;
                if part.len() == 1 {
                    let why = error.constraint().unwrap_or("value_refused").to_owned();
                    refused.insert(part.start, why);
                } else {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(refused)
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
