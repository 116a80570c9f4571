//! What Kafka proposes, and what becomes of it: take over, drain, release, forget.

use crate::engine::{Back, Engine};
use crate::intake::{BATCH, Batch};
use crate::load::LanesPage;
use crate::ownership::TakenOver;
use crate::part::{Arrival, BUFFER_HIGH, BUFFER_LOW, Drain, Part};
use laneway_bus::{Command, Event, RawRecord};
use laneway_lane::{Epoch, Input, Partition};
use laneway_platform::clock;
use laneway_platform::{failpoint, task};
use laneway_wire::TenantId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Pages of parked lanes between the database and the engine.
const PAGES: usize = 2;
/// After the drain limit the cut requests still have to be recorded; then Kafka waits no longer.
pub(crate) const RECORD_CUT: Duration = Duration::from_secs(10);

fn number(partition: i32) -> Partition {
    u32::try_from(partition).unwrap_or(u32::MAX)
}

fn kafka(partition: Partition) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

impl Engine {
    pub(crate) fn take_event(&mut self, event: Event) {
        match event {
            Event::Assigned(partitions) => {
                self.metrics.rebalance("assigned");
                tracing::info!(count = partitions.len(), "partitions assigned");
                self.assigned = partitions.into_iter().map(number).collect();
                self.joined = true;
                self.ready.ready();
                for partition in self.assigned.clone() {
                    self.begin_take(partition);
                }
            }
            Event::Revoked(partitions) => {
                failpoint::hit("C4");
                self.metrics.rebalance("revoked");
                tracing::info!(count = partitions.len(), "partitions revoked");
                self.revoking = true;
                self.unassign(&partitions);
                for partition in partitions.into_iter().map(number) {
                    self.begin_drain(partition);
                }
                self.tell_released();
            }
            Event::Lost(partitions) => {
                self.metrics.rebalance("lost");
                tracing::warn!(?partitions, "partitions lost");
                self.unassign(&partitions);
                for partition in partitions.into_iter().map(number) {
                    self.forget(partition);
                }
            }
            Event::Records(records) => {
                failpoint::hit("C1");
                self.buffer(records);
            }
            Event::OffsetOutOfRange { partition, wanted } => {
                tracing::error!(partition, wanted, "the position is not in the log");
                // Taking it over again looks at the log and raises the generation.
                self.begin_drain(number(partition));
            }
            Event::TopicGone => tracing::error!("the deliveries topic does not exist"),
            Event::TopicChanged { .. } => self.check_topic(),
            Event::Fatal(_) => {}
        }
    }

    fn unassign(&mut self, partitions: &[i32]) {
        for partition in partitions.iter().map(|partition| number(*partition)) {
            self.assigned.remove(&partition);
            if let Some((_, cancel)) = self.takings.remove(&partition) {
                cancel.cancel();
            }
        }
    }

    /// Begins to take the partition over, unless it is held or being taken, or Kafka does not propose it.
    pub(crate) fn begin_take(&mut self, partition: Partition) {
        let free = !self.parts.contains_key(&partition) && !self.takings.contains_key(&partition);
        if !free || self.leaving || !self.assigned.contains(&partition) {
            return;
        }
        self.next_taking += 1;
        let (number, cancel) = (self.next_taking, CancellationToken::new());
        self.takings.insert(partition, (number, cancel.clone()));
        let (owning, back) = (self.owning.clone(), self.back.clone());
        task::spawn("take", async move {
            if let Some(taken) = owning.take(partition, cancel).await {
                let _ = back.send(Back::Taken { partition, number, taken }).await;
            }
        });
    }

    pub(crate) fn taken(&mut self, partition: Partition, number: u64, taken: TakenOver) {
        let wanted = self.takings.get(&partition).is_some_and(|(present, _)| *present == number);
        if !wanted {
            // Kafka has changed its mind meanwhile: give it back at once, nothing was begun.
            let owning = self.owning.clone();
            task::spawn("release", async move {
                owning.release(partition, &taken.lease, taken.generation, taken.start).await;
            });
            return;
        }
        self.takings.remove(&partition);
        let TakenOver { lease, generation, start, losses } = taken;
        let epoch = lease.epoch;
        self.parts.insert(partition, Part::new(lease, generation, start, losses));
        self.input(Input::Assigned { partition, epoch, next_offset: start, generation });
        let (pages, mut page) = mpsc::channel(PAGES);
        let (loader, back) = (self.loader.clone(), self.back.clone());
        task::spawn("lanes", async move {
            let reading = loader.lanes(partition, pages);
            let forwarding = async {
                while let Some(page) = page.recv().await {
                    let _ = back.send(Back::Lanes { partition, epoch, page }).await;
                }
            };
            let (read, ()) = tokio::join!(reading, forwarding);
            if let Err(error) = &read {
                tracing::warn!(partition, %error, "parked lanes could not be read");
            }
            let _ = back.send(Back::LanesEnd { partition, epoch, whole: read.is_ok() }).await;
        });
    }

    pub(crate) fn lanes(&mut self, partition: Partition, epoch: Epoch, page: LanesPage) {
        if self.held(partition, epoch).is_none() {
            return;
        }
        self.tell_endpoints(page.rows);
        for endpoint in page.named {
            if !self.endpoints.has(endpoint) {
                let gone = self.endpoints.missing(endpoint, TenantId::from_uuid(Uuid::nil()));
                self.input(Input::Endpoint(gone));
            }
        }
        self.input(Input::ParkedLanes { partition, epoch, lanes: page.lanes, last: false });
    }

