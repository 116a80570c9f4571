//! What the database knew of deliveries when their records were taken in (design 5.2): one round trip for a batch.

use super::value::{loaded, uncount};
use crate::{Error, Pool};
use laneway_lane::{Known, Tried};
use laneway_wire::DeliveryId;
use sqlx::{PgConnection, Row};
use std::collections::HashMap;
use uuid::Uuid;

/// Ids in one question at most.
pub const MAX_IDS: usize = 1_000;

/// Inbox rows, recorded attempts and open intents of `ids`; an id that is not in the answer is new.
///
/// For use outside a settle transaction, when its partition has nothing under way.
pub async fn known_read(
    pool: &Pool,
    ids: &[DeliveryId],
) -> Result<HashMap<DeliveryId, Known>, Error> {
    let mut connection =
        pool.inner().acquire().await.map_err(Error::doing("asking what is known of records"))?;
    known_in(&mut connection, ids).await
}

/// The same on the connection of a settle transaction: it sees what that has written.
pub(crate) async fn known_in(
    connection: &mut PgConnection,
    ids: &[DeliveryId],
) -> Result<HashMap<DeliveryId, Known>, Error> {
    const DOING: &str = "asking what is known of records";
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = ids.iter().map(DeliveryId::as_uuid).collect();
    let (first, last) = (ids.iter().min().copied(), ids.iter().max().copied());
    // The range is for the planner: it leaves out the inbox's partitions of other days, which it cannot by an array.
    let rows = sqlx::query(
        "SELECT delivery_id, 0 AS what, 0 AS number, NULL::timestamptz AS first_at, NULL::timestamptz AS last_end \
         FROM laneway_control.inbox WHERE delivery_id = ANY($1) AND delivery_id BETWEEN $2 AND $3 \
         UNION ALL \
         SELECT delivery_id, 1, max(number), min(ended_at - took_ms * interval '1 ms'), max(ended_at) \
         FROM laneway_control.attempts WHERE delivery_id = ANY($1) GROUP BY delivery_id \
         UNION ALL \
         SELECT delivery_id, 2, number, created_at, deadline FROM laneway_control.intents \
         WHERE delivery_id = ANY($1)",
    )
    .bind(&ids)
    .bind(first)
    .bind(last)
    .fetch_all(connection)
    .await
    .map_err(Error::doing(DOING))?;
    let mut known = HashMap::with_capacity(rows.len());
    for row in rows {
        let read = || -> Result<_, sqlx::Error> {
            Ok((
                row.try_get(0)?,
                row.try_get(1)?,
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
            ))
        };
        let (id, what, number, first_at, last_end): (Uuid, i32, i32, Option<_>, Option<_>) =
            read().map_err(Error::doing(DOING))?;
        let id = DeliveryId::from_uuid(id);
        let (Some(first_at), Some(last_end)) = (first_at.map(loaded), last_end.map(loaded)) else {
            known.insert(id, Known::Settled);
            continue;
        };
        let new = if what == 1 {
            Tried { attempts: uncount(number), first_at, last_end, open_intent: false }
        } else {
            Tried {
                attempts: uncount(number).saturating_sub(1),
                first_at,
                last_end,
                open_intent: true,
            }
        };
        match known.entry(id).or_insert(Known::Tried(new)) {
            Known::Tried(tried) => {
                *tried = Tried {
                    attempts: tried.attempts.max(new.attempts),
                    first_at: tried.first_at.min(new.first_at),
                    last_end: tried.last_end.max(new.last_end),
                    open_intent: tried.open_intent || new.open_intent,
                };
            }
            Known::Settled | Known::New => {}
        }
    }
    Ok(known)
}
