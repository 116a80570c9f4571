//! `make chaos`: all parts as real processes, load, and faults drawn from a seed; then everything heals, drains, and is
//! judged by the receivers' journals, the committed rows and the fault journal (reliability.md, issue of the harness).

mod again;
mod crew;
mod crowd;
mod hand;
mod leases;
mod load;
mod machine;
mod net;
mod plan;
mod play;

use crate::charges;
use crate::verdict::Verdict;
use crate::world::{EndpointOptions, Options as WorldOptions, World};
pub use leases::Leases;
pub use machine::{Cgroup, SmallDisk};
pub use net::{Proxies, has_own_network, lose, lose_no_more};
pub use plan::{Link, Loss, Toxic};

use anyhow::{Context, Result};
use crew::{Counts, Crew, within};
use crowd::Member;
use hand::Hand;
use laneway_testkit::{Provider, Receiver, Stack, free_port, temp_dir};
use play::{Score, Stage};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a process whose wall clock is read from `file` is started with; none where libfaketime is not installed.
pub fn clock_envs(file: &std::path::Path) -> Option<[(&'static str, String); 4]> {
    machine::faketime().map(|library| machine::clock_envs(&library, file))
}

const PARTITIONS: u16 = 6;
/// Endpoints of each receiver.
const ENDPOINTS: usize = 2;
/// Deadline of a request.
const DEADLINE: Duration = Duration::from_secs(2);
/// A request is not asked about sooner than this after it began: its deadline and `LOOKUP_GRACE`.
const QUIET: Duration = Duration::from_secs(4);
/// A receiver on a busy machine reads a request within this.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// Paths of the endpoints with effects.
const LOOKUP: &str = "/lookup";
const HOLD: &str = "/hold";
/// Everything is delivered within this after the last fault; what is not counts as lost.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);
const READY_LIMIT: Duration = Duration::from_secs(60);
/// What is audited is at least this old: older than anything that is on its way.
const AUDITED_AGE: Duration = Duration::from_secs(5);
/// A track that is this late after the last planned fault hangs.
const TRACK_LIMIT: Duration = Duration::from_secs(240);
/// Errors of the run itself that are shown.
const MAX_SHOWN: usize = 10;

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What the faults are drawn from.
    pub seed: u64,
    /// How long faults come.
    pub length: Duration,
    /// Events a second; each goes to eight endpoints, one in seven to two with effects as well.
    pub rate: u32,
}

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    /// The figures, as `make chaos` prints them.
    pub line: Value,
    /// Whether every promise held and every part of the run worked.
    pub holds: bool,
    /// What did not, for people; and where the inputs lie.
    pub says: String,
}

