//! The topic as the control database knows it: its generations, what each lost, the highest acknowledged offsets, and
//! which partition a bucket is in (design section 3 "Position", section 4 "Loss of the log").

use crate::{Error, Pool};
pub use laneway_lane::relay::{Acked, Fence};
use laneway_wire::BUCKETS;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

/// One life of the topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Its number, from 1; stamped on every record.
    pub generation: u64,
    /// The topic's name.
    pub topic: String,
    /// Kafka's id of the topic.
    pub topic_id: String,
    /// How many partitions it has.
    pub partitions: u32,
}

/// Why a generation is raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The topic's id changed: nothing of the old one is left.
    Recreated,
    /// Acknowledged records are missing.
    LogLost,
}

impl Reason {
    /// As stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Recreated => "recreated",
            Self::LogLost => "log_lost",
        }
    }
}

/// Which partition each bucket is in, and how often it has moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketMap {
    /// Version of the map as a whole.
    pub version: u64,
    /// Partition of each of the [`BUCKETS`] buckets, by number.
    pub partitions: Vec<u32>,
    /// Moves of each bucket, by number.
    pub moves: Vec<u32>,
}

const DOING: &str = "reading the topology";

/// Sets the topology up at the first start: generation 1, bucket b in partition b mod `partitions`, a released owner
/// row per partition. Later it compares. Safe to call from every process at once.
///
/// A topic whose id has changed is not an error here: the caller compares [`Generation::topic_id`] and raises.
///
/// # Errors
/// [`Error::PartitionCount`] if the topic has another number of partitions than it was set up for.
pub async fn topology_ensure(
    pool: &Pool,
    topic: &str,
    topic_id: &str,
    partitions: u32,
) -> Result<Generation, Error> {
    const DOING: &str = "setting up the topology";
    let mut tx = pool.begin().await?;
    lock(&mut tx).await?;
    let present = match current(&mut tx).await? {
        Some(present) => present,
        None => {
            let count = db_int(partitions);
            sqlx::query(
                "INSERT INTO laneway_control.topic_generations \
                 (generation, topic, topic_id, partitions, reason) VALUES (1, $1, $2, $3, 'created')",
            )
            .bind(topic)
            .bind(topic_id)
            .bind(count)
            .execute(&mut *tx)
            .await
            .map_err(Error::doing(DOING))?;
            sqlx::query(
                "INSERT INTO laneway_control.bucket_map (bucket, partition) \
                 SELECT bucket, bucket % $1 FROM generate_series(0, $2 - 1) AS bucket",
            )
            .bind(count)
            .bind(i32::from(BUCKETS))
            .execute(&mut *tx)
            .await
            .map_err(Error::doing(DOING))?;
            sqlx::query(
                "INSERT INTO laneway_control.partition_owners (generation, partition) \
                 SELECT 1, generate_series(0, $1 - 1)",
            )
            .bind(count)
            .execute(&mut *tx)
            .await
            .map_err(Error::doing(DOING))?;
            let topic = topic.to_owned();
            Generation { generation: 1, topic, topic_id: topic_id.to_owned(), partitions }
        }
    };
    tx.commit().await.map_err(Error::doing(DOING))?;
    if present.partitions != partitions {
        return Err(Error::PartitionCount {
            topic: topic.to_owned(),
            stored: present.partitions,
            found: partitions,
        });
    }
    Ok(present)
}

/// The present generation; none before the first start.
pub async fn generation_current(pool: &Pool) -> Result<Option<Generation>, Error> {
    let mut connection = pool.inner().acquire().await.map_err(Error::doing(DOING))?;
    current(&mut connection).await
}

/// What `generation` began by losing, in order of partition.
pub async fn fences(pool: &Pool, generation: u64) -> Result<Vec<Fence>, Error> {
    let mut fences = fences_after(pool, generation.saturating_sub(1)).await?;
    fences.retain(|fence| fence.generation == generation);
    Ok(fences)
}

