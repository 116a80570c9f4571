//! P5 and P6: what may be sent again, and what may not.

use super::Checker;
use crate::book::{Book, Story};
use crate::event::{Event, Outcome, Policy, Seen, Time, Word, Write};

/// P5, I3, I7: nothing is sent after its outcome; a repeat of an unrecorded attempt has a crash or a lost lease
/// between; the attempt number is that of the last recorded one plus one.
#[derive(Debug)]
pub(super) struct Repeats;

impl Checker for Repeats {
    fn name(&self) -> &'static str {
        "P5"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        let Event::Began { request, delivery, attempt, .. } = event else { return Ok(()) };
        let story = book.story(*delivery);
        if let Some(outcome) = story.outcome {
            return Err(format!(
                "request {request} sends delivery {delivery}, which is {outcome:?}"
            ));
        }
        if *attempt != story.recorded + 1 {
            return Err(format!(
                "request {request} is attempt {attempt} of delivery {delivery}, which has {} recorded",
                story.recorded
            ));
        }
        let Some(before) = story.last_request.map(|before| &book.trips[before as usize]) else {
            return Ok(());
        };
        if before.attempt == *attempt && !book.broken.contains(&before.epoch) {
            return Err(format!(
                "request {request} repeats attempt {attempt} of delivery {delivery} and no crash explains it"
            ));
        }
        Ok(())
    }
}

/// P6, I12: at an endpoint that takes no resend, nothing follows an attempt that may have been applied before a
/// person has said that it was not; a held unknown does not expire.
#[derive(Debug)]
pub(super) struct Held;

impl Held {
    fn may_be_applied(book: &Book, story: &Story) -> bool {
        let Some(before) = story.last_request.map(|before| &book.trips[before as usize]) else {
            return false;
        };
        let released = story.released.is_some_and(|(released, _)| released >= before.began);
        let ambiguous = match before.seen {
            Some(Seen::NotSent) => story.recorded < before.attempt,
            Some(Seen::Status(408 | 499 | 502 | 504)) => true,
            Some(Seen::Status(_)) => story.recorded < before.attempt,
            None | Some(Seen::Unknown | Seen::Cut) => true,
        };
        ambiguous && !released
    }
}

impl Checker for Held {
    fn name(&self) -> &'static str {
        "P6"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { request, delivery, .. } => {
                let story = book.story(*delivery);
                let holds = book.policies[story.endpoint as usize] != Policy::Resend;
                if holds && Self::may_be_applied(book, story) {
                    return Err(format!(
                        "request {request} sends delivery {delivery} again without a word about its unknown outcome"
                    ));
                }
                Ok(())
            }
            Event::Wrote { delivery, write: Write::Release, .. } => {
                let word = book.story(*delivery).words.iter().any(|(_, w)| *w == Word::NotApplied);
                if word { Ok(()) } else { Err(format!("delivery {delivery} released by nobody")) }
            }
            Event::Wrote { delivery, write: Write::Final { outcome, command, .. }, .. } => {
                let story = book.story(*delivery);
                if story.held && *outcome == Outcome::Expired {
                    return Err(format!("delivery {delivery} is a held unknown and expired"));
                }
                let ends = match outcome {
                    Outcome::Delivered => Word::Delivered,
                    _ => Word::GivenUp,
                };
                let word = story.words.iter().any(|(_, word)| *word == ends);
                if *command && !word && *outcome != Outcome::Erased {
                    return Err(format!("delivery {delivery} ended by a command that nobody gave"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// I16: at an endpoint that takes no resend, this epoch's intent for this attempt is durable before the request.
#[derive(Debug)]
pub(super) struct IntentFirst;

impl Checker for IntentFirst {
    fn name(&self) -> &'static str {
        "I16"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        let Event::Began { request, delivery, attempt, epoch, .. } = event else { return Ok(()) };
        let story = book.story(*delivery);
        let holds = book.policies[story.endpoint as usize] != Policy::Resend;
        if holds && story.intent != Some((*epoch, *attempt)) {
            return Err(format!(
                "request {request} (delivery {delivery}, attempt {attempt}) has no intent; it has {:?}",
                story.intent
            ));
        }
        Ok(())
    }
}
