//! Dead letters, and which deliveries repeat which, as rewinds find them (design section 6).

use super::Store;
use crate::event::{Delivery, Lane};
use laneway_lane::rewind::{Found, Original};
use laneway_wire::{EndpointId, EventId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// What has become of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for a person.
    Open,
    /// It was sent again.
    Rewound,
    /// It is not to be sent.
    Discarded,
    /// Nothing is left to send.
    Erased,
}

/// A delivery that was given up on; its place is its index and one.
#[derive(Debug, Clone, Copy)]
pub struct Letter {
    /// The delivery.
    pub delivery: Delivery,
    /// Why, a stable code.
    pub reason: &'static str,
    /// What has become of it.
    pub state: State,
}

/// Which dead letters are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// Of this endpoint.
    pub endpoint: Option<usize>,
    /// Of this lane.
    pub lane: Option<Lane>,
    /// Those alone whose outcome is unknown.
    pub unknowns: bool,
}

/// Both tables.
#[derive(Debug, Default)]
pub struct Dead {
    /// In the order of their places.
    pub letters: Vec<Letter>,
    /// Numbers that repeats have, by event and endpoint.
    numbers: BTreeMap<(EventId, EndpointId), BTreeSet<u32>>,
}

impl Dead {
    pub(super) fn add(&mut self, delivery: Delivery, reason: &'static str) {
        let state = if reason == "erased" { State::Erased } else { State::Open };
        if self.letters.iter().all(|letter| letter.delivery != delivery) {
            self.letters.push(Letter { delivery, reason, state });
        }
    }

    /// The letter of a place.
    pub fn at(&mut self, place: i64) -> &mut Letter {
        &mut self.letters[place as usize - 1]
    }

    /// The highest number that a repeat of the event at the endpoint has.
    pub fn last_number(&self, event: EventId, endpoint: EndpointId) -> u32 {
        let numbers = self.numbers.get(&(event, endpoint));
        numbers.and_then(|numbers| numbers.last().copied()).unwrap_or(0)
    }

    /// Notes a number; false if somebody has it.
    pub fn note(&mut self, event: EventId, endpoint: EndpointId, number: u32) -> bool {
        self.numbers.entry((event, endpoint)).or_default().insert(number)
    }
}

impl Store {
    /// Places of open dead letters that are meant, behind `position` and up to `until`. What may have been applied is
    /// sent again only by who names it (`careless`: by anybody).
    pub fn meant(
        &self,
        selection: &Selection,
        discards: bool,
        (position, until): (i64, i64),
        careless: bool,
    ) -> Vec<i64> {
        let letters = (1..).zip(&self.dead.letters);
        let meant = letters.filter(|(place, letter)| {
            let info = &self.deliveries[letter.delivery as usize];
            let state = self.endpoints[info.endpoint].1.state;
            let unknown = letter.reason == "unknown";
            let sent = state != laneway_lane::EndpointState::Deleted
                && (!unknown || selection.unknowns || careless);
            letter.state == State::Open
                && *place > position
                && *place <= until
                && selection.endpoint.is_none_or(|endpoint| endpoint == info.endpoint)
                && selection.lane.is_none_or(|lane| lane == info.lane)
                && (unknown || !selection.unknowns)
                && (discards || sent)
        });
        meant.map(|(place, _)| place).collect()
    }

    /// A dead letter as a page wants it.
    pub fn found(&self, place: i64) -> Found {
        let info = &self.deliveries[self.dead.letters[place as usize - 1].delivery as usize];
        let head = &info.record.head;
        Found { place, delivery: head.delivery_id(), endpoint: head.endpoint_id() }
    }

    /// The delivery of a dead letter as what is to be repeated.
    pub fn original(&self, place: i64) -> Original {
        let info = &self.deliveries[self.dead.letters[place as usize - 1].delivery as usize];
        let head = &info.record.head;
        Original {
            event: head.event_id(),
            endpoint: head.endpoint_id(),
            delivery: head.delivery_id(),
        }
    }

    /// Closes open dead letters of a lane that were written before that.
    pub fn erase_dead(&mut self, lane: Lane, before: Timestamp) {
        for letter in &mut self.dead.letters {
            let info = &self.deliveries[letter.delivery as usize];
            let older = info.lane == lane && info.record.head.created_at < before;
            if older && letter.state == State::Open {
                letter.state = State::Erased;
            }
        }
    }
}
