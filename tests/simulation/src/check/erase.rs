//! C17: what is to be erased is not sent once that was said to be so, and nothing else is.

use super::Checker;
use crate::book::Book;
use crate::event::{Event, Outcome, Time, Write};

/// C17: no request without its payload goes out, none after a command to erase it was answered under the same epoch,
/// none after the erasure is done; and nothing is erased that was written after the erasure began.
#[derive(Debug)]
pub(super) struct Erasure;

impl Checker for Erasure {
    fn name(&self) -> &'static str {
        "C17"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { request, delivery, epoch, empty, .. } => {
                let story = book.story(*delivery);
                let done = story.order < book.lanes[story.lane as usize].erased;
                if *empty || done || story.doomed == Some(*epoch) {
                    return Err(format!(
                        "request {request} sends delivery {delivery}, which is erased"
                    ));
                }
                Ok(())
            }
            Event::Wrote {
                delivery, write: Write::Final { outcome: Outcome::Erased, .. }, ..
            } if !book.story(*delivery).erased => {
                Err(format!("delivery {delivery} is erased and nobody said so"))
            }
            _ => Ok(()),
        }
    }
}
