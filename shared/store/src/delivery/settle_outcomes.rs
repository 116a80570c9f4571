//! The settle transaction's statements on attempts, intents, final outcomes, dead letters and quarantine.

use super::settle_columns::{Time, lane, status};
use super::value::{count, millis, stored};
use crate::Error;
use bytes::Bytes;
use laneway_lane::{AttemptKind, AttemptRow, FinalOutcome};
use laneway_wire::{LaneId, Record, Timestamp};
use sqlx::PgConnection;
use std::time::Duration;
use uuid::Uuid;

/// Attempts of a delivery that are kept from its beginning.
const FIRST_KEPT: u32 = 10;
/// And from its end.
const LAST_KEPT: u32 = 20;
/// Given up because its payload is erased: there is nothing to be kept, and nothing that a person could do.
const ERASED: &str = "erased";

#[derive(Default)]
pub(super) struct Intents {
    pub(super) delivery: Vec<Uuid>,
    pub(super) tenant: Vec<Uuid>,
    pub(super) endpoint: Vec<Uuid>,
    pub(super) number: Vec<i32>,
    pub(super) epoch: Vec<i64>,
    pub(super) deadline: Vec<Time>,
    pub(super) partition: Vec<i32>,
}

impl Intents {
    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.delivery.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO laneway_control.intents (delivery_id, tenant_id, endpoint_id, number, epoch, deadline, \
               partition) \
             SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::bigint[], $6::timestamptz[], $7::int[]) \
             ON CONFLICT (delivery_id) DO UPDATE SET number = excluded.number, epoch = excluded.epoch, \
               deadline = excluded.deadline, partition = excluded.partition, created_at = now()",
        )
        .bind(&self.delivery)
        .bind(&self.tenant)
        .bind(&self.endpoint)
        .bind(&self.number)
        .bind(&self.epoch)
        .bind(&self.deadline)
        .bind(&self.partition)
        .execute(connection)
        .await
        .map_err(Error::doing("recording intents"))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Attempts {
    pub(super) delivery: Vec<Uuid>,
    pub(super) tenant: Vec<Uuid>,
    pub(super) endpoint: Vec<Uuid>,
    pub(super) number: Vec<i32>,
    pub(super) kind: Vec<i16>,
    pub(super) status: Vec<Option<i16>>,
    pub(super) class: Vec<&'static str>,
    pub(super) took: Vec<i32>,
    pub(super) ended: Vec<Time>,
    pub(super) body: Vec<Option<Vec<u8>>>,
    pub(super) long: (Vec<Uuid>, Vec<i32>),
}

impl Attempts {
    pub(super) fn push(&mut self, record: &Record, attempt: &AttemptRow) {
        self.delivery.push(record.head.delivery);
        self.tenant.push(record.head.tenant);
        self.endpoint.push(record.head.endpoint);
        self.number.push(count(attempt.number));
        self.kind.push(match attempt.kind {
            AttemptKind::NotSent => 1,
            AttemptKind::Responded => 2,
            AttemptKind::Unknown => 3,
        });
        self.status.push(status(attempt.status));
        self.class.push(attempt.class);
        self.took.push(millis(attempt.took));
        self.ended.push(stored(attempt.ended));
        self.body.push((!attempt.body.is_empty()).then(|| attempt.body.to_vec()));
        if attempt.number > FIRST_KEPT + LAST_KEPT {
            self.long.0.push(record.head.delivery);
            self.long.1.push(count(attempt.number - LAST_KEPT));
        }
    }

    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.delivery.is_empty() {
            return Ok(());
        }
        // The condition is for a group that is written again: number and end tell one attempt from its repeat after a
        // crash, which may carry the same number (P5).
        sqlx::query(
            "WITH ended AS (DELETE FROM laneway_control.intents WHERE delivery_id = ANY($1)) \
             INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, status, class, \
               took_ms, ended_at, body) \
             SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::smallint[], $6::smallint[], \
               $7::text[], $8::int[], $9::timestamptz[], $10::bytea[]) \
               n(delivery_id, tenant_id, endpoint_id, number, kind, status, class, took_ms, ended_at, body) \
             WHERE NOT EXISTS (SELECT FROM laneway_control.attempts a WHERE a.delivery_id = n.delivery_id \
               AND a.number = n.number AND a.ended_at = n.ended_at AND a.kind = n.kind)",
        )
        .bind(&self.delivery)
        .bind(&self.tenant)
        .bind(&self.endpoint)
        .bind(&self.number)
        .bind(&self.kind)
        .bind(&self.status)
        .bind(&self.class)
        .bind(&self.took)
        .bind(&self.ended)
        .bind(&self.body)
        .execute(&mut *connection)
        .await
        .map_err(Error::doing("recording attempts"))?;
        if self.long.0.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "DELETE FROM laneway_control.attempts a USING unnest($1::uuid[], $2::int[]) n(delivery_id, through) \
             WHERE a.delivery_id = n.delivery_id AND a.number > $3 AND a.number <= n.through",
        )
        .bind(&self.long.0)
        .bind(&self.long.1)
        .bind(count(FIRST_KEPT))
        .execute(connection)
        .await
        .map_err(Error::doing("leaving out middle attempts"))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Finals {
    pub(super) delivery: Vec<Uuid>,
    pub(super) tenant: Vec<Uuid>,
    pub(super) endpoint: Vec<Uuid>,
    pub(super) event: Vec<Uuid>,
    pub(super) outcome: Vec<i16>,
    pub(super) status: Vec<Option<i16>>,
    pub(super) attempts: Vec<i32>,
    pub(super) took: Vec<i32>,
}

