//! One checker per promise. A checker sees a line of the log beside the book of all lines before it.

mod erase;
mod fence;
mod lookup;
mod order;
mod progress;
mod repeat;
mod rewind;
mod time;

use crate::book::Book;
use crate::event::{Event, Time};
use crate::plan::Plan;
use laneway_lane::Limits;

/// Judges lines.
pub trait Checker {
    /// The number of its promise or check.
    fn name(&self) -> &'static str;

    /// Looks at a line; `book` does not yet have it. An error says what was broken.
    fn look(&mut self, book: &Book, at: Time, event: &Event) -> Result<(), String>;
}

/// What checkers must know of the world's settings.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The core's limits.
    pub limits: Limits,
    /// How many endpoints there are.
    pub endpoints: u32,
    /// The largest payload of the world, bytes.
    pub max_payload: u64,
}

impl Rules {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self {
            limits: plan.limits.clone(),
            endpoints: plan.endpoints.len() as u32,
            max_payload: 200,
        }
    }
}

/// All checkers.
pub fn all(rules: &Rules) -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(order::OneInFlight),
        Box::new(order::LaneOrder),
        Box::new(rewind::Order::default()),
        Box::new(rewind::Once),
        Box::new(rewind::Behind),
        Box::new(rewind::Erased),
        Box::new(progress::LanesApart),
        Box::new(progress::NothingLost),
        Box::new(repeat::Repeats),
        Box::new(repeat::Held),
        Box::new(repeat::IntentFirst),
        Box::new(lookup::OneEffect),
        Box::new(lookup::QuietPeriod),
        Box::new(lookup::Verdicts),
        Box::new(time::OneProbe::new(rules)),
        Box::new(time::Backoff::new(rules)),
        Box::new(time::Horizon::new(rules)),
        Box::new(progress::Bounds::new(rules)),
        Box::new(erase::Erasure),
        Box::new(fence::Fence),
        Box::new(fence::Position::default()),
        Box::new(fence::Contract),
    ]
}
