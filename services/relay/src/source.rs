//! One source database: which of its shards this process reads, and when each has something to read.

use crate::config::Relay;
use crate::metrics::{ByReason, ByRelay, BySource, Metrics};
use crate::route::Router;
use crate::shard::{Idle, LeaseEnd, ShardTask};
use crate::topic::Topics;
use futures_util::stream::{FuturesUnordered, StreamExt};
use laneway_platform::admin::Probe;
use laneway_platform::clock::{self, DbClock};
use laneway_platform::config::Tenants;
use laneway_platform::metrics::Counter;
use laneway_platform::patience::Backoff;
use laneway_platform::service::Chain;
use laneway_platform::task;
use laneway_store::relay::{self, Lease, SHARDS, Shard, Snapshot};
use laneway_store::{Error, Pool};
use laneway_wire::TenantId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Of the shutdown's grace this much is left for giving the leases back.
const RELEASE_RESERVE: Duration = Duration::from_secs(3);
/// How long giving one lease back may take beside tending the others.
const RELEASE_LIMIT: Duration = Duration::from_millis(500);
/// Rows that the gauge of what waits counts in a shard.
const PENDING_LIMIT: u32 = 100_000;
/// Between two counts of what waits and what is held.
const GAUGE_INTERVAL: Duration = Duration::from_secs(5);

/// What all shards of a source share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) pool: Pool,
    pub(crate) control: Pool,
    pub(crate) topics: Topics,
    pub(crate) router: Arc<Router>,
    pub(crate) tenants: Tenants,
    pub(crate) settings: Relay,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: DbClock,
    pub(crate) rows: Counter,
    pub(crate) deliveries: Counter,
    pub(crate) went_back: Counter,
    pub(crate) restored: Counter,
    /// The grace is over: leave what is under way.
    pub(crate) cut: CancellationToken,
    /// Ready as long as the source's leases are tended.
    pub(crate) probe: Probe,
}

impl Shared {
    /// The tenants that the source may speak for; none: all.
    pub(crate) fn tenants_listed(&self) -> Option<&[TenantId]> {
        match &self.tenants {
            Tenants::All => None,
            Tenants::These(tenants) => Some(tenants),
        }
    }

    fn label(&self) -> BySource {
        BySource { source: self.name.clone() }
    }
}

/// A shard that this process reads.
struct Owned {
    lease: Lease,
    end: Arc<LeaseEnd>,
    stop: CancellationToken,
}

/// Reads a source until `shutdown`.
pub(crate) struct Source {
    shared: Arc<Shared>,
    instance: Arc<str>,
    shutdown: CancellationToken,
    grace: Duration,
    idle: mpsc::Sender<Idle>,
    wakers: mpsc::Sender<(Lease, mpsc::Sender<Snapshot>)>,
    owned: BTreeMap<Shard, Owned>,
    running: FuturesUnordered<JoinHandle<Lease>>,
}

impl Source {
    /// Runs a source: its leases here, its poller and its gauges beside.
    pub(crate) async fn run(
        shared: Arc<Shared>,
        instance: Arc<str>,
        shutdown: CancellationToken,
        grace: Duration,
    ) -> Result<(), Error> {
        let (idle, idles) = mpsc::channel(usize::from(SHARDS) * 2);
        let (wakers, new_wakers) = mpsc::channel(usize::from(SHARDS) * 2);
        let ended = shutdown.child_token();
        let poller = task::spawn("poller", poll(shared.clone(), idles, new_wakers, ended.clone()));
        let gauges = task::spawn("gauges", measure(shared.clone(), ended.clone()));
        let source = Self {
            shared,
            instance,
            shutdown,
            grace,
            idle,
            wakers,
            owned: BTreeMap::new(),
            running: FuturesUnordered::new(),
        };
        source.lead().await;
        ended.cancel();
        // They return when cancelled; a panic in them has ended the process already.
        let _ = tokio::join!(poller, gauges);
        Ok(())
    }

