//! I12 to I14: what becomes of unknown outcomes where an authority can be asked.

use super::Checker;
use crate::book::Book;
use crate::event::{Event, Outcome, Policy, Time, Word, Write};
use crate::plan::{ASK_GRACE, MAX_SKEW};

/// I12: one effect for each key, however often it is sent again, and at most one held unknown in a lane, its head.
#[derive(Debug)]
pub(super) struct OneEffect;

impl Checker for OneEffect {
    fn name(&self) -> &'static str {
        "I12"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Worked { request, delivery, late: false } => {
                let story = book.story(*delivery);
                let asked = book.policies[story.endpoint as usize] == Policy::Lookup;
                if asked && book.key(*delivery).effects > 0 {
                    return Err(format!(
                        "request {request} does the work of delivery {delivery} again"
                    ));
                }
                Ok(())
            }
            Event::Wrote {
                delivery,
                write: Write::Park { unknown: true, .. } | Write::Attempt { unknown: true, .. },
                ..
            } => {
                let lane = &book.lanes[book.story(*delivery).lane as usize];
                let other =
                    lane.order.iter().find(|other| *other != delivery && book.story(**other).held);
                match other {
                    Some(other) => Err(format!(
                        "deliveries {other} and {delivery} of one lane are both held unknowns"
                    )),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// I13: an authority is not asked before the request can have ended, and the grace is over.
#[derive(Debug)]
pub(super) struct QuietPeriod;

impl Checker for QuietPeriod {
    fn name(&self) -> &'static str {
        "I13"
    }

    fn look(&mut self, book: &Book, at: Time, event: &Event) -> Result<(), String> {
        let Event::Asked { delivery } = event else { return Ok(()) };
        let Some(request) = book.story(*delivery).last_request else { return Ok(()) };
        let quiet = book.trips[request as usize].deadline + ASK_GRACE - 2 * MAX_SKEW;
        if at < quiet {
            return Err(format!(
                "delivery {delivery} is asked about {} ms too early: request {request} may travel",
                quiet - at
            ));
        }
        Ok(())
    }
}

/// I14: an answer is a word on the present unknown, and says what the ledger says; what it says is done: applied ends
/// the delivery without a request, not applied makes exactly one more, unless nobody knows whether that one was made
/// and a later answer is on it: its owner died between intent and request, and an older request came through late.
#[derive(Debug)]
pub(super) struct Verdicts;

impl Checker for Verdicts {
    fn name(&self) -> &'static str {
        "I14"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Answered { delivery, attempts, verdict, .. } => {
                let story = book.story(*delivery);
                if !story.held || story.recorded != *attempts {
                    return Err(format!(
                        "an answer on attempt {attempts} of delivery {delivery} counts, which has {} and {} held",
                        story.recorded,
                        if story.held { "is" } else { "is not" }
                    ));
                }
                let story = book.key(*delivery);
                match verdict {
                    Word::Delivered if story.effects + story.late_effects == 0 => {
                        Err(format!("delivery {delivery} was not done and is said to be"))
                    }
                    Word::NotApplied if story.effects > 0 => {
                        Err(format!("delivery {delivery} was done and is said not to be"))
                    }
                    _ => Ok(()),
                }
            }
            Event::Over { drained: true, .. } => {
                let idle = book.deliveries.iter().position(|story| {
                    let ended = matches!(
                        story.outcome,
                        Some(Outcome::Delivered | Outcome::Rejected | Outcome::GivenUp)
                    );
                    let asked = book.policies[story.endpoint as usize] == Policy::Lookup;
                    let last = story.last_request.map(|last| book.trips[last as usize].began);
                    let later = story.by_word.then_some(story.answer).flatten();
                    let idle = |(at, attempts): (Time, u32)| {
                        let on_next = (story.recorded, Word::Delivered);
                        let answered = story.recorded > attempts && later == Some(on_next);
                        last < Some(at) && !answered
                    };
                    ended && asked && story.released.is_some_and(idle)
                });
                match idle {
                    Some(idle) => Err(format!("delivery {idle} was released and never sent again")),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
