//! Ownership (design 5.3): taking a partition over, keeping its lease, giving it back, losing it.

use super::{Part, World};
use crate::event::{Event, Instance, Seen, Time};
use crate::mutants::Slip;
use crate::store::Owner;
use crate::world::{Happening, Note};
use laneway_lane::{Epoch, Input, Partition};
use std::collections::{BTreeMap, VecDeque};

/// Ids of parked lanes read at a time.
const LANE_PAGE: usize = 3;

impl World {
    /// The lease is over or the fence is gone: all that is held under the epoch is dropped.
    pub(crate) fn lose(&mut self, instance: usize, partition: Partition) {
        if let Some(epoch) = self.forget(instance, partition) {
            self.log(Event::Lost { partition, epoch, instance: instance as Instance });
            self.step(instance, Input::Lost { partition });
        }
    }

    pub(super) fn forget(&mut self, instance: usize, partition: Partition) -> Option<Epoch> {
        let process = &mut self.processes[instance];
        let index = process.parts.iter().position(|(p, _)| *p == partition)?;
        process.watch[partition as usize] = None;
        Some(process.parts.swap_remove(index).1.epoch)
    }

    pub(super) fn poll_partition(&mut self, instance: usize, partition: Partition) {
        let assigned =
            self.assignment[partition as usize] == instance && !self.processes[instance].stopping;
        let cut_after = self.plan.cut_after;
        let process = &mut self.processes[instance];
        let own = process.own(self.now);
        let Some(index) = process.parts.iter().position(|(p, _)| *p == partition) else {
            if assigned {
                self.watch(instance, partition, own);
            }
            return;
        };
        let next_offset = process.core.position(partition);
        let part = &mut process.parts[index].1;
        if own >= part.lease_end {
            self.lose(instance, partition);
            return;
        }
        let renew = part.lease_end - own < self.plan.lease() * 4 / 5
            || next_offset.is_some_and(|next| next > part.stored_next);
        if renew && part.open.is_none() && part.queue.is_empty() {
            self.tx_ids += 1;
            self.commit(instance, index, partition, own, (Vec::new(), Vec::new(), false));
        }
        let part = &mut self.processes[instance].parts[index].1;
        match part.draining_since {
            None if !assigned => self.drain(instance, partition),
            Some(since) if own - since > cut_after => {
                let epoch = part.epoch;
                self.cut(instance, partition, epoch);
            }
            _ => self.kick(instance, partition),
        }
    }

    /// Starts nothing more of the partition; it is given back when what is under way has ended.
    pub(super) fn drain(&mut self, instance: usize, partition: Partition) {
        let own = self.processes[instance].own(self.now);
        let part = self.processes[instance].part_mut(partition);
        if let Some(part) = part.filter(|part| part.draining_since.is_none()) {
            part.draining_since = Some(own);
            self.step(instance, Input::Revoke { partition });
        }
    }

    /// Drains no longer: requests that are still under way are recorded as unknown until their deadlines.
    pub(super) fn cut(&mut self, instance: usize, partition: Partition, epoch: Epoch) {
        let incarnation = self.processes[instance].incarnation;
        for request in 0..self.travels.len() {
            let travel = &self.travels[request];
            if !travel.ended
                && (travel.instance, travel.incarnation) == (instance, incarnation)
                && (travel.ticket.partition, travel.ticket.epoch) == (partition, epoch)
            {
                let request = request as u32;
                self.note(instance, Note::Ended { request, seen: Seen::Cut, class: "cut" });
            }
        }
    }

    pub(super) fn watch(&mut self, instance: usize, partition: Partition, own: Time) {
        let row = self.store.owners[partition as usize];
        let at_once = self.slips(Slip::TakeOverAtOnce);
        let wait = if at_once { 0 } else { self.plan.lease() + self.plan.max_timeout() };
        if self.is_store_away() {
            return;
        }
        let process = &mut self.processes[instance];
        let slot = partition as usize;
        if process.taking[slot] {
            return;
        }
        let same = |seen: &Owner| {
            (seen.epoch, seen.renewal, seen.released) == (row.epoch, row.renewal, row.released)
        };
        match &process.watch[slot] {
            Some((seen, since)) if same(seen) => {
                if !row.released && own - since < wait {
                    return;
                }
            }
            _ => {
                process.watch[slot] = Some((row, own));
                if !row.released {
                    return;
                }
            }
        }
        if !self.is_whole(partition, row) {
            return; // what was watched still counts: epoch and renewal went over to the new row
        }
        let process = &mut self.processes[instance];
        process.taking[slot] = true;
        process.watch[slot] = None;
        let incarnation = process.incarnation;
        let delay = self.store_delay();
        let take = Happening::TakeOver { instance, incarnation, partition, seen: row, sent: own };
        self.at(self.now + delay, take);
        // If no reply ever comes it looks again.
        self.tell(
            instance,
            4_000 * self.plan.scale,
            Note::Taken { partition, owner: None, sent: own },
        );
    }

    pub(super) fn taken(
        &mut self,
        instance: usize,
        partition: Partition,
        owner: Option<Owner>,
        sent: Time,
    ) {
        let process = &mut self.processes[instance];
        process.taking[partition as usize] = false;
        let Some(owner) = owner else { return };
        if process.part(partition).is_some() || process.own(self.now) >= sent + self.plan.lease() {
            return;
        }
        let epoch = owner.epoch;
        let losses = self.store.losses(partition);
        let part = Part {
            epoch,
            lease_end: sent + self.plan.lease(),
            queue: VecDeque::new(),
            last_seq: 0,
            open: None,
            running: false,
            fetching: false,
            generation: owner.generation,
            losses,
            cut_off: false,
            fetch_next: owner.next_offset,
            stored_next: owner.next_offset,
            draining_since: None,
            releasing: false,
            handed: BTreeMap::new(),
        };
        let process = &mut self.processes[instance];
        process.parts.push((partition, part));
        let Owner { next_offset, generation, .. } = owner;
        self.step(instance, Input::Assigned { partition, epoch, next_offset, generation });
        let delay = self.store_delay();
        self.tell(instance, delay, Note::Lanes { partition, epoch, from: 0 });
    }

    pub(super) fn hand_lanes(
        &mut self,
        instance: usize,
        partition: Partition,
        epoch: Epoch,
        from: usize,
    ) {
        let part = self.processes[instance].part(partition);
        if part.is_none_or(|part| part.epoch != epoch) {
            return;
        }
        // The owner has written nothing yet, so all pages are of one state.
        let mut all = self.store.parked_lanes(partition);
        if self.slips(Slip::ParkedLanesForgotten) {
            all.clear();
        }
        let lanes: Vec<_> = all.iter().skip(from).take(LANE_PAGE).copied().collect();
        let next = from + lanes.len();
        let last = next >= all.len();
        self.step(instance, Input::ParkedLanes { partition, epoch, lanes, last });
        if last {
            if let Some(part) = self.processes[instance].part_mut(partition) {
                part.running = true;
            }
            self.kick(instance, partition);
        } else {
            let delay = self.store_delay();
            self.tell(instance, delay, Note::Lanes { partition, epoch, from: next });
        }
    }
}
