//! Committed rows to the last acknowledgement of the broker: the relay alone.

use crate::Sizes;
use crate::environment::load;
use crate::process::cpu;
use crate::report::{Report, say};
use crate::workload::{KEYS, PARTITIONS, body, key_and_number, until};
use anyhow::{Context, Result, ensure};
use laneway_bus::{Admin, Connection};
use laneway_system::{EndpointOptions, Options, World};
use laneway_testkit::{Stack, free_port};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(180);
/// Rows in one transaction of the application.
const COMMIT_ROWS: usize = 1_000;

/// Fills `relay_rows_per_s`.
pub(crate) async fn measure(stack: &Stack, sizes: Sizes, report: &Report) -> Result<()> {
    let (rows, keys) = (sizes.of(200_000), sizes.of(KEYS));
    say(format!(
        "{rows} committed rows of one tenant (one shard), {keys} keys, 512-byte payloads, one subscription, \
         {PARTITIONS} partitions; time from the start of the relay's process"
    ));
    let options =
        Options { partitions: PARTITIONS, log_level: "warn".to_owned(), ..Options::default() };
    let mut world = World::start(stack, options).await?;
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    world.endpoint(&nobody, EndpointOptions::default()).await?;
    let mut batch = Vec::with_capacity(COMMIT_ROWS);
    for i in 0..rows {
        let (key, n) = key_and_number(i, keys);
        let body = body(&key, n);
        batch.push((key, body));
        if batch.len() == COMMIT_ROWS || i + 1 == rows {
            world.app.emit_many("bench.made", &batch).await?;
            batch.clear();
        }
    }
    say("rows committed, relay starts");
    let start = Instant::now();
    world.spawn("relay", "relay", &[])?;
    let shared = &world;
    let all_acknowledged = || async {
        // Nothing listens before it is up.
        let published = shared.metric("relay", "laneway_relay_rows_total").await.unwrap_or(0.0);
        Ok(published >= f64::from(rows))
    };
    until("the last acknowledgement", LIMIT, all_acknowledged)
        .await
        .with_context(|| world.tails())?;
    let took = start.elapsed();
    let admin = Admin::new(&Connection::plaintext(&world.kafka))?;
    let offsets = admin.all_offsets(&world.topic, PARTITIONS.into()).await?;
    let records: i64 = offsets.iter().map(|(_, end)| end).sum();
    ensure!(records >= i64::from(rows), "the topic has {records} records of {rows}");
    let pid = world.process("relay").pid();
    let used = cpu(pid).unwrap_or_default().as_secs_f64() * 1e6 / f64::from(rows);
    say(format!("{rows} rows in {took:.2?}, {used:.1} µs of the relay's CPU a row; {}", load()));
    report.set("relay_rows_per_s", f64::from(rows) / took.as_secs_f64());
    Ok(())
}
