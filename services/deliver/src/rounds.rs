//! What is looked at again and again: leases, drains, health, changed endpoints, commands, positions, gauges.

use crate::engine::{Back, Engine};
use crate::health;
use crate::part::Drain;
use laneway_lane::{Input, Partition};
use laneway_platform::clock;
use laneway_platform::service::Chain;
use laneway_platform::task;
use laneway_store::delivery::{
    EndpointRow, HealthView, KeptDead, OpenCommand, Waiting, commands_open, dead_letters_read,
    endpoints_changed, health_read, waiting_read,
};
use laneway_wire::Timestamp;
use std::time::Duration;

/// How long an answer of the database counts for readiness.
const READY_FOR: Duration = Duration::from_secs(6);
const ENDPOINTS_EVERY: Duration = Duration::from_secs(1);
/// A change carries the time its transaction began; none takes longer than this.
const ENDPOINTS_OVERLAP: Duration = Duration::from_secs(30);
const COMMANDS_EVERY: Duration = Duration::from_millis(500);
/// Commands in one look.
const COMMANDS: u32 = 100;
/// A command that has come to nothing is handed in again after this.
const COMMAND_AGAIN: Duration = Duration::from_secs(30);
const POSITIONS_EVERY: Duration = Duration::from_secs(5);
const GAUGES_EVERY: Duration = Duration::from_secs(1);
/// Waiting work is counted in the database, so less often.
const WAITING_EVERY: Duration = Duration::from_secs(10);
const KEPT_EVERY: Duration = Duration::from_secs(10);
/// Whoever owns this partition tells what all of them have in common.
const TELLER: Partition = 0;
const LAG_EVERY: Duration = Duration::from_secs(5);
/// An answer within this sets the clock.
const QUICK: Duration = Duration::from_millis(250);
/// A look that takes longer hangs.
const LOOK: Duration = Duration::from_secs(10);

impl Engine {
    /// Does what is due.
    pub(crate) fn look_around(&mut self) {
        let now = clock::monotonic();
        self.look_at_leases(now);
        if self.health_round.begin(now, health::REFRESH) {
            let (pool, back) = (self.pool.clone(), self.back.clone());
            task::spawn("health", async move {
                let asked = clock::monotonic();
                let view = limited("health", health_read(&pool)).await;
                let took = clock::monotonic().saturating_sub(asked);
                let _ = back.send(Back::Health { view, took }).await;
            });
        }
        if self.endpoints_round.begin(now, ENDPOINTS_EVERY) {
            let (pool, back) = (self.pool.clone(), self.back.clone());
            let since = self.endpoints_seen - ENDPOINTS_OVERLAP;
            task::spawn("endpoints", async move {
                let changed = limited("endpoints", endpoints_changed(&pool, since)).await;
                let _ = back.send(Back::Endpoints(changed)).await;
            });
        }
        if !self.parts.is_empty() && self.commands_round.begin(now, COMMANDS_EVERY) {
            self.commands.retain(|_, (_, again)| *again > now);
            let own: Vec<Partition> = self.parts.keys().copied().collect();
            let known: Vec<_> = self.commands.keys().copied().collect();
            let (pool, back) = (self.pool.clone(), self.back.clone());
            task::spawn("commands", async move {
                let open = commands_open(&pool, &own, &known, COMMANDS);
                let commands = limited("commands", open).await;
                let _ = back.send(Back::Commands(commands.unwrap_or_default())).await;
            });
        }
        if self.position_round.begin(now, POSITIONS_EVERY) {
            self.position_round.under_way = false;
            self.tell_positions();
        }
        if self.gauges_round.begin(now, GAUGES_EVERY) {
            self.gauges_round.under_way = false;
            self.metrics.gauges(&self.core.gauges(), self.core.endpoint_gauges());
            self.metrics.violations(self.core.violations());
        }
        if !self.parts.is_empty() && self.waiting_round.begin(now, WAITING_EVERY) {
            let own: Vec<Partition> = self.parts.keys().copied().collect();
            let (pool, back) = (self.pool.clone(), self.back.clone());
            task::spawn("waiting", async move {
                let waiting = limited("waiting", waiting_read(&pool, &own)).await;
                let _ = back.send(Back::Waiting(waiting)).await;
            });
        }
        if self.kept_round.begin(now, KEPT_EVERY) {
            let (pool, back) = (self.pool.clone(), self.back.clone());
            let tells = self.parts.contains_key(&TELLER);
            task::spawn("kept", async move {
                let kept = match tells {
                    true => limited("dead letters", dead_letters_read(&pool)).await,
                    false => Some(Vec::new()),
                };
                let _ = back.send(Back::Kept(kept)).await;
            });
        }
        if self.lag_round.begin(now, LAG_EVERY) {
            let (log, back) = (self.owning.log.clone(), self.back.clone());
            let partitions = self.buckets.iter().max().map_or(0, |last| last + 1);
            task::spawn("lag", async move {
                let looked = log.admin.all_offsets(&log.topic, partitions).await;
                let ends = looked.map(|all| all.into_iter().map(|(_, end)| end).collect());
                if let Err(error) = &ends {
                    tracing::debug!(error = %Chain(error), "ends of the topic not read");
                }
                let _ = back.send(Back::Ends(ends.ok())).await;
            });
        }
    }

