//! What follows from the log of dead letters and of what is done with them.

use crate::event::{Delivery, Event, Lane, Outcome, Time, Write};
use std::collections::BTreeMap;

/// What has become of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing yet.
    Open,
    /// It was sent again by this command.
    Rewound(u32),
    /// It is not to be sent.
    Discarded,
}

/// A dead letter.
#[derive(Debug, Clone)]
pub struct Letter {
    /// The delivery.
    pub delivery: Delivery,
    /// Why it was given up.
    pub outcome: Outcome,
    /// What has become of it.
    pub fate: Fate,
}

/// A command over dead letters.
#[derive(Debug, Clone)]
pub struct Command {
    /// Of this endpoint.
    pub endpoint: Option<u32>,
    /// Of this lane.
    pub lane: Option<Lane>,
    /// Those alone that may have been applied.
    pub unknowns: bool,
    /// They are not to be sent.
    pub discards: bool,
    /// So many dead letters were there.
    pub until: usize,
    /// It is done, or was ended.
    pub done: bool,
}

/// A delivery that repeats another.
#[derive(Debug, Clone)]
pub struct Copy {
    /// The command.
    pub rewind: u32,
    /// What it repeats.
    pub of: Delivery,
    /// When it was written.
    pub written: Time,
    /// What waited in the lane then.
    pub waiting: Vec<Delivery>,
    /// The delivery that it is.
    pub delivery: Option<Delivery>,
    /// It was there when an erasure of its lane began.
    pub erased: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Rewinds {
    /// Dead letters, in the order in which they were given up.
    pub letters: Vec<Letter>,
    /// By delivery, their place in that.
    pub places: BTreeMap<Delivery, usize>,
    /// Commands.
    pub commands: Vec<Command>,
    /// By row of the outbox.
    pub copies: BTreeMap<u32, Copy>,
    /// Rows by the delivery that they are.
    pub rows: BTreeMap<Delivery, u32>,
}

impl Rewinds {
    /// The dead letter of a delivery.
    pub fn letter(&self, delivery: Delivery) -> Option<&Letter> {
        self.places.get(&delivery).map(|place| &self.letters[*place])
    }

    /// The copy that a delivery is.
    pub fn copy(&self, delivery: Delivery) -> Option<&Copy> {
        self.rows.get(&delivery).map(|row| &self.copies[row])
    }

    /// The first delivery of what a delivery repeats: its idempotency key is theirs all.
    pub fn first(&self, mut delivery: Delivery) -> Delivery {
        while let Some(copy) = self.copy(delivery) {
            delivery = copy.of;
        }
        delivery
    }

    /// Takes a line in; `waiting` tells what waits in a delivery's lane, `lane` which that is.
    pub(super) fn note(
        &mut self,
        at: Time,
        event: &Event,
        waiting: impl Fn(Delivery) -> Vec<Delivery>,
        lane: impl Fn(Delivery) -> Lane,
    ) {
        match event {
            Event::Wrote {
                delivery, write: Write::Final { outcome, again: false, .. }, ..
            } if matches!(
                outcome,
                Outcome::Rejected | Outcome::Expired | Outcome::Erased | Outcome::GivenUp
            ) =>
            {
                let (delivery, outcome) = (*delivery, *outcome);
                self.places.insert(delivery, self.letters.len());
                self.letters.push(Letter { delivery, outcome, fate: Fate::Open });
            }
            Event::RewindBegan { endpoint, lane, unknowns, discards, .. } => {
                self.commands.push(Command {
                    endpoint: *endpoint,
                    lane: *lane,
                    unknowns: *unknowns,
                    discards: *discards,
                    until: self.letters.len(),
                    done: false,
                });
            }
            Event::RewindDone { rewind } | Event::RewindCancelled { rewind } => {
                self.commands[*rewind as usize].done = true;
            }
            Event::Rewound { rewind, of, row } => {
                let copy = Copy {
                    rewind: *rewind,
                    of: *of,
                    written: at,
                    waiting: waiting(*of),
                    delivery: None,
                    erased: false,
                };
                self.copies.insert(*row, copy);
                self.close(*of, Fate::Rewound(*rewind));
            }
            Event::Discarded { delivery, .. } => self.close(*delivery, Fate::Discarded),
            Event::Repeated { row, delivery } => {
                if let Some(copy) = self.copies.get_mut(row) {
                    copy.delivery = Some(*delivery);
                }
                self.rows.insert(*delivery, *row);
            }
            Event::ErasureBegan { lane: of, .. } => {
                let copies = self.copies.values_mut().filter(|copy| lane(copy.of) == *of);
                copies.for_each(|copy| copy.erased = true);
            }
            _ => {}
        }
    }

    fn close(&mut self, delivery: Delivery, fate: Fate) {
        if let Some(place) = self.places.get(&delivery) {
            self.letters[*place].fate = fate;
        }
    }
}
