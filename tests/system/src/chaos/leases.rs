//! Leases that deliver processes lost, read from their logs: what the owner of a partition had not recorded by then is
//! repeated by its successor (reliability.md, "Ambiguity"), whether a fault or a busy machine held it up. Each is written
//! down for the lanes of its partition and for the lease's own time, so that it excuses nothing else.

use crate::faults::{Faults, monotonic_ns};
use crate::world::World;
use anyhow::Result;
use laneway_wire::{DeliveryId, LaneId, LaneMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The lease of these worlds.
const LEASE_NS: u64 = crate::verdict::LEASE.as_secs() * 1_000_000_000;
/// A settle transaction that was under way when the lease was last renewed had been sent by then, and what came during
/// it was not in it.
const SETTLE_NS: u64 = 1_000_000_000;

/// The lanes of each partition, and what the logs said so far.
#[derive(Debug)]
pub struct Leases {
    folder: PathBuf,
    lanes: BTreeMap<u32, Vec<(String, String)>>,
    logs: BTreeMap<PathBuf, Log>,
    looked: u64,
}

/// A process's log: how far it was read, and the partitions that the process has by what it says.
#[derive(Debug, Default)]
struct Log {
    read: u64,
    held: BTreeSet<u32>,
}

/// One line of a log.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Taken(u32),
    /// `ago_ms` before the line was written.
    Lost {
        partitions: Vec<u32>,
        ago_ms: u64,
    },
}

impl Log {
    /// The leases that these lines say were lost, each once, with how long before: a fence, or Kafka, is told of before
    /// the lease that had run out.
    fn lost(&mut self, lines: &str) -> Vec<(u32, u64)> {
        let mut all = Vec::<(u32, u64)>::new();
        for said in lines.lines().filter_map(said) {
            match said {
                Said::Taken(partition) => {
                    self.held.insert(partition);
                }
                Said::Lost { partitions, ago_ms } => {
                    for partition in partitions {
                        if self.held.remove(&partition) {
                            all.push((partition, ago_ms));
                        } else if let Some(last) =
                            all.iter_mut().rev().find(|(of, _)| *of == partition)
                        {
                            last.1 = ago_ms;
                        }
                    }
                }
            }
        }
        all
    }
}

impl Leases {
    /// Of a world with so many partitions, whose events have these user keys.
    pub fn new(world: &World, partitions: u16, keys: impl Iterator<Item = String>) -> Self {
        let keys: Vec<String> = keys.collect();
        let mut lanes = BTreeMap::<u32, Vec<(String, String)>>::new();
        for endpoint in world.endpoints() {
            for key in &keys {
                let of_no_delivery = DeliveryId::from_uuid(Uuid::nil());
                let lane = LaneId::of(endpoint.id, LaneMode::User, Some(key), of_no_delivery);
                let partition = u32::from(lane.bucket().number()) % u32::from(partitions);
                lanes.entry(partition).or_default().push((endpoint.id.to_string(), key.clone()));
            }
        }
        let folder = world.dir.clone();
        Self { folder, lanes, logs: BTreeMap::new(), looked: monotonic_ns() }
    }

    /// Writes down what was lost since the last look, and gives how many leases.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn look(&mut self, faults: &Faults) -> Result<u64> {
        let (before, mut count) = (self.looked, 0);
        self.looked = monotonic_ns();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with("deliver") || path.extension().is_none_or(|kind| kind != "log") {
                continue;
            }
            let log = self.logs.entry(path.clone()).or_default();
            let lines = whole_lines(&path, &mut log.read)?;
            for (partition, ago_ms) in log.lost(&lines) {
                let ago = ago_ms * 1_000_000;
                let start = before.saturating_sub(ago + LEASE_NS + SETTLE_NS);
                let end = self.looked.saturating_sub(ago);
                let lanes = self.lanes.get(&partition).cloned().unwrap_or_default();
                faults.note_lease(name, lanes, start, end);
                count += 1;
            }
        }
        Ok(count)
    }
}