    pub(crate) fn lanes_end(&mut self, partition: Partition, epoch: Epoch, whole: bool) {
        let Some(part) = self.held(partition, epoch) else { return };
        if !whole {
            part.lease.end();
            self.forget(partition);
            return;
        }
        let offset = part.start;
        part.next = Some(offset);
        self.input(Input::ParkedLanes { partition, epoch, lanes: Vec::new(), last: true });
        self.consumer.command(Command::Start { partition: kafka(partition), offset });
    }

    fn buffer(&mut self, records: Vec<RawRecord>) {
        let Some(first) = records.first() else { return };
        let partition = number(first.partition);
        let Some(part) = self.parts.get_mut(&partition) else { return };
        if part.drain != Drain::No {
            return;
        }
        let last = records.last().map_or(first.offset, |last| last.offset);
        match part.arrived(first.offset, last) {
            Arrival::Take => {}
            Arrival::Drop => return,
            Arrival::ReadAgain(offset) => {
                tracing::warn!(
                    partition,
                    offset,
                    found = first.offset,
                    "records are missing, reading again"
                );
                self.consumer.command(Command::Start { partition: kafka(partition), offset });
                part.paused = false;
                return;
            }
        }
        part.buffered_bytes += records.iter().map(|record| record.value.len()).sum::<usize>();
        part.buffer.extend(records);
        if part.buffer.len() > BUFFER_HIGH && !part.paused {
            part.paused = true;
            self.consumer.command(Command::Pause { partition: kafka(partition) });
        }
    }

    /// Forms a batch for every partition that has records, room, and no batch under way.
    pub(crate) fn take_in(&mut self) {
        for (&partition, part) in &mut self.parts {
            if part.buffer.is_empty() || part.asking || part.batch.is_some() {
                continue;
            }
            let room = self.core.intake_room(partition).min(BATCH as u32) as usize;
            if room == 0 {
                continue;
            }
            let endpoints = &self.endpoints;
            let batch = Batch::read(partition, part, room, &self.buckets, |id| endpoints.has(id));
            part.batch = Some(batch);
            if part.paused && part.buffer.len() < BUFFER_LOW {
                part.paused = false;
                self.consumer.command(Command::Resume { partition: kafka(partition) });
            }
        }
    }

    /// Starts nothing more of the partition and gives it back when what is under way has ended.
    pub(crate) fn begin_drain(&mut self, partition: Partition) {
        let Some(part) = self.parts.get_mut(&partition) else {
            self.begin_take(partition);
            return;
        };
        if part.drain == Drain::No {
            part.drain = Drain::Until(clock::monotonic() + self.settings.drain_limit);
            part.buffer.clear();
            part.buffered_bytes = 0;
            part.batch = None;
            self.input(Input::Revoke { partition });
        }
    }

    /// The core has nothing of it in flight or unsettled.
    pub(crate) fn drained(&mut self, partition: Partition, epoch: Epoch) {
        let position = self.core.position(partition);
        let Some(part) = self.held(partition, epoch) else { return };
        if part.releasing {
            return;
        }
        part.releasing = true;
        let next_offset = position.unwrap_or(part.start);
        let (lease, generation) = (Arc::clone(&part.lease), part.generation);
        let (owning, back) = (self.owning.clone(), self.back.clone());
        self.commit(partition, next_offset);
        task::spawn("release", async move {
            owning.release(partition, &lease, generation, next_offset).await;
            let _ = back.send(Back::Released { partition, epoch }).await;
        });
    }

    pub(crate) fn released(&mut self, partition: Partition, epoch: Epoch) {
        if self.held(partition, epoch).is_some() {
            self.forget(partition);
        }
    }

    /// Drops everything of the partition; takes it again if Kafka still proposes it. A lease that ran out is counted,
    /// whoever noticed first: the clock, a write, or Kafka.
    pub(crate) fn forget(&mut self, partition: Partition) {
        if let Some(part) = self.parts.remove(&partition) {
            let ago = part.lease.over_for();
            if ago > Duration::ZERO {
                // `make chaos` reads this line, and that of a fence.
                tracing::warn!(partition, ago_ms = ago.as_millis() as u64, "lease ran out");
                self.metrics.lease_lost.inc();
            }
            part.lease.end();
            self.commands.retain(|_, (of, _)| *of != partition);
            self.metrics.stale_settles.inc_by(part.queue.len() as u64);
            self.input(Input::Lost { partition });
        }
        self.begin_take(partition);
        self.tell_released();
    }

    /// Tells Kafka when nothing is left of what it wants back.
    fn tell_released(&mut self) {
        if self.revoking && self.parts.is_empty() {
            self.revoking = false;
            self.consumer.command(Command::Released);
        }
    }

    /// Tells Kafka a position, for people who look at the lag there.
    pub(crate) fn commit(&mut self, partition: Partition, offset: i64) {
        let partition = kafka(partition);
        self.consumer.command(Command::CommitAdvisory { partition, offset });
    }

    /// The service stops: everything is given back.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.ready.not_ready("stopping");
        self.consumer.command(Command::Leave);
    }

    /// The topic may have been made again: the generation is raised then, and the owners notice.
    fn check_topic(&mut self) {
        let (owning, back) = (self.owning.clone(), self.back.clone());
        task::spawn("topic", async move {
            if let Err(error) = owning.log.is_new_topic(&owning.pool).await {
                tracing::warn!(%error, "the topic could not be looked at");
            }
            let _ = back.send(Back::TopicChecked).await;
        });
    }
}
