//! The tables that matter, as `deliver` writes them: each function here is one transaction or one query. Times are
//! the database's, which is true time.

mod dead;
mod read;
mod topology;

use crate::event::{Delivery, Event, Lane, Time, Write};
use crate::mutants::Slip;
use laneway_lane::{
    AttemptRow, Endpoint, EndpointState, Epoch, FinalOutcome, Known, NewParked, Partition,
    Position, SettleItem, SettleSeq, Tried, Verdict,
};
use laneway_wire::{DeliveryId, EndpointId, LaneId, Record, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

pub use dead::{Dead, Selection, State};
pub use topology::Topology;

/// What the world knows of a delivery; rows name it by its index.
#[derive(Debug, Clone)]
pub struct DeliveryInfo {
    /// The record.
    pub record: Arc<Record>,
    /// Its lane's id.
    pub lane_id: LaneId,
    /// Its lane's index.
    pub lane: Lane,
    /// Its endpoint's index.
    pub endpoint: usize,
    /// Its partition.
    pub partition: Partition,
    /// Index of its lane's plan.
    pub slot: usize,
    /// Its payload is rejected for good.
    pub rejected: bool,
    /// Its payload is not in the outbox any more.
    pub erased: bool,
}

/// State of a `partition_owners` row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// The epoch.
    pub epoch: Epoch,
    /// The generation of the topic that `next_offset` is of.
    pub generation: u64,
    /// Raised by every transaction of the owner.
    pub renewal: u64,
    /// Released in good order.
    pub released: bool,
    /// First incomplete offset.
    pub next_offset: i64,
    /// The last transaction committed under this epoch: a repeat of it changes nothing.
    pub last_tx: u64,
}

#[derive(Debug, Clone)]
struct ParkedRow {
    position: Position,
    first_held: Timestamp,
    attempts: u32,
    erased: bool,
}

#[derive(Debug, Clone)]
struct LaneRow {
    id: LaneId,
    partition: Partition,
    endpoint: usize,
    due: Timestamp,
    last_tried: Option<Timestamp>,
    unknown_since: Option<Timestamp>,
    clock_from: Timestamp,
    /// Of a tried head: the endpoint's `stood` that its `first_held` includes.
    stood: Duration,
    events: BTreeMap<Position, Delivery>,
}

/// How an endpoint's row remembers the time for which it was disabled (I22).
#[derive(Debug, Clone, Copy, Default)]
struct Standstill {
    /// Since when it is, if it is.
    since: Timestamp,
    /// When it was last enabled again.
    enabled: Timestamp,
    /// In all, up to then.
    stood: Duration,
}

#[derive(Debug, Clone)]
struct Attempt {
    number: u32,
    began: Timestamp,
    ended: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Intent {
    created: Timestamp,
    deadline: Timestamp,
}

/// One row of `commands`.
#[derive(Debug, Clone)]
pub struct Command {
    /// About which delivery.
    pub delivery: Delivery,
    /// What a person says.
    pub verdict: Verdict,
    /// Applied or refused.
    pub done: bool,
}

/// One settle transaction.
#[derive(Debug, Clone)]
pub struct Settle {
    /// Its number: a repeat has the same.
    pub id: u64,
    /// Whose queue.
    pub partition: Partition,
    /// The fence.
    pub epoch: Epoch,
    /// The group; empty for a mere renewal.
    pub items: Vec<(SettleSeq, SettleItem)>,
    /// No transaction at all, only the questions: neither fenced nor a renewal.
    pub plain: bool,
    /// Read facts of these at the end.
    pub intake: Vec<Delivery>,
    /// Where the owner is, and in which generation: in another one that is not written.
    pub next_offset: i64,
    /// See `next_offset`.
    pub generation: u64,
    /// Release after this.
    pub release: bool,
}

/// What a settle transaction answers.
#[derive(Debug, Clone)]
pub enum Settled {
    /// It is durable.
    Durable {
        /// Lanes whose last row is gone.
        unparked: Vec<LaneId>,
        /// What is known of each delivery of the intake.
        known: Vec<Known>,
        /// The generation that the partition is in now.
        generation: u64,
    },
    /// The epoch is gone.
    Fenced,
}

/// The database.
#[derive(Debug, Default)]
pub struct Store {
    /// What is known of the topic.
    pub topology: Topology,
    /// Ownership.
    pub owners: Vec<Owner>,
    epochs: Epoch,
    inbox: BTreeMap<Delivery, FinalOutcome>,
    attempts: BTreeMap<Delivery, Vec<Attempt>>,
    intents: BTreeMap<Delivery, Intent>,
    lanes: BTreeMap<Lane, LaneRow>,
    parked: BTreeMap<Delivery, ParkedRow>,
    quarantine: BTreeMap<(Partition, i64), &'static str>,
    /// What was given up, and which deliveries repeat which.
    pub dead: Dead,
    /// Operators' words.
    pub commands: Vec<Command>,
    /// Endpoints that are not healthy: version and the time before which no probe is claimed.
    pub health: BTreeMap<usize, (u64, Timestamp)>,
    versions: u64,
    /// Settings of endpoints, each with a version.
    pub endpoints: Vec<(u64, Endpoint)>,
    standstills: BTreeMap<usize, Standstill>,
    /// Deliveries by id.
    pub by_id: HashMap<DeliveryId, Delivery>,
    /// All deliveries.
    pub deliveries: Vec<DeliveryInfo>,
    /// Lanes by id.
    pub lane_by_id: HashMap<LaneId, Lane>,
    /// Endpoints by id.
    pub endpoint_by_id: HashMap<EndpointId, usize>,
}

impl Store {
    fn delivery(&self, record: &Record) -> Delivery {
        self.by_id[&record.head.delivery_id()]
    }

