//! Queries and writes outside the settle queues, settings and commands.

use super::World;
use crate::event::{Event, Time};
use crate::world::Note;
use laneway_lane::{CommandId, Effect, Input, Verdict};

/// A command that has come to nothing is handed in again after this, ms; times [`crate::plan::Plan::scale`].
const COMMAND_AGAIN: Time = 5_000;

impl World {
    pub(super) fn hand_settings(&mut self, instance: usize) {
        for endpoint in 0..self.store.endpoints.len() {
            let (version, settings) = &self.store.endpoints[endpoint];
            let known = &mut self.processes[instance].settings[endpoint];
            if *known < *version {
                *known = *version;
                let settings = settings.clone();
                self.step(instance, Input::Endpoint(settings));
            }
        }
    }

    pub(super) fn hand_commands(&mut self, instance: usize) {
        for command in 0..self.store.commands.len() {
            let row = &self.store.commands[command];
            let (id, delivery, verdict) = (command as CommandId, row.delivery, row.verdict);
            let info = &self.store.deliveries[delivery as usize];
            let (partition, lane) = (info.partition, info.lane_id);
            if row.done {
                continue;
            }
            let part = self.processes[instance].part_mut(partition);
            let Some(part) = part.filter(|part| part.running) else { continue };
            let epoch = part.epoch;
            let again = part.handed.get(&id).copied();
            // One to erase may come to nothing and is offered again.
            if again
                .is_none_or(|again| matches!(verdict, Verdict::Erase { .. }) && self.now >= again)
            {
                part.handed.insert(id, self.now + COMMAND_AGAIN * self.plan.scale);
                let head = self.store.unknown_head(delivery);
                let input = Input::Command { partition, epoch, command: id, lane, head, verdict };
                let delay = self.store_delay();
                self.tell(instance, delay, Note::Give(Box::new(input)));
            }
        }
    }

    /// A query or a write outside the settle queues reaches the database.
    pub(crate) fn query(&mut self, instance: usize, effect: Effect) {
        let current = |world: &Self, partition, epoch| {
            world.processes[instance].part(partition).is_some_and(|part| part.epoch == epoch)
        };
        let input = match effect {
            Effect::LoadDue { partition, epoch, endpoint, after, until, limit } => {
                if !current(self, partition, epoch) {
                    return;
                }
                let (heads, more, next_due) =
                    self.store.due(partition, endpoint, after, until, limit as usize);
                Input::Due { partition, epoch, endpoint, heads, more, next_due }
            }
            Effect::LoadPage { partition, epoch, lane, after, limit } => {
                if !current(self, partition, epoch) {
                    return;
                }
                let (events, more) = self.store.page(lane, after, limit as usize);
                Input::Page { partition, epoch, lane, events, more }
            }
            Effect::LoadExpired { partition, epoch, held_before, limit } => {
                if !current(self, partition, epoch) {
                    return;
                }
                let (heads, more) = self.store.expired(partition, held_before, limit as usize);
                Input::Expired { partition, epoch, heads, more }
            }
            Effect::ClaimProbe { endpoint, timeout } => {
                let parts = self.processes[instance].parts.iter();
                let own: Vec<_> = parts
                    .filter(|(_, part)| part.running && part.draining_since.is_none())
                    .map(|(partition, part)| (*partition, part.epoch))
                    .collect();
                let claim = self.store.claim_probe(self.now, &own, endpoint, timeout);
                let index = self.store.endpoint_by_id[&endpoint];
                self.processes[instance].claims[index] = claim.version;
                Input::Probe { endpoint, head: claim.head, probe_until: claim.until }
            }
            Effect::Degrade { endpoint } => {
                if let Some(endpoint) = self.store.degrade(self.now, endpoint) {
                    self.log(Event::Degraded { endpoint: endpoint as u32 });
                }
                return;
            }
            Effect::ProbeEnded { endpoint, alive } => {
                let index = self.store.endpoint_by_id[&endpoint];
                let claim = self.processes[instance].claims[index].take();
                let healthy = claim
                    .and_then(|claim| self.store.probe_ended(self.now, endpoint, claim, alive));
                if let Some(endpoint) = healthy {
                    self.log(Event::Healthy { endpoint: endpoint as u32 });
                }
                return;
            }
            Effect::Disable { endpoint } => {
                let endpoint = self.store.endpoint_by_id[&endpoint];
                self.switch(endpoint, laneway_lane::EndpointState::Disabled);
                return;
            }
            Effect::Settle { .. } | Effect::Send { .. } | Effect::Drained { .. } => return,
        };
        let delay = self.store_delay();
        self.tell(instance, delay, Note::Give(Box::new(input)));
    }
}
