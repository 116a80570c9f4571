//! The engine's side of settling: what goes into a slot's next transaction, and what its end means.

use crate::engine::{Back, Engine};
use crate::part::{Drain, Part};
use crate::settle::{Done, FEW, Work, Worked};
use laneway_lane::{Input, Partition, SettleItem};
use laneway_platform::{clock, task};
use laneway_store::delivery::GroupEnd;
use laneway_store::delivery::known::MAX_IDS;
use std::sync::Arc;
use std::time::Duration;

/// A lease is renewed after this part of it.
const RENEW_PART: u32 = 5;

impl Engine {
    /// When the next transaction that waits for company has waited enough (monotonic).
    pub(crate) fn settle_due(&self, _now: Duration) -> Option<Duration> {
        let waiting = |index: usize| {
            self.parts.iter().any(|(partition, part)| {
                self.slot_of(*partition) == index
                    && (!part.queue.is_empty() || part.batch.is_some())
            })
        };
        self.slots
            .iter()
            .enumerate()
            .filter(|(index, slot)| !slot.busy && waiting(*index))
            .map(|(_, slot)| slot.began + self.settings.settle_linger)
            .min()
    }

    fn slot_of(&self, partition: Partition) -> usize {
        partition as usize % self.slots.len()
    }

    /// Begins a transaction in every free slot that has a reason.
    pub(crate) fn settle(&mut self) {
        let (now, boot) = (clock::monotonic(), clock::boottime());
        for index in 0..self.slots.len() {
            if self.slots[index].busy {
                continue;
            }
            let (mut rows, mut asked, mut renew) = (0, 0, false);
            for (&partition, part) in &self.parts {
                if self.slot_of(partition) == index {
                    rows += part.queue.len();
                    asked += part.batch.as_ref().map_or(0, |batch| batch.records.len());
                    renew |= self.must_renew(part, boot);
                }
            }
            let slot = &self.slots[index];
            let waits = slot.rows >= FEW
                && rows < self.settings.settle_rows
                && now < slot.began + self.settings.settle_linger;
            if renew || rows + asked > 0 && !waits {
                self.begin_settle(index, now, boot);
            }
        }
    }

    fn must_renew(&self, part: &Part, boot: Duration) -> bool {
        !part.releasing && boot >= part.renewed + self.settings.lease / RENEW_PART
    }

    fn begin_settle(&mut self, index: usize, now: Duration, boot: Duration) {
        let mut own: Vec<Partition> =
            self.parts.keys().copied().filter(|p| self.slot_of(*p) == index).collect();
        let turn = self.slots[index].first % own.len().max(1);
        own.rotate_left(turn);
        let (mut rows, mut bytes, mut ids) = (0, 0, 0);
        let mut works = Vec::new();
        for partition in own {
            let next_offset = self.core.position(partition);
            let mut renew =
                self.parts.get(&partition).is_some_and(|part| self.must_renew(part, boot));
            let Some(part) = self.parts.get_mut(&partition) else { continue };
            let (mut items, mut through) = (Vec::new(), 0);
            while rows < self.settings.settle_rows && bytes < self.settings.settle_bytes {
                let Some((seq, item)) = part.queue.pop_front() else { break };
                bytes += weight(&item);
                rows += 1;
                through = seq;
                items.push(item);
            }
            let fits = part.batch.as_ref().is_some_and(|batch| ids + batch.ids.len() <= MAX_IDS);
            let batch = if fits { part.batch.take() } else { None };
            if let Some(batch) = &batch {
                ids += batch.ids.len();
                part.asking = true;
                // Only a real transaction tells which generation the partition is in.
                renew |= batch.latest > part.generation;
            }
            if items.is_empty() && batch.is_none() && !renew {
                continue;
            }
            if renew || !items.is_empty() {
                part.renewed = boot;
            }
            let position = next_offset.unwrap_or(part.position);
            let forward = position >= part.position;
            self.metrics.invariants.hold("P4", "a position goes back", forward);
            part.position = position;
            works.push(Work {
                partition,
                lease: Arc::clone(&part.lease),
                generation: part.generation,
                next_offset,
                items,
                through,
                batch,
                renew,
            });
        }
        if works.is_empty() {
            return;
        }
        let slot = &mut self.slots[index];
        (slot.busy, slot.began, slot.rows) = (true, now, rows + ids);
        slot.first = slot.first.wrapping_add(1);
        let (settler, back) = (self.settler.clone(), self.back.clone());
        task::spawn("settle", async move {
            let done = settler.run(index, works).await;
            let _ = back.send(Back::Settled(done)).await;
        });
    }

    /// A slot's transaction is durable, or over.
    pub(crate) fn settled(&mut self, done: Done) {
        let Done { slot, asked, works } = done;
        self.slots[slot].busy = false;
        for work in works {
            self.settled_one(work, asked);
        }
    }

    fn settled_one(&mut self, work: Worked, asked: Duration) {
        let Worked { partition, epoch, through, items, batch, end, renewed } = work;
        let Some(part) = self.held(partition, epoch) else { return };
        let (generation, unparked, known) = match end {
            Some(GroupEnd::Written { generation, unparked, known }) => {
                (generation, unparked, known)
            }
            Some(GroupEnd::Fenced) => {
                let ago_ms = part.lease.over_for().as_millis() as u64;
                tracing::error!(
                    partition,
                    epoch,
                    items,
                    ago_ms,
                    "fenced: another instance owns the partition"
                );
                self.forget(partition);
                return;
            }
            None => {
                // The lease ended; what was to be written is written by the next owner.
                self.metrics.stale_settles.inc_by(items as u64);
                self.forget(partition);
                return;
            }
        };
        if renewed && !part.lease.extend(asked) {
            self.forget(partition);
            return;
        }
        part.asking = false;
        let (raised, draining) = (generation > part.generation, part.drain != Drain::No);
        if items > 0 {
            self.input(Input::Settled { partition, epoch, through, unparked });
        }
        // After a loss the batch may begin behind what is published again (P2): it is read again once the partition is
        // taken under the new generation.
        if let Some(mut batch) = batch.filter(|_| !draining && !raised) {
            let rows = std::mem::take(&mut batch.rows);
            self.tell_endpoints(rows);
            for (endpoint, tenant) in std::mem::take(&mut batch.unknown) {
                if !self.endpoints.has(endpoint) {
                    let gone = self.endpoints.missing(endpoint, tenant);
                    self.input(Input::Endpoint(gone));
                }
            }
            let endpoints = &self.endpoints;
            let records = batch.answered(&known, |id, tenant| endpoints.is_of(id, tenant));
            self.input(Input::Intake { partition, epoch, records });
        }
        if raised {
            // A new generation began: positions count in it from now on, so the partition is given back and taken
            // again under it.
            tracing::warn!(partition, generation, "a new generation of the topic began");
            self.metrics.generations.inc();
            self.begin_drain(partition);
        }
    }
}

/// Bytes of an item that go to the database.
fn weight(item: &SettleItem) -> usize {
    match item {
        SettleItem::Park { head, .. } | SettleItem::Append { event: head, .. } => {
            head.record.payload.len() + 512
        }
        SettleItem::Final {
            outcome: laneway_lane::FinalOutcome::DeadLettered { .. },
            record,
            ..
        } => record.payload.len() + 512,
        SettleItem::Failed { attempt, .. } => attempt.body.len() + 128,
        SettleItem::Quarantine { raw, .. } => raw.len(),
        _ => 128,
    }
}
