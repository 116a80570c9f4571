//! How many requests of one lane were with a receiver at once (P1), as far as a receiver can know.

use std::collections::HashMap;

/// A request whose answer was never written is over after this, if the run names no deadline.
const LONGEST_NS: i64 = 60_000_000_000;

/// The requests of each lane that were read and not answered.
#[derive(Default)]
pub(crate) struct Flights {
    open: HashMap<u32, Vec<Flight>>,
    pub(crate) max: u64,
}

struct Flight {
    file: usize,
    conn: u64,
    since: i64,
}

impl Flights {
    /// A request was read that is going to be answered. `is_late`: it may be what a paused owner had begun.
    pub(crate) fn begin(
        &mut self,
        lane: u32,
        (file, conn): (usize, u64),
        now: i64,
        deadline_ns: Option<i64>,
        is_late: bool,
    ) {
        let limit = deadline_ns.unwrap_or(LONGEST_NS);
        let open = self.open.entry(lane).or_default();
        open.retain(|flight| flight.conn != conn || flight.file != file);
        open.retain(|flight| flight.since + limit > now);
        open.push(Flight { file, conn, since: now });
        let count = if is_late { 1 } else { open.len() as u64 };
        self.max = self.max.max(count);
    }

    /// Its answer was written.
    pub(crate) fn end(&mut self, lane: u32, (file, conn): (usize, u64)) {
        if let Some(open) = self.open.get_mut(&lane) {
            open.retain(|flight| flight.conn != conn || flight.file != file);
            if open.is_empty() {
                self.open.remove(&lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_lane_count_until_they_are_answered_or_their_deadline_passed() {
        let mut flights = Flights::default();
        flights.begin(1, (0, 1), 0, Some(100), false);
        flights.begin(2, (0, 2), 10, Some(100), false);
        assert_eq!(flights.max, 1, "another lane");
        flights.end(1, (0, 1));
        flights.begin(1, (0, 3), 20, Some(100), false);
        assert_eq!(flights.max, 1, "one after the other");
        flights.begin(1, (0, 4), 120, Some(100), false);
        assert_eq!(flights.max, 1, "nobody waited for the first any more");
        flights.begin(1, (1, 4), 130, Some(100), true);
        assert_eq!(flights.max, 1, "a straggler of a paused owner");
        flights.begin(1, (2, 4), 140, Some(100), false);
        assert_eq!(flights.max, 3);
    }
}