impl Finals {
    pub(super) fn push(
        &mut self,
        record: &Record,
        outcome: FinalOutcome,
        attempts: u32,
        last_status: Option<u16>,
        took: Duration,
    ) {
        self.delivery.push(record.head.delivery);
        self.tenant.push(record.head.tenant);
        self.endpoint.push(record.head.endpoint);
        self.event.push(record.head.event);
        self.outcome.push(match outcome {
            FinalOutcome::Delivered => 1,
            FinalOutcome::DeadLettered { .. } => 2,
            FinalOutcome::Discarded { .. } => 3,
        });
        self.status.push(status(last_status));
        self.attempts.push(count(attempts));
        self.took.push(millis(took));
    }

    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.delivery.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "WITH ended AS (DELETE FROM laneway_control.intents WHERE delivery_id = ANY($1)) \
             INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, status, \
               attempts, took_ms) \
             SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::smallint[], $6::smallint[], \
               $7::int[], $8::int[]) ON CONFLICT DO NOTHING",
        )
        .bind(&self.delivery)
        .bind(&self.tenant)
        .bind(&self.endpoint)
        .bind(&self.event)
        .bind(&self.outcome)
        .bind(&self.status)
        .bind(&self.attempts)
        .bind(&self.took)
        .execute(connection)
        .await
        .map_err(Error::doing("recording final outcomes"))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Dead {
    pub(super) tenant: Vec<Uuid>,
    pub(super) delivery: Vec<Uuid>,
    pub(super) event: Vec<Uuid>,
    pub(super) endpoint: Vec<Uuid>,
    pub(super) lane: Vec<Vec<u8>>,
    pub(super) user_key: Vec<Option<String>>,
    pub(super) event_type: Vec<String>,
    pub(super) reason: Vec<&'static str>,
    pub(super) attempts: Vec<i32>,
    pub(super) status: Vec<Option<i16>>,
    pub(super) record: Vec<Vec<u8>>,
    pub(super) first_held: Vec<Time>,
}

impl Dead {
    pub(super) fn push(
        &mut self,
        id: LaneId,
        record: &Record,
        reason: &'static str,
        attempts: u32,
        last_status: Option<u16>,
        first_held: Timestamp,
    ) {
        let head = &record.head;
        let erased = reason == ERASED;
        self.tenant.push(head.tenant);
        self.delivery.push(head.delivery);
        self.event.push(head.event);
        self.endpoint.push(head.endpoint);
        self.lane.push(lane(id));
        self.user_key.push(head.user_key.clone());
        self.event_type.push(head.event_type.clone());
        self.reason.push(reason);
        self.attempts.push(count(attempts));
        self.status.push(status(last_status));
        self.record.push(if erased { record.erased().encode() } else { record.encode() }.into());
        self.first_held.push(stored(first_held));
    }

    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.delivery.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, user_key, \
               event_type, reason, attempts, last_status, record, first_held, state, erased_at, closed_at, first_class, \
               last_class) \
             SELECT n.*, CASE WHEN n.reason = $13 THEN 'erased' ELSE 'open' END, \
               CASE WHEN n.reason = $13 THEN now() END, CASE WHEN n.reason = $13 THEN now() END, \
               (SELECT class FROM laneway_control.attempts a WHERE a.delivery_id = n.delivery_id \
                 ORDER BY number, id LIMIT 1), \
               (SELECT class FROM laneway_control.attempts a WHERE a.delivery_id = n.delivery_id \
                 ORDER BY number DESC, id DESC LIMIT 1) \
             FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bytea[], $6::text[], $7::text[], \
               $8::text[], $9::int[], $10::smallint[], $11::bytea[], $12::timestamptz[]) \
               n(tenant_id, delivery_id, event_id, endpoint_id, lane, user_key, event_type, reason, attempts, status, \
                 record, first_held) \
             ON CONFLICT DO NOTHING",
        )
        .bind(&self.tenant)
        .bind(&self.delivery)
        .bind(&self.event)
        .bind(&self.endpoint)
        .bind(&self.lane)
        .bind(&self.user_key)
        .bind(&self.event_type)
        .bind(&self.reason)
        .bind(&self.attempts)
        .bind(&self.status)
        .bind(&self.record)
        .bind(&self.first_held)
        .bind(ERASED)
        .execute(connection)
        .await
        .map_err(Error::doing("recording dead letters"))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Quarantine {
    pub(super) generation: Vec<i64>,
    pub(super) partition: Vec<i32>,
    pub(super) offset: Vec<i64>,
    pub(super) reason: Vec<&'static str>,
    pub(super) raw: Vec<Bytes>,
}

impl Quarantine {
    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<(), Error> {
        if self.offset.is_empty() {
            return Ok(());
        }
        let raw: Vec<&[u8]> = self.raw.iter().map(Bytes::as_ref).collect();
        sqlx::query(
            "INSERT INTO laneway_control.quarantine (generation, partition, log_offset, reason, raw, raw_bytes) \
             SELECT generation, partition, log_offset, reason, raw, length(raw) \
             FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::text[], $5::bytea[]) \
               n(generation, partition, log_offset, reason, raw) ON CONFLICT DO NOTHING",
        )
        .bind(&self.generation)
        .bind(&self.partition)
        .bind(&self.offset)
        .bind(&self.reason)
        .bind(&raw)
        .execute(connection)
        .await
        .map_err(Error::doing("putting records into quarantine"))?;
        Ok(())
    }
}
