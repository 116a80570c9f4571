//! What the control database knows of the topic: its generations, what each began by losing, what was acknowledged.

use super::{Owner, Store};
use crate::event::Event;
use laneway_lane::Partition;

/// Where a generation's loss begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The generation that began with the loss.
    pub generation: u64,
    /// The partition.
    pub partition: Partition,
    /// The first lost offset.
    pub first_lost: i64,
}

/// The present generation and all before it.
#[derive(Debug)]
pub struct Topology {
    /// The present generation.
    pub generation: u64,
    /// The id of the topic that it is of.
    pub topic_id: u64,
    /// Highest acknowledged offset of each partition in it; -1 where there is none.
    pub marks: Vec<i64>,
    /// All losses.
    pub fences: Vec<Fence>,
}

impl Default for Topology {
    fn default() -> Self {
        Self { generation: 1, topic_id: 1, marks: Vec::new(), fences: Vec::new() }
    }
}

impl Store {
    /// Raises the generation because `lost` (partition, first lost offset) is gone, unless others have done so since
    /// `seen` and their fences cover it.
    pub fn raise(
        &mut self,
        seen: u64,
        topic_id: u64,
        lost: &[(Partition, i64)],
        log: &mut Vec<Event>,
    ) {
        let present = &mut self.topology;
        let covered = present.generation > seen
            && present.topic_id == topic_id
            && lost.iter().all(|(partition, first)| {
                present.fences.iter().any(|fence| {
                    fence.generation > seen
                        && fence.partition == *partition
                        && fence.first_lost <= *first
                })
            });
        if covered {
            return;
        }
        let mut firsts: Vec<(Partition, i64)> = Vec::new();
        for (partition, first) in lost {
            match firsts.iter_mut().find(|(known, _)| known == partition) {
                Some((_, known)) => *known = (*first).min(*known),
                None => firsts.push((*partition, *first)),
            }
        }
        present.generation += 1;
        present.topic_id = topic_id;
        for (partition, first_lost) in &firsts {
            let (generation, index) = (present.generation, *partition as usize);
            let fence = Fence { generation, partition: *partition, first_lost: *first_lost };
            present.fences.push(fence);
            present.marks[index] = present.marks[index].min(first_lost - 1);
            let row = &mut self.owners[index];
            row.next_offset = row.next_offset.min(*first_lost);
        }
        // Copied with owner, epoch and renewal: whoever owns a partition goes on under the new row.
        for row in &mut self.owners {
            row.generation = present.generation;
        }
        log.push(Event::Raised { generation: present.generation, lost: firsts });
    }

    /// Moves a position that lies before the log's beginning there, unless the row has changed since it was `seen`.
    pub fn raise_position(
        &mut self,
        partition: Partition,
        seen: Owner,
        begin: i64,
        log: &mut Vec<Event>,
    ) {
        let row = &mut self.owners[partition as usize];
        if (row.epoch, row.renewal) == (seen.epoch, seen.renewal) && row.next_offset < begin {
            row.next_offset = begin;
            log.push(Event::PositionMoved { partition, next_offset: begin });
        }
    }

    /// Losses of a partition: generation and first lost offset.
    pub fn losses(&self, partition: Partition) -> Vec<(u64, i64)> {
        let of = self.topology.fences.iter().filter(|fence| fence.partition == partition);
        of.map(|fence| (fence.generation, fence.first_lost)).collect()
    }
}
