//! One row per endpoint that is not healthy (design 5.6), changed only by compare-and-set on its version, so that all
//! instances together make one probe a second (A7, P7). The database's clock decides.

use super::value::{big, loaded, millis, parked_event_columns, readable, unbig};
use crate::{Error, Pool};
use laneway_lane::{ParkedEvent, Partition};
use laneway_wire::{EndpointId, Timestamp};
use sqlx::Row;
use std::time::Duration;

/// Heads that cannot be read and are passed over in the look for a probe's.
const MAX_PASSED: i64 = 100;

/// All endpoints that are not healthy, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthView {
    /// The database's clock at that moment.
    pub read_at: Timestamp,
    /// Each with the time before which no probe is claimed.
    pub degraded: Vec<(EndpointId, Timestamp)>,
    /// System identifier and timeline of the server that answered: another pair is another history (design section 1,
    /// "Assumed").
    pub server: (i64, i32),
}

/// Reads the view.
pub async fn health_read(pool: &Pool) -> Result<HealthView, Error> {
    const DOING: &str = "reading the health of endpoints";
    // The outer join gives one row with the clock even when all are healthy.
    let rows = sqlx::query(
        "SELECT now() AS read_at, h.endpoint_id, h.probe_until, s.system_identifier, c.timeline_id \
         FROM pg_control_system() s CROSS JOIN pg_control_checkpoint() c \
         LEFT JOIN laneway_control.endpoint_health h ON true",
    )
    .fetch_all(pool.inner())
    .await
    .map_err(Error::doing(DOING))?;
    let mut view = HealthView::default();
    for row in rows {
        let read = || -> Result<_, sqlx::Error> {
            let server = (row.try_get(3)?, row.try_get(4)?);
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, server))
        };
        let (read_at, endpoint, until, server): (_, Option<_>, Option<_>, _) =
            read().map_err(Error::doing(DOING))?;
        view.read_at = loaded(read_at);
        view.server = server;
        if let (Some(endpoint), Some(until)) = (endpoint, until) {
            view.degraded.push((EndpointId::from_uuid(endpoint), loaded(until)));
        }
    }
    Ok(view)
}

/// Makes `endpoint` degraded if it has no row yet; the first probe comes a second later. `false`: it had one.
pub async fn health_degrade(pool: &Pool, endpoint: EndpointId) -> Result<bool, Error> {
    let done = sqlx::query(
        "INSERT INTO laneway_control.endpoint_health (endpoint_id, version, state, probe_until) \
         VALUES ($1, nextval('laneway_control.health_versions'), 'degraded', now() + interval '1 s') \
         ON CONFLICT DO NOTHING",
    )
    .bind(endpoint.as_uuid())
    .execute(pool.inner())
    .await
    .map_err(Error::doing("making an endpoint degraded"))?;
    Ok(done.rows_affected() > 0)
}

/// Answer to [`health_probe_claim`].
#[derive(Debug)]
pub struct Claim {
    /// The head to try with the partition it is in, and the version that the claim wrote; none: nothing was claimed.
    pub head: Option<(Partition, ParkedEvent, u64)>,
    /// Nothing may be claimed before this.
    pub probe_until: Timestamp,
}

