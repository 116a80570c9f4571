//! The log is lost (design section 4): a partition is cut at its end (unclean election), retention passes what was not
//! read, the topic is deleted and made again. The relay's part is here too: rows of the outbox in two shards, what was
//! acknowledged of them, the watch over the topic, going back; it does what services/relay does and no more.
//!
//! Taken for granted: a producer that published what was cut off is refused by its sequence numbers, a reader that is
//! beyond a cut is told (both are Kafka's), and into a topic made again nothing is published before that was seen.

use super::{Happening, World};
use crate::event::{Delivery, Event, Lane};
use crate::mutants::Slip;
use crate::plan::Fault;
use crate::store::Owner;
use laneway_lane::Partition;

/// Deliveries whose acknowledgements are kept together.
const ENTRY: usize = 4;
/// Shards of the outbox.
const SHARDS: usize = 2;
/// Deliveries published at once.
const PAGE: i64 = 6;

/// Pages that each shard publishes at once in a hasty schedule.
const HASTY_PAGES: usize = 12;

/// What is left of the topic.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) begin: Vec<i64>,
    pub(crate) end: Vec<i64>,
    pub(crate) topic_id: u64,
    pub(crate) gone: bool,
    shards: Vec<Shard>,
    /// Acknowledged offsets at or below a mark, each with the generation it was stamped with.
    suspicions: Vec<(u64, Partition, i64)>,
    /// Where a partition that was cut had ended before, until a generation begins with that.
    ended: Vec<i64>,
}

impl Log {
    pub(crate) fn new(partitions: usize) -> Self {
        let shard = Shard {
            generation: 1,
            topic_id: 1,
            outbox: Vec::new(),
            cursor: 0,
            acks: Vec::new(),
            last: vec![-1; partitions],
            refused: vec![false; partitions],
        };
        Self {
            begin: vec![0; partitions],
            end: vec![0; partitions],
            topic_id: 1,
            gone: false,
            shards: vec![shard; SHARDS],
            suspicions: Vec::new(),
            ended: vec![0; partitions],
        }
    }

    /// Whether what comes now takes the place of what was cut off.
    pub(crate) fn writes_over(&self, partition: Partition) -> bool {
        self.end[partition as usize] < self.ended[partition as usize]
    }
}

/// One shard of the outbox, and the relay that has it.
#[derive(Debug, Clone)]
struct Shard {
    /// What its records are stamped with.
    generation: u64,
    topic_id: u64,
    outbox: Vec<Delivery>,
    /// All before this is published and counted.
    cursor: usize,
    acks: Vec<Acks>,
    /// The last offset that its producer got, by partition.
    last: Vec<i64>,
    /// Its last record in a partition was cut off: by its sequence numbers nothing more of it is taken there, whatever
    /// others have written since.
    refused: Vec<bool>,
}

/// The highest acknowledged offsets of one entry of the history.
#[derive(Debug, Clone)]
struct Acks {
    entry: usize,
    generation: u64,
    acked: Vec<Option<i64>>,
}

const fn shard_of(endpoint: usize) -> usize {
    endpoint % SHARDS
}

impl World {
    /// Whether a new row of the endpoint would be published at once.
    pub(super) fn publishes(&self, endpoint: usize) -> bool {
        let shard = &self.kafka.shards[shard_of(endpoint)];
        !self.plan.has(Fault::LogLoss)
            || (shard.cursor == shard.outbox.len()
                && shard.generation == self.store.topology.generation
                && (0..self.plan.partitions).all(|partition| self.accepts(shard, partition)))
    }

    /// Whether the relay has published all rows there are, in the present generation.
    pub(super) fn is_published(&self) -> bool {
        !self.kafka.gone
            && self.rewinds.is_published()
            && self.kafka.topic_id == self.store.topology.topic_id
            && self.kafka.shards.iter().all(|shard| {
                shard.cursor == shard.outbox.len()
                    && shard.generation == self.store.topology.generation
            })
    }

