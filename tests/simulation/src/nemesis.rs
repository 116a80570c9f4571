//! What goes wrong, and when: drawn from the seed's own stream for faults.

use crate::event::{Event, Instance, Switch, Time};
use crate::plan::{Fault, HASTY_SLEEP};
use crate::receiver::Phase;
use crate::shell::Process;
use crate::store::Command;
use crate::world::{Happening, World};
use laneway_lane::{EndpointState, Verdict};

impl World {
    /// One fault, and a time for the next.
    pub(crate) fn strike(&mut self) {
        if self.phase != Phase::Faulty {
            return;
        }
        let fault = self.nemesis.pick(Fault::earlier());
        if self.plan.has(fault) {
            let instance = self.nemesis.index(self.processes.len());
            self.strike_with(fault, instance);
        }
        let wait = self.nemesis.range(20, self.plan.pace);
        self.at(self.now + wait, Happening::Nemesis);
    }

    /// One of the faults that have streams of their own, and a time for the next.
    pub(crate) fn strike_later(&mut self) {
        if self.phase != Phase::Faulty {
            return;
        }
        let fault = self.later.pick(Fault::later());
        if self.plan.has(fault) {
            let instance = self.later.index(self.processes.len());
            self.strike_with_later(fault, instance);
        }
        let wait = self.later.range(100, 2 * self.plan.pace + 2_000 * self.plan.scale);
        self.at(self.now + wait, Happening::LaterNemesis);
    }

    fn strike_with_later(&mut self, fault: Fault, instance: usize) {
        match fault {
            Fault::LogLoss => self.lose_log(),
            Fault::Suspend => self.suspend(instance),
            Fault::ClockJump => self.set_clock(instance),
            Fault::Failover => self.fail_over(),
            Fault::Erase => self.erase(),
            _ => {}
        }
    }

    fn strike_with(&mut self, fault: Fault, instance: usize) {
        let endpoint = self.nemesis.index(self.store.endpoints.len());
        match fault {
            Fault::Crash if self.nemesis.chance(70) => {
                self.processes[instance].crash_at_step = true;
            }
            Fault::Crash => self.crash(instance),
            Fault::TornStop if self.nemesis.chance(50) => {
                self.processes[instance].crash_at_commit = true;
            }
            Fault::TornStop => self.processes[instance].pause_at_commit = true,
            Fault::Pause => self.pause(instance),
            Fault::FrozenSend => self.processes[instance].pause_at_send = true,
            Fault::Rebalance => {
                self.faults += 1;
                let partition = self.nemesis.index(self.assignment.len());
                self.assignment[partition] = instance;
            }
            Fault::GracefulStop if self.processes[instance].alive => {
                self.faults += 1;
                self.processes[instance].stopping = true;
                self.reassign_all(instance);
            }
            Fault::SlowStore => {
                self.faults += 1;
                self.store_slow_until = self.now + self.nemesis.range(200, 6_000) * self.plan.scale;
            }
            Fault::Disable => {
                let state = self.nemesis.pick(&[EndpointState::Disabled, EndpointState::Enabled]);
                self.switch(endpoint, state);
            }
            Fault::Delete if self.nemesis.chance(10) => {
                self.switch(endpoint, EndpointState::Deleted);
            }
            Fault::Gone => self.switch(endpoint, EndpointState::Enabled),
            Fault::Commands if !self.is_store_away() => self.command(),
            _ => {}
        }
    }

    /// An operator says something, mostly of a held unknown, sometimes of what is none.
    fn command(&mut self) {
        let unknowns = self.store.unknowns();
        let delivery = if !unknowns.is_empty() && self.nemesis.chance(85) {
            unknowns[self.nemesis.index(unknowns.len())].0
        } else if self.store.deliveries.is_empty() {
            return;
        } else {
            self.nemesis.index(self.store.deliveries.len()) as u32
        };
        let verdict =
            self.nemesis.pick(&[Verdict::Delivered, Verdict::NotApplied, Verdict::GivenUp]);
        if self.is_asked(delivery) {
            return; // people guess, and a guess may do it twice
        }
        self.faults += 1;
        self.resolve(delivery, verdict);
    }

    fn resolve(&mut self, delivery: u32, verdict: Verdict) {
        let command = self.store.commands.len() as i64;
        self.store.commands.push(Command { delivery, verdict, done: false });
        self.log(Event::Commanded { command, delivery, verdict: verdict.into() });
    }

    /// In the cured world a person answers for every unknown that no authority is asked about.
    pub(crate) fn resolve_all(&mut self) {
        for (delivery, _) in self.store.unknowns() {
            let open = self.store.commands.iter().any(|c| c.delivery == delivery && !c.done);
            if !open && !self.is_asked(delivery) {
                let verdict = self.chance.pick(&[Verdict::Delivered, Verdict::NotApplied]);
                self.resolve(delivery, verdict);
            }
        }
    }

    /// Changes an endpoint's state.
    pub(crate) fn switch(&mut self, endpoint: usize, state: EndpointState) {
        if !self.is_store_away() && self.store.switch(self.now, endpoint, state, self.slip()) {
            let state = match state {
                EndpointState::Enabled => Switch::Enabled,
                EndpointState::Disabled => Switch::Disabled,
                EndpointState::Deleted => Switch::Deleted,
            };
            self.faults += 1;
            self.log(Event::Endpoint { endpoint: endpoint as u32, state });
        }
    }

