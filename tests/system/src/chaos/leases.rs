//! Leases that deliver processes lost, read from their logs: what the owner of a partition had not recorded by then is
//! repeated by its successor (reliability.md, "Ambiguity"), whether a fault or a busy machine held it up. Each is written
//! down for the lanes of its partition and for the lease's own time, so that it excuses nothing else.

use super::load;
use crate::faults::{Faults, monotonic_ns};
use crate::world::World;
use anyhow::Result;
use laneway_wire::{DeliveryId, LaneId, LaneMode};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The lease of these worlds.
const LEASE_NS: u64 = 3_000_000_000;
/// A settle transaction that was under way when the lease was last renewed had been sent by then, and what came during
/// it was not in it.
const SETTLE_NS: u64 = 1_000_000_000;

/// The lanes of each partition, and how far the logs were read.
pub(super) struct Leases {
    folder: PathBuf,
    lanes: BTreeMap<u32, Vec<(String, String)>>,
    read: BTreeMap<PathBuf, u64>,
    looked: u64,
}

/// One line of a log.
#[derive(Debug, PartialEq, Eq)]
struct Lost {
    partitions: Vec<u32>,
    /// Before the line was written.
    ago_ms: u64,
}

impl Leases {
    pub(super) fn new(world: &World, partitions: u16) -> Self {
        let mut lanes = BTreeMap::<u32, Vec<(String, String)>>::new();
        for endpoint in world.endpoints() {
            for key in load::keys() {
                let of_no_delivery = DeliveryId::from_uuid(Uuid::nil());
                let lane = LaneId::of(endpoint.id, LaneMode::User, Some(&key), of_no_delivery);
                let partition = u32::from(lane.bucket().number()) % u32::from(partitions);
                lanes.entry(partition).or_default().push((endpoint.id.to_string(), key));
            }
        }
        let folder = world.dir.clone();
        Self { folder, lanes, read: BTreeMap::new(), looked: monotonic_ns() }
    }

    /// Writes down what was lost since the last look, and gives how many leases.
    pub(super) fn look(&mut self, faults: &Faults) -> Result<u64> {
        let (before, mut count) = (self.looked, 0);
        self.looked = monotonic_ns();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with("deliver") || path.extension().is_none_or(|kind| kind != "log") {
                continue;
            }
            let read = self.read.entry(path.clone()).or_default();
            for lost in whole_lines(&path, read)?.lines().filter_map(lost) {
                let ago = lost.ago_ms * 1_000_000;
                let start = before.saturating_sub(ago + LEASE_NS + SETTLE_NS);
                let end = self.looked.saturating_sub(ago);
                for partition in lost.partitions {
                    let lanes = self.lanes.get(&partition).cloned().unwrap_or_default();
                    faults.note_lease(name, lanes, start, end);
                    count += 1;
                }
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

fn lost(line: &str) -> Option<Lost> {
    // Colours are switched on and off by ESC [ … m.
    let line: String = line
        .split('\u{1b}')
        .map(|part| {
            part.strip_prefix('[').and_then(|rest| rest.split_once('m')).map_or(part, |it| it.1)
        })
        .collect();
    let field = |name: &str| line.split_once(name).map(|(_, rest)| rest);
    if line.contains("lease ran out") || line.contains("fenced: another instance") {
        let number = |name| {
            let digits = field(name)?;
            let end = digits.find(|char: char| !char.is_ascii_digit()).unwrap_or(digits.len());
            digits[..end].parse::<u64>().ok()
        };
        let partition = u32::try_from(number("partition=")?).ok()?;
        return Some(Lost { partitions: vec![partition], ago_ms: number("ago_ms=")? });
    }
    if line.contains("partitions lost") {
        let list = field("partitions=[")?.split(']').next()?;
        let partitions = list.split(", ").filter_map(|number| number.parse().ok()).collect();
        return Some(Lost { partitions, ago_ms: 0 });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_which_partitions_were_lost_and_when() {
        let coloured = "\u{1b}[2m2026-11-30T17:00:58Z\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m lease ran out \
                        \u{1b}[3mpartition\u{1b}[0m\u{1b}[2m=\u{1b}[0m4 \u{1b}[3mago_ms\u{1b}[0m\u{1b}[2m=\u{1b}[0m120";
        assert_eq!(lost(coloured), Some(Lost { partitions: vec![4], ago_ms: 120 }));
        let fenced = "ERROR fenced: another instance owns the partition partition=1 epoch=9 items=3 ago_ms=0";
        assert_eq!(lost(fenced), Some(Lost { partitions: vec![1], ago_ms: 0 }));
        let by_kafka = "WARN partitions lost partitions=[0, 2]";
        assert_eq!(lost(by_kafka), Some(Lost { partitions: vec![0, 2], ago_ms: 0 }));
        assert_eq!(lost("INFO partition taken partition=1 epoch=9"), None);
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