    /// Whether the brokers take what the shard's producer sends.
    fn accepts(&self, shard: &Shard, partition: Partition) -> bool {
        // Behind the first record over a loss, which shows it, others may come to lie where readers have been: those pass
        // them over until the loss is seen. A known limit; and so is a relay of an earlier generation, by whose marks the
        // place of what was lost since then is new.
        let mark = self.store.topology.marks[partition as usize];
        let earlier = shard.generation < self.store.topology.generation;
        let unseen = self.kafka.writes_over(partition) && (earlier || self.end(partition) > mark);
        let refused = shard.refused[partition as usize] || unseen;
        !self.kafka.gone && shard.topic_id == self.kafka.topic_id && !refused
    }

    /// A new row of the outbox is published.
    pub(super) fn publish_new(&mut self, delivery: Delivery) {
        let shard = shard_of(self.store.deliveries[delivery as usize].endpoint);
        self.kafka.shards[shard].outbox.push(delivery);
        self.send(shard, delivery, true, true);
    }

    /// Sends one delivery; whether it counts as published. `counts`: its acknowledgement is waited for.
    fn send(&mut self, shard: usize, delivery: Delivery, first: bool, counts: bool) -> bool {
        let info = &self.store.deliveries[delivery as usize];
        let (partition, lane, endpoint) = (info.partition, info.lane, info.endpoint as u32);
        let (slot, generation) = (partition as usize, self.kafka.shards[shard].generation);
        if !self.accepts(&self.kafka.shards[shard], partition) {
            return false;
        }
        let offset = self.append(partition, Some(delivery), generation);
        self.kafka.shards[shard].last[slot] = offset;
        let event =
            Event::Produced { partition, offset, generation, delivery, lane, endpoint, first };
        self.log(event);
        if generation < self.store.topology.generation {
            return false; // the generation is closed
        }
        if offset <= self.store.topology.marks[slot] {
            self.kafka.suspicions.push((generation, partition, offset));
            return false;
        }
        if !counts {
            return false;
        }
        self.store.topology.marks[slot] = offset;
        let partitions = self.plan.partitions as usize;
        let shard = &mut self.kafka.shards[shard];
        let entry = shard.cursor / ENTRY;
        let of = |acks: &&mut Acks| (acks.entry, acks.generation) == (entry, generation);
        match shard.acks.iter_mut().find(of) {
            Some(acks) => acks.acked[slot] = Some(offset),
            None => {
                let mut acked = vec![None; partitions];
                acked[slot] = Some(offset);
                shard.acks.push(Acks { entry, generation, acked });
            }
        }
        shard.cursor += 1;
        true
    }

    /// The relay of before, which does not know that it has a successor, sends what was sent already.
    pub(super) fn send_again(&mut self, delivery: Delivery) {
        let shard = shard_of(self.store.deliveries[delivery as usize].endpoint);
        let of = &self.kafka.shards[shard];
        // It has not gone back further than its successor.
        if of.cursor == of.outbox.len() || of.generation < self.store.topology.generation {
            self.send(shard, delivery, false, false);
            let (present, of) = (self.store.topology.generation, &self.kafka.shards[shard]);
            if of.generation == present {
                // Its acknowledgements are marks like any.
                let partition = self.store.deliveries[delivery as usize].partition as usize;
                let mark = &mut self.store.topology.marks[partition];
                *mark = (*mark).max(of.last[partition]);
            }
        }
    }

    /// Publishes what lies before the shard, a page at most.
    fn publish(&mut self, shard: usize) {
        let page = self.later.range(1, PAGE);
        let mut stopped: Vec<Lane> = Vec::new();
        let cursor = self.kafka.shards[shard].cursor;
        let mut counts = true;
        for at in (cursor..).take(page as usize) {
            let Some(&delivery) = self.kafka.shards[shard].outbox.get(at) else { break };
            let lane = self.store.deliveries[delivery as usize].lane;
            if stopped.contains(&lane) {
                continue;
            }
            // What other lanes have on the page was sent with it; nothing of that counts.
            counts &= self.send(shard, delivery, false, counts);
            if !counts {
                stopped.push(lane);
            }
        }
    }

