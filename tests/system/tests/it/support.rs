//! What several of these tests do: a world with receivers, load, and the verdict.

use anyhow::Result;
use laneway_system::chaos::Leases;
use laneway_system::{EndpointOptions, Options, Verdict, World};
use laneway_testkit::{Entry, Kind, Receiver, Stack};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// User keys of [`load`].
const KEYS: u32 = 100;
/// Everything has its outcome within this after the last fault.
pub(crate) const DRAIN: Duration = Duration::from_secs(240);

/// A world with one endpoint per name of `names`, each at a receiver of its own.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) receivers: Vec<Receiver>,
}

impl Scene {
    /// On the shared servers.
    pub(crate) async fn shared(options: Options, endpoints: Vec<EndpointOptions>) -> Result<Self> {
        Self::on(Stack::shared().await, options, endpoints).await
    }

    /// On servers that the test may break.
    pub(crate) async fn on(
        stack: &Stack,
        options: Options,
        endpoints: Vec<EndpointOptions>,
    ) -> Result<Self> {
        let mut world = World::start(stack, options).await?;
        let mut receivers = Vec::new();
        for (number, endpoint) in endpoints.into_iter().enumerate() {
            let receiver = Receiver::start().await;
            world.endpoint(&receiver.url(&format!("/e{number}")), endpoint).await?;
            receivers.push(receiver);
        }
        Ok(Self { world, receivers })
    }

    /// Starts a relay and `count` deliver processes called `deliver-1`, `deliver-2`, …
    pub(crate) async fn services(&mut self, count: usize) -> Result<()> {
        self.world.spawn("relay", "relay-1", &[])?;
        for number in 1..=count {
            self.world.spawn("deliver", &format!("deliver-{number}"), &[])?;
        }
        self.world.ready("relay-1").await?;
        for number in 1..=count {
            self.world.ready(&format!("deliver-{number}")).await?;
        }
        Ok(())
    }

    /// Emits `per_key` events for each of `keys` user keys, key by key in turn, in transactions of `batch` events.
    pub(crate) async fn emit(&self, keys: usize, per_key: usize, batch: usize) -> Result<()> {
        let events: Vec<(String, Vec<u8>)> = (0..keys * per_key)
            .map(|n| {
                let key = format!("user_{}", n % keys);
                let payload = format!(r#"{{"key":"{key}","n":{}}}"#, n / keys + 1);
                (key, payload.into_bytes())
            })
            .collect();
        for events in events.chunks(batch) {
            self.world.app.emit_many("load.created", events).await?;
        }
        Ok(())
    }

    /// Waits until every event has its outcome at every endpoint.
    pub(crate) async fn drained(&self, limit: Duration) {
        let expected = self.world.app.committed() * self.receivers.len() as u64;
        self.world.wait_settled(expected.cast_signed(), limit).await;
    }

    /// The verdict; panics with its witness if anything was lost, out of order, or repeated without explanation.
    pub(crate) async fn judged(&self) -> Verdict {
        let verdict =
            Verdict::of(&self.world, &self.receivers).await.expect("the judge can read everything");
        verdict.assert_clean();
        verdict
    }
}

/// Commits `count` events, one every `every`, and gives how many commits were refused.
pub(crate) fn load(scene: &Scene, count: u32, every: Duration) -> JoinHandle<u32> {
    let app = Arc::clone(&scene.world.app);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(every);
        let mut refused = 0;
        for n in 0..count {
            tick.tick().await;
            let key = format!("user_{}", n % KEYS);
            refused += u32::from(app.emit("load.created", Some(&key), b"{}").await.is_err());
        }
        refused
    })
}

/// Writes down which leases are lost, from now on, of a scene whose events [`load`] made.
pub(crate) fn leases(scene: &Scene, partitions: u16) -> JoinHandle<()> {
    let keys = (0..KEYS).map(|n| format!("user_{n}"));
    let mut leases = Leases::new(&scene.world, partitions, keys);
    let faults = scene.world.faults.clone();
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            tick.tick().await;
            leases.look(&faults).expect("the logs can be read");
        }
    })
}

/// Waits until every row has its outcome at every endpoint, also one whose commit nobody was told of.
pub(crate) async fn drained(scene: &Scene) -> Result<()> {
    let rows = scene.world.app.number("SELECT count(*) FROM laneway.outbox").await?;
    scene.world.wait_settled(rows * scene.receivers.len() as i64, DRAIN).await;
    Ok(())
}

/// Requests by delivery id, in the order in which they were read.
pub(crate) fn by_delivery(receiver: &Receiver) -> BTreeMap<String, Vec<Arc<Entry>>> {
    let mut all = BTreeMap::<String, Vec<Arc<Entry>>>::new();
    for entry in receiver.journal().entries() {
        if entry.kind == Kind::Request {
            all.entry(entry.delivery_id.clone().unwrap_or_default()).or_default().push(entry);
        }
    }
    all
}
