//! Topic to HTTP with the inbox on: deliver alone, against Parallel Consumer and against a plain load generator, in
//! turn, at the same receiver.

use crate::Sizes;
use crate::environment::load;
use crate::peer::{Ceiling, Peer};
use crate::process::{cpu, cpu_with_children};
use crate::report::{Report, median, say};
use crate::sink::{Arrived, Sink};
use crate::workload::{IN_FLIGHT, KEYS, PARTITIONS, body, key_and_number, record, until};
use anyhow::{Context, Result, ensure};
use laneway_bus::{Admin, Connection, Producer, ProducerSettings, TopicSpec};
use laneway_system::{EndpointOptions, Options, World};
use laneway_testkit::Stack;
use laneway_wire::EndpointId;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// Fills the fields of this part; what the peers cannot do is noted and the rest measured.
pub(crate) async fn measure(stack: &Stack, sizes: Sizes, report: &Report) -> Result<()> {
    let (events, keys) = (sizes.of(200_000), sizes.of(KEYS));
    say(format!(
        "{events} records of 512-byte bodies, {keys} keys, {PARTITIONS} partitions, {IN_FLIGHT} in flight, receiver \
         without delay; one deliver process with inbox and signatures"
    ));
    let mut sink = Sink::start().await?;
    let peer = Peer::load(stack, events, keys).await;
    if let Err(error) = &peer {
        report.note("parallel_consumer_per_s", format!("{error:#}"));
        report.note("engine_vs_parallel_consumer", "Parallel Consumer did not run");
    }
    let ceiling = Ceiling::prepare().await;
    if let Err(error) = &ceiling {
        report.note("http_ceiling_per_s", format!("{error:#}"));
        report.note("engine_vs_http_ceiling", "wrk did not run");
    }
    let (mut engines, mut peers, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ceilings, mut cpus) = (Vec::new(), Vec::new());
    for pair in 1..=sizes.pairs {
        let (arrived, used) = engine(stack, &mut sink, events, keys).await?;
        let own = arrived.per_second();
        say(format!("pair {pair}: engine {own:.0}/s; {}", load()));
        say(format!("  CPU per delivery, µs: {}", used.text(events)));
        engines.push(own);
        cpus.push(used.deliver.as_secs_f64() * 1e6 / f64::from(events));
        if let Ok(peer) = &peer {
            match peer.deliver(&mut sink, events, LIMIT).await {
                Ok(arrived) => {
                    let theirs = arrived.per_second();
                    say(format!("pair {pair}: Parallel Consumer {theirs:.0}/s; {}", load()));
                    peers.push(theirs);
                    ratios.push(own / theirs);
                }
                Err(error) => {
                    report.note("parallel_consumer_per_s", format!("pair {pair}: {error:#}"));
                }
            }
        }
        if let Ok(ceiling) = &ceiling {
            let rate = ceiling.run(&sink.url("/ceiling")).await?;
            say(format!("pair {pair}: wrk {rate:.0}/s; {}", load()));
            ceilings.push(rate);
        }
    }
    report.set("engine_deliveries_per_s", median(&engines));
    report.set("cpu_us_per_delivery", median(&cpus));
    if !ratios.is_empty() {
        report.set("parallel_consumer_per_s", median(&peers));
        report.set("engine_vs_parallel_consumer", median(&ratios));
    }
    if !ceilings.is_empty() {
        report.set("http_ceiling_per_s", median(&ceilings));
        report.set("engine_vs_http_ceiling", median(&engines) / median(&ceilings));
    }
    Ok(())
}

/// User and system time over one run.
#[derive(Debug)]
struct Used {
    deliver: Duration,
    postgres: Option<Duration>,
    kafka: Option<Duration>,
    receiver: Option<Duration>,
}

impl Used {
    fn text(&self, events: u32) -> String {
        let each = |span: Option<Duration>| {
            span.map_or("?".to_owned(), |span| {
                format!("{:.1}", span.as_secs_f64() * 1e6 / f64::from(events))
            })
        };
        format!(
            "deliver {}, PostgreSQL {}, broker {}, receiver {}",
            each(Some(self.deliver)),
            each(self.postgres),
            each(self.kafka),
            each(self.receiver)
        )
    }
}

/// A new database and topic, filled, then one deliver process from its start to the last settled delivery.
async fn engine(stack: &Stack, sink: &mut Sink, events: u32, keys: u32) -> Result<(Arrived, Used)> {
    let settings = vec![("LANEWAY_DELIVER__MAX_IN_FLIGHT", IN_FLIGHT.to_string())];
    let options = Options {
        partitions: PARTITIONS,
        settings,
        log_level: "warn".to_owned(),
        ..Options::default()
    };
    let mut world = World::start(stack, options).await?;
    let endpoint = EndpointOptions {
        max_connections: IN_FLIGHT,
        timeout: Duration::from_secs(30),
        ..EndpointOptions::default()
    };
    let endpoint = world.endpoint(&sink.url("/engine"), endpoint).await?;
    produce(&world, endpoint, events, keys).await?;
    sink.reset().await?;
    let (postgres, kafka) = (pid("LANEWAY_POSTGRES_PID"), pid("LANEWAY_KAFKA_PID"));
    let of_postgres = || postgres.and_then(cpu_with_children);
    let of_kafka = || kafka.and_then(cpu);
    let before = (of_postgres(), of_kafka(), cpu(sink.pid()));
    world.spawn("deliver", "deliver", &[])?;
    let arrived = sink.wait(events, LIMIT).await.with_context(|| world.tails())?;
    let world = &mut world;
    until("the last settled delivery", LIMIT, || async {
        Ok(world.settled().await? >= i64::from(events))
    })
    .await?;
    let deliver = world.process("deliver").pid();
    let since =
        |before: Option<Duration>, now: Option<Duration>| Some(now?.saturating_sub(before?));
    let used = Used {
        deliver: cpu(deliver).context("deliver's CPU time")?,
        postgres: since(before.0, of_postgres()),
        kafka: since(before.1, of_kafka()),
        receiver: since(before.2, cpu(sink.pid())),
    };
    ensure!(arrived.violations == 0, "{} events out of order", arrived.violations);
    if arrived.duplicates > 0 {
        say(format!("  {} duplicates", arrived.duplicates));
    }
    world.stop("deliver").await?;
    Ok((arrived, used))
}

/// Fills a new topic as the relay would: key, partition by the lane's bucket, generation 1.
async fn produce(world: &World, endpoint: EndpointId, events: u32, keys: u32) -> Result<()> {
    let connection = Connection::plaintext(&world.kafka);
    let admin = Admin::new(&connection)?;
    admin.create_topic(&TopicSpec::new(&world.topic, PARTITIONS.into())).await?;
    let settings =
        ProducerSettings { linger: Duration::from_millis(5), ..ProducerSettings::default() };
    let producer = Producer::new(&connection, &world.topic, settings)?;
    let mut pending = Vec::with_capacity(events as usize);
    for i in 0..events {
        let (key, n) = key_and_number(i, keys);
        let record = record(world.tenant, endpoint, &key, body(&key, n));
        let lane = record.head.lane();
        let partition = i32::from(lane.bucket().number() % PARTITIONS);
        pending.push(producer.send(partition, lane.as_bytes(), &record.encode(), &[]).await?);
    }
    for record in pending {
        record.await?;
    }
    Ok(())
}

fn pid(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}