/// Runs it.
///
/// # Errors
/// When it cannot be set up, or its journals cannot be read. A breach is a report.
pub async fn run(options: Options) -> Result<Report> {
    let (stage, app) = set_up(options).await?;
    let client = stage.crew.world.lock().await.client()?;
    let stop = Arc::new(AtomicBool::new(false));
    let emitting = tokio::spawn(load::emit(Arc::clone(&app), options.rate, Arc::clone(&stop)));
    let posting = tokio::spawn(load::post(client.clone(), options.rate, Arc::clone(&stop)));
    let again = {
        let commands = plan::again(options.seed, options.length, ENDPOINTS as u64);
        let (endpoints, stop) = (stage.endpoints.clone(), Arc::clone(&stop));
        tokio::spawn(async move { again::give(client, commands, endpoints, &stop).await })
    };

    let leases = Leases::new(&*stage.crew.world.lock().await, PARTITIONS, load::keys());
    let stage = Arc::new(stage);
    let supervising = {
        let stage = Arc::clone(&stage);
        tokio::spawn(async move {
            tokio::join!(stage.crew.supervise(), stage.crew.watch(&stage.faults, leases));
        })
    };
    let person = {
        let stage = Arc::clone(&stage);
        let hand = Hand::new(&*stage.crew.world.lock().await, HOLD, QUIET)?;
        tokio::spawn(async move { hand.work(&stage.crew, &stage.providers[1]).await })
    };
    let start = Instant::now();
    let end = start + options.length;
    let mut tracks = tokio::task::JoinSet::new();
    for steps in plan::plan(options.seed, options.length) {
        let stage = Arc::clone(&stage);
        tracks.spawn(async move { stage.play(steps, start, end).await });
    }
    let playing = async { while tracks.join_next().await.is_some() {} };
    let hung = tokio::time::timeout(options.length + TRACK_LIMIT, playing).await.is_err();
    tokio::time::sleep_until(end.into()).await;

    let healed = Instant::now();
    stop.store(true, Ordering::Relaxed);
    let emitted = emitting.await.context("the application")?;
    let posted = posting.await.context("the client of the API")?;
    let given = again.await.context("the operator")?;
    let drained = within(DRAIN_LIMIT, || is_drained(&stage)).await;
    let heal_seconds = healed.elapsed().as_secs_f64();
    let audit = audited(&stage).await;
    for task in [supervising, person] {
        task.abort();
        let _ = task.await;
    }
    drop(tracks);
    let stage = Arc::into_inner(stage).context("a track still runs")?;
    let Stage { crew, stack, members, providers, score, .. } = stage;
    let (mut world, counts) = crew.into_world();
    let mut stopped = Vec::new();
    for name in world.names() {
        if let Err(error) = world.stop(&name).await {
            stopped.push(format!("{error:#}"));
        }
    }
    let receivers: Vec<Receiver> = members.into_iter().map(|member| member.receiver).collect();
    let read_late = QUIET - DEADLINE - READ_LIMIT;
    let verdict =
        Verdict::with_effects(&world, &receivers, &providers, DEADLINE, read_late).await?;
    let acknowledged: Vec<_> =
        emitted.acknowledged.iter().chain(&posted.acknowledged).copied().collect();
    let mut score = score.into_inner().expect("no track panicked");
    score.errors.extend(stopped);
    score.errors.extend(given.refusals);
    if let Err(error) = &audit {
        score.errors.push(format!("the audit could not be made: {error:#}"));
    }
    score.errors.extend(counts.unread.clone());
    if hung {
        score.errors.push("a track of faults hung".to_owned());
    }
    let ended = Ended {
        options,
        counts,
        score,
        doubtful: emitted.doubtful + posted.doubtful,
        unsaved: unsaved(&world, &acknowledged).await?,
        repeated_posts: repeated_posts(&world).await?,
        panics: panics(&world)?,
        rewind_commands: given.commands,
        audit: audit.unwrap_or_default(),
        drained,
        heal_seconds,
    };
    let report = ended.report(&world, &verdict);
    drop(stack);
    Ok(report)
}