    /// Takes over if the row still is as it was `seen`.
    pub fn take_over(&mut self, partition: Partition, seen: Owner) -> Option<Owner> {
        let row = &mut self.owners[partition as usize];
        if (row.epoch, row.renewal, row.released) != (seen.epoch, seen.renewal, seen.released) {
            return None;
        }
        self.epochs += 1;
        *row = Owner {
            epoch: self.epochs,
            renewal: row.renewal + 1,
            released: false,
            last_tx: 0,
            ..*row
        };
        Some(*row)
    }

    /// One settle transaction; what became durable is told to `log`.
    pub fn settle(
        &mut self,
        now: Time,
        tx: &Settle,
        slip: Option<Slip>,
        log: &mut Vec<Event>,
    ) -> Settled {
        let (partition, epoch) = (tx.partition, tx.epoch);
        let row = &mut self.owners[partition as usize];
        if tx.plain {
            let known = tx.intake.iter().map(|delivery| self.known(*delivery)).collect();
            // Nobody looks at the row.
            return Settled::Durable { unparked: Vec::new(), known, generation: tx.generation };
        }
        let repeat =
            row.epoch == epoch && row.last_tx == tx.id && slip != Some(Slip::RepeatAppliedTwice);
        if !repeat {
            if (row.epoch != epoch || row.released) && slip != Some(Slip::FenceUnchecked) {
                log.push(Event::Fenced { partition, epoch });
                return Settled::Fenced;
            }
            row.renewal += 1;
            row.last_tx = tx.id;
            row.released = tx.release;
            let same = row.generation == tx.generation || slip == Some(Slip::PositionOfOldTopic);
            let moved = same && row.next_offset != tx.next_offset;
            if moved {
                row.next_offset = tx.next_offset;
            }
            self.apply(now, tx, slip, log);
            if moved {
                log.push(Event::Position { partition, epoch, next_offset: tx.next_offset });
            }
            if tx.release {
                log.push(Event::Released { partition, epoch });
            }
        }
        let early = slip == Some(Slip::UnparkedTooEarly);
        let unparked = tx.items.iter().filter_map(|(_, item)| match item {
            SettleItem::Final { lane, may_unpark: true, .. } => Some(*lane),
            SettleItem::Final { lane, parked: true, .. } if early => Some(*lane),
            _ => None,
        });
        let mut unparked: Vec<_> =
            unparked.filter(|id| early || !self.lanes.contains_key(&self.lane_by_id[id])).collect();
        unparked.dedup();
        let known = tx.intake.iter().map(|delivery| self.known(*delivery)).collect();
        let generation = self.owners[partition as usize].generation;
        Settled::Durable { unparked, known, generation }
    }

