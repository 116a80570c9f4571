//! Outbox row to HTTP through relay and deliver: how many a second while rows are committed as fast as they go, then
//! how late at half of that rate.

use crate::Sizes;
use crate::environment::load;
use crate::report::{Report, percentile, say};
use crate::sink::Sink;
use crate::workload::{IN_FLIGHT, KEYS, PARTITIONS, body, until};
use anyhow::{Context, Result, ensure};
use laneway_system::{App, EndpointOptions, Options, World};
use laneway_testkit::{Kind, Receiver, Stack};
use laneway_wire::EventId;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(180);
/// Application sessions that commit at once; each has its own user keys.
const WRITERS: u32 = 4;
/// Rows in one transaction, each of another user key.
const COMMIT_ROWS: u32 = 200;
const LATENCY_SECONDS: u32 = 15;
/// Between two commits of the latency run.
const TICK: Duration = Duration::from_millis(10);
/// Commits of the latency run that are under way at once, at most.
const COMMITS: usize = 8;
/// The latency run counts as one at half the rate if it reached this part of it.
const REACHED: f64 = 0.95;

/// Fills the fields of this part.
pub(crate) async fn measure(stack: &Stack, sizes: Sizes, report: &Report) -> Result<()> {
    let rows = sizes.of(100_000);
    say(format!(
        "{rows} rows by {WRITERS} sessions in transactions of {COMMIT_ROWS}, {KEYS} keys, 512-byte payloads; one \
         relay, one deliver with {IN_FLIGHT} in flight; application, PostgreSQL, broker and receiver beside them"
    ));
    let settings = vec![("LANEWAY_DELIVER__MAX_IN_FLIGHT", IN_FLIGHT.to_string())];
    let options = Options {
        partitions: PARTITIONS,
        settings,
        log_level: "warn".to_owned(),
        ..Options::default()
    };
    let mut world = World::start(stack, options).await?;
    let sink = Sink::start().await?;
    let receiver = Receiver::start().await;
    let endpoint = EndpointOptions {
        max_connections: IN_FLIGHT,
        timeout: Duration::from_secs(30),
        ..EndpointOptions::default()
    };
    world.endpoint_for(&sink.url("/rate"), "bench.rate", endpoint.clone()).await?;
    world.endpoint_for(&receiver.url("/latency"), "bench.latency", endpoint).await?;
    world.up("relay", "relay").await?;
    world.up("deliver", "deliver").await?;
    // The first row through: shards are leased and partitions owned. Of a type and key of its own path.
    world.app.emit("bench.latency", Some("first"), &body("first", 1)).await?;
    let first = || async { Ok(receiver.journal().counts().0 >= 1) };
    until("the first row", LIMIT, first).await.with_context(|| world.tails())?;

    let start = Instant::now();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(Arc::clone(&world.app), writer, rows / WRITERS)))
        .collect();
    for writer in writers {
        writer.await??;
    }
    let committed = start.elapsed();
    let arrived =
        sink.wait(rows / WRITERS * WRITERS, LIMIT).await.with_context(|| world.tails())?;
    let took = start.elapsed();
    ensure!(arrived.violations == 0, "{} events out of order", arrived.violations);
    let rate = arrived.accepted as f64 / took.as_secs_f64();
    say(format!("committed within {committed:.1?}, delivered within {took:.1?}; {}", load()));
    report.set("end_to_end_events_per_s", rate);

    let half = rate / 2.0;
    let (late, reached) =
        latencies(&world, &receiver, half).await.with_context(|| world.tails())?;
    say(format!("{} events at {reached:.0}/s, wanted {half:.0}/s; {}", late.len(), load()));
    if reached < half * REACHED {
        let why = format!("measured at {reached:.0} rows/s: commits did not reach {half:.0}");
        report.note("end_to_end_p50_ms", why.as_str());
        report.note("end_to_end_p99_ms", why);
    }
    report.set("end_to_end_p50_ms", percentile(&late, 50.0));
    report.set("end_to_end_p99_ms", percentile(&late, 99.0));
    Ok(())
}

/// Commits `rows` events of the keys of `writer`, one of each key in turn.
async fn write(app: Arc<App>, writer: u32, rows: u32) -> Result<()> {
    let keys = KEYS / WRITERS;
    let mut batch = Vec::new();
    for i in 0..rows {
        let key = format!("w{writer}k{}", i % keys);
        let body = body(&key, i / keys + 1);
        batch.push((key, body));
        if batch.len() == COMMIT_ROWS as usize || i + 1 == rows {
            app.emit_many("bench.rate", &batch).await?;
            batch.clear();
        }
    }
    Ok(())
}

/// Milliseconds from the row's `created_at` (a moment before its commit) to the request's last byte, for rows
/// committed at `rate`; and the rate that was reached.
async fn latencies(world: &World, receiver: &Receiver, rate: f64) -> Result<(Vec<f64>, f64)> {
    let ticks = LATENCY_SECONDS * 1_000 / TICK.as_millis() as u32;
    let per_tick = (rate * TICK.as_secs_f64()).max(1.0);
    let (mut clock, mut emitted) = (tokio::time::interval(TICK), 0_u32);
    // Several at a time: a commit that is slow must not slow the rate down.
    let mut commits = JoinSet::new();
    let start = Instant::now();
    for tick in 1..=ticks {
        clock.tick().await;
        let wanted = (f64::from(tick) * per_tick) as u32;
        let batch: Vec<_> = (emitted..wanted)
            .map(|i| (format!("l{}", i % KEYS), body(&format!("l{}", i % KEYS), i / KEYS + 1)))
            .collect();
        emitted = wanted;
        if commits.len() >= COMMITS
            && let Some(done) = commits.join_next().await
        {
            done??;
        }
        if !batch.is_empty() {
            let app = Arc::clone(&world.app);
            commits.spawn(async move { app.emit_many("bench.latency", &batch).await });
        }
    }
    while let Some(done) = commits.join_next().await {
        done??;
    }
    let reached = f64::from(emitted) / start.elapsed().as_secs_f64();
    let all = || async { Ok(receiver.journal().counts().0 > u64::from(emitted)) };
    until("the rows of the latency run", LIMIT, all).await?;
    let made: Vec<(uuid::Uuid, i64)> = sqlx::query_as(
        "SELECT event_id, (extract(epoch FROM created_at) * 1000)::bigint FROM laneway.outbox \
         WHERE type = 'bench.latency' AND user_key <> 'first'",
    )
    .fetch_all(world.app.pool())
    .await?;
    let mut made: HashMap<EventId, i64> =
        made.into_iter().map(|(event, at)| (EventId::from_uuid(event), at)).collect();
    let entries = receiver.journal().entries();
    let requests = entries.iter().filter(|entry| entry.kind == Kind::Request);
    let late = requests.filter_map(|entry| {
        let event = entry.webhook_id.as_ref()?.parse().ok()?;
        // The first request of an event counts.
        let at = made.remove(&event)?;
        Some((i64::try_from(entry.unix_ms).ok()? - at) as f64)
    });
    Ok((late.collect(), reached))
}
