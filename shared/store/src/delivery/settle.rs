//! The settle transaction (design 5.4): groups of one or many partitions, each under its fence.
//!
//! Order of writes: fence, parks, appends, intents, attempts, finals, releases, quarantine, commands, position, and at
//! the end the waiting intake questions, which therefore see the group's own inbox rows. Everything is set-based: a
//! statement per table and group, not per row. Writing the same groups once more changes nothing, so a transaction
//! whose end is not known is simply repeated.

use super::known::known_in;
use super::settle_columns::Columns;
use super::value::{big, unbig};
use crate::{Error, Pool};
use laneway_lane::{Epoch, Known, Partition, SettleItem};
use laneway_wire::{DeliveryId, LaneId};
use sqlx::{PgConnection, Postgres, Row, Transaction};
use std::collections::HashMap;

/// What is to be written of one partition. An empty group renews the lease and nothing else.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// The partition; at most one group of it in a transaction.
    pub partition: Partition,
    /// The epoch to be proved.
    pub epoch: Epoch,
    /// The generation that `next_offset` is of: in another one it is not written.
    pub generation: u64,
    /// Everything before this is complete once the group is durable. Never lowers what is stored.
    pub next_offset: Option<i64>,
    /// The items, in the order of the partition's settle queue.
    pub items: &'a [SettleItem],
    /// Ids of a batch of records that waits for what is known of them.
    pub intake: &'a [DeliveryId],
}

/// What became of one group.
#[derive(Debug, Clone)]
pub enum GroupEnd {
    /// Its epoch is over: nothing of it was written (P13).
    Fenced,
    /// It is written, and durable once [`Written::commit`] has returned.
    Written {
        /// The generation that the partition is in now.
        generation: u64,
        /// Lanes of finals with `may_unpark` that are parked no more.
        unparked: Vec<LaneId>,
        /// What is known of the intake ids; those not in it are new.
        known: HashMap<DeliveryId, Known>,
    },
}

/// Groups that are written and not yet durable. Dropped, they are undone.
#[derive(Debug)]
pub struct Written {
    transaction: Transaction<'static, Postgres>,
    ends: Vec<GroupEnd>,
}

impl Written {
    /// Makes the groups durable; the ends are in the order of the groups.
    ///
    /// # Errors
    /// After any error the groups may or may not be durable: write them again.
    pub async fn commit(self) -> Result<Vec<GroupEnd>, Error> {
        self.transaction.commit().await.map_err(Error::doing("committing a settle group"))?;
        Ok(self.ends)
    }
}

/// Writes `groups` in one transaction, fenced ones left out.
pub async fn groups_write(pool: &Pool, groups: &[Group<'_>]) -> Result<Written, Error> {
    let mut transaction = pool.begin().await?;
    let fences = fence(&mut transaction, groups).await?;
    let held = |index: &usize| fences.contains_key(&groups[*index].partition);
    let mut columns = Columns::default();
    for group in (0..groups.len()).filter(held).map(|index| &groups[index]) {
        columns.take(group);
    }
    let mut unparked = columns.write(&mut transaction).await?;
    position(&mut transaction, groups, &fences).await?;
    let ids: Vec<DeliveryId> = (0..groups.len())
        .filter(held)
        .flat_map(|index| groups[index].intake.iter().copied())
        .collect();
    let known = known_in(&mut transaction, &ids).await?;
    let ends = groups
        .iter()
        .map(|group| match fences.get(&group.partition) {
            None => GroupEnd::Fenced,
            Some(&generation) => GroupEnd::Written {
                generation,
                unparked: unparked.remove(&group.partition).unwrap_or_default(),
                known: group
                    .intake
                    .iter()
                    .filter_map(|id| known.get(id).map(|known| (*id, *known)))
                    .collect(),
            },
        })
        .collect();
    Ok(Written { transaction, ends })
}

/// Locks the rows of all groups whose epoch holds, in order of partition, and gives their generations.
async fn fence(
    connection: &mut PgConnection,
    groups: &[Group<'_>],
) -> Result<HashMap<Partition, u64>, Error> {
    const DOING: &str = "proving epochs";
    let mut fences = HashMap::with_capacity(groups.len());
    // A second look only if one is missing: a raise of the generation that the first one waited for has put the epoch
    // into a row that its snapshot did not see.
    for _ in 0..2 {
        let missing = groups.iter().filter(|group| !fences.contains_key(&group.partition));
        let (partitions, epochs): (Vec<i32>, Vec<i64>) =
            missing.map(|group| (group.partition.cast_signed(), big(group.epoch))).unzip();
        if partitions.is_empty() {
            break;
        }
        let rows = sqlx::query(
            "SELECT o.partition, o.generation FROM laneway_control.partition_owners o \
             WHERE (o.partition, o.epoch) IN (SELECT * FROM unnest($1::int[], $2::bigint[])) AND o.state = 'owned' \
             ORDER BY o.partition, o.generation FOR NO KEY UPDATE OF o",
        )
        .bind(&partitions)
        .bind(&epochs)
        .fetch_all(&mut *connection)
        .await
        .map_err(Error::doing(DOING))?;
        for row in rows {
            let read =
                || -> Result<(i32, i64), sqlx::Error> { Ok((row.try_get(0)?, row.try_get(1)?)) };
            let (partition, generation) = read().map_err(Error::doing(DOING))?;
            fences.insert(partition.cast_unsigned(), unbig(generation));
        }
    }
    Ok(fences)
}

/// Renews the lease of every held group and raises its position.
async fn position(
    connection: &mut PgConnection,
    groups: &[Group<'_>],
    fences: &HashMap<Partition, u64>,
) -> Result<(), Error> {
    let (mut partitions, mut generations, mut offsets) = (vec![], vec![], vec![]);
    for group in groups {
        if let Some(&generation) = fences.get(&group.partition) {
            partitions.push(group.partition.cast_signed());
            generations.push(big(generation));
            offsets.push(group.next_offset.filter(|_| generation == group.generation));
        }
    }
    if partitions.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE laneway_control.partition_owners o SET renewal = o.renewal + 1, \
         next_offset = greatest(o.next_offset, g.next_offset), updated_at = now() \
         FROM unnest($1::int[], $2::bigint[], $3::bigint[]) g(partition, generation, next_offset) \
         WHERE o.generation = g.generation AND o.partition = g.partition",
    )
    .bind(&partitions)
    .bind(&generations)
    .bind(&offsets)
    .execute(connection)
    .await
    .map_err(Error::doing("raising positions"))?;
    Ok(())
}
