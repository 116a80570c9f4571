//! Settling: groups of the partitions' queues, one transaction each, repeated until it is known to be durable.
//!
//! A slot has the partitions whose number leaves its own as the rest, and one transaction under way at a time: so of
//! one partition never two. At once when there is little to do; under load no more than one per `settle_linger`, but
//! for a full group.

use crate::intake::Batch;
use crate::lease::Lease;
use crate::metrics::Metrics;
use laneway_lane::{Epoch, FinalOutcome, Partition, SettleItem, SettleSeq};
use laneway_platform::clock::{self, DbClock};
use laneway_platform::failpoint;
use laneway_platform::service::Chain;
use laneway_store::delivery::{Group, GroupEnd, endpoints_load, groups_write, known_read};
use laneway_store::{Error, Pool};
use std::sync::Arc;
use std::time::Duration;

/// A group of fewer items says that there is little to do.
pub(crate) const FEW: usize = 32;
/// Between two tries of one group.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// One settle worker.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) busy: bool,
    /// When the last transaction began (monotonic), and how much it had.
    pub(crate) began: Duration,
    pub(crate) rows: usize,
    /// The partition that goes first next time.
    pub(crate) first: usize,
}

/// One partition's part of a transaction.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) partition: Partition,
    pub(crate) lease: Arc<Lease>,
    pub(crate) generation: u64,
    pub(crate) next_offset: Option<i64>,
    pub(crate) items: Vec<SettleItem>,
    pub(crate) through: SettleSeq,
    pub(crate) batch: Option<Batch>,
    /// It must be a transaction, whatever else there is: the lease is to be renewed.
    pub(crate) renew: bool,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Worked {
    pub(crate) partition: Partition,
    pub(crate) epoch: Epoch,
    pub(crate) through: SettleSeq,
    pub(crate) items: usize,
    pub(crate) batch: Option<Batch>,
    /// None: the lease ended before it could be written.
    pub(crate) end: Option<GroupEnd>,
    /// The write renewed the lease.
    pub(crate) renewed: bool,
}

/// A slot's transaction has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) slot: usize,
    /// Boot time before the durable transaction was sent.
    pub(crate) asked: Duration,
    pub(crate) works: Vec<Worked>,
}

/// What settle tasks share.
#[derive(Clone)]
pub(crate) struct Settler {
    pub(crate) pool: Pool,
    pub(crate) clock: Arc<DbClock>,
    pub(crate) metrics: Arc<Metrics>,
    /// A try takes no longer than this: whatever hangs, the slot gets free.
    pub(crate) limit: Duration,
}

