//! B7, I31 to I33: what is sent again, in which order, how often, behind what.

use super::Checker;
use crate::book::Book;
use crate::book::rewind::{Command, Fate, Letter};
use crate::event::{Delivery, Event, Lane, Outcome, Time};
use std::collections::BTreeMap;

/// Whether a command means a dead letter at this place. What may have been applied is meant by who names it.
fn means(book: &Book, command: &Command, place: usize, letter: &Letter) -> bool {
    let story = book.story(letter.delivery);
    let unknown = letter.outcome == Outcome::GivenUp;
    place < command.until
        && letter.outcome != Outcome::Erased
        && command.endpoint.is_none_or(|endpoint| endpoint == story.endpoint)
        && command.lane.is_none_or(|lane| lane == story.lane)
        && if command.discards { unknown || !command.unknowns } else { unknown == command.unknowns }
}

/// I31: what a command sends again is published in the order that it had in its lane.
#[derive(Debug, Default)]
pub(super) struct Order {
    last: BTreeMap<(u32, Lane), usize>,
}

impl Checker for Order {
    fn name(&self) -> &'static str {
        "I31"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        let Event::Repeated { row, .. } = event else { return Ok(()) };
        let Some(copy) = book.rewinds.copies.get(row) else {
            return Err(format!("row {row} is published and was not written"));
        };
        let place = book.story(copy.of).order;
        let last = self.last.entry((copy.rewind, book.story(copy.of).lane)).or_insert(place);
        if *last > place {
            return Err(format!(
                "command {} sends delivery {} (place {place} of its lane) behind place {last}",
                copy.rewind, copy.of
            ));
        }
        *last = place;
        Ok(())
    }
}

/// I32, I33: each dead letter that a command means is sent again once, as a delivery of its own, unless it is discarded
/// or erased; what nobody means is not, and nothing of it comes twice, however many commands and reconcilers there are.
#[derive(Debug)]
pub(super) struct Once;

impl Once {
    fn closed(book: &Book, rewind: u32, of: Delivery, discards: bool) -> Result<(), String> {
        let rewinds = &book.rewinds;
        let command = &rewinds.commands[rewind as usize];
        let Some(letter) = rewinds.letter(of) else {
            return Err(format!("command {rewind} takes delivery {of}, which is no dead letter"));
        };
        if letter.fate != Fate::Open {
            return Err(format!(
                "command {rewind} takes delivery {of} again: it is {:?}",
                letter.fate
            ));
        }
        let meant = means(book, command, rewinds.places[&of], letter);
        if !meant || command.done || command.discards != discards {
            return Err(format!(
                "command {rewind} does not mean delivery {of}, {:?}, and takes it",
                letter.outcome
            ));
        }
        Ok(())
    }

    fn left(book: &Book, rewind: u32) -> Result<(), String> {
        let rewinds = &book.rewinds;
        let command = &rewinds.commands[rewind as usize];
        let left = (0..).zip(&rewinds.letters[..command.until]).find(|(place, letter)| {
            let story = book.story(letter.delivery);
            // Nothing is sent where nothing is any more.
            let gone = book.endpoints[story.endpoint as usize].deleted && !command.discards;
            letter.fate == Fate::Open
                && means(book, command, *place, letter)
                && !story.erased
                && !gone
        });
        left.map_or(Ok(()), |(_, letter)| {
            Err(format!("command {rewind} is done and left delivery {}", letter.delivery))
        })
    }
}

impl Checker for Once {
    fn name(&self) -> &'static str {
        "I32"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Rewound { rewind, of, .. } => Self::closed(book, *rewind, *of, false),
            Event::Discarded { rewind, delivery } => Self::closed(book, *rewind, *delivery, true),
            Event::RewindDone { rewind } => Self::left(book, *rewind),
            Event::Repeated { row, delivery } => {
                let known = book.deliveries.len() > *delivery as usize;
                let twice =
                    book.rewinds.copies.get(row).is_some_and(|copy| copy.delivery.is_some());
                if known || twice {
                    return Err(format!("row {row} is delivery {delivery}, which is no new one"));
                }
                Ok(())
            }
            Event::Over { drained: true, .. } => {
                let open = book.rewinds.commands.iter().position(|command| !command.done);
                let lost = book.rewinds.copies.iter().find(|(_, copy)| copy.delivery.is_none());
                match (open, lost) {
                    (Some(open), _) => Err(format!("command {open} never came to its end")),
                    (_, Some((row, _))) => Err(format!("row {row} was never published")),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// B7: what is sent again comes after all that waited in its lane when it was written.
#[derive(Debug)]
pub(super) struct Behind;

impl Checker for Behind {
    fn name(&self) -> &'static str {
        "B7"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        let Event::Began { request, delivery, .. } = event else { return Ok(()) };
        let Some(copy) = book.rewinds.copy(*delivery) else { return Ok(()) };
        let waits = copy.waiting.iter().find(|before| book.story(**before).outcome.is_none());
        waits.map_or(Ok(()), |before| {
            Err(format!(
                "request {request} sends delivery {delivery}, which repeats {}, and delivery {before} waited before it",
                copy.of
            ))
        })
    }
}

/// C17: what is erased is not sent again.
#[derive(Debug)]
pub(super) struct Erased;

impl Checker for Erased {
    fn name(&self) -> &'static str {
        "C17"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Rewound { rewind, of, .. } if book.story(*of).erased => {
                Err(format!("command {rewind} copies delivery {of}, which is to be erased"))
            }
            _ => Ok(()),
        }
    }
}
