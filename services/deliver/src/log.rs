//! Loss of the log (design section 4): is what the stored position says still in the topic? If not, the generation is
//! raised, and the relay publishes again what was lost.

use laneway_bus::{Admin, BusError};
use laneway_lane::Partition;
use laneway_platform::metrics::Counter;
use laneway_store::delivery::{Owner, owner_position_raise};
use laneway_store::topology::{Reason, generation_current, generation_raise};
use laneway_store::{Error, Pool};
use std::sync::Arc;

/// Why the log could not be looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("the control database does not answer")]
    Store(#[from] Error),
    #[error("kafka does not answer")]
    Bus(#[from] BusError),
    #[error("topic {0} does not exist")]
    Missing(Arc<str>),
}

/// The deliveries topic.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) admin: Admin,
    pub(crate) topic: Arc<str>,
    /// Generations that began before this process's eyes; an owner that finds a loss begins one.
    pub(crate) generations: Counter,
}

impl Log {
    /// The topic's own id as it is stored.
    pub(crate) async fn topic_id(&self) -> Result<(String, u32), Trouble> {
        let found = self.admin.describe_topic(&self.topic).await?;
        let found = found.ok_or_else(|| Trouble::Missing(Arc::clone(&self.topic)))?;
        Ok((found.id(), found.partitions))
    }

    /// The offset at which the partition begins, if the owner's position lies in the log; none if the generation had
    /// to be raised.
    pub(crate) async fn check(
        &self,
        pool: &Pool,
        partition: Partition,
        owner: &Owner,
    ) -> Result<Option<i64>, Trouble> {
        if self.is_new_topic(pool).await? {
            return Ok(None);
        }
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let (begin, end) = self.admin.offsets(&self.topic, number).await?;
        let first_lost = if owner.next_offset > end {
            end
        } else if owner.next_offset < begin {
            owner.next_offset
        } else {
            return Ok(Some(begin));
        };
        let Some(present) = generation_current(pool).await? else { return Ok(None) };
        tracing::error!(
            partition,
            next_offset = owner.next_offset,
            begin,
            end,
            first_lost,
            "records of the deliveries topic are lost, the generation is raised"
        );
        let lost = [(partition, first_lost)];
        let (seen, id) = (present.generation, &present.topic_id);
        let new = generation_raise(pool, seen, Reason::LogLost, id, &lost).await?;
        self.generations.inc();
        if owner.next_offset < begin {
            // What lay before the beginning comes again; if this is not reached, the next look raises once more.
            owner_position_raise(pool, partition, new.generation, owner, begin).await?;
        }
        Ok(None)
    }

    /// Raises the generation if the topic is not the one that the present generation is of.
    pub(crate) async fn is_new_topic(&self, pool: &Pool) -> Result<bool, Trouble> {
        let Some(present) = generation_current(pool).await? else { return Ok(true) };
        let (id, partitions) = self.topic_id().await?;
        if id == present.topic_id {
            return Ok(false);
        }
        tracing::error!(topic = %self.topic, old = present.topic_id, new = id, "the deliveries topic was made again, the generation is raised");
        let lost: Vec<_> = (0..present.partitions.min(partitions)).map(|p| (p, 0)).collect();
        generation_raise(pool, present.generation, Reason::Recreated, &id, &lost).await?;
        self.generations.inc();
        Ok(true)
    }
}
