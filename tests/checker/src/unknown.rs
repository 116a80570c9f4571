//! Unknown outcomes of endpoints that want nothing sent twice (I12 to I14): the receiver's ledger says what was really
//! done and what was said to those who asked; a request that follows another one needs a word before it.

use crate::Options;
use crate::ids;
use crate::input::{self, Inputs, JournalLine, LedgerKind, LedgerLine, Line, Outcome, Said};
use crate::verdict::{Check, Findings};
use crate::world::{Pair, World};
use anyhow::{Context, Result};
use std::collections::{HashMap, HashSet};
use std::iter::Peekable;
use std::time::Duration;
use std::vec::IntoIter;

/// Statuses that a gateway may give for a receiver that did the work: the outcome is unknown.
const GATEWAY: [u16; 4] = [408, 499, 502, 504];

/// What is known of one delivery.
#[derive(Default)]
struct Known {
    /// The last request.
    read: Line,
    read_ns: i64,
    /// Its journal and connection.
    conn: (usize, u64),
    attempt: u32,
    /// It may have been sent long before it was read.
    is_late: bool,
    /// Requests that may follow: it failed for certain, or so many words allow another one.
    allowed: u32,
    /// The last word, and the one that it was applied.
    said: Line,
    applied: Line,
    /// The last attempt of which somebody said that it had no effect and would have none.
    denied: u32,
    effect: Line,
    effects: u64,
    /// The requests that were worked on, with or without an effect.
    works: Vec<Work>,
}

/// A request that came to having its effect.
struct Work {
    key: u128,
    attempt: u32,
    line: Line,
}

/// All of them, and what was not reached yet of the ledger.
pub(crate) struct Unknowns {
    ledger: Peekable<IntoIter<(i64, Line, LedgerLine)>>,
    /// Endpoints with a ledger: those that want nothing sent twice.
    endpoints: HashSet<u16>,
    known: HashMap<u32, Known>,
    /// (delivery, attempt, what it breaks, lines): breaches but for a request that a paused owner sent late.
    suspects: Vec<(u32, u32, Check, [Line; 3])>,
    late: HashSet<(u32, u32)>,
    quiet_ns: i64,
    /// An answer written this much after its request was read was read by nobody.
    deadline_ns: i64,
    pub(crate) effects: u64,
    pub(crate) answers: u64,
}

impl Unknowns {
    pub(crate) fn load(inputs: &Inputs, world: &World, options: &Options) -> Result<Self> {
        let (mut lines, mut endpoints) = (Vec::new(), HashSet::new());
        input::each(&inputs.ledger, |number, line: LedgerLine| {
            let endpoint = world.endpoint_of_path(&line.path);
            endpoints.insert(endpoint.with_context(|| format!("no endpoint has {}", line.path))?);
            lines.push((line.ns, Line::new(inputs.ledger_file(), number), line));
            Ok(())
        })?;
        lines.sort_by_key(|(ns, ..)| *ns);
        let ns = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        let quiet_ns = options.quiet.map_or(0, ns);
        let deadline_ns = options.deadline.map_or(i64::MAX, ns);
        let ledger = lines.into_iter().peekable();
        let (known, suspects, late) = (HashMap::new(), Vec::new(), HashSet::new());
        let (effects, answers) = (0, 0);
        Ok(Self {
            ledger,
            endpoints,
            known,
            suspects,
            late,
            quiet_ns,
            deadline_ns,
            effects,
            answers,
        })
    }

