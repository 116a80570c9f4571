//! Requests on their way: departure, arrival, and what their process learns of them.

use super::{Happening, Note, Travel, World};
use crate::event::{Event, Instance, Request, Seen};
use crate::mutants::Slip;
use crate::plan::{Fault, MAX_SKEW, Mood};
use crate::receiver::{self, Answer};
use bytes::Bytes;
use laneway_lane::{AttemptResult, Input, Ticket};
use std::time::Duration;

impl World {
    /// A request leaves; its lease was just checked.
    pub(crate) fn depart(
        &mut self,
        instance: usize,
        ticket: Ticket,
        timeout: Duration,
        probe: bool,
        lease_left: i64,
        empty: bool,
    ) {
        let delivery = self.store.by_id[&ticket.delivery];
        let request = self.travels.len() as Request;
        let deadline = self.now + timeout.as_millis() as i64;
        let process = &self.processes[instance];
        self.travels.push(Travel {
            instance,
            incarnation: process.incarnation,
            ticket,
            delivery,
            began: self.now,
            deadline,
            arrived: false,
            ended: false,
            dropped: false,
            frozen: false,
        });
        self.log(Event::Began {
            request,
            instance: instance as Instance,
            partition: ticket.partition,
            epoch: ticket.epoch,
            delivery,
            attempt: ticket.attempt,
            probe,
            deadline,
            lease_left,
            empty,
        });
        let endpoint = self.store.deliveries[delivery as usize].endpoint;
        let mood = receiver::mood(&self.plan, self.phase, endpoint, self.now);
        if mood == Mood::Refused {
            self.faults += 1;
            let delay = self.chance.range(1, 60);
            let note = Note::Ended { request, seen: Seen::NotSent, class: "refused" };
            self.tell(instance, delay, note);
            return;
        }
        let delay = self.chance.range(1, 25);
        self.at(self.now + delay, Happening::Arrive(request));
        self.tell(
            instance,
            deadline - self.now,
            Note::Ended { request, seen: Seen::Unknown, class: "timeout" },
        );
        self.give_late(instance, ticket);
        if self.processes[instance].pause_at_send {
            self.pause(instance);
        }
    }

    /// A result of the same attempt under an epoch that the process has lost comes just now, of all times.
    fn give_late(&mut self, instance: usize, ticket: Ticket) {
        let incarnation = self.processes[instance].incarnation;
        let at = self.late.iter().position(|(process, life, _, old)| {
            (*process, *life) == (instance, incarnation)
                && (old.delivery, old.attempt) == (ticket.delivery, ticket.attempt)
                && old.epoch < ticket.epoch
        });
        if let Some(at) = at {
            let (.., result, ticket) = self.late.swap_remove(at);
            let input = Input::AttemptEnded { ticket, result, took: Duration::ZERO };
            let delay = self.chance.range(1, 30);
            self.tell(instance, delay, Note::Give(Box::new(input)));
        }
    }

    pub(super) fn arrive(&mut self, request: Request) {
        let travel = &self.travels[request as usize];
        if travel.dropped {
            return;
        }
        let (instance, incarnation) = (travel.instance, travel.incarnation);
        let paused_until = self.processes[instance].paused_until;
        if travel.frozen && self.now < paused_until {
            let delay = self.chance.range(0, 30);
            self.at(paused_until + delay, Happening::Arrive(request));
            return;
        }
        let info = &self.store.deliveries[travel.delivery as usize];
        let who = (info.endpoint, info.slot, info.rejected);
        let answer = receiver::answer(&self.plan, self.phase, who, self.now, &mut self.moods);
        let silent = answer == Answer::Silence;
        let (status, note, delay) = match answer {
            Answer::Status(status, delay) => {
                (Some(status), Some((Seen::Status(status), "status")), delay)
            }
            Answer::Reset(delay) => (None, Some((Seen::Unknown, "reset")), delay),
            Answer::Silence => (None, None, 0),
        };
        self.faults += u64::from(status != Some(200));
        self.travels[request as usize].arrived = true;
        self.log(Event::Arrived { request, status });
        self.work(request, status, silent);
        if let Some((seen, class)) = note {
            let back = self.chance.range(1, 25);
            let note = Note::Ended { request, seen, class };
            self.at(self.now + delay + back, Happening::To { instance, incarnation, note });
        }
    }

    /// The process learns how its request ended.
    pub(crate) fn ended(&mut self, request: Request, seen: Seen, class: &'static str) {
        let travel = &mut self.travels[request as usize];
        if travel.ended {
            return;
        }
        travel.ended = true;
        let travel = travel.clone();
        self.log(Event::Ended { request, seen });
        let process = &self.processes[travel.instance];
        let left = (travel.deadline - self.now).max(0);
        let clear_at = process.database_time(self.now) + Duration::from_millis(MAX_SKEW as u64);
        let clear_at = if seen == Seen::Cut && !self.slips(Slip::CutIsOver) {
            clear_at + Duration::from_millis(left as u64)
        } else {
            clear_at
        };
        let result = match seen {
            Seen::NotSent => AttemptResult::NotSent { class },
            Seen::Status(status) => AttemptResult::Responded {
                status,
                body: if status == 200 { Bytes::new() } else { Bytes::from_static(b"no") },
            },
            Seen::Unknown | Seen::Cut => AttemptResult::Unknown { class, clear_at },
        };
        let part = process.part(travel.ticket.partition);
        let current = part.is_some_and(|part| part.epoch == travel.ticket.epoch);
        if !current && !self.strikes(Fault::LateResults, 50) {
            return;
        }
        let took = Duration::from_millis((self.now - travel.began).max(0) as u64);
        if self.strikes(Fault::LateResults, 4) {
            let late = self.nemesis.range(200, 12_000) * self.plan.scale;
            let incarnation = self.processes[travel.instance].incarnation;
            self.late.push((travel.instance, incarnation, result.clone(), travel.ticket));
            let took = took + Duration::from_millis(late as u64);
            let input = Input::AttemptEnded { ticket: travel.ticket, result, took };
            self.tell(travel.instance, late, Note::Give(Box::new(input)));
        } else {
            self.step(travel.instance, Input::AttemptEnded { ticket: travel.ticket, result, took });
        }
    }
}
