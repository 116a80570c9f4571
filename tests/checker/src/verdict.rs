//! What the judge says: figures, counts by check, and the smallest witness of each.

use crate::input::{Inputs, Line};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufRead;

/// Lines of one witness at most.
const MAX_WITNESS: usize = 6;

/// A check of reliability.md, by its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum Check {
    /// Lane order: first sends follow the row ids.
    I1,
    /// No loss: every (row, endpoint) pair ends in a final state or waits visibly.
    I2,
    /// Minimal duplicates: a send after a success, or after the end, has a fault that explains it.
    I3,
    /// No ghost: what was sent, or recorded, was committed and subscribed to.
    I4,
    /// Head only: nothing is sent while an earlier event of its lane is not done, and nothing behind the head again.
    I5,
    /// Stable identity: ids, type and body of all sends are the same and the row's.
    I7,
    /// Unknown is no failure: where nothing may be sent twice, nothing is before somebody has said what happened, and
    /// each event has one effect.
    I12,
    /// Quiet period: nobody is asked while the request may still be under way.
    I13,
    /// What was said is what is done.
    I14,
    /// Rewind order: what a command sends again comes after its end, in the order that it had.
    I31,
    /// Rewind identity: what was given up is sent again once.
    I32,
    /// Sequence numbers are 0 where ordering is off, and not where it is on.
    I25,
}

impl Check {
    const fn name(self) -> &'static str {
        match self {
            Self::I1 => "I1",
            Self::I2 => "I2",
            Self::I3 => "I3",
            Self::I4 => "I4",
            Self::I5 => "I5",
            Self::I7 => "I7",
            Self::I12 => "I12",
            Self::I13 => "I13",
            Self::I14 => "I14",
            Self::I31 => "I31",
            Self::I32 => "I32",
            Self::I25 => "I25",
        }
    }

    const fn says(self) -> &'static str {
        match self {
            Self::I1 => "an event overtook an earlier one of its lane",
            Self::I2 => "a committed row reached no final outcome",
            Self::I3 => "a delivery was sent again without an explanation",
            Self::I4 => "something was sent that was never committed or subscribed to",
            Self::I5 => "more than the head of a lane was on its way",
            Self::I7 => "requests of one delivery do not say the same, or not what the row says",
            Self::I12 => {
                "after an unknown outcome something was sent unasked, or had not exactly one effect"
            }
            Self::I13 => "somebody was asked while the request could still be under way",
            Self::I14 => "what was said of an unknown outcome is not what was done",
            Self::I31 => "what was sent again came before its end, or out of its order",
            Self::I32 => "what was given up was sent again twice",
            Self::I25 => "a sequence number is missing or does not fit the order mode",
        }
    }
}

/// The figures of a run. A time is commit to first 2xx.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Committed source rows, rewinds left out.
    pub events: u64,
    /// Rows that send an event again.
    pub rewinds: u64,
    /// (event, endpoint) pairs that ended delivered.
    pub deliveries: u64,
    /// Pairs without a final outcome that do not wait visibly either.
    pub lost: u64,
    /// Sends out of order, or not at their lane's head (I1 and I5).
    pub order_violations: u64,
    /// Requests read for a delivery after a 2xx to it had been written.
    pub duplicates: u64,
    /// Those of them that a fault explains.
    pub duplicates_explained: u64,
    /// Pairs that ended as dead letters.
    pub dead_letters: u64,
    /// Pairs that wait for a person or an authority.
    pub held: u64,
    /// Requests of one lane that were read and not answered yet, at once; late ones of paused
    /// owners, and those whose connection a fault may have broken, left out.
    pub max_in_flight_per_lane: u64,
    /// What receivers with effects did.
    pub effects: u64,
    /// What was said to those who asked about an unknown outcome.
    pub answers: u64,
    /// Median over endpoints and keys that no fault was aimed at.
    pub p50_ms: Option<f64>,
    /// 99th percentile over the same.
    pub p99_ms: Option<f64>,
    /// 99th percentile over all.
    pub p99_all_ms: Option<f64>,
}