    /// Reads the ledger up to a moment on the journals' clock.
    pub(crate) fn reach(&mut self, ns: i64, world: &World, findings: &mut Findings) {
        while let Some((at_ns, at, line)) = self.ledger.next_if(|(at_ns, ..)| *at_ns <= ns) {
            let event = line.event.as_ref().unwrap_or(&line.key);
            let row = ids::parse(event).and_then(|event| world.by_event.get(&event));
            let pair = row
                .zip(world.endpoint_of_path(&line.path))
                .and_then(|(row, endpoint)| world.pair(*row, endpoint));
            let Some(pair) = pair else {
                findings.add(Check::I4, &[at]);
                continue;
            };
            let known = self.known.entry(pair).or_default();
            match line.kind {
                LedgerKind::Effect | LedgerKind::Worked => {
                    if line.kind == LedgerKind::Effect {
                        self.effects += 1;
                        known.effects += 1;
                        if known.effects > 1 {
                            findings.add(Check::I12, &[known.effect, at]);
                        }
                        known.effect = at;
                    }
                    if line.attempt <= known.denied {
                        let lines = [known.read, known.said, at];
                        self.suspects.push((pair, line.attempt, Check::I13, lines));
                    }
                    if let Some((attempt, lines)) = known.work(&line, at, findings) {
                        self.suspects.push((pair, attempt, Check::I12, lines));
                    }
                }
                LedgerKind::Answer => {
                    self.answers += 1;
                    let is_early = at_ns.saturating_sub(known.read_ns) < self.quiet_ns;
                    if known.read.is_some() && is_early && !known.is_late {
                        findings.add(Check::I13, &[known.read, at]);
                    }
                    known.said = at;
                    match line.said {
                        Some(Said::Applied) => known.applied = at,
                        Some(Said::NotApplied) => {
                            known.allowed += 1;
                            known.denied = known.attempt;
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// A request was read, at `ns` on the journals' clock. `is_late`: it may be what an owner had begun before it was
    /// paused; nothing holds that back (a known limit).
    pub(crate) fn request(
        &mut self,
        pair: u32,
        line: &JournalLine<'_>,
        at: Line,
        is_late: bool,
        findings: &mut Findings,
    ) {
        let known = self.known.entry(pair).or_default();
        let attempt = line.attempt.unwrap_or(0);
        // One that was overtaken needs no word of its own: it had one when it was begun.
        if is_late {
            self.late.insert((pair, attempt));
        }
        let is_overtaken = is_late && known.read.is_some() && attempt <= known.attempt;
        if known.read.is_some() && !is_overtaken {
            if known.applied.is_some() {
                findings.add(Check::I14, &[known.read, known.applied, at]);
            } else if known.allowed == 0 {
                findings.add(Check::I12, &[known.read, known.said, at]);
            }
            // What was said of a request that was still to come allows the one behind it.
            known.allowed = if is_late { known.allowed.saturating_sub(1) } else { 0 };
        }
        (known.read, known.read_ns, known.is_late) = (at, line.ns, is_late);
        known.conn = (at.file(), line.conn);
        known.attempt = known.attempt.max(attempt);
    }

    /// It was answered. What came when nobody waited for it any more says nothing, nor what answers an earlier request.
    pub(crate) fn response(&mut self, pair: u32, at: Line, line: &JournalLine<'_>) {
        if let Some(known) = self.known.get_mut(&pair) {
            let failed = |status: u16| !(200..300).contains(&status) && !GATEWAY.contains(&status);
            let is_its = known.conn == (at.file(), line.conn);
            let is_read = line.ns.saturating_sub(known.read_ns) < self.deadline_ns;
            if line.status.is_some_and(failed) && is_its && is_read {
                known.allowed = known.allowed.max(1);
            }
        }
    }

    /// Whether somebody has said by now that it was applied.
    pub(crate) fn is_decided(&self, pair: u32) -> bool {
        self.known.get(&pair).is_some_and(|known| known.applied.is_some())
    }

    /// Whether it is a delivery of an endpoint that wants nothing sent twice.
    pub(crate) fn has(&self, pair: &Pair) -> bool {
        self.endpoints.contains(&pair.endpoint)
    }

    /// What can only be said when all has been read.
    pub(crate) fn end(&mut self, world: &World, findings: &mut Findings) {
        self.reach(i64::MAX, world, findings);
        for (pair, attempt, check, lines) in std::mem::take(&mut self.suspects) {
            if !self.late.contains(&(pair, attempt)) {
                findings.add(check, &lines);
            }
        }
        for (number, pair) in (0..).zip(&world.pairs) {
            if !self.has(pair) || pair.outcome != Some(Outcome::Delivered) {
                continue;
            }
            let nothing = Known::default();
            let known = self.known.get(&number).unwrap_or(&nothing);
            let witness = [world.rows[pair.row as usize].line, known.read, known.said];
            if !pair.answered.is_some() && !known.applied.is_some() {
                findings.add(Check::I14, &witness);
            }
            if known.effects == 0 {
                findings.add(Check::I12, &witness);
            }
        }
    }
}

impl Known {
    /// A request came to having its effect. The receiver's own idempotency makes a repetition under the same key no second
    /// one; what the sender did to have two is a breach all the same: another key, or a request that was followed by
    /// another one because it was said to have had no effect. Gives the earlier of the two attempts of the latter.
    fn work(
        &mut self,
        line: &LedgerLine,
        at: Line,
        findings: &mut Findings,
    ) -> Option<(u32, [Line; 3])> {
        let key = ids::parse(&line.key).unwrap_or_default();
        let mut doubled = None;
        for earlier in &self.works {
            let first = earlier.attempt.min(line.attempt);
            let last = earlier.attempt.max(line.attempt);
            if earlier.key != key {
                findings.add(Check::I12, &[earlier.line, at]);
            } else if first <= self.denied && self.denied < last {
                doubled = Some((first, [earlier.line, self.said, at]));
            }
        }
        self.works.push(Work { key, attempt: line.attempt, line: at });
        doubled
    }
}
