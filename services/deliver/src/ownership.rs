//! Taking partitions over and giving them back (design 5.3).
//!
//! An unclean partition is taken only after epoch and renewal were watched standing still for lease + `max_timeout`:
//! by then every request of the former owner has ended, whatever its clock says. Before anything is taken the log is
//! looked at: what the position says must be in it, else the generation is raised first (design section 4).

use crate::lease::Lease;
use crate::log::{self, Log};
use laneway_lane::Partition;
use laneway_platform::clock;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::delivery::{Owner, OwnerState, owner_read, owner_release, owner_take};
use laneway_store::topology::fences_after;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What requests may take before anything longer was made durable: the shortest timeout that an endpoint can have.
const FIRST_MAX_TIMEOUT: Duration = Duration::from_secs(1);
/// After an error, or while there is nothing to take.
const PAUSE: Duration = Duration::from_millis(500);
/// A try that takes longer hangs: Kafka answers within 10 s for each of the few questions, or not at all.
const TRY: Duration = Duration::from_secs(45);

/// A take-over that committed.
#[derive(Debug)]
pub(crate) struct TakenOver {
    pub(crate) lease: Arc<Lease>,
    pub(crate) generation: u64,
    /// Where to read on: the stored position, but not before the log's beginning.
    pub(crate) start: i64,
    pub(crate) losses: Vec<(u64, i64)>,
}

/// What take-overs share.
#[derive(Clone)]
pub(crate) struct Owning {
    pub(crate) pool: Pool,
    pub(crate) log: Log,
    pub(crate) name: Arc<str>,
    pub(crate) lease: Duration,
}

impl Owning {
    /// Takes `partition` as soon as the rules allow; none if `cancelled` comes first.
    pub(crate) async fn take(
        &self,
        partition: Partition,
        cancelled: CancellationToken,
    ) -> Option<TakenOver> {
        let mut watch = Watch::default();
        loop {
            let pause = tokio::select! {
                biased;
                () = cancelled.cancelled() => return None,
                tried = tokio::time::timeout(TRY, self.try_take(partition, &mut watch)) => match tried {
                    Ok(Ok(Some(taken))) => return Some(taken),
                    Ok(Ok(None)) => self.lease / 10,
                    Ok(Err(error)) => {
                        tracing::warn!(partition, error = %Chain(&error), "partition not taken yet");
                        PAUSE
                    }
                    Err(_) => {
                        tracing::warn!(partition, limit = ?TRY, "taking the partition hangs");
                        PAUSE
                    }
                },
            };
            tokio::select! {
                biased;
                () = cancelled.cancelled() => return None,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn try_take(
        &self,
        partition: Partition,
        watch: &mut Watch,
    ) -> Result<Option<TakenOver>, log::Trouble> {
        let Some(seen) = owner_read(&self.pool, partition).await? else { return Ok(None) };
        let free = match seen.state {
            OwnerState::Released => true,
            OwnerState::Owned => {
                watch.stood_still(&seen, clock::boottime()) >= self.lease + seen.max_timeout
            }
            OwnerState::Closed => false,
        };
        if !free {
            return Ok(None);
        }
        let Some(begin) = self.log.check(&self.pool, partition, &seen).await? else {
            // The generation was raised: the row is another one now. What was watched still counts, epoch and renewal
            // went over to it.
            return Ok(None);
        };
        let asked = clock::boottime();
        let taken = owner_take(&self.pool, partition, &seen, &self.name, FIRST_MAX_TIMEOUT).await?;
        let Some(taken) = taken else { return Ok(None) };
        let lease = Arc::new(Lease::new(taken.epoch, self.lease, asked, FIRST_MAX_TIMEOUT));
        let losses = fences_after(&self.pool, 0).await?;
        tracing::info!(
            partition,
            epoch = taken.epoch,
            generation = taken.generation,
            next_offset = taken.next_offset,
            clean = seen.state == OwnerState::Released,
            "partition taken"
        );
        Ok(Some(TakenOver {
            lease,
            generation: taken.generation,
            start: taken.next_offset.max(begin),
            losses: losses
                .into_iter()
                .filter(|fence| fence.partition == partition)
                .map(|fence| (fence.generation, fence.first_lost))
                .collect(),
        }))
    }

    /// Gives the partition back in good order, as long as its lease runs.
    pub(crate) async fn release(
        &self,
        partition: Partition,
        lease: &Lease,
        generation: u64,
        next_offset: i64,
    ) {
        while lease.holds() {
            match owner_release(&self.pool, partition, lease.epoch, generation, next_offset).await {
                Ok(clean) => {
                    tracing::info!(
                        partition,
                        epoch = lease.epoch,
                        next_offset,
                        clean,
                        "partition released"
                    );
                    return;
                }
                Err(error) => {
                    tracing::warn!(partition, error = %Chain(&error), "partition not released yet");
                    tokio::time::sleep(PAUSE / 5).await;
                }
            }
        }
        tracing::warn!(partition, epoch = lease.epoch, "partition left unreleased");
    }
}

/// Since when an owner's row has not moved.
#[derive(Debug, Default)]
struct Watch {
    seen: Option<(u64, u64, Duration)>,
}

impl Watch {
    /// How long epoch and renewal have stood still before this look, which came back at `now` (boot time).
    fn stood_still(&mut self, owner: &Owner, now: Duration) -> Duration {
        match self.seen {
            Some((epoch, renewal, since)) if (epoch, renewal) == (owner.epoch, owner.renewal) => {
                now.saturating_sub(since)
            }
            _ => {
                self.seen = Some((owner.epoch, owner.renewal, now));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_movement_begins_the_watch_anew() {
        let mut owner = Owner {
            generation: 1,
            epoch: 7,
            renewal: 1,
            owner: None,
            state: OwnerState::Owned,
            max_timeout: Duration::ZERO,
            next_offset: 0,
        };
        let s = Duration::from_secs;
        let mut watch = Watch::default();
        assert_eq!(watch.stood_still(&owner, s(10)), s(0));
        assert_eq!(watch.stood_still(&owner, s(14)), s(4));
        owner.renewal = 2;
        assert_eq!(watch.stood_still(&owner, s(15)), s(0));
        owner.generation = 2;
        assert_eq!(watch.stood_still(&owner, s(18)), s(3), "the row moved, the owner did not");
        owner.epoch = 8;
        assert_eq!(watch.stood_still(&owner, s(19)), s(0));
    }
}