    /// The relay of a shard looks at the topic, follows the generation, and publishes what is left.
    pub(super) fn look_at_topic(&mut self, shard: usize) {
        if !self.kafka.gone && !self.is_store_away() {
            self.find_loss();
            self.follow(shard);
            self.publish(shard);
            if self.plan.hasty {
                // A reader that has not looked meanwhile reads on in the midst of it.
                (0..SHARDS).for_each(|shard| self.follow(shard));
                for page in 0..SHARDS * HASTY_PAGES {
                    self.publish(page % SHARDS);
                }
            }
        }
        let behind = self.kafka.shards[shard].cursor < self.kafka.shards[shard].outbox.len();
        let soon = behind || self.plan.hasty && self.kafka.gone;
        let wait = if soon { 10 } else { self.plan.poll() };
        let wait = self.later.range(wait / 2, wait * 3 / 2);
        self.at(self.now + wait, Happening::LookAtTopic(shard));
    }

    /// The relay of a shard goes back to what is lost in the present generation.
    fn follow(&mut self, shard: usize) {
        let topology = &self.store.topology;
        let (present, topic_id) = (topology.generation, topology.topic_id);
        let known = self.kafka.shards[shard].generation;
        if present > known {
            let back = self.first_lost_entry(shard, known);
            let shard = &mut self.kafka.shards[shard];
            if shard.topic_id != topic_id {
                shard.last.fill(-1);
            }
            (shard.generation, shard.topic_id) = (present, topic_id);
            shard.refused.fill(false);
            for (last, end) in shard.last.iter_mut().zip(&self.kafka.end) {
                *last = (*last).min(end - 1);
            }
            shard.cursor = shard.cursor.min(back);
        }
    }

    /// Raises the generation if something acknowledged is gone.
    fn find_loss(&mut self) {
        let suspicions = std::mem::take(&mut self.kafka.suspicions);
        let seen = self.store.topology.generation;
        if self.is_new_topic() {
            return;
        }
        let marks = self.store.topology.marks.iter().zip(&self.kafka.end);
        let ends = (0..).zip(marks).filter(|(_, (mark, end))| end <= mark);
        let mut lost: Vec<(Partition, i64)> =
            ends.map(|(partition, (_, end))| (partition, *end)).collect();
        let of = suspicions.iter().filter(|(generation, ..)| *generation == seen);
        lost.extend(of.map(|(_, partition, offset)| (*partition, *offset)));
        if !lost.is_empty() {
            self.raise(seen, &lost);
        }
    }

    fn raise(&mut self, seen: u64, lost: &[(Partition, i64)]) {
        let mut events = Vec::new();
        self.store.raise(seen, self.kafka.topic_id, lost, &mut events);
        for event in events {
            self.log(event);
        }
        for (partition, _) in lost {
            // No reader counts any more as being beyond where the log ends now.
            self.kafka.ended[*partition as usize] = 0;
        }
    }

    /// Raises the generation if the topic is another one than that of the present generation.
    pub(crate) fn is_new_topic(&mut self) -> bool {
        if self.kafka.topic_id == self.store.topology.topic_id {
            return false;
        }
        let lost: Vec<_> = (0..self.plan.partitions).map(|partition| (partition, 0)).collect();
        self.raise(self.store.topology.generation, &lost);
        true
    }

    /// The first delivery of the first entry that a loss after generation `looked` has touched.
    fn first_lost_entry(&self, shard: usize, looked: u64) -> usize {
        if self.slips(Slip::NotPublishedAgain) {
            return usize::MAX;
        }
        let lost = |generation: u64, partition: Partition, offset: i64| {
            let beyond = self.store.topology.fences.iter().filter(|fence| {
                fence.generation > generation
                    && fence.partition == partition
                    && fence.first_lost <= offset
            });
            beyond.map(|fence| fence.generation).min().is_some_and(|first| first > looked)
        };
        let touched = self.kafka.shards[shard].acks.iter().filter(|acks| {
            (0..).zip(&acks.acked).any(|(partition, offset)| {
                offset.is_some_and(|offset| lost(acks.generation, partition, offset))
            })
        });
        touched.map(|acks| acks.entry * ENTRY).min().unwrap_or(usize::MAX)
    }

