//! A million parked lanes of an endpoint that is down: how long a restart takes, and how much memory they need.

use crate::Sizes;
use crate::environment::{field, load};
use crate::report::{Report, say};
use crate::workload::{PARTITIONS, now, record, until};
use anyhow::{Context, Result, bail};
use laneway_system::{EndpointOptions, Options, World};
use laneway_testkit::{Stack, free_port};
use laneway_wire::EndpointId;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
/// Lanes in one insert.
const INSERT_LANES: u32 = 10_000;
/// Memory is looked at once more after this: what loading needed may be given back, what lanes need stays.
const SETTLED: Duration = Duration::from_secs(5);

/// Fills the fields of this part.
pub(crate) async fn measure(stack: &Stack, sizes: Sizes, report: &Report) -> Result<()> {
    let lanes = sizes.of(1_000_000);
    say(format!(
        "{lanes} parked lanes with one event each, of one degraded endpoint, over {PARTITIONS} partitions; time from \
         the start of deliver's process until all are owned, known and it says that it is ready"
    ));
    let options = Options { partitions: PARTITIONS, ..Options::default() };
    let mut world = World::start(stack, options).await?;
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    let endpoint = world.endpoint(&nobody, EndpointOptions::default()).await?;
    // One start makes the topic and what belongs to it, and gives it back in good order: what follows is a restart.
    world.up("deliver", "deliver").await?;
    world.stop("deliver").await?;
    let start = Instant::now();
    for first in (0..lanes).step_by(INSERT_LANES as usize) {
        park(&world, endpoint, first..(first + INSERT_LANES).min(lanes)).await?;
    }
    sqlx::query(
        "INSERT INTO laneway_control.endpoint_health (endpoint_id, version, state, probe_until) \
         VALUES ($1, nextval('laneway_control.health_versions'), 'degraded', now())",
    )
    .bind(endpoint.as_uuid())
    .execute(world.app.pool())
    .await?;
    sqlx::query("ANALYZE laneway_control.parked_lanes, laneway_control.parked_events")
        .execute(world.app.pool())
        .await?;
    say(format!("lanes inserted within {:.0?}; {}", start.elapsed(), load()));

    let start = Instant::now();
    world.spawn("deliver", "deliver", &[])?;
    let pid = world.process("deliver").pid();
    let shared = &world;
    let known = || async {
        let owned = shared.metric("deliver", "laneway_partitions_owned").await.unwrap_or(0.0);
        let known = shared.metric("deliver", "laneway_lanes").await.unwrap_or(0.0);
        Ok(owned >= f64::from(PARTITIONS) && known >= f64::from(lanes))
    };
    until("all lanes", LIMIT, known).await.with_context(|| world.tails())?;
    world.ready("deliver").await?;
    report.set("parked_lanes_ready_s", start.elapsed().as_secs_f64());
    let status = format!("/proc/{pid}/status");
    let mib = |name: &str| field(&status, name).map(|kib| kib as f64 / 1024.0);
    let at_once = mib("VmRSS:").unwrap_or_default();
    tokio::time::sleep(SETTLED).await;
    let Some(settled) = mib("VmRSS:") else { bail!("deliver ended: {}", world.tails()) };
    let peak = mib("VmHWM:").unwrap_or_default();
    say(format!(
        "resident: {at_once:.0} MiB at once, {settled:.0} MiB later, peak {peak:.0} MiB; {}",
        load()
    ));
    report.set("parked_lanes_rss_mb", at_once.max(settled));
    Ok(())
}

/// Parks a range of lanes as deliver does.
async fn park(world: &World, endpoint: EndpointId, range: std::ops::Range<u32>) -> Result<()> {
    let (mut lanes, mut buckets, mut partitions, mut keys) = (vec![], vec![], vec![], vec![]);
    let (mut deliveries, mut events, mut offsets, mut records) = (vec![], vec![], vec![], vec![]);
    for i in range {
        let key = format!("user_{i:07}");
        let record = record(world.tenant, endpoint, &key, br#"{"n":1}"#.to_vec());
        let lane = record.head.lane();
        let bucket = lane.bucket().number();
        lanes.push(lane.as_bytes().to_vec());
        buckets.push(i16::try_from(bucket)?);
        partitions.push(i32::from(bucket % PARTITIONS));
        keys.push(key);
        deliveries.push(record.head.delivery);
        events.push(record.head.event);
        offsets.push(i64::from(i));
        records.push(record.encode().to_vec());
    }
    let held = now().as_millis();
    let mut transaction = world.app.pool().begin().await?;
    sqlx::query(
        "INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, \
           reason, due, head_held, last_tried) \
         SELECT lane, bucket, partition, $5, $6, 1, key, 'failing', now() + interval '1 hour', \
           to_timestamp($7 / 1000.0), now() \
         FROM unnest($1::bytea[], $2::smallint[], $3::int[], $4::text[]) n(lane, bucket, partition, key)",
    )
    .bind(&lanes)
    .bind(&buckets)
    .bind(&partitions)
    .bind(&keys)
    .bind(world.tenant.as_uuid())
    .bind(endpoint.as_uuid())
    .bind(held)
    .execute(&mut *transaction)
    .await?;
    sqlx::query(
        "INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, \
           tenant_id, endpoint_id, event_id, first_held, attempts, record) \
         SELECT bucket, delivery, lane, 1, 0, place, $7, $8, event, to_timestamp($9 / 1000.0), 4, record \
         FROM unnest($1::smallint[], $2::uuid[], $3::bytea[], $4::bigint[], $5::uuid[], $6::bytea[]) \
           n(bucket, delivery, lane, place, event, record)",
    )
    .bind(&buckets)
    .bind(&deliveries)
    .bind(&lanes)
    .bind(&offsets)
    .bind(&events)
    .bind(&records)
    .bind(world.tenant.as_uuid())
    .bind(endpoint.as_uuid())
    .bind(held)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(())
}
