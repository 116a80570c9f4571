//! The settle transaction's statements on parked lanes and their events.

use super::settle_columns::{Time, lane};
use super::value::{big, bucket, count, mode, stored};
use crate::Error;
use laneway_lane::{NewParked, Partition};
use laneway_wire::LaneId;
use sqlx::PgConnection;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

#[derive(Default)]
pub(super) struct Parks {
    pub(super) lane: Vec<Vec<u8>>,
    pub(super) bucket: Vec<i16>,
    pub(super) partition: Vec<i32>,
    pub(super) tenant: Vec<Uuid>,
    pub(super) endpoint: Vec<Uuid>,
    pub(super) mode: Vec<i16>,
    pub(super) user_key: Vec<Option<String>>,
    pub(super) reason: Vec<&'static str>,
    pub(super) due: Vec<Time>,
    pub(super) held: Vec<Time>,
    pub(super) tried: Vec<bool>,
    pub(super) unknown: Vec<bool>,
}

impl Parks {
    pub(super) fn push(
        &mut self,
        partition: Partition,
        id: LaneId,
        head: &NewParked,
        reason: &'static str,
    ) {
        let record = &head.record.head;
        self.lane.push(lane(id));
        self.bucket.push(bucket(id));
        self.partition.push(partition.cast_signed());
        self.tenant.push(record.tenant);
        self.endpoint.push(record.endpoint);
        self.mode.push(mode(record.mode));
        self.user_key.push(record.user_key.clone());
        self.reason.push(reason);
        self.due.push(stored(head.due));
        self.held.push(stored(head.first_held));
        self.tried.push(head.attempts > 0);
        self.unknown.push(head.unknown);
    }

    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.lane.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, \
               reason, due, head_held, last_tried, unknown, unknown_since, stood_ms) \
             SELECT lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, reason, due, held, \
               CASE WHEN tried THEN now() END, unknown, CASE WHEN unknown THEN now() END, coalesce(p.stood_ms, 0) \
             FROM unnest($1::bytea[], $2::smallint[], $3::int[], $4::uuid[], $5::uuid[], $6::smallint[], $7::text[], \
               $8::text[], $9::timestamptz[], $10::timestamptz[], $11::bool[], $12::bool[]) \
               n(lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, reason, due, held, tried, unknown) \
             LEFT JOIN laneway_control.endpoints p USING (tenant_id, endpoint_id) \
             ON CONFLICT (lane) DO UPDATE SET reason = excluded.reason, due = excluded.due, \
               partition = excluded.partition, head_held = excluded.head_held, last_tried = excluded.last_tried, \
               unknown = excluded.unknown, unknown_since = excluded.unknown_since, stood_ms = excluded.stood_ms",
        )
        .bind(&self.lane)
        .bind(&self.bucket)
        .bind(&self.partition)
        .bind(&self.tenant)
        .bind(&self.endpoint)
        .bind(&self.mode)
        .bind(&self.user_key)
        .bind(&self.reason)
        .bind(&self.due)
        .bind(&self.held)
        .bind(&self.tried)
        .bind(&self.unknown)
        .execute(connection)
        .await
        .map_err(Error::doing("parking lanes"))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Events {
    pub(super) seen: HashSet<Uuid>,
    pub(super) bucket: Vec<i16>,
    pub(super) delivery: Vec<Uuid>,
    pub(super) lane: Vec<Vec<u8>>,
    pub(super) generation: Vec<i64>,
    pub(super) moves: Vec<i32>,
    pub(super) offset: Vec<i64>,
    pub(super) tenant: Vec<Uuid>,
    pub(super) endpoint: Vec<Uuid>,
    pub(super) event: Vec<Uuid>,
    pub(super) first_held: Vec<Time>,
    pub(super) attempts: Vec<i32>,
    pub(super) record: Vec<Vec<u8>>,
}