/// What was added to a file, up to its last line that is whole.
fn whole_lines(path: &Path, from: &mut u64) -> Result<String> {
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(*from))?;
    let mut added = Vec::new();
    file.read_to_end(&mut added)?;
    let whole = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    added.truncate(whole);
    *from += whole as u64;
    Ok(String::from_utf8_lossy(&added).into_owned())
}

fn said(line: &str) -> Option<Said> {
    // Colours are switched on and off by ESC [ … m.
    let line: String = line
        .split('\u{1b}')
        .map(|part| {
            part.strip_prefix('[').and_then(|rest| rest.split_once('m')).map_or(part, |it| it.1)
        })
        .collect();
    let field = |name: &str| line.split_once(name).map(|(_, rest)| rest);
    let number = |name| {
        let digits = field(name)?;
        let end = digits.find(|char: char| !char.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse::<u64>().ok()
    };
    let partition = || u32::try_from(number("partition=")?).ok();
    if line.contains("partition taken") {
        return partition().map(Said::Taken);
    }
    if line.contains("lease ran out") || line.contains("fenced: another instance") {
        return Some(Said::Lost { partitions: vec![partition()?], ago_ms: number("ago_ms=")? });
    }
    if line.contains("partitions lost") {
        let list = field("partitions=[")?.split(']').next()?;
        let partitions = list.split(", ").filter_map(|number| number.parse().ok()).collect();
        return Some(Said::Lost { partitions, ago_ms: 0 });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: &str = "INFO partition taken partition=1 epoch=9";
    const FENCED: &str =
        "ERROR fenced: another instance owns the partition partition=1 epoch=9 items=3 ago_ms=70";

    #[test]
    fn a_line_says_which_partitions_were_lost_and_when() {
        let coloured = "\u{1b}[2m2026-11-30T17:00:58Z\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m lease ran out \
                        \u{1b}[3mpartition\u{1b}[0m\u{1b}[2m=\u{1b}[0m4 \u{1b}[3mago_ms\u{1b}[0m\u{1b}[2m=\u{1b}[0m120";
        assert_eq!(said(coloured), Some(Said::Lost { partitions: vec![4], ago_ms: 120 }));
        assert_eq!(said(FENCED), Some(Said::Lost { partitions: vec![1], ago_ms: 70 }));
        let by_kafka = "WARN partitions lost partitions=[0, 2]";
        assert_eq!(said(by_kafka), Some(Said::Lost { partitions: vec![0, 2], ago_ms: 0 }));
        assert_eq!(said(TAKEN), Some(Said::Taken(1)));
        assert_eq!(said("INFO partitions revoked count=2"), None);
    }

    #[test]
    fn a_lease_is_lost_once_however_many_lines_say_so() {
        let ran_out = "WARN lease ran out partition=1 ago_ms=70";
        let mut log = Log::default();
        assert_eq!(log.lost(&[FENCED, ran_out].join("\n")), [], "it was never had");
        assert_eq!(log.lost(&[TAKEN, FENCED, ran_out].join("\n")), [(1, 70)]);
        assert_eq!(log.lost(ran_out), [], "the same loss, a look later");
        let by_kafka = "WARN partitions lost partitions=[0, 1]";
        let twice = [TAKEN, by_kafka, ran_out, TAKEN, FENCED].join("\n");
        assert_eq!(log.lost(&twice), [(1, 70), (1, 70)]);
    }

    #[test]
    fn a_log_is_read_line_by_line() {
        let path = laneway_testkit::temp_dir("leases").join("deliver-1.log");
        let mut from = 0;
        std::fs::write(&path, "one\ntw").unwrap();
        assert_eq!(whole_lines(&path, &mut from).unwrap(), "one\n");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(whole_lines(&path, &mut from).unwrap(), "two\n");
        assert_eq!(whole_lines(&path, &mut from).unwrap(), "");
    }
}