    /// Whether what an owner's position says is still in the log, as looked at before a take-over; else the generation
    /// is raised.
    pub(crate) fn is_whole(&mut self, partition: Partition, owner: Owner) -> bool {
        if self.kafka.gone || self.is_new_topic() {
            return false;
        }
        let (begin, end) =
            (self.kafka.begin[partition as usize], self.kafka.end[partition as usize]);
        let first_lost = if owner.next_offset > end {
            end
        } else if owner.next_offset < begin && !self.slips(Slip::SilentJump) {
            owner.next_offset
        } else {
            return true;
        };
        self.raise(self.store.topology.generation, &[(partition, first_lost)]);
        let mut events = Vec::new();
        self.store.raise_position(partition, owner, begin, &mut events);
        for event in events {
            self.log(event);
        }
        false
    }

    /// Something of the log is lost.
    pub(crate) fn lose_log(&mut self) {
        let partition = self.later.index(self.plan.partitions as usize);
        let (begin, end) = (self.kafka.begin[partition], self.kafka.end[partition]);
        if self.kafka.gone || begin == end {
            return;
        }
        self.faults += 1;
        let way = self.later.range(0, 4);
        let way = if self.plan.hasty { way % 4 } else { way };
        match way {
            0 => {
                if self.plan.hasty {
                    // Acknowledged and read by nobody.
                    for _ in 0..self.later.range(0, 6) {
                        self.produce_new();
                    }
                }
                self.kafka.gone = true;
                for partition in 0..self.topic.len() {
                    self.topic[partition].clear();
                    (self.kafka.begin[partition], self.kafka.end[partition]) = (0, 0);
                    self.kafka.ended[partition] = 0;
                }
                self.kafka.topic_id += 1;
                self.log(Event::TopicGone);
                let back = self.later.range(20, 3_000) * self.plan.scale;
                self.at(self.now + back, Happening::TopicMade);
                return;
            }
            1 | 2 => {
                let cut = (end - self.later.range(1, 8)).max(begin);
                // What nobody counted as acknowledged nobody misses, and what takes its place may be passed over: a known
                // limit.
                let mark = self.store.topology.marks[partition];
                if mark < begin {
                    return;
                }
                let cut = cut.min(mark);
                self.kafka.end[partition] = cut;
                self.topic[partition].retain(|record| record.offset < cut);
                self.kafka.ended[partition] = self.kafka.ended[partition].max(end);
                for shard in &mut self.kafka.shards {
                    shard.refused[partition] |= shard.last[partition] >= cut;
                }
                for process in &mut self.processes {
                    process.log_was_cut(partition as Partition, cut);
                }
            }
            _ => {
                let next = self.store.owners[partition].next_offset;
                let first = if self.later.chance(70) { next.max(begin) + 1 } else { begin + 1 };
                let begin = self.later.range(first.min(end), end);
                self.kafka.begin[partition] = begin;
                self.topic[partition].retain(|record| record.offset >= begin);
            }
        }
        let (begin, end) = (self.kafka.begin[partition], self.kafka.end[partition]);
        self.log(Event::LogLost { partition: partition as Partition, begin, end });
    }

    /// The topic is made again.
    pub(crate) fn make_topic(&mut self) {
        self.kafka.gone = false;
    }

    /// Relays begin to watch.
    pub(super) fn start_relays(&mut self) {
        self.store.topology.marks = vec![-1; self.plan.partitions as usize];
        if self.plan.has(Fault::LogLoss) {
            for shard in 0..SHARDS {
                let first = self.later.range(0, self.plan.poll());
                self.at(first, Happening::LookAtTopic(shard));
            }
        }
    }
}
