//! Rows of the fault matrix that take too long for every `make test`, named by their ids: `make faults` runs them, in a
//! network and mount namespace of its own where root allows that.

mod kafka;
mod load;
mod postgres;

use crate::support::{Scene, drained, leases, load};
use anyhow::{Context, Result};
use laneway_client::NewEvent;
use laneway_system::chaos::Proxies;
use laneway_system::{EndpointOptions, Options};
use laneway_testkit::{Stack, temp_dir};
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::task::JoinHandle;

pub(super) const LIMIT: Duration = Duration::from_secs(120);
const PARTITIONS: u16 = 4;

/// A scene under load, an event every 20 ms, until [`Row::end`].
pub(super) struct Row {
    pub(super) scene: Scene,
    loading: JoinHandle<u32>,
    leases: JoinHandle<()>,
}

impl Row {
    /// With two endpoints and two deliver processes, and events for so many seconds.
    pub(super) async fn begin(stack: &Stack, options: Options, seconds: u32) -> Result<Self> {
        let mut scene = Scene::on(stack, options, vec![EndpointOptions::default(); 2]).await?;
        scene.services(2).await?;
        Ok(Self::of(scene, seconds))
    }

    pub(super) fn of(scene: Scene, seconds: u32) -> Self {
        let leases = leases(&scene, PARTITIONS);
        let loading = load(&scene, seconds * 50, Duration::from_millis(20));
        Self { scene, loading, leases }
    }

    /// Waits until deliveries have come on.
    pub(super) async fn flows(&self) -> Result<()> {
        let before = settled(&self.scene).await;
        self.scene.world.wait_settled(before + 100, LIMIT).await;
        Ok(())
    }

    /// Heals and drains; judged. Gives how many commits were refused.
    pub(super) async fn end(self) -> Result<u32> {
        let refused = self.loading.await?;
        drained(&self.scene).await?;
        self.leases.abort();
        self.scene.judged().await;
        Ok(refused)
    }
}

/// As soon as the database says so.
async fn settled(scene: &Scene) -> i64 {
    laneway_testkit::wait_for_some("the number of outcomes", LIMIT, || async {
        scene.world.settled().await.ok()
    })
    .await
}

/// An event through the API. What the API says without a database is no answer.
pub(super) async fn post(scene: &Scene, key: &str) -> Result<(), laneway_client::Error> {
    let client = scene.world.client().expect("a client");
    let payload = RawValue::from_string("{}".to_owned()).expect("JSON");
    let event =
        NewEvent { r#type: "load.posted", key: Some("u"), payload: &payload, dedupe_key: None };
    client.event_create(key, &event).await.map(drop)
}

pub(super) async fn proxies() -> Result<Proxies> {
    let log = temp_dir("rows").join("toxiproxy.log");
    Proxies::start(&log).await?.context("toxiproxy is not built: deploy/dev/stack setup-faults")
}