    /// What inbox, attempts and intents know of a delivery.
    pub fn known(&self, delivery: Delivery) -> Known {
        if self.inbox.contains_key(&delivery) {
            return Known::Settled;
        }
        let rows = self.attempts.get(&delivery);
        let intent = self.intents.get(&delivery);
        if rows.is_none() && intent.is_none() {
            return Known::New;
        }
        let rows = rows.map_or(&[][..], Vec::as_slice);
        let deadline = intent.map(|intent| intent.deadline);
        let created = intent.map(|intent| intent.created);
        let last_end = rows.iter().map(|row| row.ended).chain(deadline).max().unwrap_or_default();
        Known::Tried(Tried {
            attempts: rows.iter().map(|row| row.number).max().unwrap_or(0),
            first_at: rows.iter().map(|row| row.began).chain(created).min().unwrap_or(last_end),
            last_end,
            open_intent: intent.is_some(),
        })
    }

    fn apply(&mut self, now: Time, tx: &Settle, slip: Option<Slip>, log: &mut Vec<Event>) {
        let class = |item: &SettleItem| match item {
            SettleItem::Park { .. } => 0,
            SettleItem::Append { .. } => 1,
            SettleItem::Intent { .. } => 2,
            SettleItem::Failed { .. } => 3,
            SettleItem::Final { .. } => 4,
            SettleItem::ReleaseUnknown { .. } => 5,
            SettleItem::Quarantine { .. } => 6,
            SettleItem::RefuseCommand { .. } => 7,
        };
        let mut order: Vec<usize> = (0..tx.items.len()).collect();
        order.sort_by_key(|at| (class(&tx.items[*at].1), *at));
        for (at, (_, item)) in tx.items.iter().enumerate() {
            let Some((lane, delivery)) = about(item) else { continue };
            let turned = tx.items[..at].iter().any(|(_, earlier)| {
                let leaves = matches!(earlier, SettleItem::Final { may_unpark: true, .. });
                about(earlier).is_some_and(|of| of == (lane, delivery) || (of.0 == lane && leaves))
                    && class(earlier) > class(item)
            });
            if turned {
                let what = format!("group order turns {item:?} round");
                log.push(Event::Contract { partition: tx.partition, epoch: tx.epoch, what });
            }
        }
        if slip == Some(Slip::TornGroup) {
            order.truncate(order.len().div_ceil(2));
        }
        for at in order {
            self.item(now, tx, &tx.items[at].1, slip, log);
        }
    }

