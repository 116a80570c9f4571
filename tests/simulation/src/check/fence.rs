//! P13, I9, I10 and the contract between core and shell.

use super::Checker;
use crate::book::Book;
use crate::event::{Event, Time};
use crate::plan::LEASE_MARGIN;

/// P13, I10: nothing is written and no request starts under an epoch that is over.
#[derive(Debug)]
pub(super) struct Fence;

impl Checker for Fence {
    fn name(&self) -> &'static str {
        "P13"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { request, partition, epoch, lease_left, .. } => {
                if !book.is_current(*partition, *epoch) || *lease_left < LEASE_MARGIN {
                    return Err(format!(
                        "request {request} starts under epoch {epoch} of partition {partition}, which is over"
                    ));
                }
                Ok(())
            }
            Event::Wrote { partition, epoch, .. }
            | Event::Quarantined { partition, epoch, .. }
            | Event::Position { partition, epoch, .. }
            | Event::Released { partition, epoch } => {
                if book.is_current(*partition, *epoch) {
                    return Ok(());
                }
                Err(format!("epoch {epoch} of partition {partition} is over and writes"))
            }
            _ => Ok(()),
        }
    }
}

/// I9: the position passes a record only when its outcome, its parked row or its quarantine is durable.
#[derive(Debug, Default)]
pub(super) struct Position {
    checked: Vec<usize>,
}

impl Checker for Position {
    fn name(&self) -> &'static str {
        "I9"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        self.checked.resize(book.partitions.len(), 0);
        let (partition, next_offset) = match event {
            Event::Position { partition, next_offset, .. }
            | Event::PositionMoved { partition, next_offset } => (partition, next_offset),
            Event::Raised { lost, .. } => {
                // Offsets come again, and what was passed may have to be passed anew.
                lost.iter().for_each(|(partition, _)| self.checked[*partition as usize] = 0);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let story = &book.partitions[*partition as usize];
        if *next_offset < story.next_offset {
            return Err(format!("position of {partition} goes back to {next_offset}"));
        }
        let checked = &mut self.checked[*partition as usize];
        while let Some((offset, _, delivery)) = story.records.get(*checked) {
            if offset >= next_offset {
                break;
            }
            let durable = match delivery {
                Some(delivery) => {
                    let story = book.story(*delivery);
                    story.outcome.is_some() || story.parked
                }
                None => story.quarantined.contains(offset),
            };
            // What was cut off and written over is not there to be read; that it comes again is P4's business.
            if !durable && !story.written_over.contains(offset) {
                return Err(format!(
                    "position of {partition} becomes {next_offset} and nothing is durable of offset {offset} ({delivery:?})"
                ));
            }
            *checked += 1;
        }
        Ok(())
    }
}

/// The contract between core and shell (crate documentation of `laneway_lane`).
#[derive(Debug)]
pub(super) struct Contract;

impl Checker for Contract {
    fn name(&self) -> &'static str {
        "contract"
    }

    fn look(&mut self, _book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Contract { what, .. } => Err(what.clone()),
            _ => Ok(()),
        }
    }
}
