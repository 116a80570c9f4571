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
use std::vec::IntoIter;

/// Statuses that a gateway may give for a receiver that did the work: the outcome is unknown.
const GATEWAY: [u16; 4] = [408, 499, 502, 504];

/// What is known of one delivery.
#[derive(Default)]
struct Known {
    /// The last request.
    read: Line,
    read_ns: i64,
    attempt: u32,
    /// It may have been sent long before it was read.
    is_late: bool,
    /// It failed for certain, or a word allows another one.
    may_repeat: bool,
    /// The last word, and the one that it was applied.
    said: Line,
    applied: Line,
    /// The last attempt of which somebody said that it had no effect and would have none.
    denied: u32,
    effect: Line,
    effects: u64,
}

/// All of them, and what was not reached yet of the ledger.
pub(crate) struct Unknowns {
    ledger: Peekable<IntoIter<(i64, Line, LedgerLine)>>,
    /// Endpoints with a ledger: those that want nothing sent twice.
    endpoints: HashSet<u16>,
    known: HashMap<u32, Known>,
    quiet_ns: i64,
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
        let quiet_ns =
            options.quiet.map_or(0, |quiet| i64::try_from(quiet.as_nanos()).unwrap_or(i64::MAX));
        let (ledger, known) = (lines.into_iter().peekable(), HashMap::new());
        Ok(Self { ledger, endpoints, known, quiet_ns, effects: 0, answers: 0 })
    }

    /// Reads the ledger up to a moment on the journals' clock.
    pub(crate) fn reach(&mut self, ns: i64, world: &World, findings: &mut Findings) {
        while let Some((at_ns, at, line)) = self.ledger.next_if(|(at_ns, ..)| *at_ns <= ns) {
            let row = ids::parse(&line.key).and_then(|event| world.by_event.get(&event));
            let pair = row
                .zip(world.endpoint_of_path(&line.path))
                .and_then(|(row, endpoint)| world.pair(*row, endpoint));
            let Some(pair) = pair else {
                findings.add(Check::I4, &[at]);
                continue;
            };
            let known = self.known.entry(pair).or_default();
            match line.kind {
                LedgerKind::Effect => {
                    self.effects += 1;
                    known.effects += 1;
                    if known.effects > 1 {
                        findings.add(Check::I12, &[known.effect, at]);
                    }
                    if line.attempt <= known.denied {
                        findings.add(Check::I13, &[known.read, known.said, at]);
                    }
                    known.effect = at;
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
                            known.may_repeat = true;
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
        if known.read.is_some() && !is_late {
            if known.applied.is_some() {
                findings.add(Check::I14, &[known.read, known.applied, at]);
            } else if !known.may_repeat {
                findings.add(Check::I12, &[known.read, known.said, at]);
            }
        }
        known.may_repeat &= is_late;
        (known.read, known.read_ns, known.is_late) = (at, line.ns, is_late);
        known.attempt = line.attempt.unwrap_or(0);
    }

    /// It was answered.
    pub(crate) fn response(&mut self, pair: u32, status: Option<u16>) {
        if let Some(known) = self.known.get_mut(&pair) {
            let failed = |status: u16| !(200..300).contains(&status) && !GATEWAY.contains(&status);
            known.may_repeat |= status.is_some_and(failed);
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
