//! The services of a chaos run: killed, stopped and started by the tracks, and started again by a supervisor when they
//! end by themselves.

use super::leases::Leases;
use super::machine;
use crate::faults::Faults;
use crate::world::{World, is_ready, metric_at};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

const POLL: Duration = Duration::from_millis(20);
/// Between two looks at logs and metrics.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A process that was started anew works within this, also when a server is away for a while.
const START_LIMIT: Duration = Duration::from_secs(30);
const SUPERVISE_EVERY: Duration = Duration::from_millis(250);
/// SIGTERM to the end.
const STOP_LIMIT: Duration = Duration::from_secs(40);

/// What was done and really happened.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) kills: u64,
    /// Kills at each named place that was reached, and places that were not.
    pub(super) points: BTreeMap<String, u64>,
    pub(super) points_missed: u64,
    /// Processes that ended by themselves, each with how.
    pub(super) exits: Vec<String>,
    pub(super) ungraceful: u64,
    /// Unknown outcomes that a person decided, and commands to give up dead letters.
    pub(super) resolved: u64,
    pub(super) discards: u64,
    /// Leases that were lost, whatever held their owners up.
    pub(super) leases_lost: u64,
    /// Why a log could not be read.
    pub(super) unread: Option<String>,
    /// The most that a process counted in `laneway_invariant_violations_total`.
    pub(super) violations: f64,
}

/// All services; the tracks share it.
pub(super) struct Crew {
    pub(super) world: Mutex<World>,
    /// Every process that should run, and its service.
    wanted: BTreeMap<String, &'static str>,
    /// Those that a track has in hand.
    busy: Mutex<BTreeSet<String>>,
    pub(super) counts: Mutex<Counts>,
    pub(super) dir: PathBuf,
}

impl Crew {
    /// Starts all of them.
    pub(super) fn start(mut world: World, wanted: BTreeMap<String, &'static str>) -> Result<Self> {
        for (name, service) in &wanted {
            if world.admin_port(name).is_none() {
                world.spawn(service, name, &[])?;
            }
        }
        let dir = world.dir.clone();
        let (busy, counts) = (Mutex::default(), Mutex::default());
        Ok(Self { world: Mutex::new(world), wanted, busy, counts, dir })
    }

    /// Everything as it is, for the verdict.
    pub(super) fn into_world(self) -> (World, Counts) {
        (self.world.into_inner(), self.counts.into_inner())
    }

    /// Starts again what ended by itself, until it is aborted.
    pub(super) async fn supervise(&self) {
        loop {
            tokio::time::sleep(SUPERVISE_EVERY).await;
            for name in self.wanted.keys() {
                let mut world = self.world.lock().await;
                // Looked up with the world in hand: a track takes it in hand before it does anything.
                if self.busy.lock().await.contains(name) {
                    continue;
                }
                if let Some(status) = world.process(name).ended() {
                    self.counts.lock().await.exits.push(format!("{name}: {status}"));
                    let _ = world.spawn(self.service(name), name, &[]);
                }
            }
        }
    }