/// A check that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Its number, e.g. `I1`.
    pub check: &'static str,
    /// What that means.
    pub says: &'static str,
    /// How often.
    pub count: u64,
    /// At most six lines of the inputs that show it once, each behind its file and number.
    pub witness: Vec<String>,
}

/// What the judge says of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Counts and times.
    pub figures: Figures,
    /// The checks that do not hold; none if all do.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Whether everything holds.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    /// The numbers of the checks that do not hold.
    pub fn broken(&self) -> Vec<&'static str> {
        self.violations.iter().map(|violation| violation.check).collect()
    }
}

#[derive(Default)]
pub(crate) struct Findings(BTreeMap<Check, Finding>);

struct Finding {
    count: u64,
    witness: Vec<Line>,
}

impl Findings {
    /// Counts a breach. The witness with the fewest lines is kept, the earliest of them.
    pub(crate) fn add(&mut self, check: Check, lines: &[Line]) {
        let mut witness: Vec<Line> = lines.iter().copied().filter(|line| line.is_some()).collect();
        witness.dedup();
        witness.truncate(MAX_WITNESS);
        match self.0.get_mut(&check) {
            None => {
                self.0.insert(check, Finding { count: 1, witness });
            }
            Some(finding) => {
                finding.count += 1;
                if witness.len() < finding.witness.len() {
                    finding.witness = witness;
                }
            }
        }
    }

    pub(crate) fn count(&self, check: Check) -> u64 {
        self.0.get(&check).map_or(0, |finding| finding.count)
    }

    pub(crate) fn verdict(&self, inputs: &Inputs, figures: Figures) -> Result<Verdict> {
        let lines: HashSet<Line> =
            self.0.values().flat_map(|finding| finding.witness.iter().copied()).collect();
        let texts = texts(inputs, &lines)?;
        let violations = self.0.iter().map(|(check, finding)| Violation {
            check: check.name(),
            says: check.says(),
            count: finding.count,
            witness: finding.witness.iter().filter_map(|line| texts.get(line).cloned()).collect(),
        });
        Ok(Verdict { figures, violations: violations.collect() })
    }
}

/// Reads lines again, to show them.
fn texts(inputs: &Inputs, lines: &HashSet<Line>) -> Result<HashMap<Line, String>> {
    let mut texts = HashMap::new();
    let files: HashSet<usize> = lines.iter().map(|line| line.file()).collect();
    for file in files {
        let source = inputs.file(file);
        let wanted = lines.iter().filter(|line| line.file() == file).map(|line| line.number());
        let mut wanted: Vec<u64> = wanted.collect();
        wanted.sort_unstable();
        let mut numbered = (1..).zip(source.open()?.lines());
        for number in wanted {
            let Some((_, text)) = numbered.find(|(at, _)| *at == number) else { break };
            let text = text.with_context(|| format!("cannot read {} again", source.name()))?;
            texts.insert(Line::new(file, number), format!("{}:{number}: {text}", source.name()));
        }
    }
    Ok(texts)
}

/// The smallest value that `percent` of all do not pass, in ms with one decimal; none of nothing.
pub(crate) fn percentile(ns: &mut [i64], percent: usize) -> Option<f64> {
    if ns.is_empty() {
        return None;
    }
    let rank = (ns.len() * percent).div_ceil(100).max(1) - 1;
    let (_, value, _) = ns.select_nth_unstable(rank);
    Some((*value as f64 / 100_000.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let ms = |n: i64| n * 1_000_000;
        assert_eq!(percentile(&mut [], 99), None);
        assert_eq!(percentile(&mut [ms(7)], 50), Some(7.0));
        let mut hundred: Vec<i64> = (1..=100).rev().map(ms).collect();
        assert_eq!(percentile(&mut hundred, 50), Some(50.0));
        assert_eq!(percentile(&mut hundred, 99), Some(99.0));
    }
}