/// Claims the next probe of `endpoint` for the head least recently tried (never tried first) of `partitions`; the
/// claim holds for `timeout` and a second. Nothing is claimed when there is no such head.
pub async fn health_probe_claim(
    pool: &Pool,
    endpoint: EndpointId,
    partitions: &[Partition],
    timeout: Duration,
) -> Result<Claim, Error> {
    const DOING: &str = "claiming a probe";
    let mut transaction = pool.begin().await?;
    let health = sqlx::query(
        "SELECT version, probe_until, probe_until <= now() AS free, now() AS now \
         FROM laneway_control.endpoint_health WHERE endpoint_id = $1",
    )
    .bind(endpoint.as_uuid())
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let Some(health) = health else {
        let now = sqlx::query_scalar("SELECT now()")
            .fetch_one(&mut *transaction)
            .await
            .map_err(Error::doing(DOING))?;
        return Ok(Claim { head: None, probe_until: loaded(now) });
    };
    let read = || -> Result<(i64, _, bool, _), sqlx::Error> {
        Ok((health.try_get(0)?, health.try_get(1)?, health.try_get(2)?, health.try_get(3)?))
    };
    let (version, until, free, now) = read().map_err(Error::doing(DOING))?;
    let (until, now) = (loaded(until), loaded(now));
    if !free {
        return Ok(Claim { head: None, probe_until: until });
    }
    let own: Vec<i32> = partitions.iter().map(|partition| partition.cast_signed()).collect();
    // One that cannot be read is passed over: it must not be the only one that is ever to speak for the endpoint.
    let mut found = None;
    for passed in 0..=MAX_PASSED {
        let row = sqlx::query(
            concat!(
                "SELECT l.partition, l.unknown, ", parked_event_columns!(), " \
             FROM unnest($2::int[]) own(partition) \
             CROSS JOIN LATERAL (SELECT * FROM laneway_control.parked_lanes l WHERE l.partition = own.partition \
               AND l.endpoint_id = $1 AND NOT l.unknown ORDER BY l.last_tried NULLS FIRST, l.lane LIMIT $3 + 1) l \
             CROSS JOIN LATERAL (SELECT * FROM laneway_control.parked_events e WHERE e.lane = l.lane \
               ORDER BY generation, moves, log_offset LIMIT 1) e \
             LEFT JOIN laneway_control.endpoints p ON p.endpoint_id = $1 \
             ORDER BY l.last_tried NULLS FIRST, l.lane LIMIT 1 OFFSET $3"),
        )
        .bind(endpoint.as_uuid())
        .bind(&own)
        .bind(passed)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(Error::doing(DOING))?;
        let Some(row) = row else { break };
        if let Some(event) = readable(&row)? {
            found = Some((row, event));
            break;
        }
    }
    let Some((row, event)) = found else {
        // Another instance may have heads of it; look again in a while.
        return Ok(Claim { head: None, probe_until: now + Duration::from_secs(1) });
    };
    let claimed = sqlx::query(
        "UPDATE laneway_control.endpoint_health SET version = nextval('laneway_control.health_versions'), \
         probe_until = clock_timestamp() + ($3 + 1000) * interval '1 ms' WHERE endpoint_id = $1 AND version = $2 \
         RETURNING version, probe_until",
    )
    .bind(endpoint.as_uuid())
    .bind(version)
    .bind(millis(timeout))
    .fetch_optional(&mut *transaction)
    .await
    .map_err(Error::doing(DOING))?;
    let Some(claimed) = claimed else {
        return Ok(Claim { head: None, probe_until: now + Duration::from_secs(1) });
    };
    let read = || -> Result<(i64, _, i32), sqlx::Error> {
        Ok((claimed.try_get(0)?, claimed.try_get(1)?, row.try_get("partition")?))
    };
    let (version, until, partition) = read().map_err(Error::doing(DOING))?;
    transaction.commit().await.map_err(Error::doing(DOING))?;
    Ok(Claim {
        head: Some((partition.cast_unsigned(), event, unbig(version))),
        probe_until: loaded(until),
    })
}

/// The claimed probe (`version`) has ended. Alive: the endpoint is healthy and its row goes; else the next probe
/// comes a second from now. `false`: the claim was over and somebody else has changed the row.
pub async fn health_probe_ended(
    pool: &Pool,
    endpoint: EndpointId,
    version: u64,
    alive: bool,
) -> Result<bool, Error> {
    let sql = if alive {
        "DELETE FROM laneway_control.endpoint_health WHERE endpoint_id = $1 AND version = $2"
    } else {
        "UPDATE laneway_control.endpoint_health SET version = nextval('laneway_control.health_versions'), \
         probe_until = clock_timestamp() + interval '1 s' WHERE endpoint_id = $1 AND version = $2"
    };
    let done = sqlx::query(sql)
        .bind(endpoint.as_uuid())
        .bind(big(version))
        .execute(pool.inner())
        .await
        .map_err(Error::doing("recording a probe's outcome"))?;
    Ok(done.rows_affected() > 0)
}