impl Settler {
    /// Writes until it is durable, or every lease in it has ended.
    pub(crate) async fn run(&self, slot: usize, mut works: Vec<Work>) -> Done {
        let mut pause = FIRST_PAUSE;
        loop {
            let asked = clock::boottime();
            let held: Vec<usize> =
                (0..works.len()).filter(|index| works[*index].lease.holds()).collect();
            if held.is_empty() {
                return done(slot, asked, works, &held, Vec::new());
            }
            let tried = tokio::time::timeout(self.limit, self.write(&mut works, &held)).await;
            match tried {
                Ok(Ok(ends)) => {
                    self.count(&works, &held, &ends, asked);
                    return done(slot, asked, works, &held, ends);
                }
                Ok(Err(error)) => {
                    // Whether it is durable may be unknown; writing it again changes nothing then.
                    if error.is_transient() {
                        tracing::warn!(error = %Chain(&error), "settle transaction is repeated");
                    } else {
                        tracing::error!(error = %Chain(&error), "settle transaction is refused and repeated");
                    }
                }
                Err(_) => {
                    tracing::warn!(limit = ?self.limit, "settle transaction hangs and is repeated")
                }
            }
            self.metrics.settle_retries.inc();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn write(&self, works: &mut [Work], held: &[usize]) -> Result<Vec<GroupEnd>, Error> {
        for &index in held {
            if let Some(batch) = works[index].batch.as_mut()
                && !batch.unknown.is_empty()
                && batch.rows.is_empty()
            {
                let ids: Vec<_> = batch.unknown.keys().copied().collect();
                batch.rows = endpoints_load(&self.pool, &ids).await?;
            }
        }
        let plain = |index: &usize| works[*index].items.is_empty() && !works[*index].renew;
        if held.iter().all(plain) {
            return self.ask(works, held).await;
        }
        let groups: Vec<Group<'_>> = held
            .iter()
            .map(|&index| {
                let work = &works[index];
                Group {
                    partition: work.partition,
                    epoch: work.lease.epoch,
                    generation: work.generation,
                    next_offset: work.next_offset,
                    items: &work.items,
                    intake: work.batch.as_ref().map_or(&[], |batch| &batch.ids),
                }
            })
            .collect();
        let written = groups_write(&self.pool, &groups).await?;
        if works.iter().any(|work| !work.items.is_empty()) {
            failpoint::hit("C2");
        }
        if works.iter().flat_map(|work| &work.items).any(is_dead_letter) {
            failpoint::hit("C10");
        }
        let ends = written.commit().await?;
        if works.iter().any(|work| !work.items.is_empty()) {
            failpoint::hit("C3");
        }
        Ok(ends)
    }

    /// Only questions: no transaction is needed, because nothing of these partitions is under way.
    async fn ask(&self, works: &[Work], held: &[usize]) -> Result<Vec<GroupEnd>, Error> {
        let ids: Vec<_> = held
            .iter()
            .filter_map(|&index| works[index].batch.as_ref())
            .flat_map(|batch| batch.ids.iter().copied())
            .collect();
        let known = known_read(&self.pool, &ids).await?;
        Ok(held
            .iter()
            .map(|&index| GroupEnd::Written {
                generation: works[index].generation,
                unparked: Vec::new(),
                known: works[index]
                    .batch
                    .iter()
                    .flat_map(|batch| &batch.ids)
                    .filter_map(|id| known.get(id).map(|known| (*id, *known)))
                    .collect(),
            })
            .collect())
    }

    fn count(&self, works: &[Work], held: &[usize], ends: &[GroupEnd], asked: Duration) {
        let now = self.clock.now();
        let mut rows = 0;
        for (&index, end) in held.iter().zip(ends) {
            let items = &works[index].items;
            match end {
                GroupEnd::Written { .. } => {
                    self.metrics.settled(items, now);
                    rows += items.len();
                }
                GroupEnd::Fenced => {
                    self.metrics.fenced.inc();
                    self.metrics.stale_settles.inc_by(items.len() as u64);
                }
            }
        }
        if rows > 0 {
            self.metrics.group_rows.observe(rows as f64);
            let took = clock::boottime().saturating_sub(asked);
            self.metrics.group_seconds.observe(took.as_secs_f64());
        }
    }
}

fn is_dead_letter(item: &SettleItem) -> bool {
    matches!(item, SettleItem::Final { outcome: FinalOutcome::DeadLettered { .. }, .. })
}

fn done(
    slot: usize,
    asked: Duration,
    works: Vec<Work>,
    held: &[usize],
    ends: Vec<GroupEnd>,
) -> Done {
    let mut by_index: Vec<Option<GroupEnd>> = works.iter().map(|_| None).collect();
    // Only a real transaction renews; `ask` was no such thing.
    let wrote = held.iter().any(|&index| !works[index].items.is_empty() || works[index].renew);
    for (&index, end) in held.iter().zip(ends) {
        by_index[index] = Some(end);
    }
    let works = works
        .into_iter()
        .zip(by_index)
        .map(|(work, end)| Worked {
            partition: work.partition,
            epoch: work.lease.epoch,
            through: work.through,
            items: work.items.len(),
            batch: work.batch,
            renewed: wrote && end.is_some(),
            end,
        })
        .collect();
    Done { slot, asked, works }
}