    /// kill -9: memory is lost; bytes that left may still arrive.
    pub(crate) fn crash(&mut self, instance: usize) {
        let process = &mut self.processes[instance];
        if !process.alive {
            return;
        }
        process.alive = false;
        process.deferred.clear();
        let incarnation = process.incarnation;
        self.faults += 1;
        self.log(Event::Crashed { instance: instance as Instance });
        for travel in &mut self.travels {
            if (travel.instance, travel.incarnation) == (instance, incarnation) && !travel.ended {
                travel.ended = true;
                travel.dropped = travel.frozen || (!travel.arrived && self.nemesis.chance(50));
            }
        }
        let back = self.nemesis.range(200, 9_000) * self.plan.scale;
        self.at(self.now + back, Happening::Restart(instance));
        let gone = Happening::SessionOver { instance, incarnation, paused: false };
        self.at(self.now + self.plan.session(), gone);
    }

    /// A new incarnation starts with nothing in memory.
    pub(crate) fn restart(&mut self, instance: usize) {
        let incarnation = self.processes[instance].incarnation + 1;
        let planted = self.planted;
        let (plan, chance) = (&self.plan, &mut self.chance);
        self.processes[instance] =
            Process::start(instance as Instance, incarnation, plan, planted, chance);
        self.started(instance);
    }

    /// SIGSTOP, often for longer than the lease.
    pub(crate) fn pause(&mut self, instance: usize) {
        let process = &mut self.processes[instance];
        (process.pause_at_send, process.pause_at_commit) = (false, false);
        if !process.alive || self.now < process.paused_until {
            return;
        }
        let until = self.now
            + self.nemesis.pick(&[300, 1_500, 2_500, 4_000, 7_000, 12_000]) * self.plan.scale;
        self.log(Event::Paused { instance: instance as Instance, until });
        self.stop(instance, until);
    }

    /// The machine of a process sleeps. What differs from a pause: its timers count no time meanwhile, so that all of
    /// them are late by as much afterwards, deadlines of requests too.
    fn suspend(&mut self, instance: usize) {
        if !self.runs(instance) {
            return;
        }
        let span = self.later.pick(&[300, 1_200, 2_500, 4_000, 12_000, 30_000]) * self.plan.scale;
        if self.plan.hasty {
            self.processes[instance].sleep_at_commit =
                Some(span.min(HASTY_SLEEP * self.plan.scale));
        } else {
            self.sleep(instance, span);
        }
    }

    fn runs(&self, instance: usize) -> bool {
        let process = &self.processes[instance];
        process.alive && self.now >= process.paused_until
    }

    pub(crate) fn sleep(&mut self, instance: usize, span: Time) {
        if !self.runs(instance) {
            return;
        }
        let process = &mut self.processes[instance];
        let (incarnation, until) = (process.incarnation, self.now + span);
        process.slept += span;
        process.asleep_until = until;
        self.log(Event::Suspended { instance: instance as Instance, until });
        self.put_off_timers(instance, incarnation, span);
        self.stop(instance, until);
    }

    /// It wakes before its time.
    pub(crate) fn wake_early(&mut self, instance: usize) {
        let process = &mut self.processes[instance];
        let left = (process.asleep_until - self.now).max(0);
        process.slept -= left;
        process.asleep_until = self.now;
        let incarnation = process.incarnation;
        self.put_off_timers(instance, incarnation, -left);
    }

    /// Somebody sets the wall clock of a machine.
    fn set_clock(&mut self, instance: usize) {
        let by = self.later.pick(&[259_200_000, -3_600_000, 500, -500]);
        self.faults += 1;
        self.processes[instance].wall += by;
        self.log(Event::ClockSet { instance: instance as Instance, by });
    }

    /// Nothing of the process goes on before `until`.
    fn stop(&mut self, instance: usize, until: Time) {
        let process = &mut self.processes[instance];
        process.paused_until = until;
        let incarnation = process.incarnation;
        self.faults += 1;
        let may_freeze = self.plan.has(Fault::FrozenSend);
        for travel in &mut self.travels {
            if (travel.instance, travel.incarnation) == (instance, incarnation)
                && !travel.ended
                && !travel.arrived
            {
                travel.frozen = may_freeze && self.nemesis.chance(70);
            }
        }
        self.at(until, Happening::Resume(instance));
        let gone = Happening::SessionOver { instance, incarnation, paused: true };
        self.at(self.now + self.plan.session(), gone);
    }

    /// SIGCONT: what came meanwhile is handled now, late as it is.
    pub(crate) fn resume(&mut self, instance: usize) {
        let process = &mut self.processes[instance];
        if !process.alive || self.now < process.paused_until {
            return;
        }
        let incarnation = process.incarnation;
        for note in std::mem::take(&mut process.deferred) {
            let process = &mut self.processes[instance];
            if process.incarnation != incarnation || !process.alive {
                return;
            }
            if self.now < process.paused_until {
                process.deferred.push(note);
            } else {
                self.note(instance, note);
            }
        }
    }

    /// Kafka gives the partitions of a process to others.
    pub(crate) fn reassign_all(&mut self, instance: usize) {
        let others: Vec<_> = (0..self.processes.len())
            .filter(|other| {
                *other != instance
                    && self.processes[*other].alive
                    && self.now >= self.processes[*other].paused_until
            })
            .collect();
        if others.is_empty() {
            return;
        }
        for partition in 0..self.assignment.len() {
            if self.assignment[partition] == instance {
                self.assignment[partition] = others[self.nemesis.index(others.len())];
            }
        }
    }
}