    async fn lead(mut self) {
        let lease = self.shared.settings.lease;
        let mut backoff = Backoff::begin();
        loop {
            let pause = match self.tend(lease).await {
                Ok(()) => {
                    self.shared.probe.ready_for(lease);
                    lease / 5
                }
                Err(error) => {
                    self.shared.metrics.error("leases");
                    tracing::warn!(source = %self.shared.name, error = %Chain(&error), "leases cannot be tended");
                    backoff.pause().min(lease / 5)
                }
            };
            self.shared
                .metrics
                .shards
                .get_or_create(&self.shared.label())
                .set(i64::try_from(self.owned.len()).unwrap_or(i64::MAX));
            let wait = tokio::time::sleep(pause);
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    () = self.shutdown.cancelled() => return self.finish().await,
                    Some(ended) = self.running.next(), if !self.running.is_empty() => self.ended(ended).await,
                    () = &mut wait => break,
                }
            }
        }
    }

    /// Renews, takes what is free up to this process's share, gives up what is beyond it.
    async fn tend(&mut self, lease: Duration) -> Result<(), Error> {
        let pool = &self.shared.pool;
        let members = relay::member_beat(pool, &self.instance, lease).await?;
        self.shared.clock.correct(pool.now().await?);
        // Before the statement is sent: another process counts from when it took effect.
        let until = clock::boottime() + lease;
        let leases: Vec<Lease> = self.owned.values().map(|owned| owned.lease).collect();
        let kept = relay::leases_renew(pool, &leases, lease).await?;
        for (shard, owned) in &self.owned {
            if kept.contains(shard) {
                owned.end.set(until);
            } else {
                self.shared.metrics.fenced.inc();
                owned.stop.cancel();
            }
        }
        let share = u64::from(SHARDS).div_ceil(members.max(1));
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        let working = self.owned.values().filter(|owned| !owned.stop.is_cancelled()).count();
        for owned in self.owned.values().rev().take(working.saturating_sub(share)) {
            owned.stop.cancel();
        }
        let wanted = u32::try_from(share.saturating_sub(self.owned.len())).unwrap_or(0);
        if wanted > 0 {
            let until = clock::boottime() + lease;
            for lease in relay::leases_acquire(pool, &self.instance, &leases, wanted, lease).await?
            {
                self.start(lease, until).await;
            }
        }
        Ok(())
    }

    async fn start(&mut self, lease: Lease, until: Duration) {
        let (waker, wake) = mpsc::channel(1);
        let end = Arc::new(LeaseEnd::default());
        end.set(until);
        let stop = self.shutdown.child_token();
        let shard = ShardTask {
            shared: self.shared.clone(),
            lease,
            lease_end: end.clone(),
            idle: self.idle.clone(),
            wake,
            stop: stop.clone(),
        };
        if self.wakers.send((lease, waker)).await.is_err() {
            return;
        }
        tracing::debug!(source = %self.shared.name, shard = lease.shard.0, "reading a shard");
        self.running.push(task::spawn("shard", shard.run()));
        self.owned.insert(lease.shard, Owned { lease, end, stop });
    }

    async fn ended(&mut self, ended: Result<Lease, tokio::task::JoinError>) {
        let Ok(lease) = ended else { return };
        if self.owned.get(&lease.shard).is_some_and(|owned| owned.lease == lease) {
            self.owned.remove(&lease.shard);
        }
        let leases = [lease];
        let release = relay::leases_release(&self.shared.pool, &leases);
        match tokio::time::timeout(RELEASE_LIMIT, release).await {
            Ok(Ok(())) => {}
            // It ends by itself, and this process takes it again before.
            Ok(Err(error)) => {
                tracing::warn!(source = %self.shared.name, error = %Chain(&error), "a lease was not given back");
            }
            Err(_) => {
                tracing::warn!(source = %self.shared.name, "a lease was not given back in time")
            }
        }
    }

    /// Lets the shards finish what they have under way, within the grace, and gives all leases back.
    async fn finish(mut self) {
        let shared = self.shared.clone();
        let cut = async {
            tokio::time::sleep(self.grace.saturating_sub(RELEASE_RESERVE)).await;
            shared.cut.cancel();
        };
        let all = async { while self.running.next().await.is_some() {} };
        tokio::pin!(all);
        tokio::select! {
            () = &mut all => {}
            () = cut => all.await,
        }
        let leases: Vec<Lease> = self.owned.values().map(|owned| owned.lease).collect();
        let pool = &self.shared.pool;
        let released = async {
            relay::leases_release(pool, &leases).await?;
            relay::member_leave(pool, &self.instance).await
        };
        if let Err(error) = released.await {
            tracing::warn!(source = %self.shared.name, error = %Chain(&error), "leases were not given back");
        }
    }
}