impl Events {
    pub(super) fn push(&mut self, id: LaneId, event: &NewParked) {
        let head = &event.record.head;
        // Two rows of one delivery cannot stand in one statement; the first has the lower position.
        if !self.seen.insert(head.delivery) {
            return;
        }
        self.bucket.push(bucket(id));
        self.delivery.push(head.delivery);
        self.lane.push(lane(id));
        self.generation.push(big(event.position.generation));
        self.moves.push(count(event.position.moves));
        self.offset.push(event.position.offset);
        self.tenant.push(head.tenant);
        self.endpoint.push(head.endpoint);
        self.event.push(head.event);
        self.first_held.push(stored(event.first_held));
        self.attempts.push(count(event.attempts));
        self.record.push(event.record.encode().into());
    }

    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.delivery.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO laneway_control.parked_events AS old (bucket, delivery_id, lane, generation, moves, \
               log_offset, tenant_id, endpoint_id, event_id, first_held, attempts, record) \
             SELECT * FROM unnest($1::smallint[], $2::uuid[], $3::bytea[], $4::bigint[], $5::int[], $6::bigint[], \
               $7::uuid[], $8::uuid[], $9::uuid[], $10::timestamptz[], $11::int[], $12::bytea[]) \
             ON CONFLICT (bucket, delivery_id) DO UPDATE SET generation = excluded.generation, \
               moves = excluded.moves, log_offset = excluded.log_offset \
             WHERE (excluded.generation, excluded.moves, excluded.log_offset) \
               < (old.generation, old.moves, old.log_offset)",
        )
        .bind(&self.bucket)
        .bind(&self.delivery)
        .bind(&self.lane)
        .bind(&self.generation)
        .bind(&self.moves)
        .bind(&self.offset)
        .bind(&self.tenant)
        .bind(&self.endpoint)
        .bind(&self.event)
        .bind(&self.first_held)
        .bind(&self.attempts)
        .bind(&self.record)
        .execute(connection)
        .await
        .map_err(Error::doing("adding parked events"))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Tried {
    pub(super) lane: Vec<Vec<u8>>,
    pub(super) bucket: Vec<i16>,
    pub(super) delivery: Vec<Uuid>,
    pub(super) number: Vec<i32>,
    pub(super) due: Vec<Option<Time>>,
    pub(super) unknown: Vec<bool>,
}