/// What every generation later than `generation` began by losing, in order of (generation, partition).
pub async fn fences_after(pool: &Pool, generation: u64) -> Result<Vec<Fence>, Error> {
    let mut connection = pool.inner().acquire().await.map_err(Error::doing(DOING))?;
    fences_of(&mut connection, generation).await
}

/// Raises the generation because `lost` (partition, first lost offset) is gone, and gives the present one.
///
/// `seen` is the generation in which the caller saw the loss; `topic_id` is the topic's present id. If others have
/// raised it since and what they fenced covers `lost`, nothing is done. In the same transaction every owner row is
/// copied to the new generation (with `next_offset` not beyond the loss) and the old one is closed, and the marks are
/// carried over up to the loss.
pub async fn generation_raise(
    pool: &Pool,
    seen: u64,
    reason: Reason,
    topic_id: &str,
    lost: &[(u32, i64)],
) -> Result<Generation, Error> {
    const DOING: &str = "raising the generation";
    let mut tx = pool.begin().await?;
    lock(&mut tx).await?;
    let present = current(&mut tx)
        .await?
        .ok_or(Error::Stored { what: "topology", value: "no generation".to_owned() })?;
    let since = fences_of(&mut tx, seen).await?;
    let covered = present.generation > seen
        && present.topic_id == topic_id
        && lost.iter().all(|&(partition, first)| {
            since.iter().any(|fence| fence.partition == partition && fence.first_lost <= first)
        });
    if covered {
        tx.rollback().await.map_err(Error::doing(DOING))?;
        return Ok(present);
    }
    let (old, new) = (db_big(present.generation), db_big(present.generation + 1));
    let (partitions, firsts): (Vec<i32>, Vec<i64>) =
        lost.iter().map(|&(partition, first)| (db_int(partition), first)).unzip();
    // In the order of partitions, as owners lock them.
    sqlx::query(
        "SELECT 1 FROM laneway_control.partition_owners WHERE generation = $1 \
         ORDER BY partition FOR NO KEY UPDATE",
    )
    .bind(old)
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    sqlx::query(
        "INSERT INTO laneway_control.topic_generations \
         (generation, topic, topic_id, partitions, reason) \
         SELECT $2, topic, $3, partitions, $4 FROM laneway_control.topic_generations WHERE generation = $1",
    )
    .bind(old)
    .bind(new)
    .bind(topic_id)
    .bind(reason.as_str())
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    // Closes the old marks, those not written yet too: whoever raises one later learns that it counts for nothing.
    sqlx::query(
        "INSERT INTO laneway_control.topic_marks AS m (generation, partition, acked, closed) \
         SELECT $1, p, -1, true FROM generate_series(0, $2 - 1) AS p ORDER BY p \
         ON CONFLICT (generation, partition) DO UPDATE SET closed = true",
    )
    .bind(old)
    .bind(db_int(present.partitions))
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    // A loss begins no later than at the lowest offset that came to be acknowledged below the mark.
    sqlx::query(
        "INSERT INTO laneway_control.topic_fences (generation, partition, first_lost) \
         SELECT $2, l.partition, least(min(l.first_lost), \
            min(m.low) FILTER (WHERE m.low_at > now() - interval '2 minutes' AND m.low < m.acked)) \
         FROM unnest($3::int[], $4::bigint[]) AS l (partition, first_lost) \
         LEFT JOIN laneway_control.topic_marks m ON m.generation = $1 AND m.partition = l.partition \
         GROUP BY l.partition",
    )
    .bind(old)
    .bind(new)
    .bind(&partitions)
    .bind(&firsts)
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    sqlx::query(
        "INSERT INTO laneway_control.partition_owners \
         (generation, partition, epoch, renewal, owner, state, max_timeout_ms, next_offset) \
         SELECT $2, o.partition, o.epoch, o.renewal, o.owner, o.state, o.max_timeout_ms, \
                least(o.next_offset, f.first_lost) \
         FROM laneway_control.partition_owners o \
         LEFT JOIN laneway_control.topic_fences f ON f.generation = $2 AND f.partition = o.partition \
         WHERE o.generation = $1",
    )
    .bind(old)
    .bind(new)
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    sqlx::query(
        "UPDATE laneway_control.partition_owners SET state = 'closed' WHERE generation = $1",
    )
    .bind(old)
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    sqlx::query(
        "INSERT INTO laneway_control.topic_marks (generation, partition, acked) \
         SELECT $2, m.partition, least(m.acked, f.first_lost - 1) \
         FROM laneway_control.topic_marks m \
         LEFT JOIN laneway_control.topic_fences f ON f.generation = $2 AND f.partition = m.partition \
         WHERE m.generation = $1",
    )
    .bind(old)
    .bind(new)
    .execute(&mut *tx)
    .await
    .map_err(Error::doing(DOING))?;
    tx.commit().await.map_err(Error::doing(DOING))?;
    Ok(Generation { generation: present.generation + 1, topic_id: topic_id.to_owned(), ..present })
}