async fn set_up(options: Options) -> Result<(Stage, Arc<crate::App>)> {
    let logs = temp_dir("chaos");
    let mut proxies = Proxies::start(&logs.join("toxiproxy.log")).await?;
    let kafka_port = free_port();
    let stack = match &proxies {
        Some(_) => Stack::private_behind(kafka_port).await?,
        None => Stack::private().await?,
    };
    // The disk before anything is in it.
    let home = stack.folder().context("a stack of its own")?.join("postgres");
    stack.stop_postgres().await?;
    let disk = SmallDisk::mount(&home).ok();
    stack.start_postgres().await?;

    // Small pages: a relay is to be killed between two of them.
    let mut settings = vec![("LANEWAY_RELAY__PAGE_ROWS", "5".to_owned())];
    settings.extend(charges::settings());
    let mut world_options =
        WorldOptions { partitions: PARTITIONS, settings, ..WorldOptions::default() };
    if let Some(proxies) = &mut proxies {
        let host = stack.database_url().split(['@', '/']).nth(3).context("a database URL")?;
        world_options.postgres_via = Some(proxies.add(Link::Postgres, free_port(), host).await?);
        let via = stack.kafka_via().context("Kafka behind a proxy")?;
        world_options.kafka_via = Some(proxies.add(Link::Kafka, kafka_port, via).await?);
    }
    let mut world = World::start(&stack, world_options).await?;
    let (mut members, mut endpoints) = (Vec::new(), Vec::new());
    for number in 0..usize::try_from(plan::RECEIVERS)? {
        let member = Member::start(number).await;
        let mut address = member.receiver.address().to_string();
        if let Some(proxies) = &mut proxies {
            address = proxies.add(Link::Receiver(number), free_port(), &address).await?;
        }
        let mut of = Vec::new();
        for endpoint in 0..ENDPOINTS {
            let url = format!("http://{address}/r{number}e{endpoint}");
            let settings = EndpointOptions { timeout: DEADLINE, ..EndpointOptions::default() };
            of.push(world.endpoint(&url, settings).await?.to_string());
        }
        members.push(member);
        endpoints.push(of);
    }
    let providers = vec![Provider::at(LOOKUP).await, Provider::at(HOLD).await];
    providers[0].set_first(charges::mostly_silent);
    providers[0].set_says(charges::says);
    providers[1].set_first(charges::sometimes_silent);
    for (provider, on_unknown) in providers.iter().zip(["lookup", "hold"]) {
        let (timeout, max_connections) = (DEADLINE, 64);
        let options =
            EndpointOptions { on_unknown, timeout, max_connections, ..EndpointOptions::default() };
        charges::endpoint(&mut world, provider, options).await?;
    }
    let mut wanted = BTreeMap::from([("api".to_owned(), "api")]);
    wanted.extend(
        (1..=plan::RECONCILERS).map(|number| (format!("reconciler-{number}"), "reconciler")),
    );
    wanted.extend((1..=plan::RELAYS).map(|number| (format!("relay-{number}"), "relay")));
    wanted.extend((1..=plan::DELIVERS).map(|number| (format!("deliver-{number}"), "deliver")));
    let (app, faults) = (Arc::clone(&world.app), world.faults.clone());
    std::fs::write(world.dir.join("run.json"), format!("{:?}\n", options))?;
    let names: Vec<String> = wanted.keys().cloned().collect();
    let crew = Crew::start(world, wanted)?;
    for name in &names {
        anyhow::ensure!(crew.ready(name, READY_LIMIT).await, "{name} is not ready");
    }
    let stage = Stage {
        crew,
        stack,
        faults,
        members,
        providers,
        endpoints,
        proxies,
        disk,
        packets: net::has_own_network(),
        score: Mutex::default(),
        guests: AtomicU64::new(1),
    };
    Ok((stage, app))
}

/// Whether every committed row has its outcome at every endpoint.
async fn is_drained(stage: &Stage) -> bool {
    let world = stage.crew.world.lock().await;
    let endpoints = world.endpoints();
    let of_all = endpoints.iter().filter(|made| made.event_type == "*").count() as i64;
    let of_charges = endpoints.len() as i64 - of_all;
    // What a command still has to write is not in the outbox yet.
    let running = "SELECT count(*) FROM laneway_control.rewinds WHERE state = 'running'";
    let running = world.app.number(running).await;
    let rows = "SELECT count(*) FROM laneway.outbox WHERE rewind IS NULL";
    let rows = world.app.number(rows).await;
    let charges =
        "SELECT count(*) FROM laneway.outbox WHERE type = 'charge.made' AND rewind IS NULL";
    let charges = world.app.number(charges).await;
    let rewinds = "SELECT count(*) FROM laneway.outbox WHERE rewind IS NOT NULL";
    let rewinds = world.app.number(rewinds).await;
    let settled = world.settled().await;
    matches!(
        (running, rows, charges, rewinds, settled),
        (Ok(0), Ok(rows), Ok(charges), Ok(rewinds), Ok(settled))
            if settled >= rows * of_all + charges * of_charges + rewinds
    )
}

/// What the product's own audit finds in its rows when nothing is on its way any more.
async fn audited(stage: &Stage) -> Result<Vec<Value>> {
    let app = Arc::clone(&stage.crew.world.lock().await.app);
    let young = format!(
        "SELECT 1 AS young FROM laneway_control.inbox WHERE settled_at > now() - interval '{0} s' \
         UNION ALL SELECT 1 FROM laneway.outbox WHERE created_at > now() - interval '{0} s' LIMIT 1",
        AUDITED_AGE.as_secs() + 1
    );
    within(DRAIN_LIMIT, || async { app.rows(&young).await.is_ok_and(|rows| rows.is_empty()) })
        .await;
    hand::audit(&stage.crew, AUDITED_AGE).await
}