impl Tried {
    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.lane.is_empty() {
            return Ok(());
        }
        // The first attempt fixes where the horizon begins (I22); each later one takes in for how long the endpoint stood
        // since, so that a held unknown's time, which stands by itself, does not count twice.
        sqlx::query(
            "WITH n AS (SELECT * FROM unnest($1::bytea[], $2::smallint[], $3::uuid[], $4::int[], $5::timestamptz[], \
               $6::bool[]) n(lane, bucket, delivery_id, number, due, unknown)), \
             clock AS (SELECT n.*, coalesce(p.stood_ms, l.stood_ms) AS stood_ms, CASE e.attempts \
                 WHEN 0 THEN greatest(e.first_held, l.clock_from, p.enabled_at) \
                 ELSE e.first_held + coalesce(p.stood_ms - l.stood_ms, 0) * interval '1 ms' END AS held \
               FROM n JOIN laneway_control.parked_events e ON e.bucket = n.bucket AND e.delivery_id = n.delivery_id \
               JOIN laneway_control.parked_lanes l ON l.lane = n.lane \
               LEFT JOIN laneway_control.endpoints p ON p.endpoint_id = l.endpoint_id), \
             counted AS (UPDATE laneway_control.parked_events e SET attempts = n.number, first_held = n.held \
               FROM clock n WHERE e.bucket = n.bucket AND e.delivery_id = n.delivery_id) \
             UPDATE laneway_control.parked_lanes l SET due = coalesce(n.due, l.due), last_tried = now(), \
               unknown = n.unknown, \
               unknown_since = CASE WHEN n.unknown THEN coalesce(l.unknown_since, now()) END, \
               head_held = n.held, stood_ms = n.stood_ms \
             FROM clock n WHERE l.lane = n.lane",
        )
        .bind(&self.lane)
        .bind(&self.bucket)
        .bind(&self.delivery)
        .bind(&self.number)
        .bind(&self.due)
        .bind(&self.unknown)
        .execute(connection)
        .await
        .map_err(Error::doing("moving due times"))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct ParkedFinals {
    pub(super) bucket: Vec<i16>,
    pub(super) delivery: Vec<Uuid>,
    pub(super) lane: Vec<Vec<u8>>,
    pub(super) may_unpark: Vec<Vec<u8>>,
    pub(super) partition_of: HashMap<LaneId, Partition>,
}

impl ParkedFinals {
    pub(super) async fn write(
        &self,
        connection: &mut PgConnection,
        unparked: &mut HashMap<Partition, Vec<LaneId>>,
    ) -> Result<(), Error> {
        if self.delivery.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "DELETE FROM laneway_control.parked_events e USING unnest($1::smallint[], $2::uuid[]) n(bucket, delivery_id) \
             WHERE e.bucket = n.bucket AND e.delivery_id = n.delivery_id",
        )
        .bind(&self.bucket)
        .bind(&self.delivery)
        .execute(&mut *connection)
        .await
        .map_err(Error::doing("deleting parked events"))?;
        // What comes next in a lane is its head now: due, never tried, no unknown.
        sqlx::query(
            "UPDATE laneway_control.parked_lanes l SET due = least(l.due, date_trunc('milliseconds', now())), \
               head_held = e.first_held, last_tried = NULL, unknown = false, unknown_since = NULL, \
               clock_from = CASE WHEN l.unknown THEN now() ELSE l.clock_from END \
             FROM unnest($1::bytea[]) n(lane) \
             CROSS JOIN LATERAL (SELECT first_held FROM laneway_control.parked_events e WHERE e.lane = n.lane \
               ORDER BY generation, moves, log_offset LIMIT 1) e \
             WHERE l.lane = n.lane",
        )
        .bind(&self.lane)
        .execute(&mut *connection)
        .await
        .map_err(Error::doing("moving parked lanes to their next event"))?;
        if self.may_unpark.is_empty() {
            return Ok(());
        }
        // A lane without a row counts too: the group may have been written before.
        let gone: Vec<Vec<u8>> = sqlx::query_scalar(
            "WITH gone AS (DELETE FROM laneway_control.parked_lanes l USING unnest($1::bytea[]) n(lane) \
               WHERE l.lane = n.lane \
               AND NOT EXISTS (SELECT FROM laneway_control.parked_events e WHERE e.lane = l.lane) RETURNING l.lane) \
             SELECT n.lane FROM unnest($1::bytea[]) n(lane) WHERE n.lane IN (SELECT lane FROM gone) \
               OR NOT EXISTS (SELECT FROM laneway_control.parked_lanes l WHERE l.lane = n.lane)",
        )
        .bind(&self.may_unpark)
        .fetch_all(connection)
        .await
        .map_err(Error::doing("unparking lanes"))?;
        for id in gone {
            let id = super::value::lane(&id)?;
            if let Some(partition) = self.partition_of.get(&id) {
                unparked.entry(*partition).or_default().push(id);
            }
        }
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Releases {
    pub(super) lane: Vec<Vec<u8>>,
    pub(super) bucket: Vec<i16>,
    pub(super) delivery: Vec<Uuid>,
    pub(super) first_held: Vec<Time>,
    pub(super) due: Vec<Time>,
}

impl Releases {
    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.lane.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "WITH n AS (SELECT * FROM unnest($1::bytea[], $2::smallint[], $3::uuid[], $4::timestamptz[], \
               $5::timestamptz[]) n(lane, bucket, delivery_id, first_held, due)), \
             moved AS (UPDATE laneway_control.parked_events e SET first_held = n.first_held FROM n \
               WHERE e.bucket = n.bucket AND e.delivery_id = n.delivery_id), \
             ended AS (DELETE FROM laneway_control.intents WHERE delivery_id = ANY($3)) \
             UPDATE laneway_control.parked_lanes l SET unknown = false, unknown_since = NULL, due = n.due, \
               head_held = n.first_held, clock_from = now(), \
               stood_ms = coalesce((SELECT p.stood_ms FROM laneway_control.endpoints p \
                 WHERE p.endpoint_id = l.endpoint_id), 0) \
             FROM n WHERE l.lane = n.lane",
        )
        .bind(&self.lane)
        .bind(&self.bucket)
        .bind(&self.delivery)
        .bind(&self.first_held)
        .bind(&self.due)
        .execute(connection)
        .await
        .map_err(Error::doing("releasing unknowns"))?;
        Ok(())
    }
}
