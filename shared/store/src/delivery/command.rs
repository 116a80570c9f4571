//! What people decided about unknown outcomes and about lanes that are to be erased (design 5.8): read here, applied by
//! the owner in a settle group.

use super::value::{loaded, readable};
use crate::{Error, Pool};
use laneway_lane::{CommandId, ParkedEvent, Partition, Verdict};
use laneway_wire::LaneId;
use sqlx::Row;

/// A command that waits for the owner of `partition`.
#[derive(Debug)]
pub struct OpenCommand {
    /// Its row.
    pub command: CommandId,
    /// Where its lane's bucket is.
    pub partition: Partition,
    /// The lane.
    pub lane: LaneId,
    /// What to do.
    pub verdict: Verdict,
    /// The held unknown it is about, or none if the delivery is not one (any more) or cannot be read.
    pub head: Option<ParkedEvent>,
}

/// Open commands for lanes of `partitions`, oldest first, `limit` at most; without `known`, which would keep those that
/// come after them from being read while they wait. A word that this build does not know is left for one that does.
pub async fn commands_open(
    pool: &Pool,
    partitions: &[Partition],
    known: &[CommandId],
    limit: u32,
) -> Result<Vec<OpenCommand>, Error> {
    const DOING: &str = "reading open commands";
    let own: Vec<i32> = partitions.iter().map(|partition| partition.cast_signed()).collect();
    let rows = sqlx::query(
        "SELECT c.command_id, m.partition, c.lane, c.verdict, c.before, e.record IS NOT NULL AS found, l.endpoint_id, l.due, \
           l.unknown, greatest(l.clock_from, 'epoch') AS clock_from, e.generation, e.moves, e.log_offset, \
           e.first_held, e.attempts, e.record, false AS settled, \
           EXISTS (SELECT FROM laneway_control.intents i WHERE i.delivery_id = e.delivery_id) AS open_intent \
         FROM laneway_control.commands c \
         JOIN laneway_control.bucket_map m ON m.bucket = c.bucket AND m.partition = ANY($1) \
         LEFT JOIN laneway_control.parked_lanes l ON l.lane = c.lane AND l.unknown \
         LEFT JOIN laneway_control.parked_events e ON e.bucket = c.bucket AND e.delivery_id = c.delivery_id \
           AND e.lane = l.lane AND coalesce(c.attempts, e.attempts) = e.attempts AND NOT EXISTS (SELECT FROM laneway_control.parked_events b WHERE b.lane = l.lane \
             AND (b.generation, b.moves, b.log_offset) < (e.generation, e.moves, e.log_offset)) \
         WHERE c.applied_at IS NULL AND c.command_id <> ALL($3) ORDER BY c.command_id LIMIT $2",
    )
    .bind(&own)
    .bind(i64::from(limit))
    .bind(known)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let mut commands = Vec::with_capacity(rows.len());
    for row in rows {
        let read = || -> Result<_, sqlx::Error> {
            Ok((
                row.try_get("command_id")?,
                row.try_get("partition")?,
                row.try_get("lane")?,
                row.try_get("verdict")?,
                row.try_get("before")?,
                row.try_get("found")?,
            ))
        };
        let (command, partition, lane, verdict, before, found): (
            CommandId,
            i32,
            Vec<u8>,
            String,
            _,
            _,
        ) = read().map_err(Error::doing(DOING))?;
        let verdict = match (verdict.as_str(), before) {
            ("delivered", _) => Verdict::Delivered,
            ("not_applied", _) => Verdict::NotApplied,
            ("given_up", _) => Verdict::GivenUp,
            ("erase", Some(before)) => Verdict::Erase { before: loaded(before) },
            _ => {
                tracing::error!(command, verdict, "a command is not understood: it is left alone");
                continue;
            }
        };
        let head = if found { readable(&row)? } else { None };
        let lane = super::value::lane(&lane)?;
        commands.push(OpenCommand {
            command,
            partition: partition.cast_unsigned(),
            lane,
            verdict,
            head,
        });
    }
    Ok(commands)
}
