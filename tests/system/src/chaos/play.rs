//! The acts of a chaos run: each is begun, lasts, is taken back, and says whether it had an effect.

use super::crew::{Crew, within};
use super::crowd::Member;
use super::machine::{self, Cgroup, SmallDisk};
use super::net::{self, Proxies};
use super::plan::{Act, Link, Loss, Mischief, Silence, Step, Toxic};
use crate::charges;
use crate::faults::{Faults, monotonic_ns};
use anyhow::Result;
use laneway_testkit::{Provider, Says, Stack};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A process comes to the place where it is to be killed within this.
const POINT_LIMIT: Duration = Duration::from_secs(20);
const JOIN_LIMIT: Duration = Duration::from_secs(12);
/// A process that is late by less than this does not matter.
const SETTLE: Duration = Duration::from_secs(2);

/// Everything that faults are done to.
pub(super) struct Stage {
    pub(super) crew: Crew,
    pub(super) stack: Stack,
    pub(super) faults: Faults,
    pub(super) members: Vec<Member>,
    /// Receivers with effects: the first is asked by the reconcilers, the second by a person.
    pub(super) providers: Vec<Provider>,
    /// The endpoints of each receiver.
    pub(super) endpoints: Vec<Vec<String>>,
    pub(super) proxies: Option<Proxies>,
    pub(super) disk: Option<SmallDisk>,
    /// Ports whose packets can be lost; none where that would hit others.
    pub(super) packets: bool,
    pub(super) score: Mutex<Score>,
    pub(super) guests: AtomicU64,
}

/// What became of the faults.
#[derive(Debug, Default)]
pub(super) struct Score {
    /// By name: those that had an effect.
    pub(super) hit: BTreeMap<&'static str, u64>,
    /// Those that were done and had none.
    pub(super) missed: BTreeMap<&'static str, u64>,
    /// Those that this machine cannot do, with the reason.
    pub(super) skipped: BTreeMap<&'static str, &'static str>,
    pub(super) broker_restarts: u64,
    pub(super) database_restarts: u64,
    /// What could not be done although it should.
    pub(super) errors: Vec<String>,
}

/// What an act came to.
enum Done {
    Hit,
    Missed,
    Skipped(&'static str),
}

impl From<bool> for Done {
    fn from(hit: bool) -> Self {
        if hit { Self::Hit } else { Self::Missed }
    }
}

impl Stage {
    /// Does the steps of one track, each at its time or as soon as the one before is over.
    pub(super) async fn play(&self, steps: Vec<Step>, start: Instant, end: Instant) {
        for step in steps {
            tokio::time::sleep_until((start + step.at).into()).await;
            if Instant::now() >= end {
                return;
            }
            let name = name(&step.act);
            let done = self.act(&step).await;
            let mut score = self.score.lock().expect("no track panicked");
            match done {
                Ok(Done::Hit) => *score.hit.entry(name).or_default() += 1,
                Ok(Done::Missed) => *score.missed.entry(name).or_default() += 1,
                Ok(Done::Skipped(why)) => {
                    score.skipped.insert(name, why);
                }
                Err(error) => score.errors.push(format!("{name}: {error:#}")),
            }
        }
    }

    async fn act(&self, step: &Step) -> Result<Done> {
        let length = step.length;
        match &step.act {
            Act::Kill { who }
            | Act::KillAt { who, .. }
            | Act::Restart { who }
            | Act::Pause { who }
            | Act::Freeze { who }
            | Act::Throttle { who }
            | Act::Clock { who, .. } => {
                self.crew.take(who).await;
                let done = self.service(&step.act, who, length).await;
                self.crew.give(who).await;
                done
            }
            Act::Storm { guests } => self.storm(*guests, length).await,
            &Act::Authority { silence } => {
                self.providers[0].set_says(move |_, _| match silence {
                    Silence::Down => Says::Down,
                    Silence::InProgress => Says::InProgress,
                    Silence::Cut => Says::Cut,
                });
                let before = self.providers[0].ledger().len();
                tokio::time::sleep(length).await;
                self.providers[0].set_says(charges::says);
                let ledger = self.providers[0].ledger();
                Ok(ledger[before..].iter().any(|line| line.said.is_some()).into())
            }
            Act::Receiver { number, mischief } => self.mischief(*number, *mischief, length).await,
            Act::Link { link, toxic } => self.disturb(*link, *toxic, length).await,
            Act::Packets { link, loss } => self.lose(*link, *loss, length).await,
            _ => self.server(&step.act, length).await,
        }
    }

