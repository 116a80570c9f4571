//! P1 and P2: one request of a lane at a time, in the lane's order.

use super::Checker;
use crate::book::Book;
use crate::event::{Event, Time};

/// P1, I5: at most one request of a lane is under way, over all lease holders; the late request of a fenced owner is
/// a repeat, or of the lane's head.
#[derive(Debug)]
pub(super) struct OneInFlight;

impl Checker for OneInFlight {
    fn name(&self) -> &'static str {
        "P1"
    }

    fn look(&mut self, book: &Book, at: Time, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { request, delivery, .. } => {
                let lane = &book.lanes[book.story(*delivery).lane as usize];
                let other = lane.open.iter().find(|other| book.trips[**other as usize].is_open(at));
                other.map_or(Ok(()), |other| {
                    let of = book.trips[*other as usize].delivery;
                    Err(format!(
                        "request {request} (delivery {delivery}) begins while request {other} (delivery {of}) of its lane is under way"
                    ))
                })
            }
            Event::Arrived { request, .. } => {
                let trip = &book.trips[*request as usize];
                if book.is_current(trip.partition, trip.epoch) || book.is_head(trip.delivery) {
                    return Ok(());
                }
                Err(format!(
                    "late request {request} of epoch {} brings delivery {}, which is not its lane's turn yet",
                    trip.epoch, trip.delivery
                ))
            }
            _ => Ok(()),
        }
    }
}

/// P2, I1: a delivery is sent only when every one before it in its lane has its durable outcome.
#[derive(Debug)]
pub(super) struct LaneOrder;

impl Checker for LaneOrder {
    fn name(&self) -> &'static str {
        "P2"
    }

    fn look(&mut self, book: &Book, _at: Time, event: &Event) -> Result<(), String> {
        let Event::Began { request, delivery, .. } = event else { return Ok(()) };
        if book.is_head(*delivery) {
            return Ok(());
        }
        let story = book.story(*delivery);
        let lane = &book.lanes[story.lane as usize];
        Err(format!(
            "request {request} sends delivery {delivery} (place {} of lane {}), but delivery {} (place {}) has no outcome",
            story.order, story.lane, lane.order[lane.done], lane.done
        ))
    }
}
