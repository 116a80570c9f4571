//! The end of a schedule: faults cease, what lingers keeps only its own, then nothing is left to hold anything back.

use super::{Happening, LOOK_EVERY, World};
use crate::event::{Event, Lane};
use crate::receiver::{self, Phase};
use laneway_lane::EndpointState;

impl World {
    pub(super) fn heal(&mut self) {
        self.phase = Phase::Healed;
        self.store_slow_until = 0;
        // Its time says which server it is: what was open at the one before does not come back.
        self.store_away_until = self.store_away_until.min(self.now);
        self.make_topic();
        self.resume_rewinds();
        for instance in 0..self.processes.len() {
            let process = &mut self.processes[instance];
            (process.crash_at_step, process.crash_at_commit) = (false, false);
            (process.pause_at_send, process.pause_at_commit) = (false, false);
            process.sleep_at_commit = None;
            if !process.alive {
                self.restart(instance);
            }
            if self.now < self.processes[instance].paused_until {
                self.processes[instance].paused_until = self.now;
                self.wake_early(instance);
                self.resume(instance);
            }
        }
        for endpoint in 0..self.store.endpoints.len() {
            self.switch(endpoint, EndpointState::Enabled);
        }
        self.log(Event::Healed);
        self.phase_until = self.now + self.plan.drain();
        self.at(self.now + LOOK_EVERY * self.plan.scale, Happening::Look);
    }

    /// Lanes that something that lingers holds back.
    fn blocked(&self) -> Vec<Lane> {
        let mut blocked = vec![false; self.store.lane_by_id.len()];
        for info in &self.store.deliveries {
            let bad = receiver::lane_is_bad(&self.plan, self.phase, info.slot, self.now);
            blocked[info.lane as usize] |= bad || self.plan.endpoints[info.endpoint].lingers;
        }
        for (delivery, _) in self.store.unknowns() {
            blocked[self.store.deliveries[delivery as usize].lane as usize] = true;
        }
        (0..blocked.len() as Lane).filter(|lane| blocked[*lane as usize]).collect()
    }

    pub(super) fn look(&mut self) {
        // What was under way when the faults ceased can still disable an endpoint (410).
        for endpoint in 0..self.store.endpoints.len() {
            self.switch(endpoint, EndpointState::Enabled);
        }
        let done = self.made >= self.plan.deliveries;
        // A cut can leave a gap at the end, which nobody reads.
        let lag: usize = (0..self.plan.partitions as usize)
            .map(|p| {
                let next = self.store.owners[p].next_offset;
                self.topic[p].iter().filter(|record| record.offset >= next).count()
            })
            .sum();
        let lag = lag as i64;
        if self.phase == Phase::Healed {
            let blocked = self.blocked();
            let open = (0..self.store.deliveries.len() as u32).any(|delivery| {
                let lane = self.store.deliveries[delivery as usize].lane;
                !self.store.is_settled(delivery) && blocked.binary_search(&lane).is_err()
            });
            if (done && !open) || self.now > self.phase_until {
                self.log(Event::Lingered { blocked });
                self.log(Event::Cured);
                self.phase = Phase::Cured;
                self.phase_until = self.now + self.plan.drain();
            }
        } else {
            self.resolve_all();
            let commands = self.store.commands.iter().filter(|command| !command.done).count();
            let settled = self.store.settled_count() == self.store.deliveries.len();
            let (parked, intents) = (self.store.parked_count(), self.store.intent_count());
            let drained = self.is_erased()
                && self.is_rewound()
                && done
                && settled
                && lag == 0
                && commands == 0
                && parked == 0
                && intents == 0;
            if drained || self.now > self.phase_until {
                self.log(Event::Over { drained, parked, intents, commands, lag });
                self.over = true;
            }
        }
        self.at(self.now + LOOK_EVERY * self.plan.scale, Happening::Look);
    }
}