/// Looks at the outbox for all idle shards at once: often while rows keep coming, seldom when nothing comes.
async fn poll(
    shared: Arc<Shared>,
    mut idles: mpsc::Receiver<Idle>,
    mut new_wakers: mpsc::Receiver<(Lease, mpsc::Sender<Snapshot>)>,
    ended: CancellationToken,
) {
    let (busy, slow) = (shared.settings.poll_busy, shared.settings.poll_idle);
    let mut wakers: HashMap<Shard, (Lease, mpsc::Sender<Snapshot>)> = HashMap::new();
    let mut idle: HashMap<Shard, Idle> = HashMap::new();
    let mut interval = busy;
    let mut backoff = Backoff::begin();
    // The last snapshot, if nothing was fresh in it for the shards that are idle now.
    let mut known: Option<Snapshot> = None;
    loop {
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            Some((lease, waker)) = new_wakers.recv() => {
                wakers.insert(lease.shard, (lease, waker));
                continue;
            }
            Some(one) = idles.recv() => {
                idle.insert(one.lease.shard, one);
                known = None;
                interval = busy;
                continue;
            }
            () = tokio::time::sleep(interval), if !idle.is_empty() => {}
        }
        let shards: Vec<Shard> = idle.keys().copied().collect();
        let poll = match relay::poll(&shared.pool, &shards, known.as_ref()).await {
            Ok(poll) => poll,
            Err(error) => {
                shared.metrics.error("poll");
                tracing::warn!(source = %shared.name, error = %Chain(&error), "the outbox cannot be polled");
                interval = backoff.pause();
                continue;
            }
        };
        let now = clock::boottime();
        let due = |one: &Idle| one.refresh.is_some_and(|refresh| refresh <= now);
        let fresh: Vec<Shard> = idle
            .values()
            .filter(|one| poll.fresh.contains(&one.lease.shard) || due(one))
            .map(|one| one.lease.shard)
            .collect();
        known = poll.fresh.is_empty().then(|| poll.snapshot.clone());
        interval = if poll.fresh.is_empty() { (interval * 2).min(slow) } else { busy };
        for shard in fresh {
            let one = idle.remove(&shard);
            if let Some((lease, waker)) = wakers.get(&shard)
                && one.is_some_and(|one| one.lease == *lease)
            {
                // One snapshot for each time that the shard said it was idle: there is room for it.
                let _ = waker.try_send(poll.snapshot.clone());
            }
        }
    }
}

/// Keeps the gauges of what waits and what is held.
async fn measure(shared: Arc<Shared>, ended: CancellationToken) {
    let shards: Vec<Shard> = (0..SHARDS).map(Shard).collect();
    let relay = ByRelay { relay: shared.name.clone() };
    let mut reasons: Vec<String> = Vec::new();
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(GAUGE_INTERVAL) => {}
        }
        match relay::pending(&shared.pool, &shards, PENDING_LIMIT).await {
            Ok(pending) => {
                let age =
                    pending.oldest.map_or(0.0, |at| shared.clock.now().since(at).as_secs_f64());
                let rows = i64::try_from(pending.rows).unwrap_or(i64::MAX);
                shared.metrics.pending.get_or_create(&relay).set(rows);
                shared.metrics.oldest_pending.get_or_create(&relay).set(age);
            }
            Err(error) => tracing::debug!(error = %Chain(&error), "what waits cannot be counted"),
        }
        let Ok(counts) = relay::held_counts(&shared.pool).await else { continue };
        for reason in reasons.drain(..) {
            let label = ByReason { source: shared.name.clone(), reason };
            shared.metrics.held.get_or_create(&label).set(0);
            shared.metrics.held_oldest.get_or_create(&label).set(0.0);
        }
        for count in counts {
            let label = ByReason { source: shared.name.clone(), reason: count.reason.clone() };
            let rows = i64::try_from(count.rows).unwrap_or(i64::MAX);
            shared.metrics.held.get_or_create(&label).set(rows);
            shared.metrics.held_oldest.get_or_create(&label).set(count.oldest.as_secs_f64());
            reasons.push(count.reason);
        }
    }
}
