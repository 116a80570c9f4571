//! Another server takes the database over and has all that was acknowledged. Every connection is cut at once: what was
//! on its way happened or did not, and nobody is told; no locks and no sessions are left, rows with leases and claims are.

use super::{Happening, Note, World};
use crate::event::{Event, Time};

impl World {
    /// Whether nobody answers for the database.
    pub(crate) fn is_store_away(&self) -> bool {
        self.now < self.store_away_until
    }

    /// Between the database's return and the first thing that reaches it.
    pub(crate) fn store_back(&mut self) -> Time {
        self.store_away_until - self.now + self.later.range(1, 200)
    }

    pub(crate) fn fail_over(&mut self) {
        if self.is_store_away() {
            return;
        }
        self.faults += 1;
        let away = self.later.pick(&[50, 800, 2_500, 5_000, 12_000]) * self.plan.scale;
        let cut: Vec<_> = std::mem::take(&mut self.agenda).into_sorted_vec();
        let mut unanswered = Vec::new();
        for scheduled in cut {
            let at_database = matches!(
                scheduled.what,
                Happening::Tx { .. } | Happening::TakeOver { .. } | Happening::Query { .. }
            );
            let answer = matches!(
                scheduled.what,
                Happening::To {
                    note: Note::TxReply { .. } | Note::Taken { owner: Some(_), .. },
                    ..
                }
            );
            if at_database || answer {
                unanswered.push(scheduled.what);
            } else {
                self.agenda.push(scheduled);
            }
        }
        // Sorted is backwards: what would have happened first comes last.
        for what in unanswered.into_iter().rev() {
            self.cut_off(what, away);
        }
        self.store_away_until = self.now + away;
        self.log(Event::Failover { until: self.store_away_until });
    }

    /// Something on its way to the database or back loses its connection.
    fn cut_off(&mut self, what: Happening, away: Time) {
        let happened = self.later.chance(40);
        let retry = away + self.later.range(1, 400);
        match what {
            Happening::Tx { instance, incarnation, tx, .. } => {
                let (partition, id) = (tx.partition, tx.id);
                if happened {
                    self.commit_unheard(&tx);
                }
                let note = Note::TxRetry { partition, id };
                self.at(self.now + retry, Happening::To { instance, incarnation, note });
            }
            Happening::TakeOver { instance, incarnation, partition, seen, .. }
                if happened && self.processes[instance].incarnation == incarnation =>
            {
                self.take_over(instance, partition, seen);
            }
            // Asked again when the database is back.
            query @ Happening::Query { .. } => self.at(self.now + retry, query),
            Happening::To { instance, incarnation, note: Note::TxReply { partition, tx, .. } } => {
                let note = Note::TxRetry { partition, id: tx.id };
                self.at(self.now + retry, Happening::To { instance, incarnation, note });
            }
            // Who took over and was not told looks again.
            _ => {}
        }
    }
}
