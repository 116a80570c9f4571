//! The checkers of the relay's runs, fed by the log only.

use super::event::{Delivery, Event, Key, To};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What was broken: the checker's name, and what it saw.
type Judged = Result<(), (&'static str, String)>;

/// A record of the log.
#[derive(Debug, Clone, Copy)]
struct Record {
    generation: u64,
    delivery: Delivery,
    key: Key,
}

/// What follows from the lines so far.
#[derive(Debug)]
pub(super) struct Book {
    subscribed: BTreeSet<To>,
    /// Committed rows: place in the order of commits, key, who has to get them.
    rows: HashMap<i64, (usize, Key, Vec<To>)>,
    partitions: Vec<Vec<Record>>,
    /// (generation, partition, first lost offset).
    fences: Vec<(u64, u32, i64)>,
    /// Partitions that have lost something since the generation was raised last.
    lost: BTreeSet<u32>,
    /// Deliveries that were ever in the log.
    appended: HashSet<Delivery>,
    tokens: HashMap<usize, u64>,
}

impl Book {
    pub(super) fn new(partitions: usize) -> Self {
        Self {
            subscribed: BTreeSet::new(),
            rows: HashMap::new(),
            partitions: vec![Vec::new(); partitions],
            fences: Vec::new(),
            lost: BTreeSet::new(),
            appended: HashSet::new(),
            tokens: HashMap::new(),
        }
    }

    /// Judges a line and takes it in.
    pub(super) fn look(&mut self, event: &Event) -> Judged {
        match event {
            Event::Subscribed { to } => {
                self.subscribed.insert(*to);
            }
            Event::Committed { rows, .. } => {
                for (id, key) in rows {
                    let place = self.rows.len();
                    let to = self.subscribed.iter().copied().collect();
                    self.rows.insert(*id, (place, *key, to));
                }
            }
            Event::Appended { partition, offset, generation, delivery, key } => {
                let log = &mut self.partitions[*partition as usize];
                assert_eq!(log.len() as i64, *offset, "the log is dense");
                log.push(Record { generation: *generation, delivery: *delivery, key: *key });
                self.appended.insert(*delivery);
                if !self.rows.contains_key(&delivery.0) {
                    let what =
                        format!("delivery {delivery:?} is in the log, its row is not committed");
                    return Err(("P4", what));
                }
            }
            Event::Truncated { partition, end } => {
                self.partitions[*partition as usize].truncate(*end as usize);
                self.lost.insert(*partition);
            }
            Event::Recreated => {
                for (partition, log) in (0..).zip(&mut self.partitions) {
                    log.clear();
                    self.lost.insert(partition);
                }
            }
            Event::Raised { generation, fences } => {
                let fenced =
                    fences.iter().map(|(partition, first)| (*generation, *partition, *first));
                self.fences.extend(fenced);
                // A loss may be seen in parts: what is fenced stays suspect.
                let alarm = fences.iter().find(|(partition, _)| !self.lost.contains(partition));
                if let Some((partition, first)) = alarm {
                    let what = format!(
                        "generation {generation} fences {partition} from {first} on, which has lost nothing"
                    );
                    return Err(("alarm", what));
                }
            }
            Event::Leased { shard, token, .. } => {
                self.tokens.insert(*shard, *token);
            }
            Event::Released { shard } => {
                self.tokens.remove(shard);
            }
            Event::Passed { shard, token, sent, last_id, .. } => {
                self.fence(*shard, *token)?;
                self.covered(sent, &format!("the cursor of {shard} passes {last_id}"))?;
            }
            Event::Left { shard, token, sent } => {
                self.fence(*shard, *token)?;
                self.covered(sent, &format!("held rows of {shard} leave"))?;
            }
            Event::Opened { shard, token, .. } | Event::WentBack { shard, token, .. } => {
                self.fence(*shard, *token)?;
            }
            Event::Over { drained } => return self.over(*drained),
            Event::RolledBack { .. }
            | Event::Fenced { .. }
            | Event::Crashed { .. }
            | Event::Paused { .. }
            | Event::DatabaseCrashed
            | Event::Healed => {}
        }
        Ok(())
    }

    /// P13: who does not hold the lease changes nothing.
    fn fence(&self, shard: usize, token: u64) -> Judged {
        match self.tokens.get(&shard) {
            Some(holder) if *holder == token => Ok(()),
            holder => Err((
                "P13",
                format!("lease {token} of shard {shard} writes, {holder:?} is the present one"),
            )),
        }
    }

    /// I8: a cursor passes only what is in the log, or held.
    fn covered(&self, sent: &[Delivery], when: &str) -> Judged {
        match sent.iter().find(|delivery| !self.appended.contains(delivery)) {
            None => Ok(()),
            Some(delivery) => {
                Err(("I8", format!("{when}, delivery {delivery:?} is neither in the log nor held")))
            }
        }
    }

    /// Whether a record counts: no later generation has fenced it off.
    fn counts(&self, partition: usize, offset: usize, record: Record) -> bool {
        !self.fences.iter().any(|(generation, of, first)| {
            *generation > record.generation && *of as usize == partition && *first <= offset as i64
        })
    }

    /// The log that owners deliver from has everything (P4), and in each lane's order (P2).
    fn over(&self, drained: bool) -> Judged {
        if !drained {
            return Err(("P4", "the healed relays do not come to an end".to_owned()));
        }
        let mut lanes: BTreeMap<(To, Key), usize> = BTreeMap::new();
        let mut seen: HashSet<Delivery> = HashSet::new();
        let mut disorder = Ok(());
        for (partition, log) in self.partitions.iter().enumerate() {
            for (offset, record) in log.iter().enumerate() {
                if !self.counts(partition, offset, *record) || !seen.insert(record.delivery) {
                    continue;
                }
                let place = self.rows[&record.delivery.0].0;
                let lane = (record.delivery.1, record.key);
                let last = lanes.insert(lane, place).filter(|last| *last > place);
                if last.is_some() && disorder.is_ok() {
                    let what = format!(
                        "delivery {:?} of lane {lane:?} first appears in partition {partition} at {offset}, behind one committed after it",
                        record.delivery
                    );
                    disorder = Err(("P2", what));
                }
            }
        }
        let mut wanted: Vec<Delivery> = Vec::new();
        for (id, (_, _, to)) in &self.rows {
            wanted.extend(to.iter().map(|to| (*id, *to)));
        }
        wanted.sort_unstable();
        if let Some(delivery) = wanted.iter().find(|delivery| !seen.contains(delivery)) {
            return Err(("P4", format!("delivery {delivery:?} is not in the log that counts")));
        }
        disorder
    }
}