    fn item(
        &mut self,
        now: Time,
        tx: &Settle,
        item: &SettleItem,
        slip: Option<Slip>,
        log: &mut Vec<Event>,
    ) {
        let (partition, epoch) = (tx.partition, tx.epoch);
        let broken = |what: String| Event::Contract { partition, epoch, what };
        let wrote = |delivery, write| Event::Wrote { partition, epoch, delivery, write };
        match item {
            SettleItem::Park { lane, head, attempt, .. } => {
                let delivery = self.delivery(&head.record);
                if self.lanes.contains_key(&self.lane_by_id[lane]) {
                    log.push(broken(format!("park of a parked lane, head {delivery}")));
                }
                let endpoint = self.deliveries[delivery as usize].endpoint;
                let row = LaneRow {
                    id: *lane,
                    partition,
                    endpoint,
                    stood: self.standstill(endpoint).stood,
                    due: head.due,
                    last_tried: attempt.as_ref().map(|attempt| attempt.ended),
                    unknown_since: head.unknown.then_some(Timestamp(now)),
                    clock_from: Timestamp(i64::MIN),
                    events: BTreeMap::new(),
                };
                self.lanes.insert(self.lane_by_id[lane], row);
                self.add_event(*lane, head);
                let first_held = head.first_held.0;
                log.push(wrote(delivery, Write::Park { first_held, unknown: head.unknown }));
                if let Some(attempt) = attempt {
                    self.add_attempt(delivery, attempt);
                    log.push(wrote(delivery, attempt_write(attempt, head.unknown)));
                }
            }
            SettleItem::Append { lane, event } => {
                let delivery = self.delivery(&event.record);
                if self.lanes.contains_key(&self.lane_by_id[lane]) {
                    self.add_event(*lane, event);
                } else {
                    log.push(broken(format!("append of {delivery} to a lane that is not parked")));
                }
                log.push(wrote(delivery, Write::Append));
            }
            SettleItem::Intent { ticket, record, deadline, .. } => {
                let delivery = self.delivery(record);
                let intent = Intent { created: Timestamp(now), deadline: *deadline };
                self.intents.insert(delivery, intent);
                log.push(wrote(delivery, Write::Intent { attempt: ticket.attempt }));
            }
            SettleItem::Failed { lane, record, attempt, parked_due, unknown } => {
                let delivery = self.delivery(record);
                self.add_attempt(delivery, attempt);
                let stands = self.standstill(self.deliveries[delivery as usize].endpoint);
                let row = self.lanes.get_mut(&self.lane_by_id[lane]);
                match (row, parked_due) {
                    (Some(row), Some(due)) => {
                        if row.events.values().next() != Some(&delivery) {
                            log.push(broken(format!("attempt of {delivery}, not a parked head")));
                        }
                        row.due = *due;
                        row.last_tried = Some(attempt.ended);
                        row.unknown_since = unknown.then_some(Timestamp(now));
                        if let Some(event) = self.parked.get_mut(&delivery) {
                            // Its horizon is fixed by its first attempt; later ones take in what stood since.
                            let clock_from = row.clock_from.max(stands.enabled);
                            if event.attempts > 0 {
                                let stood = stands.stood.saturating_sub(row.stood);
                                event.first_held = event.first_held + stood;
                            } else if slip != Some(Slip::HorizonNotFixed) {
                                event.first_held = event.first_held.max(clock_from);
                            }
                            row.stood = stands.stood;
                            event.attempts = attempt.number;
                        }
                    }
                    (None, None) => {}
                    (row, _) => {
                        let state = if row.is_some() { "parked" } else { "live" };
                        log.push(broken(format!(
                            "attempt of {delivery} in a lane that is {state}"
                        )));
                    }
                }
                log.push(wrote(delivery, attempt_write(attempt, *unknown)));
            }
            SettleItem::Final {
                lane,
                record,
                outcome,
                attempts,
                attempt,
                parked,
                may_unpark,
                command,
                ..
            } => {
                let delivery = self.delivery(record);
                let again = self.inbox.contains_key(&delivery);
                self.inbox.entry(delivery).or_insert(*outcome);
                if let FinalOutcome::DeadLettered { reason } = outcome {
                    self.dead.add(delivery, reason);
                }
                if let Some(attempt) = attempt {
                    self.add_attempt(delivery, attempt);
                    log.push(wrote(delivery, attempt_write(attempt, false)));
                }
                self.intents.remove(&delivery);
                let write = Write::Final {
                    outcome: (*outcome).into(),
                    attempts: *attempts,
                    command: command.is_some(),
                    again,
                };
                log.push(wrote(delivery, write));
                if *parked {
                    if self.parked.contains_key(&delivery) {
                        self.remove_event(now, *lane, delivery, *may_unpark, command.is_some());
                    } else {
                        log.push(broken(format!("final of {delivery}, which has no parked row")));
                    }
                } else if self.parked.contains_key(&delivery) {
                    log.push(broken(format!("final of {delivery} leaves its parked row behind")));
                }
                if let Some(command) = command {
                    self.command_done(*command, epoch, false, log);
                }
            }
            SettleItem::ReleaseUnknown { lane, delivery, first_held, due, command } => {
                let delivery = self.by_id[delivery];
                let stands = self.standstill(self.deliveries[delivery as usize].endpoint);
                if let Some(row) = self.lanes.get_mut(&self.lane_by_id[lane]) {
                    row.due = *due;
                    row.unknown_since = None;
                    row.clock_from = Timestamp(now);
                    row.stood = stands.stood;
                }
                if let Some(event) = self.parked.get_mut(&delivery) {
                    event.first_held = *first_held;
                }
                self.intents.remove(&delivery);
                log.push(wrote(delivery, Write::Release));
                self.command_done(*command, epoch, false, log);
            }
            SettleItem::RefuseCommand { command, .. } => {
                self.command_done(*command, epoch, true, log)
            }
            SettleItem::Quarantine { offset, reason, .. } => {
                self.quarantine.entry((partition, *offset)).or_insert(reason);
                log.push(Event::Quarantined { partition, epoch, offset: *offset });
            }
        }
    }

    fn command_done(&mut self, command: i64, epoch: Epoch, refused: bool, log: &mut Vec<Event>) {
        self.commands[command as usize].done = true;
        log.push(Event::CommandDone { command, epoch, refused });
    }

    fn add_attempt(&mut self, delivery: Delivery, attempt: &AttemptRow) {
        self.intents.remove(&delivery);
        self.attempts.entry(delivery).or_default().push(Attempt {
            number: attempt.number,
            began: attempt.ended - attempt.took,
            ended: attempt.ended,
        });
    }

