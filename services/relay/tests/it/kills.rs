//! P4, I8, C16: the relay is killed with -9, again and again, between reading, producing, acknowledging and saving.

use crate::support::{LIMIT, World, wait_until_passed};
use laneway_testkit::{Child, temp_dir, wait_for};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const KILLS: usize = 50;

/// Not a test: the relay as a process of its own, which the test below starts from this same binary.
#[test]
#[ignore = "run by other tests as a process"]
fn relay_process() {
    let variable = |name: &str| std::env::var(format!("LANEWAY_TEST_{name}")).unwrap();
    let mut settings = laneway_relay::Settings::default();
    settings.database.url = variable("RELAY_URL").into();
    settings.kafka.brokers = variable("RELAY_KAFKA");
    settings.kafka.deliveries_topic = variable("RELAY_TOPIC");
    settings.kafka.partitions = 6;
    settings.relay.lease = Duration::from_secs(2);
    settings.relay.page_rows = 40;
    settings.relay.waves = 3;
    settings.service.instance = Some("killed".to_owned());
    let process = settings.process();
    let body = |context| laneway_relay::run(settings, context);
    laneway_platform::service::block_on(laneway_platform::service::run("relay", &process, body))
        .unwrap();
}

fn spawn(world: &World, folder: &Path, failpoint: Option<String>) -> Child {
    let arguments = ["kills::relay_process", "--exact", "--ignored", "--nocapture"];
    let mut variables = vec![
        ("LANEWAY_TEST_RELAY_URL", world.url.clone()),
        ("LANEWAY_TEST_RELAY_KAFKA", world.kafka.clone()),
        ("LANEWAY_TEST_RELAY_TOPIC", world.topic.clone()),
        ("LANEWAY_FAILPOINT_FILE", folder.join("failpoint").display().to_string()),
    ];
    variables.extend(failpoint.map(|place| ("LANEWAY_FAILPOINT", place)));
    let program = std::env::current_exe().unwrap();
    Child::spawn("relay", program, arguments, variables, folder.join("log")).unwrap()
}

fn connected(folder: &Path) -> usize {
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    log.lines().filter(|line| line.contains("\"connected\"")).count()
}

fn reported(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("failpoint")).map_or(0, |text| text.lines().count())
}

#[tokio::test(flavor = "multi_thread")]
async fn outbox_recovery_survives_50_kills_between_read_produce_acknowledge_and_save() {
    let world = World::new().await;
    let folder = temp_dir("relay-kills");
    let (tenant, first) = world.tenant().await;
    let second = world.endpoint(tenant, "*", "user").await;
    let third = world.endpoint(tenant, "*", "none").await;

    let done = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 0..3u32 {
        let (url, id, done) = (world.url.clone(), tenant.as_uuid(), done.clone());
        writers.push(tokio::spawn(async move {
            let mut round = 0u32;
            while !done.load(Ordering::Relaxed) {
                let key = (writer * 5 + round * 7) % 23;
                let statement = format!(
                    "SELECT laneway.emit('{id}', 'made', 'u{key}', 'x'); \
                     SELECT laneway.emit_many('{id}', '{{a,b,c,d}}', '{{u1,u{key},u3,u1}}', \
                     ARRAY['1','2','3','4']::bytea[])"
                );
                // Two calls in one transaction may deadlock (40P01): repeated, as the contract for writers says.
                if laneway_testkit::sql(&url, &statement).await.is_ok() {
                    round += 1;
                }
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
        }));
    }

    // Places of reliability.md 3.3: R1 batch read, R2 produced, R3 acknowledged, R4 between pages, R5 holding a lease.
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for kill in 0..KILLS {
        let (place, visits) = match kill % 6 {
            // Anywhere.
            0 => (None, 0),
            1 => (Some("relay.after_read"), 1 + next(20)),
            2 => (Some("relay.after_produce"), 1 + next(60)),
            3 => (Some("relay.after_ack"), 1 + next(6)),
            4 => (Some("relay.after_advance"), 1 + next(6)),
            _ if kill % 12 == 5 => (Some("relay.between_pages"), 1 + next(2)),
            _ => (Some("relay.holding_lease"), 1 + next(16)),
        };
        let (before, lives) = (reported(&folder), connected(&folder));
        let child = spawn(&world, &folder, place.map(|place| format!("{place}:{visits}")));
        wait_for("the relay to be connected", LIMIT, || async { connected(&folder) > lives }).await;
        let mut started = std::time::Instant::now();
        if place.is_none() {
            started -= Duration::from_millis(3_000 - next(600));
        }
        // A place that is not visited that often is as good as anywhere.
        wait_for("the place to kill it at", LIMIT, || async {
            reported(&folder) > before || started.elapsed() > Duration::from_secs(3)
        })
        .await;
        drop(child);
    }
    done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }

    let last = spawn(&world, &folder, None);
    wait_until_passed(&world).await;
    let rows = world.row_ids().await;
    assert!(rows.len() > 300, "{} rows", rows.len());
    assert!(reported(&folder) >= KILLS / 3, "killed at named places: {}", reported(&folder));
    let mut log = world.log().await;
    log.read_all(&rows, &[first, second, third]).await;
    log.assert_lanes_in_order();
    let repeats = log.records.len() - log.pairs().len();
    assert!(repeats > 0, "the kills were felt");
    drop(last);
    std::fs::remove_dir_all(folder).unwrap();
}