    /// Writes down which leases are lost, and looks for broken invariants, until it is aborted.
    pub(super) async fn watch(&self, faults: &Faults, mut leases: Leases) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match leases.look(faults) {
                Ok(lost) => self.counts.lock().await.leases_lost += lost,
                Err(error) => self.counts.lock().await.unread = Some(format!("{error:#}")),
            }
            let ports: Vec<u16> = {
                let world = self.world.lock().await;
                let delivers = world.names().into_iter().filter(|name| name.starts_with("deliver"));
                delivers.filter_map(|name| world.admin_port(&name)).collect()
            };
            for port in ports {
                let violations = metric_at(port, "laneway_invariant_violations_total");
                if let Ok(Ok(violations)) = tokio::time::timeout(LOOK_EVERY, violations).await {
                    let most = &mut self.counts.lock().await.violations;
                    *most = most.max(violations);
                }
            }
        }
    }

    /// The supervisor leaves it alone until [`Crew::give`].
    pub(super) async fn take(&self, name: &str) {
        self.busy.lock().await.insert(name.to_owned());
    }

    pub(super) async fn give(&self, name: &str) {
        self.busy.lock().await.remove(name);
    }

    fn service(&self, name: &str) -> &'static str {
        self.wanted.get(name).copied().unwrap_or("deliver")
    }

    pub(super) async fn spawn(&self, name: &str, envs: &[(&str, &str)]) -> Result<()> {
        self.world.lock().await.spawn(self.service(name), name, envs)
    }

    /// kill -9. Whether it ran until then.
    pub(super) async fn kill(&self, name: &str) -> bool {
        let mut world = self.world.lock().await;
        machine::forget_clock(world.process(name).pid());
        let killed = world.kill(name);
        self.counts.lock().await.kills += u64::from(killed);
        killed
    }

    pub(super) async fn forget(&self, name: &str) {
        self.world.lock().await.forget(name);
    }

    pub(super) async fn pid(&self, name: &str) -> u32 {
        self.world.lock().await.process(name).pid()
    }

    /// Waits until the process says that it is ready, or `limit` passes.
    pub(super) async fn ready(&self, name: &str, limit: Duration) -> bool {
        within(limit, || self.is_ready(name)).await
    }

    /// SIGTERM, and its end. Whether it ended in order.
    pub(super) async fn stop(&self, name: &str) -> bool {
        self.world.lock().await.process(name).terminate();
        let mut status = None;
        let start = Instant::now();
        while status.is_none() && start.elapsed() < STOP_LIMIT {
            tokio::time::sleep(POLL).await;
            status = self.world.lock().await.process(name).ended();
        }
        let ordered = status.is_some_and(|status| status.success());
        self.counts.lock().await.ungraceful += u64::from(!ordered);
        if status.is_none() {
            self.kill(name).await;
        }
        ordered
    }

    /// Kills the process and starts it so that it stops at the first of `places` that it comes to.
    pub(super) async fn arm(&self, name: &str, places: &str) -> Result<()> {
        self.kill(name).await;
        let file = self.reached(name);
        let _ = std::fs::remove_file(&file);
        let path = file.display().to_string();
        let envs = [("LANEWAY_FAILPOINT", places), ("LANEWAY_FAILPOINT_FILE", path.as_str())];
        self.spawn(name, &envs).await?;
        // What it waits for before it can work is not its time.
        within(START_LIMIT, || async { file.exists() || self.is_ready(name).await }).await;
        Ok(())
    }

    /// Kills the process at its place. Whether it came there within `limit`.
    pub(super) async fn kill_there(&self, name: &str, limit: Duration) -> bool {
        let file = self.reached(name);
        let reached = within(limit, || async { file.exists() }).await;
        let killed = self.kill(name).await;
        let said = std::fs::read_to_string(&file).unwrap_or_default();
        let mut counts = self.counts.lock().await;
        match said.split(' ').next().filter(|_| reached && killed) {
            Some(point) => *counts.points.entry(point.to_owned()).or_default() += 1,
            None => counts.points_missed += 1,
        }
        reached && killed
    }

    fn reached(&self, name: &str) -> PathBuf {
        self.dir.join(format!("point-{name}"))
    }

    async fn is_ready(&self, name: &str) -> bool {
        let port = self.world.lock().await.admin_port(name);
        match port {
            Some(port) => is_ready(port).await,
            None => false,
        }
    }

    /// Replaces the process by one whose wall clock is `seconds` off for a while, from a moment on at which it works.
    pub(super) async fn shift_clock(
        &self,
        name: &str,
        library: &Path,
        seconds: i64,
        length: Duration,
    ) -> Result<bool> {
        let file = self.dir.join(format!("clock-{name}"));
        std::fs::write(&file, "+0")?;
        self.kill(name).await;
        let envs = machine::clock_envs(library, &file);
        let envs: Vec<(&str, &str)> =
            envs.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.spawn(name, &envs).await?;
        let works = self.ready(name, Duration::from_secs(15)).await;
        std::fs::write(&file, format!("{seconds:+}"))?;
        tokio::time::sleep(length).await;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid(name).await));
        let shifted = works && maps.is_ok_and(|maps| maps.contains("faketime"));
        self.kill(name).await;
        self.spawn(name, &[]).await.context("a process with the right clock")?;
        Ok(shifted)
    }
}

/// Whether `condition` comes true before `limit` passes.
pub(super) async fn within<F: Future<Output = bool>>(
    limit: Duration,
    mut condition: impl FnMut() -> F,
) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if condition().await {
            return true;
        }
        tokio::time::sleep(POLL).await;
    }
    false
}
