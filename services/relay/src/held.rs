//! Letting held rows follow, in row order within each lane, a few of each lane at a time.

use crate::publish::PublishError;
use crate::route::Delivery;
use crate::shard::ShardTask;
use crate::topic::Topic;
use laneway_lane::relay::{Plan, Published, PublishedAt};
use laneway_store::Error;
use laneway_store::relay::{self, HeldRow, HoldReason, Leave};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Lanes in one round.
const LANES: u32 = 256;

/// What a round has published.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) published: Published,
    pub(crate) left: Vec<Leave>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RoundError {
    #[error("a database operation failed")]
    Store(#[from] Error),
    #[error("held rows were not published")]
    Publish(#[from] PublishError),
}

/// Publishes the next held rows of each lane whose turn has come, as many of one lane as a page would: each waits for the
/// acknowledgement of the one before; none if the topic was replaced meanwhile.
pub(crate) async fn round(
    shard: &ShardTask,
    topic: &Arc<Topic>,
) -> Result<Option<Round>, RoundError> {
    let (pool, lease) = (&shard.shared.pool, &shard.lease);
    let held = relay::held_sendable(pool, lease.shard, LANES, shard.shared.settings.waves).await?;
    if held.is_empty() {
        return Ok(Some(Round::default()));
    }
    let ids: BTreeSet<i64> = held.iter().map(|held| held.row).collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let rows = relay::rows_by_id(pool, lease.shard, &ids).await?;
    let places: HashMap<i64, usize> =
        rows.iter().enumerate().map(|(place, row)| (row.id, place)).collect();
    let mut deliveries: Vec<Delivery> = Vec::with_capacity(held.len());
    let mut found: Vec<HeldRow> = Vec::with_capacity(held.len());
    let mut plan = Plan::default();
    let mut lane = None;
    for held in held {
        let Some(&row) = places.get(&held.row) else {
            // Partitions with held rows are never removed.
            tracing::error!(lane = %held.lane, row = held.row, "a held row is not in the outbox");
            continue;
        };
        if lane.replace(held.lane) != Some(held.lane) {
            plan.chains.push(Vec::new());
        }
        if let Some(chain) = plan.chains.last_mut() {
            chain.push(deliveries.len());
        }
        let (endpoint, mode, lane) = (held.endpoint, held.mode, held.lane);
        deliveries.push(Delivery { row, endpoint, mode, lane });
        found.push(held);
    }
    topic.marks_refresh(&shard.shared.control).await?;
    let Some(published) = shard.send(topic, &rows, &deliveries, &plan).await? else {
        return Ok(None);
    };
    for &(index, reason) in &published.held {
        if reason == HoldReason::Size {
            relay::held_refuse(pool, lease, &found[index], reason).await?;
        }
    }
    let left = published
        .acked
        .iter()
        .map(|&PublishedAt { index, partition, offset }| Leave {
            held: found[index],
            partition,
            offset,
        })
        .collect();
    Ok(Some(Round { published, left }))
}