/// The bucket map as a whole.
pub async fn bucket_map(pool: &Pool) -> Result<BucketMap, Error> {
    const DOING: &str = "reading the bucket map";
    let rows = sqlx::query(
        "SELECT v.version, b.partition, b.moves FROM laneway_control.map_version v, \
         laneway_control.bucket_map b ORDER BY b.bucket",
    )
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let mut map = BucketMap { version: 0, partitions: Vec::new(), moves: Vec::new() };
    for row in &rows {
        map.version = big(row, 0, DOING)?;
        map.partitions.push(int(row, 1, DOING)?);
        map.moves.push(int(row, 2, DOING)?);
    }
    if map.partitions.len() != usize::from(BUCKETS) {
        return Err(Error::Stored { what: "bucket map", value: map.partitions.len().to_string() });
    }
    Ok(map)
}

/// Version of the bucket map, to see cheaply whether it changed.
pub async fn map_version(pool: &Pool) -> Result<u64, Error> {
    const DOING: &str = "reading the map version";
    let row = sqlx::query("SELECT version FROM laneway_control.map_version")
        .fetch_one(pool.inner())
        .await
        .map_err(Error::doing(DOING))?;
    big(&row, 0, DOING)
}

/// Highest acknowledged offset of each partition in `generation`; -1 where nothing was acknowledged.
pub async fn marks(pool: &Pool, generation: u64, partitions: u32) -> Result<Vec<i64>, Error> {
    const DOING: &str = "reading the marks";
    let rows = sqlx::query(
        "SELECT partition, acked FROM laneway_control.topic_marks WHERE generation = $1",
    )
    .bind(db_big(generation))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let mut marks = vec![-1; partitions as usize];
    for row in &rows {
        let partition: u32 = int(row, 0, DOING)?;
        if let Some(mark) = marks.get_mut(partition as usize) {
            *mark = row.try_get(1).map_err(Error::doing(DOING))?;
        }
    }
    Ok(marks)
}

/// Raises marks (each partition at most once) and gives what they now are; a mark never falls. Durable when this
/// returns, so a cursor may move. None if the generation is closed: then nothing of it may be counted as published.
pub async fn marks_raise(
    pool: &Pool,
    generation: u64,
    acked: &[Acked],
) -> Result<Option<Vec<(u32, i64)>>, Error> {
    const DOING: &str = "raising the marks";
    let partitions: Vec<i32> = acked.iter().map(|acked| db_int(acked.partition)).collect();
    let lows: Vec<i64> = acked.iter().map(|acked| acked.low).collect();
    let highs: Vec<i64> = acked.iter().map(|acked| acked.high).collect();
    // In the order of partitions: two processes raise the same rows.
    let rows = sqlx::query(
        "INSERT INTO laneway_control.topic_marks AS m (generation, partition, acked, low, low_at) \
         SELECT $1, p, high, low, NULL FROM unnest($2::int[], $3::bigint[], $4::bigint[]) AS a (p, low, high) \
         ORDER BY p \
         ON CONFLICT (generation, partition) DO UPDATE SET acked = greatest(m.acked, excluded.acked), \
            low = CASE WHEN excluded.low > m.acked THEN m.low \
                       WHEN m.low_at > now() - interval '1 minute' THEN least(m.low, excluded.low) \
                       ELSE excluded.low END, \
            low_at = CASE WHEN excluded.low > m.acked THEN m.low_at ELSE now() END \
         WHERE NOT m.closed \
         RETURNING partition, acked",
    )
    .bind(db_big(generation))
    .bind(&partitions)
    .bind(&lows)
    .bind(&highs)
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    if rows.len() != acked.len() {
        return Ok(None);
    }
    rows.iter()
        .map(|row| Ok((int(row, 0, DOING)?, row.try_get(1).map_err(Error::doing(DOING))?)))
        .collect::<Result<_, _>>()
        .map(Some)
}

