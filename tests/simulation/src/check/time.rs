//! P7 and P8, I17: when something may be tried.

use super::{Checker, Rules};
use crate::book::Book;
use crate::event::{Event, Outcome, Time, Write};
use crate::plan::MAX_SKEW;
use std::time::Duration;

/// Between two requests at the receiver of a degraded endpoint at least this, ms (I18).
const PROBE_GAP: Time = 950;
/// What clocks that lag and stamps in whole ms may cost, ms.
const TOLERANCE: Time = MAX_SKEW + 5;

fn millis(span: Duration) -> Time {
    Time::try_from(span.as_millis()).unwrap_or(Time::MAX)
}

/// P7, I18: a degraded endpoint gets one request a second.
#[derive(Debug)]
pub(super) struct OneProbe {
    /// A degraded endpoint is probed only from this long after the change is durable, ms: what was read before counts.
    grace: Time,
}

impl OneProbe {
    pub(super) fn new(rules: &Rules) -> Self {
        Self { grace: millis(rules.limits.health_view_max_age) }
    }
}

impl Checker for OneProbe {
    fn name(&self) -> &'static str {
        "P7"
    }

    fn look(&mut self, book: &Book, at: Time, event: &Event) -> Result<(), String> {
        let Event::Arrived { request, .. } = event else { return Ok(()) };
        let trip = &book.trips[*request as usize];
        if at > trip.deadline {
            return Ok(()); // frozen between check and first byte: a known limit
        }
        let endpoint = &book.endpoints[book.story(trip.delivery).endpoint as usize];
        let (Some(since), Some((last, last_began))) = (endpoint.degraded, endpoint.last_arrival)
        else {
            return Ok(());
        };
        // What began within the grace may arrive late: its sender was stopped before the first byte.
        let counts = last_began > since + self.grace && trip.began > since + self.grace;
        if counts && at - last < PROBE_GAP {
            return Err(format!(
                "request {request} reaches an endpoint degraded since {since} only {} ms after the one before",
                at - last
            ));
        }
        Ok(())
    }
}

/// I17, A6: attempt k+1 is not sent before 1, 2, 4, 8 s after attempt k ended; probes are exempt, and so is what a
/// person released.
#[derive(Debug)]
pub(super) struct Backoff {
    steps: Vec<Time>,
    longest: Time,
}

impl Backoff {
    pub(super) fn new(rules: &Rules) -> Self {
        Self {
            steps: rules.limits.retry_steps.iter().map(|step| millis(*step)).collect(),
            longest: millis(rules.limits.retry_max),
        }
    }

    fn step(&self, attempt: u32) -> Time {
        let index = attempt.saturating_sub(1) as usize;
        self.steps.get(index).copied().unwrap_or_else(|| {
            let last = self.steps.last().copied().unwrap_or(self.longest);
            let doublings = (index + 1 - self.steps.len()).min(20);
            (last << doublings).min(self.longest)
        })
    }
}

impl Checker for Backoff {
    fn name(&self) -> &'static str {
        "I17"
    }

    fn look(&mut self, book: &Book, at: Time, event: &Event) -> Result<(), String> {
        let Event::Began { request, delivery, probe: false, .. } = event else {
            return Ok(());
        };
        let story = book.story(*delivery);
        let Some((ended, _, attempt)) = story.last else { return Ok(()) };
        let step = self.step(attempt);
        let released = story.released.is_some_and(|(_, recorded)| recorded >= attempt);
        if !released && at < ended + step - TOLERANCE {
            return Err(format!(
                "request {request} of delivery {delivery} begins {} ms after attempt {attempt} ended; {step} ms are due",
                at - ended
            ));
        }
        Ok(())
    }
}

/// P8, I22: nothing is tried beyond the horizon, and nothing expires before it.
#[derive(Debug)]
pub(super) struct Horizon {
    horizon: Time,
}

impl Horizon {
    pub(super) fn new(rules: &Rules) -> Self {
        Self { horizon: millis(rules.limits.horizon) }
    }
}

impl Checker for Horizon {
    fn name(&self) -> &'static str {
        "P8"
    }

    fn look(&mut self, book: &Book, at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { request, delivery, .. } => {
                let story = book.story(*delivery);
                let Some(held) = story.first_held else { return Ok(()) };
                let held = held.max(story.clock_from);
                let end = held + self.horizon + book.stalled(*delivery, at) + TOLERANCE;
                if at > end {
                    return Err(format!(
                        "request {request} tries delivery {delivery}, held since {held}, {} ms after its horizon",
                        at - end
                    ));
                }
                Ok(())
            }
            Event::Wrote {
                delivery,
                write: Write::Final { outcome: Outcome::Expired, .. },
                ..
            } => {
                let story = book.story(*delivery);
                let stalled = story.stalled.1.unwrap_or_else(|| book.stalled(*delivery, at));
                let took = story.first_took.unwrap_or(at);
                // It may begin anew when a standstill ends, and must at least not run during one.
                let took = (took + stalled - story.stalled.0).min(took.max(story.clock_from));
                let took = took + story.stood;
                if at < took + self.horizon - TOLERANCE {
                    return Err(format!(
                        "delivery {delivery}, whose horizon began at {took}, expires after {} ms",
                        at - took
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