/// Acknowledged commits without a row (I2, I52).
async fn unsaved(world: &World, acknowledged: &[uuid::Uuid]) -> Result<usize> {
    let rows = world.app.rows("SELECT event_id FROM laneway.outbox").await?;
    let saved: HashSet<&str> = rows.iter().filter_map(|row| row["event_id"].as_str()).collect();
    Ok(acknowledged.iter().filter(|id| !saved.contains(id.to_string().as_str())).count())
}

/// Events that one key of the API made twice (I34, I36).
async fn repeated_posts(world: &World) -> Result<usize> {
    let sql = format!(
        "SELECT payload FROM laneway.outbox WHERE type = '{}' AND rewind IS NULL \
         GROUP BY payload HAVING count(*) > 1",
        load::POSTED
    );
    Ok(world.app.rows(&sql).await?.len())
}

/// Logs in which something panicked.
fn panics(world: &World) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&world.dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let text = std::fs::read(&path)?;
            let text = String::from_utf8_lossy(&text);
            found.extend(text.lines().find(|line| line.contains("panicked")).map(str::to_owned));
        }
    }
    Ok(found)
}

/// A run that is over.
struct Ended {
    options: Options,
    counts: Counts,
    score: Score,
    doubtful: u64,
    unsaved: usize,
    repeated_posts: usize,
    panics: Vec<String>,
    /// Commands to send something again that meant something.
    rewind_commands: u64,
    /// What `laneway audit` found when all had drained.
    audit: Vec<Value>,
    drained: bool,
    heal_seconds: f64,
}

impl Ended {
    fn report(self, world: &World, verdict: &Verdict) -> Report {
        let Self { options, counts, score, .. } = &self;
        let figures = verdict.line();
        let number = |figure: &str| figures[figure].as_u64().unwrap_or(u64::MAX);
        let lost = number("lost") + self.unsaved as u64;
        let unexplained = number("duplicates") - number("duplicates_explained");
        let audit_findings: u64 =
            self.audit.iter().filter_map(|finding| finding["count"].as_u64()).sum();
        let restarts = score.broker_restarts + score.database_restarts;
        let line = json!({
            "seed": options.seed, "seconds": options.length.as_secs(), "rate": options.rate,
            "faults": score.hit.values().sum::<u64>(), "by_fault": score.hit, "missed": score.missed,
            "kills": counts.kills, "kill_points": counts.points, "points_missed": counts.points_missed,
            "restarts": restarts, "broker_restarts": score.broker_restarts,
            "database_restarts": score.database_restarts, "exits": counts.exits.len(),
            "ungraceful_stops": counts.ungraceful, "leases_lost": counts.leases_lost,
            "invariant_violations": counts.violations,
            "events": figures["events"], "doubtful_commits": self.doubtful,
            "deliveries": figures["deliveries"], "dead_letters": figures["dead_letters"],
            "lost": lost, "order_violations": figures["order_violations"],
            "duplicates": figures["duplicates"], "unexplained_duplicates": unexplained,
            "effects": figures["effects"], "answers": figures["answers"], "resolved": counts.resolved,
            "discards": counts.discards, "rewind_commands": self.rewind_commands,
            "rewinds": figures["rewinds"], "audit_findings": audit_findings,
            "repeated_posts": self.repeated_posts, "panics": self.panics.len(),
            "max_in_flight_per_lane": figures["max_in_flight_per_lane"],
            "violations": figures["violations"],
            "heal_seconds": (self.heal_seconds * 10.0).round() / 10.0, "drained": self.drained,
            "skipped": score.skipped,
        });
        let mut says = verdict.breaches();
        let shown = score.errors.iter().chain(&self.panics).chain(&counts.exits).take(MAX_SHOWN);
        for text in shown {
            says.push_str(text);
            says.push('\n');
        }
        for finding in &self.audit {
            says.push_str(&format!("the audit found {finding}\n"));
        }
        if !self.drained {
            says.push_str("not everything was delivered in time\n");
            says.push_str(&world.tails());
        }
        says.push_str(&format!("journals, rows, faults and logs: {}\n", world.dir.display()));
        let holds = verdict.holds()
            && lost == 0
            && self.repeated_posts == 0
            && self.audit.is_empty()
            && number("rewinds") > 0
            && self.panics.is_empty()
            && counts.violations == 0.0
            && score.errors.is_empty()
            && self.drained
            && number("max_in_flight_per_lane") <= 1;
        Report { line, holds, says }
    }
}