/// First offset that is not complete yet, of every partition in `generation`.
pub async fn next_offsets(
    pool: &Pool,
    generation: u64,
    partitions: u32,
) -> Result<Vec<i64>, Error> {
    const DOING: &str = "reading the positions";
    let rows = sqlx::query(
        "SELECT partition, next_offset FROM laneway_control.partition_owners WHERE generation = $1",
    )
    .bind(db_big(generation))
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let mut offsets = vec![0; partitions as usize];
    for row in &rows {
        let partition: u32 = int(row, 0, DOING)?;
        if let Some(offset) = offsets.get_mut(partition as usize) {
            *offset = row.try_get(1).map_err(Error::doing(DOING))?;
        }
    }
    Ok(offsets)
}

/// One raiser at a time; readers go on.
async fn lock(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("LOCK TABLE laneway_control.topic_generations IN SHARE ROW EXCLUSIVE MODE")
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(Error::doing("locking the topology"))
}

async fn current(connection: &mut PgConnection) -> Result<Option<Generation>, Error> {
    let row = sqlx::query(
        "SELECT generation, topic, topic_id, partitions FROM laneway_control.topic_generations \
         ORDER BY generation DESC LIMIT 1",
    )
    .fetch_optional(connection)
    .await
    .map_err(Error::doing(DOING))?;
    row.map(|row| {
        Ok(Generation {
            generation: big(&row, 0, DOING)?,
            topic: row.try_get(1).map_err(Error::doing(DOING))?,
            topic_id: row.try_get(2).map_err(Error::doing(DOING))?,
            partitions: int(&row, 3, DOING)?,
        })
    })
    .transpose()
}

async fn fences_of(connection: &mut PgConnection, after: u64) -> Result<Vec<Fence>, Error> {
    let rows = sqlx::query(
        "SELECT generation, partition, first_lost FROM laneway_control.topic_fences \
         WHERE generation > $1 ORDER BY generation, partition",
    )
    .bind(db_big(after))
    .fetch_all(connection)
    .await
    .map_err(Error::doing(DOING))?;
    rows.iter()
        .map(|row| {
            Ok(Fence {
                generation: big(row, 0, DOING)?,
                partition: int(row, 1, DOING)?,
                first_lost: row.try_get(2).map_err(Error::doing(DOING))?,
            })
        })
        .collect()
}

/// A `bigint` that is never negative.
pub(crate) fn big(row: &PgRow, at: usize, doing: &'static str) -> Result<u64, Error> {
    let value: i64 = row.try_get(at).map_err(Error::doing(doing))?;
    u64::try_from(value).map_err(|_| Error::Stored { what: doing, value: value.to_string() })
}

/// An `integer` that is never negative.
pub(crate) fn int(row: &PgRow, at: usize, doing: &'static str) -> Result<u32, Error> {
    let value: i32 = row.try_get(at).map_err(Error::doing(doing))?;
    u32::try_from(value).map_err(|_| Error::Stored { what: doing, value: value.to_string() })
}

/// For binding; our counters never come near the end of `bigint`.
pub(crate) fn db_big(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// For binding; partitions are at most 1,024.
pub(crate) fn db_int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
