//! What the control database does: generations, fences, marks, subscriptions (`laneway_store::topology` and `routing`).

use super::event::To;
use crate::event::Time;
use laneway_lane::relay::{Acked, Fence};

/// How long the lowest offset acknowledged below a mark is kept, and taken for a loss's begin, ms.
const LOW_KEPT: Time = 60_000;
const LOW_COUNTS: Time = 120_000;

/// A partition's mark in one generation.
#[derive(Debug, Clone, Copy)]
struct Mark {
    acked: i64,
    low: Option<(i64, Time)>,
}

/// One generation.
#[derive(Debug, Clone)]
struct Generation {
    topic: u32,
    marks: Vec<Mark>,
    closed: bool,
}

/// The tables.
#[derive(Debug)]
pub(super) struct Control {
    /// From generation 1 on.
    generations: Vec<Generation>,
    pub(super) fences: Vec<Fence>,
    /// Endpoints that are subscribed, by version.
    pub(super) versions: Vec<Vec<To>>,
}

impl Control {
    pub(super) fn new(partitions: u32) -> Self {
        let marks = vec![Mark { acked: -1, low: None }; partitions as usize];
        Self {
            generations: vec![Generation { topic: 0, marks, closed: false }],
            fences: Vec::new(),
            versions: vec![Vec::new()],
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generations.len() as u64
    }

    pub(super) fn topic(&self) -> u32 {
        self.topic_of(self.generation())
    }

    pub(super) fn topic_of(&self, generation: u64) -> u32 {
        self.generations[generation as usize - 1].topic
    }

    pub(super) fn version(&self) -> u64 {
        self.versions.len() as u64 - 1
    }

    pub(super) fn marks(&self, generation: u64) -> Vec<i64> {
        self.generations[generation as usize - 1].marks.iter().map(|mark| mark.acked).collect()
    }

    /// `marks_raise`.
    pub(super) fn marks_raise(
        &mut self,
        generation: u64,
        acked: &[Acked],
        now: Time,
    ) -> Option<Vec<(u32, i64)>> {
        let generation = &mut self.generations[generation as usize - 1];
        if generation.closed {
            return None;
        }
        let raised = acked.iter().map(|acked| {
            let mark = &mut generation.marks[acked.partition as usize];
            if acked.low <= mark.acked {
                let low = match mark.low {
                    Some((low, at)) if at > now - LOW_KEPT => low.min(acked.low),
                    _ => acked.low,
                };
                mark.low = Some((low, now));
            }
            mark.acked = mark.acked.max(acked.high);
            (acked.partition, mark.acked)
        });
        Some(raised.collect())
    }

    /// `generation_raise`; the fences of the generation that it began, none if others have raised it already.
    pub(super) fn generation_raise(
        &mut self,
        seen: u64,
        topic: u32,
        lost: &[(u32, i64)],
        now: Time,
    ) -> Option<Vec<Fence>> {
        let present = self.generation();
        let covered = present > seen
            && self.topic() == topic
            && lost.iter().all(|(partition, first)| {
                self.fences.iter().any(|fence| {
                    fence.generation > seen
                        && fence.partition == *partition
                        && fence.first_lost <= *first
                })
            });
        if covered {
            return None;
        }
        let old = &mut self.generations[present as usize - 1];
        old.closed = true;
        let mut marks = old.marks.clone();
        let mut fences: Vec<Fence> = Vec::new();
        for &(partition, first) in lost {
            let mark = &mut marks[partition as usize];
            let low = mark.low.filter(|(low, at)| *at > now - LOW_COUNTS && *low < mark.acked);
            let first = low.map_or(first, |(low, _)| first.min(low));
            match fences.iter_mut().find(|fence| fence.partition == partition) {
                Some(fence) => fence.first_lost = fence.first_lost.min(first),
                None => {
                    fences.push(Fence { generation: present + 1, partition, first_lost: first })
                }
            }
        }
        for mark in &mut marks {
            mark.low = None;
        }
        for fence in &fences {
            let mark = &mut marks[fence.partition as usize];
            mark.acked = mark.acked.min(fence.first_lost - 1);
        }
        self.fences.extend(&fences);
        self.generations.push(Generation { topic, marks, closed: false });
        Some(fences)
    }
}
