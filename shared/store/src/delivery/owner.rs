//! Ownership of partitions (design 5.3). `partition_owners` is the truth: Kafka's assignment is only a wish.
//!
//! Epochs come from a sequence and are never used twice, so an epoch alone names one ownership, whatever the
//! generation: when the generation is raised, the same epoch goes on in the new row and the old one is closed.

use super::value::{big, millis, span, unbig};
use crate::{Error, Pool};
use laneway_lane::{Epoch, Partition};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::time::Duration;

/// What stands in a partition's newest row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The row's generation: the newest that the partition has.
    pub generation: u64,
    /// The present or last epoch; 0 if it never had one.
    pub epoch: Epoch,
    /// Raised by every renewal.
    pub renewal: u64,
    /// Name of the instance that owns it or did.
    pub owner: Option<String>,
    /// Whether somebody owns it.
    pub state: OwnerState,
    /// No request of this ownership takes longer.
    pub max_timeout: Duration,
    /// The first offset that is not complete.
    pub next_offset: i64,
}

/// Whether somebody owns a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerState {
    /// Somebody does, or did and died.
    Owned,
    /// The last owner gave it back in good order: it can be taken at once.
    Released,
    /// The generation is over and no newer row exists (yet).
    Closed,
}

impl OwnerState {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Released => "released",
            Self::Closed => "closed",
        }
    }
}

/// A take-over that committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The new epoch.
    pub epoch: Epoch,
    /// The generation that it is of.
    pub generation: u64,
    /// The first offset that is not complete.
    pub next_offset: i64,
}

/// The newest row of `partition`; none if the topic was never set up with such a partition.
pub async fn owner_read(pool: &Pool, partition: Partition) -> Result<Option<Owner>, Error> {
    const DOING: &str = "reading a partition's owner";
    let row = sqlx::query(
        "SELECT generation, epoch, renewal, owner, state, max_timeout_ms, next_offset \
         FROM laneway_control.partition_owners WHERE partition = $1 ORDER BY generation DESC LIMIT 1",
    )
    .bind(partition.cast_signed())
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    row.map(|row| read(&row)).transpose()
}

fn read(row: &PgRow) -> Result<Owner, Error> {
    const DOING: &str = "reading a partition's owner";
    let state: &str = row.try_get("state").map_err(Error::doing(DOING))?;
    let state = match state {
        "owned" => OwnerState::Owned,
        "released" => OwnerState::Released,
        "closed" => OwnerState::Closed,
        other => return Err(Error::Stored { what: "owner state", value: other.to_owned() }),
    };
    let numbers = || -> Result<_, sqlx::Error> {
        Ok(Owner {
            generation: unbig(row.try_get("generation")?),
            epoch: unbig(row.try_get("epoch")?),
            renewal: unbig(row.try_get("renewal")?),
            owner: row.try_get("owner")?,
            state,
            max_timeout: span(row.try_get("max_timeout_ms")?),
            next_offset: row.try_get("next_offset")?,
        })
    };
    numbers().map_err(Error::doing(DOING))
}

/// Takes `partition` over if nothing moved since `seen` was read: the caller has watched epoch and renewal stand
/// still for lease + `seen.max_timeout`, or `seen` is released.
///
/// `max_timeout` is what the new owner's requests may take until it raises that. None: somebody moved.
pub async fn owner_take(
    pool: &Pool,
    partition: Partition,
    seen: &Owner,
    name: &str,
    max_timeout: Duration,
) -> Result<Option<Taken>, Error> {
    const DOING: &str = "taking a partition over";
    let row = sqlx::query(
        "UPDATE laneway_control.partition_owners SET epoch = nextval('laneway_control.epochs'), renewal = 0, \
         owner = $6, state = 'owned', max_timeout_ms = $7, updated_at = now() \
         WHERE generation = $1 AND partition = $2 AND epoch = $3 AND renewal = $4 AND state = $5 \
         AND state <> 'closed' RETURNING epoch, generation, next_offset",
    )
    .bind(big(seen.generation))
    .bind(partition.cast_signed())
    .bind(big(seen.epoch))
    .bind(big(seen.renewal))
    .bind(seen.state.as_str())
    .bind(name)
    .bind(millis(max_timeout))
    .fetch_optional(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let Some(row) = row else { return Ok(None) };
    let taken = || -> Result<_, sqlx::Error> {
        Ok(Taken {
            epoch: unbig(row.try_get("epoch")?),
            generation: unbig(row.try_get("generation")?),
            next_offset: row.try_get("next_offset")?,
        })
    };
    taken().map(Some).map_err(Error::doing(DOING))
}

/// Moves the position of a partition that nobody has taken since `seen` to `next_offset` in the row of `generation`:
/// the log begins there, and what lay before it is lost to that generation. Never lowers it.
pub async fn owner_position_raise(
    pool: &Pool,
    partition: Partition,
    generation: u64,
    seen: &Owner,
    next_offset: i64,
) -> Result<bool, Error> {
    let done = sqlx::query(
        "UPDATE laneway_control.partition_owners SET next_offset = greatest(next_offset, $5), updated_at = now() \
         WHERE generation = $1 AND partition = $2 AND epoch = $3 AND renewal = $4 AND state <> 'closed'",
    )
    .bind(big(generation))
    .bind(partition.cast_signed())
    .bind(big(seen.epoch))
    .bind(big(seen.renewal))
    .bind(next_offset)
    .execute(pool.inner())
    .await
    .map_err(Error::doing("moving a position to the log's beginning"))?;
    Ok(done.rows_affected() > 0)
}

/// Gives `partition` back in good order: every request has ended or is durably recorded as cut, and everything before
/// `next_offset` (of `generation`) is complete. `false`: the epoch was over already.
pub async fn owner_release(
    pool: &Pool,
    partition: Partition,
    epoch: Epoch,
    generation: u64,
    next_offset: i64,
) -> Result<bool, Error> {
    // A second try if nothing was found: see `owner_timeout_raise`.
    for _ in 0..2 {
        let done = sqlx::query(
            "UPDATE laneway_control.partition_owners SET state = 'released', renewal = renewal + 1, \
             next_offset = CASE WHEN generation = $3 THEN greatest(next_offset, $4) ELSE next_offset END, \
             updated_at = now() WHERE partition = $1 AND epoch = $2 AND state = 'owned'",
        )
        .bind(partition.cast_signed())
        .bind(big(epoch))
        .bind(big(generation))
        .bind(next_offset)
        .execute(pool.inner())
        .await
        .map_err(Error::doing("releasing a partition"))?;
        if done.rows_affected() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes it durable that requests of this ownership may take as long as `timeout`; must commit before one does. Also
/// a renewal: whoever watches starts again. `false`: the epoch is over.
pub async fn owner_timeout_raise(
    pool: &Pool,
    partition: Partition,
    epoch: Epoch,
    timeout: Duration,
) -> Result<bool, Error> {
    // Once more if nothing was found: a raise of the generation that the first try waited for has put the epoch into a
    // row that its snapshot did not see.
    for _ in 0..2 {
        let done = sqlx::query(
            "UPDATE laneway_control.partition_owners SET max_timeout_ms = greatest(max_timeout_ms, $3), \
             renewal = renewal + 1, updated_at = now() WHERE partition = $1 AND epoch = $2 AND state = 'owned'",
        )
        .bind(partition.cast_signed())
        .bind(big(epoch))
        .bind(millis(timeout))
        .execute(pool.inner())
        .await
        .map_err(Error::doing("raising a partition's longest timeout"))?;
        if done.rows_affected() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
