//! Not a test: how fast committed rows are published (`--ignored --nocapture`; make bench has the real measure).

use crate::support::World;
use laneway_testkit::wait_for;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn rate_of_200_000_rows() {
    let world = World::new().await;
    let (tenant, _) = world.tenant().await;
    let (second, _) = world.tenant().await;
    for _ in 0..20 {
        for tenant in [tenant, second] {
            let id = tenant.as_uuid();
            world
                .sql(&format!(
                    "INSERT INTO laneway.outbox (tenant, type, user_key, payload) \
                     SELECT '{id}', 'test.made', 'u' || (n * 7919) % 10000, convert_to(repeat('x', 512), 'UTF8') \
                     FROM generate_series(1, 5000) AS n"
                ))
                .await;
        }
    }
    let start = Instant::now();
    let mut settings = world.settings();
    if let Ok(linger) = std::env::var("LANEWAY_TEST_LINGER_MS") {
        settings.relay.linger = Duration::from_millis(linger.parse().unwrap());
    }
    let relay = world.start_with(settings);
    wait_for("all rows", Duration::from_secs(300), || async {
        relay.metric("laneway_relay_rows_total") >= 200_000.0
    })
    .await;
    let took = start.elapsed();
    println!("200,000 rows in {took:?}: {:.0} rows/s", 200_000.0 / took.as_secs_f64());
    relay.stop().await;
}