    pub(crate) fn kept(&mut self, kept: Option<Vec<KeptDead>>) {
        self.kept_round.under_way = false;
        if let Some(kept) = kept {
            self.metrics.kept(&kept);
        }
    }

    /// Between the position and the end of each partition lie its records that are not complete.
    pub(crate) fn ends(&mut self, ends: Option<Vec<i64>>) {
        self.lag_round.under_way = false;
        if self.joined && !self.leaving {
            match ends {
                Some(_) => self.ready.ready(),
                None => self.ready.not_ready("Kafka does not answer"),
            }
        }
        let ends = ends.unwrap_or_default();
        let lag = self.parts.keys().filter_map(|&partition| {
            let end = ends.get(partition as usize)?;
            Some((partition, (end - self.core.position(partition)?).max(0)))
        });
        self.metrics.lag(&self.owning.log.topic, lag);
    }

    /// Forgets what ran out, and cuts what drains for too long.
    fn look_at_leases(&mut self, now: Duration) {
        let mut over = Vec::new();
        for (&partition, part) in &self.parts {
            if !part.lease.holds() {
                over.push(partition);
            } else if let Drain::Until(limit) = part.drain
                && now >= limit
                && !part.lease.cut.is_cancelled()
            {
                tracing::warn!(partition, "requests are cut to give the partition back");
                part.lease.cut.cancel();
            }
        }
        for partition in over {
            self.forget(partition);
        }
    }

    fn tell_positions(&mut self) {
        let mut moved = Vec::new();
        for (&partition, part) in &mut self.parts {
            if let Some(position) = self.core.position(partition)
                && position != part.told
            {
                part.told = position;
                moved.push((partition, position));
            }
        }
        for (partition, position) in moved {
            self.commit(partition, position);
        }
    }

    pub(crate) fn health_view(&mut self, view: Option<HealthView>, took: Duration) {
        self.health_round.under_way = false;
        if let Some(HealthView { read_at, degraded, server }) = view {
            self.database.ready_for(READY_FOR);
            // An answer that was long on its way tells an old time.
            if took < QUICK {
                self.clock.correct(read_at);
            }
            if *self.server.get_or_insert(server) != server {
                self.server = Some(server);
                self.other_server();
            }
            self.input(Input::Health { read_at, degraded });
        }
    }

    /// The database is not the one that it was: a failover may have lost commits that were acknowledged. Everything
    /// is dropped and taken again under epochs that were never used (design section 1, "Assumed").
    fn other_server(&mut self) {
        tracing::error!(
            "the control database is another server or timeline, all partitions are taken again"
        );
        for partition in self.parts.keys().copied().collect::<Vec<_>>() {
            self.forget(partition);
        }
    }

    pub(crate) fn waiting(&mut self, waiting: Option<Vec<Waiting>>) {
        self.waiting_round.under_way = false;
        if let Some(waiting) = waiting {
            self.metrics.waiting(&waiting);
        }
    }

    pub(crate) fn endpoints_changed(&mut self, changed: Option<(Timestamp, Vec<EndpointRow>)>) {
        self.endpoints_round.under_way = false;
        if let Some((now, mut rows)) = changed {
            self.endpoints_seen = now;
            rows.retain(|row| self.endpoints.is_told(row.id));
            self.tell_endpoints(rows);
        }
    }

    /// Takes rows in and tells the core what is new in them.
    pub(crate) fn tell_endpoints(&mut self, rows: Vec<EndpointRow>) {
        for endpoint in self.endpoints.take(rows) {
            self.input(Input::Endpoint(endpoint));
        }
    }

    pub(crate) fn take_commands(&mut self, commands: Vec<OpenCommand>) {
        self.commands_round.under_way = false;
        let now = clock::monotonic();
        for OpenCommand { command, partition, lane, verdict, head } in commands {
            let Some(part) = self.parts.get(&partition) else { continue };
            if part.drain != Drain::No || self.commands.contains_key(&command) {
                continue;
            }
            let epoch = part.lease.epoch;
            self.commands.insert(command, (partition, now + COMMAND_AGAIN));
            self.input(Input::Command { partition, epoch, command, lane, head, verdict });
        }
    }
}

/// The answer, unless it fails or hangs.
async fn limited<T>(
    what: &'static str,
    look: impl Future<Output = Result<T, laneway_store::Error>>,
) -> Option<T> {
    match tokio::time::timeout(LOOK, look).await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(error)) => {
            tracing::warn!(what, error = %Chain(&error), "database not read");
            None
        }
        Err(_) => {
            tracing::warn!(what, limit = ?LOOK, "database does not answer");
            None
        }
    }
}