    async fn service(&self, act: &Act, who: &str, length: Duration) -> Result<Done> {
        let crew = &self.crew;
        match act {
            Act::Kill { .. } => {
                let killed = crew.kill(who).await;
                tokio::time::sleep(length).await;
                crew.spawn(who, &[]).await?;
                Ok(killed.into())
            }
            Act::KillAt { point, visit, .. } => {
                crew.arm(who, &places(point, *visit)).await?;
                let at = crew.kill_there(who, POINT_LIMIT);
                // A revocation needs somebody who joins.
                let reached = if *point == "C4" {
                    let (reached, guest) = tokio::join!(at, self.guest(true, JOIN_LIMIT));
                    guest?;
                    reached
                } else {
                    at.await
                };
                tokio::time::sleep(length).await;
                crew.spawn(who, &[]).await?;
                Ok(reached.into())
            }
            Act::Restart { .. } => {
                let ordered = crew.stop(who).await;
                crew.spawn(who, &[]).await?;
                Ok(ordered.into())
            }
            Act::Pause { .. } => {
                let pid = crew.pid(who).await;
                let start = monotonic_ns();
                crew.world.lock().await.process(who).pause();
                let stopped = within(SETTLE, || async { is_stopped(pid) }).await;
                tokio::time::sleep(length).await;
                crew.world.lock().await.process(who).resume();
                self.faults.note_since("pause", who, start);
                Ok(stopped.into())
            }
            Act::Freeze { .. } => {
                if !Cgroup::can("freezer") {
                    return Ok(Done::Skipped("no cgroup freezer that may be used"));
                }
                let start = monotonic_ns();
                let group = Cgroup::freeze(crew.pid(who).await)?;
                tokio::time::sleep(length).await;
                let frozen = group.had_effect();
                tokio::task::spawn_blocking(move || drop(group)).await?;
                self.faults.note_since("pause", who, start);
                Ok(frozen.into())
            }
            Act::Throttle { .. } => {
                if !Cgroup::can("cpu") {
                    return Ok(Done::Skipped("no cpu cgroup that may be used"));
                }
                let start = monotonic_ns();
                let group = Cgroup::throttle(crew.pid(who).await)?;
                tokio::time::sleep(length).await;
                let throttled = group.had_effect();
                tokio::task::spawn_blocking(move || drop(group)).await?;
                // It ran a tenth of the time: held up, in pieces.
                self.faults.note_since("throttle", who, start);
                Ok(throttled.into())
            }
            Act::Clock { seconds, .. } => match machine::faketime() {
                Some(library) => {
                    Ok(crew.shift_clock(who, &library, *seconds, length).await?.into())
                }
                None => Ok(Done::Skipped("libfaketime is not installed")),
            },
            _ => Ok(Done::Missed),
        }
    }

    /// Guests join one after the other; every second one is killed, the others leave in order.
    async fn storm(&self, guests: u64, length: Duration) -> Result<Done> {
        let mut joined = 0;
        for number in 0..guests {
            joined += u64::from(self.guest(number % 2 == 0, length).await?);
        }
        Ok((joined > 0).into())
    }

    /// A deliver process comes, stays for `length` and goes. Whether it was let in.
    async fn guest(&self, killed: bool, length: Duration) -> Result<bool> {
        let name = format!("deliver-guest-{}", self.guests.fetch_add(1, Ordering::Relaxed));
        self.crew.spawn(&name, &[]).await?;
        let joined = self.crew.ready(&name, JOIN_LIMIT).await;
        tokio::time::sleep(length).await;
        let gone = if killed { self.crew.kill(&name).await } else { self.crew.stop(&name).await };
        self.crew.forget(&name).await;
        Ok(joined && gone)
    }

    async fn server(&self, act: &Act, length: Duration) -> Result<Done> {
        let (stack, start) = (&self.stack, monotonic_ns());
        let restarted = |of: fn(&mut Score) -> &mut u64| {
            *of(&mut self.score.lock().expect("no track panicked")) += 1;
        };
        match act {
            Act::KafkaKill => {
                stack.kill_kafka().await?;
                tokio::time::sleep(length).await;
                stack.start_kafka().await?;
                self.faults.note_since("kafka_kill", "kafka", start);
                restarted(|score| &mut score.broker_restarts);
            }
            Act::KafkaPause => {
                stack.pause_kafka().await?;
                tokio::time::sleep(length).await;
                stack.resume_kafka().await?;
                self.faults.note_since("kafka_pause", "kafka", start);
            }
            Act::PostgresKill => {
                stack.crash_postgres().await?;
                tokio::time::sleep(length).await;
                stack.start_postgres().await?;
                self.faults.note_since("postgres_kill", "postgres", start);
                restarted(|score| &mut score.database_restarts);
            }
            Act::PostgresPause => {
                stack.pause_postgres().await?;
                tokio::time::sleep(length).await;
                stack.resume_postgres().await?;
                self.faults.note_since("postgres_pause", "postgres", start);
            }
            Act::BackendKill | Act::SessionsCut => {
                let sql = if matches!(act, Act::BackendKill) {
                    "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' \
                     AND pid <> pg_backend_pid() ORDER BY pid LIMIT 1"
                } else {
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                };
                let rows = laneway_testkit::sql(stack.database_url(), sql).await?;
                let mut hit = !rows.is_empty();
                if matches!(act, Act::BackendKill) {
                    let pid = rows.first().and_then(|row| row.first()?.as_ref()?.parse().ok());
                    hit = pid.is_some_and(kill9);
                }
                // The others are thrown out too, and the server recovers.
                let url = stack.database_url();
                let back = within(POINT_LIMIT, || async {
                    laneway_testkit::sql(url, "SELECT 1").await.is_ok()
                });
                hit &= back.await;
                self.faults.note_since("postgres_sessions", "postgres", start);
                return Ok(hit.into());
            }
            Act::DiskFull => {
                let Some(disk) = &self.disk else {
                    return Ok(Done::Skipped("no tmpfs may be mounted"));
                };
                disk.fill()?;
                tokio::time::sleep(length).await;
                let refused = laneway_testkit::sql(
                    stack.database_url(),
                    "CREATE TEMP TABLE big AS SELECT repeat('x', 500) FROM generate_series(1, 100000)",
                );
                let full = refused.await.is_err();
                disk.empty()?;
                // Without room for its log it ends; then it is started like any server that ended.
                stack.start_postgres().await?;
                self.faults.note_since("postgres_disk_full", "postgres", start);
                return Ok(full.into());
            }
            _ => return Ok(Done::Missed),
        }
        Ok(Done::Hit)
    }

