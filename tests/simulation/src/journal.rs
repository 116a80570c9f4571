//! Takes the log's lines in: hashes them, shows them to the checkers, keeps them if asked.

use crate::book::Book;
use crate::check::{Checker, Rules, all};
use crate::event::{Event, HistoryHash, Time};
use crate::plan::Plan;
use std::hash::Hasher;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// The checker: the number of a promise or a check.
    pub checker: &'static str,
    /// When, ms since the world began.
    pub at: Time,
    /// What was seen.
    pub what: String,
}

/// The log and those who read it.
pub struct Journal {
    book: Book,
    checkers: Vec<Box<dyn Checker>>,
    hash: HistoryHash,
    keep: bool,
    log: Vec<(Time, Event)>,
    breach: Option<Breach>,
}

impl Journal {
    /// An empty log of a world with these rules.
    pub fn new(plan: &Plan, keep: bool) -> Self {
        let rules = Rules::of(plan);
        Self {
            book: Book::new(plan),
            checkers: all(&rules),
            hash: HistoryHash::default(),
            keep,
            log: Vec::new(),
            breach: None,
        }
    }

    /// Adds a line. After the first breach nothing more is checked.
    pub fn add(&mut self, at: Time, event: Event) {
        self.hash.add(at, &event);
        if self.breach.is_none() {
            let book = &self.book;
            let first = self.checkers.iter_mut().find_map(|checker| {
                let what = checker.look(book, at, &event).err()?;
                Some(Breach { checker: checker.name(), at, what })
            });
            self.breach = first;
            self.book.note(at, &event);
        }
        if self.keep {
            self.log.push((at, event));
        }
    }

    /// A breach that the world itself sees.
    pub fn breach_of(&mut self, checker: &'static str, what: String) {
        let at = self.log.last().map_or(0, |(at, _)| *at);
        self.breach.get_or_insert(Breach { checker, at, what });
    }

    /// The first breach.
    pub fn breach(&self) -> Option<&Breach> {
        self.breach.as_ref()
    }

    /// Takes the first breach.
    pub fn take_breach(&mut self) -> Option<Breach> {
        self.breach.take()
    }

    /// Hash of what was added.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// The lines that were kept.
    pub fn into_log(self) -> Vec<(Time, Event)> {
        self.log
    }
}
