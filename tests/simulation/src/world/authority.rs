//! Reconcilers, the authorities that they ask, and the ledgers that these look into (design 5.5, 5.8, C8). A question is
//! about one unknown; it is asked under a claim, and a definite answer becomes a command for the lane's owner.

use super::{Happening, World};
use crate::event::{Delivery, Event, Request, Time};
use crate::mutants::Slip;
use crate::plan::{ASK_GRACE, Fault, MAX_SKEW};
use crate::store::Command;
use laneway_lane::{OnUnknown, Verdict};
use std::collections::BTreeMap;

/// A claim is over after this, ms; times [`crate::plan::Plan::scale`].
const CLAIM: Time = 3_000;
/// Between two questions that came to nothing, ms; the same.
const AGAIN: Time = 1_000;

/// What reconcilers and authorities have written down.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    rows: BTreeMap<Delivery, Question>,
    claims: u64,
    /// How often the work of each key was really done.
    done: BTreeMap<Delivery, u32>,
}

/// One row of `lookups`.
#[derive(Debug, Clone, Copy)]
struct Question {
    /// Of the unknown: the next unknown of the same delivery is another question.
    attempts: u32,
    ask_at: Time,
    claim: u64,
}

/// A question on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    delivery: Delivery,
    attempts: u32,
    claim: u64,
}

impl World {
    /// A reconciler looks for unknowns whose time has come.
    pub(super) fn reconcile(&mut self) {
        if self.is_store_away() {
            let wait = self.store_back();
            self.at(self.now + wait, Happening::Reconcile);
            return;
        }
        let unknowns = self.store.unknown_ends();
        self.desk.rows.retain(|delivery, _| unknowns.iter().any(|(held, ..)| held == delivery));
        for (delivery, attempts, ended) in unknowns {
            let endpoint = &self.plan.endpoints[self.store.deliveries[delivery as usize].endpoint];
            if endpoint.on_unknown != OnUnknown::Lookup {
                continue;
            }
            let quiet = if self.slips(Slip::AskedAtOnce) { self.now } else { ended + ASK_GRACE };
            let first = Question { attempts, ask_at: quiet, claim: 0 };
            let row = self.desk.rows.entry(delivery).or_insert(first);
            if row.attempts != attempts {
                *row = first;
            }
            // What somebody's command is on its way for is left alone.
            let decided = self.store.commands.iter().any(|c| c.delivery == delivery && !c.done);
            if row.ask_at > self.now || decided {
                continue;
            }
            self.desk.claims += 1;
            (row.claim, row.ask_at) = (self.desk.claims, self.now + CLAIM * self.plan.scale);
            let asked = Asked { delivery, attempts, claim: row.claim };
            // Killed after the claim: it ends by itself.
            if !self.strikes(Fault::Authority, 5) {
                let delay = self.chance.range(1, 30);
                self.at(self.now + delay, Happening::Ask(asked));
            }
        }
        let wait = self.chance.range(self.plan.poll() / 2, self.plan.poll() * 3 / 2);
        self.at(self.now + wait, Happening::Reconcile);
    }

    /// The authority looks into its ledger, and what it says is on its way back.
    pub(super) fn ask(&mut self, asked: Asked) {
        let Asked { delivery, .. } = asked;
        self.log(Event::Asked { delivery });
        let verdict = if self.strikes(Fault::Authority, 25) {
            // Down, in progress, or nothing that makes sense.
            self.slips(Slip::GuessedWhenDown).then_some(Verdict::NotApplied)
        } else if self.desk.done.contains_key(&self.rewinds.first(delivery)) {
            Some(Verdict::Delivered)
        } else {
            Some(Verdict::NotApplied)
        };
        let delay = if self.strikes(Fault::Authority, 20) {
            self.nemesis.pick(&[800, 4_000, 12_000]) * self.plan.scale
        } else {
            self.chance.range(1, 30)
        };
        // Killed before the answer is written.
        if !self.strikes(Fault::Authority, 5) {
            self.at(self.now + delay, Happening::Answered { asked, verdict });
        }
    }

    /// The answer is written, if it still is one to this unknown.
    pub(super) fn answered(&mut self, asked: Asked, verdict: Option<Verdict>) {
        if self.is_store_away() {
            return; // the claim ends by itself
        }
        let Asked { delivery, attempts, claim } = asked;
        let head = self.store.unknown_head(delivery);
        let waits = head.is_some_and(|head| head.attempts == attempts);
        let open = self.store.commands.iter().any(|c| c.delivery == delivery && !c.done);
        let mine = self.desk.rows.get(&delivery).is_some_and(|row| row.claim == claim);
        let counts = mine && waits && !open;
        if !counts && !self.slips(Slip::StaleAnswerCounts) {
            return;
        }
        if let Some(row) = self.desk.rows.get_mut(&delivery) {
            (row.claim, row.ask_at) = (0, self.now + AGAIN * self.plan.scale);
        }
        let Some(verdict) = verdict else { return };
        let command = self.store.commands.len() as i64;
        self.store.commands.push(Command { delivery, verdict, done: false });
        let verdict = verdict.into();
        self.log(Event::Answered { command, delivery, attempts, verdict });
    }

    /// What a receiver makes of a request that it has read and not refused: the work is done now, later, or not at all.
    pub(super) fn work(&mut self, request: Request, status: Option<u16>, silent: bool) {
        let deadline = self.travels[request as usize].deadline;
        let at = match status {
            Some(200) => Some(self.now),
            Some(408 | 499 | 502 | 504) | None => {
                let end = if silent { deadline.max(self.now) } else { self.now };
                let at = self.ledger.range(self.now, end);
                self.ledger.chance(60).then_some(at)
            }
            Some(_) => None,
        };
        match at {
            Some(at) if at > self.now => self.at(at, Happening::Work(request)),
            Some(_) => self.worked(request),
            None => {}
        }
    }

    /// The work is done.
    pub(super) fn worked(&mut self, request: Request) {
        let travel = &self.travels[request as usize];
        let delivery = travel.delivery;
        // Frozen between the look at the lease and the first byte for longer than the grace: a known limit.
        let late = self.now > travel.deadline + ASK_GRACE - 2 * MAX_SKEW;
        let key = self.rewinds.first(delivery);
        *self.desk.done.entry(key).or_default() += 1;
        self.log(Event::Worked { request, delivery, late });
    }

    /// Whether nobody but the endpoint's authority may say what became of a request to it.
    pub(crate) fn is_asked(&self, delivery: Delivery) -> bool {
        let endpoint = self.store.deliveries[delivery as usize].endpoint;
        self.plan.endpoints[endpoint].on_unknown == OnUnknown::Lookup
    }

    /// Reconcilers begin.
    pub(super) fn start_reconcilers(&mut self) {
        for _ in 0..2 {
            let first = self.chance.range(0, self.plan.poll());
            self.at(first, Happening::Reconcile);
        }
    }
}
