//! The log, and what is on its way there: requests of one producer to one partition arrive in order, each once however
//! often it is repeated, and are answered late or not at all.

use super::event::{Delivery, Key};

/// A record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) generation: u64,
    pub(super) delivery: Delivery,
    pub(super) key: Key,
}

/// Who waits for an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) instance: usize,
    /// The sending that it belongs to: numbers are never used twice.
    pub(super) sending: u64,
    pub(super) chain: usize,
}

/// What comes back to who sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Acked {
        partition: u32,
        offset: i64,
    },
    TooLarge,
    /// The producer cannot go on.
    Fatal,
}

/// A record on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) producer: u64,
    pub(super) partition: u32,
    pub(super) record: Record,
    /// The process whose producer it is, as long as it lives: it compares the acknowledgement, whoever awaits it.
    pub(super) witness: Option<usize>,
    /// The mark as it was known before the record was handed over.
    pub(super) floor: i64,
    pub(super) waiting: Option<Waiting>,
    pub(super) answer: Option<Answer>,
}

/// The topic under its name.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) id: u32,
    pub(super) partitions: Vec<Vec<Record>>,
    pub(super) wire: Vec<Request>,
}

impl Topic {
    pub(super) fn new(partitions: u32) -> Self {
        Self { id: 0, partitions: vec![Vec::new(); partitions as usize], wire: Vec::new() }
    }

    pub(super) fn ends(&self) -> Vec<i64> {
        self.partitions.iter().map(|log| log.len() as i64).collect()
    }

    /// Requests that are the oldest unanswered (`answered`: or answered) of their producer and partition.
    fn oldest(&self, answered: bool) -> Vec<usize> {
        let mut seen: Vec<(u64, u32)> = Vec::new();
        let mut found = Vec::new();
        for (place, request) in self.wire.iter().enumerate() {
            if !answered && request.answer.is_some() {
                continue;
            }
            let of = (request.producer, request.partition);
            if !seen.contains(&of) {
                seen.push(of);
                if request.answer.is_some() == answered {
                    found.push(place);
                }
            }
        }
        found
    }

    /// Requests that may arrive now.
    pub(super) fn arriving(&self) -> Vec<usize> {
        self.oldest(false)
    }

    /// Requests whose answer may arrive now.
    pub(super) fn answering(&self) -> Vec<usize> {
        self.oldest(true)
    }

    /// Takes a request in: appends its record, unless it is too large.
    pub(super) fn take(&mut self, place: usize, too_large: bool) -> Option<(u32, i64)> {
        let request = &mut self.wire[place];
        if too_large {
            request.answer = Some(Answer::TooLarge);
            return None;
        }
        let log = &mut self.partitions[request.partition as usize];
        let (partition, offset) = (request.partition, log.len() as i64);
        log.push(request.record);
        request.answer = Some(Answer::Acked { partition, offset });
        Some((partition, offset))
    }

    /// Nobody waits for a producer's requests any more: of each partition those before `keep(partition)` travel on, and, if
    /// its process is `gone`, are not answered any more.
    pub(super) fn abandon(&mut self, producer: u64, gone: bool, mut keep: impl FnMut() -> usize) {
        let mut left: Vec<Option<usize>> = vec![None; self.partitions.len()];
        self.wire.retain_mut(|request| {
            if request.producer != producer {
                return true;
            }
            request.waiting = None;
            if gone {
                request.witness = None;
            }
            if request.answer.is_some() {
                return !gone;
            }
            let left = left[request.partition as usize].get_or_insert_with(&mut keep);
            let stays = *left > 0;
            *left = left.saturating_sub(1);
            stays
        });
    }

    /// The log of `partition` now ends at `end`. Whose reply is not `replied` yet learns that its producer is out of
    /// order; what nobody waits for does not come again.
    pub(super) fn truncate(&mut self, partition: u32, end: i64, mut replied: impl FnMut() -> bool) {
        self.partitions[partition as usize].truncate(end as usize);
        self.wire.retain_mut(|request| {
            if request.partition != partition {
                return true;
            }
            let gone =
                matches!(request.answer, Some(Answer::Acked { offset, .. }) if offset >= end);
            if gone && !replied() {
                request.answer = Some(Answer::Fatal);
            }
            request.witness.is_some()
        });
    }

    /// The topic is deleted and made again.
    pub(super) fn recreate(&mut self, mut replied: impl FnMut() -> bool) {
        self.id += 1;
        for partition in 0..self.partitions.len() {
            self.truncate(partition as u32, 0, &mut replied);
        }
    }
}
