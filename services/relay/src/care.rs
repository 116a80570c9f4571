//! Care of a source's outbox: partitions ahead, removal of old ones when nothing can need them any more, old history
//! and dedupe keys (design section 4, "Retention"). Done by whichever process reads shard 0.

use crate::metrics::BySource;
use crate::source::Shared;
use laneway_platform::service::Chain;
use laneway_store::relay::{self, EntryAcks, Shard};
use laneway_store::topology::{self, Fence};
use laneway_store::windows::{Window, window_tell};
use laneway_store::{Error, source};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Tries for the locks of one removal, and the pause between: they are never waited for.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(25);
/// Rows that the gauge of the DEFAULT partition counts.
const DEFAULT_LIMIT: u32 = 10_000;
/// Dedupe keys forgotten in one statement, and statements in one round.
const DEDUPE_ROWS: u32 = 5_000;
const DEDUPE_ROUNDS: u32 = 100;

/// Cares for a source until `shutdown`.
pub(crate) async fn care(
    shared: Arc<Shared>,
    instance: Arc<str>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    loop {
        if let Err(error) = round(&shared, &instance).await {
            shared.metrics.error("care");
            tracing::warn!(source = %shared.name, error = %Chain(&error), "the outbox cannot be cared for");
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(shared.settings.upkeep) => {}
        }
    }
}

async fn round(shared: &Shared, instance: &str) -> Result<(), Error> {
    let pool = &shared.pool;
    let label = BySource { source: shared.name.clone() };
    if !relay::shard_is_owned_by(pool, Shard(0), instance).await? {
        return Ok(());
    }
    window_tell(&shared.control, Window::Outbox, &shared.name, shared.settings.window).await?;
    let made = source::partitions_ensure(pool).await;
    let default_rows = source::default_rows(pool, DEFAULT_LIMIT).await?;
    let default_rows = i64::try_from(default_rows).unwrap_or(i64::MAX);
    shared.metrics.default_rows.get_or_create(&label).set(default_rows);
    made?;
    source::partitions_drop_detached(pool).await?;
    let mut overdue = Duration::ZERO;
    for (day, beyond) in source::partitions_expired(pool, shared.settings.window).await? {
        if !remove(shared, day).await? {
            overdue = overdue.max(beyond);
        }
    }
    shared.metrics.overdue.get_or_create(&label).set(overdue.as_secs_f64());
    source::history_prune(pool).await?;
    for _ in 0..DEDUPE_ROUNDS {
        let gone = source::dedupe_prune(pool, shared.settings.dedupe_window, DEDUPE_ROWS).await?;
        if gone < u64::from(DEDUPE_ROWS) {
            break;
        }
    }
    Ok(())
}

/// Removes a day if nothing needs it; false if something does.
async fn remove(shared: &Shared, day: source::Day) -> Result<bool, Error> {
    let pool = &shared.pool;
    if source::partition_keeps(pool, day).await?.is_some() || !delivered(shared, day).await? {
        return Ok(false);
    }
    for _ in 0..LOCK_TRIES {
        match source::partition_remove(pool, day).await {
            Ok(None) => {
                tracing::info!(source = %shared.name, day = %day, "an old partition was removed");
                return Ok(true);
            }
            Ok(Some(_)) => return Ok(false),
            Err(error) if error.is_lock_not_available() => tokio::time::sleep(LOCK_PAUSE).await,
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Whether the owners have passed everything that was published of `day`.
async fn delivered(shared: &Shared, day: source::Day) -> Result<bool, Error> {
    let (pool, control) = (&shared.pool, &shared.control);
    let Some(generation) = topology::generation_current(control).await? else { return Ok(false) };
    if relay::generation_looked_at(pool).await? != generation.generation {
        return Ok(false);
    }
    let fences = topology::fences_after(control, 0).await?;
    let next =
        topology::next_offsets(control, generation.generation, generation.partitions).await?;
    for (shard, entry) in source::partition_entries(pool, day).await? {
        let acks = relay::acks_all(pool, shard).await?;
        if !passed(&acks, &fences, &next, entry) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether `next` (first incomplete offset by partition) lies beyond every acknowledged offset of the entries up to
/// `last`. An acknowledgement that a later loss took counts for nothing: the entry has others, of its publishing
/// again. Offsets of different generations of one log compare as they are: only a loss makes them mean another thing.
fn passed(acks: &[EntryAcks], fences: &[Fence], next: &[i64], last: u64) -> bool {
    acks.iter().filter(|entry| entry.entry <= last).all(|entry| {
        (0u32..).zip(&entry.acked).all(|(partition, offset)| {
            let Some(offset) = offset else { return true };
            let lost = fences.iter().any(|fence| {
                fence.generation > entry.generation
                    && fence.partition == partition
                    && fence.first_lost <= *offset
            });
            lost || next.get(partition as usize).is_some_and(|next| offset < next)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_goes_only_when_its_last_publishing_was_passed() {
        let acks = |entry, generation, offset| EntryAcks {
            entry,
            generation,
            acked: vec![None, Some(offset)],
        };
        let fence = Fence { generation: 2, partition: 1, first_lost: 5 };
        assert!(passed(&[acks(1, 1, 9)], &[], &[0, 10], 1));
        assert!(!passed(&[acks(1, 1, 10)], &[], &[0, 10], 1));
        assert!(
            passed(&[acks(1, 1, 9), acks(2, 1, 20)], &[], &[0, 10], 1),
            "a later entry is another day's"
        );
        assert!(
            !passed(&[acks(1, 1, 9), acks(1, 2, 7)], &[fence], &[0, 7], 1),
            "published again, not passed"
        );
        assert!(passed(&[acks(1, 1, 9), acks(1, 2, 7)], &[fence], &[0, 8], 1));
    }
}