    fn add_event(&mut self, lane: LaneId, event: &NewParked) {
        let delivery = self.delivery(&event.record);
        let row = self.lanes.get_mut(&self.lane_by_id[&lane]).expect("the caller has looked");
        if let Some(old) = self.parked.get_mut(&delivery) {
            if event.position < old.position {
                row.events.remove(&old.position);
                row.events.insert(event.position, delivery);
                old.position = event.position;
            }
            return;
        }
        if row.events.is_empty() {
            row.due = event.due;
        }
        row.events.insert(event.position, delivery);
        let parked = ParkedRow {
            position: event.position,
            first_held: event.first_held,
            attempts: event.attempts,
            erased: event.record.head.erased,
        };
        self.parked.insert(delivery, parked);
    }

    fn remove_event(
        &mut self,
        now: Time,
        lane: LaneId,
        delivery: Delivery,
        may_unpark: bool,
        command: bool,
    ) {
        let Some(gone) = self.parked.remove(&delivery) else { return };
        let index = self.lane_by_id[&lane];
        let Some(row) = self.lanes.get_mut(&index) else { return };
        let was_head = row.events.values().next() == Some(&delivery);
        row.events.remove(&gone.position);
        if row.events.is_empty() && may_unpark {
            self.lanes.remove(&index);
        } else if was_head {
            row.due = Timestamp(now);
            row.last_tried = None;
            row.unknown_since = None;
            if command {
                row.clock_from = Timestamp(now);
            }
        }
    }

    /// Makes an endpoint degraded unless it is.
    pub fn degrade(&mut self, now: Time, endpoint: EndpointId) -> Option<usize> {
        let index = self.endpoint_by_id[&endpoint];
        if self.health.contains_key(&index) {
            return None;
        }
        self.versions += 1;
        self.health.insert(index, (self.versions, Timestamp(now) + Duration::from_secs(1)));
        Some(index)
    }

    /// Records the outcome of the probe that `version` claimed; gives the endpoint if it is healthy again.
    pub fn probe_ended(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        version: u64,
        alive: bool,
    ) -> Option<usize> {
        let index = self.endpoint_by_id[&endpoint];
        let row = self.health.get_mut(&index).filter(|(present, _)| *present == version)?;
        if alive {
            self.health.remove(&index);
            return Some(index);
        }
        self.versions += 1;
        *row = (self.versions, Timestamp(now) + Duration::from_secs(1));
        None
    }

    /// Changes an endpoint's state, unless it is deleted; false if nothing changed.
    pub fn switch(
        &mut self,
        now: Time,
        endpoint: usize,
        state: EndpointState,
        slip: Option<Slip>,
    ) -> bool {
        let (version, row) = &mut self.endpoints[endpoint];
        if row.state == EndpointState::Deleted || row.state == state {
            return false;
        }
        let reopened = row.state == EndpointState::Disabled;
        row.state = state;
        *version += 1;
        let stands = self.standstills.entry(endpoint).or_default();
        if reopened && slip != Some(Slip::StandstillForgotten) {
            stands.enabled = Timestamp(now);
            stands.stood += Timestamp(now).since(stands.since);
        } else if state == EndpointState::Disabled {
            stands.since = Timestamp(now);
        }
        true
    }

    fn standstill(&self, endpoint: usize) -> Standstill {
        self.standstills.get(&endpoint).copied().unwrap_or_default()
    }
}

fn attempt_write(attempt: &AttemptRow, unknown: bool) -> Write {
    Write::Attempt {
        attempt: attempt.number,
        kind: attempt.kind.into(),
        status: attempt.status,
        ended: attempt.ended.0,
        unknown,
        made: attempt.class != "not_started",
    }
}

fn about(item: &SettleItem) -> Option<(LaneId, DeliveryId)> {
    match item {
        SettleItem::Park { lane, head: event, .. } | SettleItem::Append { lane, event } => {
            Some((*lane, event.record.head.delivery_id()))
        }
        SettleItem::Intent { lane, record, .. }
        | SettleItem::Failed { lane, record, .. }
        | SettleItem::Final { lane, record, .. } => Some((*lane, record.head.delivery_id())),
        SettleItem::ReleaseUnknown { lane, delivery, .. } => Some((*lane, *delivery)),
        SettleItem::RefuseCommand { .. } | SettleItem::Quarantine { .. } => None,
    }
}