    async fn mischief(&self, number: usize, mischief: Mischief, length: Duration) -> Result<Done> {
        let member = &self.members[number];
        let start = monotonic_ns();
        member.begin(mischief);
        tokio::time::sleep(length).await;
        let noticed = member.end().await?;
        for endpoint in &self.endpoints[number] {
            self.faults.note_endpoint("receiver", endpoint, None, start);
        }
        Ok(noticed.into())
    }

    async fn disturb(&self, link: Link, toxic: Toxic, length: Duration) -> Result<Done> {
        let Some(proxies) = &self.proxies else {
            return Ok(Done::Skipped("toxiproxy is not built"));
        };
        let start = monotonic_ns();
        proxies.begin(link, toxic).await?;
        tokio::time::sleep(length).await;
        let disturbed = proxies.end(link, toxic).await?;
        self.note_link(link, matches!(toxic, Toxic::Latency | Toxic::Bandwidth), start);
        Ok(disturbed.into())
    }

    async fn lose(&self, link: Link, loss: Loss, length: Duration) -> Result<Done> {
        let port = match (link, &self.proxies) {
            (Link::Receiver(number), None) => Some(self.members[number].receiver.address().port()),
            (_, Some(proxies)) => proxies.port(link),
            (_, None) => None,
        };
        let Some(port) = port.filter(|_| self.packets) else {
            return Ok(Done::Skipped("no network namespace of its own, or no iptables"));
        };
        let start = monotonic_ns();
        net::lose(port, loss)?;
        tokio::time::sleep(length).await;
        let lost = net::lose_no_more(port, loss)?;
        self.note_link(link, false, start);
        Ok(lost.into())
    }

    /// What is only slow loses no reply and explains nothing.
    fn note_link(&self, link: Link, is_slow: bool, start: u64) {
        match link {
            Link::Kafka => self.faults.note_since("link", "kafka", start),
            Link::Postgres if is_slow => self.faults.note_since("slow", "link-postgres", start),
            Link::Postgres => self.faults.note_since("link", "postgres", start),
            Link::Receiver(number) => {
                let kind = if is_slow { "slow" } else { "cut" };
                for endpoint in &self.endpoints[number] {
                    self.faults.note_endpoint(kind, endpoint, None, start);
                }
            }
        }
    }
}

fn name(act: &Act) -> &'static str {
    match act {
        Act::Kill { .. } => "kill",
        Act::KillAt { .. } => "kill_at_point",
        Act::Restart { .. } => "restart",
        Act::Pause { .. } => "pause",
        Act::Freeze { .. } => "cgroup_freeze",
        Act::Throttle { .. } => "cgroup_throttle",
        Act::Clock { .. } => "clock_jump",
        Act::Storm { .. } => "rebalance_storm",
        Act::KafkaKill => "broker_kill",
        Act::KafkaPause => "broker_pause",
        Act::PostgresKill => "database_kill",
        Act::PostgresPause => "database_pause",
        Act::BackendKill => "database_backend_kill",
        Act::SessionsCut => "database_sessions_cut",
        Act::DiskFull => "disk_full",
        Act::Receiver { .. } => "receiver",
        Act::Authority { .. } => "authority",
        Act::Link { .. } => "toxiproxy",
        Act::Packets { .. } => "packets",
    }
}

/// A place, and another one that a process that works comes to soon enough if the first is out of reach just now.
fn places(point: &str, visit: u64) -> String {
    let often = match point.as_bytes().first() {
        Some(b'C') => "C7:300",
        Some(b'r') if point.starts_with("relay.") => "relay.after_read:200",
        Some(b'r' | b'l') => "lookup.after_claim:50",
        _ => return format!("{point}:{visit}"),
    };
    format!("{point}:{visit},{often}")
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// kill -9 of a process that is not our child.
fn kill9(pid: i32) -> bool {
    use rustix::process::{Pid, Signal, kill_process};
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}
