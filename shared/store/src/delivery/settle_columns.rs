//! A settle transaction's items turned into columns, and the statement of each table.

use super::settle::Group;
use super::settle_outcomes::{Attempts, Dead, Finals, Intents, Quarantine};
use super::settle_parked::{Events, ParkedFinals, Parks, Releases, Tried};
use super::value::{big, bucket, count, stored};
use crate::Error;
use chrono::{DateTime, Utc};
use laneway_lane::{FinalOutcome, Partition, SettleItem};
use laneway_wire::LaneId;
use sqlx::PgConnection;
use std::collections::HashMap;

pub(super) type Time = DateTime<Utc>;

/// Columns by table; each field is one bind.
#[derive(Default)]
pub(crate) struct Columns {
    parks: Parks,
    events: Events,
    intents: Intents,
    attempts: Attempts,
    tried: Tried,
    finals: Finals,
    dead: Dead,
    parked_finals: ParkedFinals,
    releases: Releases,
    quarantine: Quarantine,
    commands: (Vec<i64>, Vec<&'static str>),
}

pub(super) fn lane(id: LaneId) -> Vec<u8> {
    id.as_bytes().to_vec()
}

pub(super) fn status(status: Option<u16>) -> Option<i16> {
    status.and_then(|status| i16::try_from(status).ok())
}

impl Columns {
    /// Takes the items of one group in.
    pub(crate) fn take(&mut self, group: &Group<'_>) {
        for item in group.items {
            self.take_item(group, item);
        }
    }

    fn take_item(&mut self, group: &Group<'_>, item: &SettleItem) {
        match item {
            SettleItem::Park { lane, head, reason, attempt } => {
                self.parks.push(group.partition, *lane, head, reason);
                self.events.push(*lane, head);
                if let Some(attempt) = attempt {
                    self.attempts.push(&head.record, attempt);
                }
            }
            SettleItem::Append { lane, event } => self.events.push(*lane, event),
            SettleItem::Intent { ticket, record, deadline, .. } => {
                let intents = &mut self.intents;
                intents.delivery.push(record.head.delivery);
                intents.tenant.push(record.head.tenant);
                intents.endpoint.push(record.head.endpoint);
                intents.number.push(count(ticket.attempt));
                intents.epoch.push(big(ticket.epoch));
                intents.deadline.push(stored(*deadline));
                intents.partition.push(group.partition.cast_signed());
            }
            SettleItem::Failed { lane: id, record, attempt, parked_due, unknown } => {
                self.attempts.push(record, attempt);
                if parked_due.is_some() || *unknown {
                    let tried = &mut self.tried;
                    tried.lane.push(lane(*id));
                    tried.bucket.push(bucket(*id));
                    tried.delivery.push(record.head.delivery);
                    tried.number.push(count(attempt.number));
                    tried.due.push(parked_due.map(stored));
                    tried.unknown.push(*unknown);
                }
            }
            SettleItem::Final { .. } => self.take_final(group, item),
            SettleItem::ReleaseUnknown { lane: id, delivery, first_held, due, command } => {
                let releases = &mut self.releases;
                releases.lane.push(lane(*id));
                releases.bucket.push(bucket(*id));
                releases.delivery.push(delivery.as_uuid());
                releases.first_held.push(stored(*first_held));
                releases.due.push(stored(*due));
                self.command(*command, "applied");
            }
            SettleItem::RefuseCommand { command, reason } => self.command(*command, reason),
            SettleItem::Quarantine { offset, reason, raw } => {
                let quarantine = &mut self.quarantine;
                quarantine.generation.push(big(group.generation));
                quarantine.partition.push(group.partition.cast_signed());
                quarantine.offset.push(*offset);
                quarantine.reason.push(reason);
                quarantine.raw.push(raw.clone());
            }
        }
    }

    fn take_final(&mut self, group: &Group<'_>, item: &SettleItem) {
        let SettleItem::Final {
            lane: id,
            record,
            outcome,
            attempts,
            first_held,
            attempt,
            status: last_status,
            took,
            parked,
            may_unpark,
            command,
        } = item
        else {
            return;
        };
        if let Some(attempt) = attempt {
            self.attempts.push(record, attempt);
        }
        self.finals.push(record, *outcome, *attempts, *last_status, *took);
        if let FinalOutcome::DeadLettered { reason } = outcome {
            self.dead.push(*id, record, reason, *attempts, *last_status, *first_held);
        }
        if *parked {
            let finals = &mut self.parked_finals;
            finals.bucket.push(bucket(*id));
            finals.delivery.push(record.head.delivery);
            finals.lane.push(lane(*id));
            if *may_unpark {
                finals.may_unpark.push(lane(*id));
                finals.partition_of.insert(*id, group.partition);
            }
        }
        if let Some(command) = command {
            self.command(*command, "applied");
        }
    }

    fn command(&mut self, command: i64, result: &'static str) {
        self.commands.0.push(command);
        self.commands.1.push(result);
    }

    /// Runs one statement for each table that has something, in the order of the module's doc; gives the lanes that
    /// are parked no more, by partition.
    pub(crate) async fn write(
        &self,
        connection: &mut PgConnection,
    ) -> Result<HashMap<Partition, Vec<LaneId>>, Error> {
        let mut unparked = HashMap::new();
        self.parks.write(connection).await?;
        self.events.write(connection).await?;
        self.intents.write(connection).await?;
        self.attempts.write(connection).await?;
        self.tried.write(connection).await?;
        self.finals.write(connection).await?;
        self.dead.write(connection).await?;
        self.parked_finals.write(connection, &mut unparked).await?;
        self.releases.write(connection).await?;
        self.quarantine.write(connection).await?;
        if !self.commands.0.is_empty() {
            sqlx::query(
                "UPDATE laneway_control.commands c SET applied_at = now(), result = n.result \
                 FROM unnest($1::bigint[], $2::text[]) n(command_id, result) \
                 WHERE c.command_id = n.command_id AND c.applied_at IS NULL",
            )
            .bind(&self.commands.0)
            .bind(&self.commands.1)
            .execute(connection)
            .await
            .map_err(Error::doing("answering commands"))?;
        }
        Ok(unparked)
    }
}
