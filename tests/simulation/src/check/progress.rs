//! P3, P4 and P10: nothing is lost, nothing waits for what is not its business, nothing grows without a bound.

use super::{Checker, Rules};
use crate::book::Book;
use crate::event::{Event, Time, Write};
use laneway_lane::Limits;

/// P3, I21: when faults are over but some lanes still wait, every other lane comes to its end.
#[derive(Debug)]
pub(super) struct LanesApart;

impl Checker for LanesApart {
    fn name(&self) -> &'static str {
        "P3"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        let Event::Lingered { blocked } = event else { return Ok(()) };
        let open = book.deliveries.iter().position(|story| {
            story.outcome.is_none() && blocked.binary_search(&story.lane).is_err()
        });
        open.map_or(Ok(()), |open| {
            let lane = book.deliveries[open].lane;
            Err(format!("delivery {open} of lane {lane} waits though only lanes {blocked:?} must"))
        })
    }
}

/// P4, I2, I46, I47: every record comes to exactly one outcome or to the quarantine, and nothing is left behind.
#[derive(Debug)]
pub(super) struct NothingLost;

impl Checker for NothingLost {
    fn name(&self) -> &'static str {
        "P4"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Wrote { delivery, write: Write::Final { outcome, again, .. }, .. } => {
                let before = book.story(*delivery).outcome;
                if *again || before.is_some() {
                    return Err(format!(
                        "delivery {delivery} is {before:?} and becomes {outcome:?}"
                    ));
                }
                Ok(())
            }
            Event::Over { drained, parked, intents, commands, lag } => {
                let open = book.deliveries.iter().position(|story| story.outcome.is_none());
                if let Some(open) = open {
                    return Err(format!("delivery {open} never came to an outcome"));
                }
                for (partition, story) in book.partitions.iter().enumerate() {
                    let lost = story.records.iter().find(|(offset, _, delivery)| {
                        delivery.is_none() && !story.quarantined.contains(offset)
                    });
                    if let Some((offset, ..)) = lost {
                        return Err(format!("record {partition}/{offset} is in no quarantine"));
                    }
                }
                if !drained {
                    return Err(format!(
                        "left behind: {parked} parked lanes, {intents} intents, {commands} commands, {lag} offsets"
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// P10: what a process holds stays within its limits.
#[derive(Debug)]
pub(super) struct Bounds {
    limits: Limits,
    max_payload: u64,
    /// Each may have heads of probes loaded beside.
    endpoints: u32,
}

impl Bounds {
    pub(super) fn new(rules: &Rules) -> Self {
        Self {
            limits: rules.limits.clone(),
            max_payload: rules.max_payload,
            endpoints: rules.endpoints,
        }
    }
}

impl Checker for Bounds {
    fn name(&self) -> &'static str {
        "P10"
    }

    fn look(&mut self, _book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        let Event::Gauge { instance, gauges } = event else { return Ok(()) };
        // One event goes over the edge; of each endpoint a probe brings one more, and stays until its end is recorded, which
        // the next one does not wait for.
        let over = 1 + 2 * u64::from(self.endpoints);
        let bytes = self.limits.loaded_bytes + self.max_payload * over;
        if gauges.in_flight > self.limits.max_in_flight
            || gauges.loaded_lanes > self.limits.loaded_lanes + self.endpoints
            || gauges.loaded_bytes > bytes
        {
            return Err(format!("process {instance} holds {gauges:?}, over its limits"));
        }
        Ok(())
    }
}
