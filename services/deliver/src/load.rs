//! Loads of parked lanes: each effect becomes a query and the query an input. Answered exactly once, or never if the
//! partition is lost meanwhile.

use crate::lease::Lease;
use laneway_lane::{Effect, Input, Partition};
use laneway_platform::service::Chain;
use laneway_store::delivery::{
    EndpointRow, endpoints_load, parked_due_load, parked_expired_load, parked_lanes_read,
    parked_page_load,
};
use laneway_store::{Error, Pool};
use laneway_wire::{EndpointId, LaneId, Timestamp};
use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// Between two tries of a load.
const PAUSE: Duration = Duration::from_millis(200);
/// A try that takes longer hangs.
const TRY: Duration = Duration::from_secs(30);

/// What loads share.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) pool: Pool,
    /// Loads at a time.
    pub(crate) permits: Arc<Semaphore>,
}

/// A page of a partition's parked lanes, with the endpoints that it is the first to name.
#[derive(Debug)]
pub(crate) struct LanesPage {
    pub(crate) lanes: Vec<(LaneId, EndpointId, Timestamp)>,
    pub(crate) named: Vec<EndpointId>,
    pub(crate) rows: Vec<EndpointRow>,
}

impl Loader {
    /// Runs the load that `effect` asks for; none if the lease ended first, or the effect is no load.
    pub(crate) async fn load(&self, effect: Effect, lease: &Lease) -> Option<Input> {
        let _permit = self.permits.acquire().await.ok()?;
        let pool = &self.pool;
        match effect {
            Effect::LoadDue { partition, epoch, endpoint, after, until, limit } => {
                let load = || parked_due_load(pool, partition, endpoint, after, until, limit);
                let found = retried(lease, load).await?;
                let (heads, more, next_due) = (found.heads, found.more, found.next_due);
                Some(Input::Due { partition, epoch, endpoint, heads, more, next_due })
            }
            Effect::LoadPage { partition, epoch, lane, after, limit } => {
                let page = retried(lease, || parked_page_load(pool, lane, after, limit)).await?;
                let (events, more) = (page.events, page.more);
                Some(Input::Page { partition, epoch, lane, events, more })
            }
            Effect::LoadExpired { partition, epoch, held_before, limit } => {
                let load = || parked_expired_load(pool, partition, held_before, limit);
                let (heads, more) = retried(lease, load).await?;
                Some(Input::Expired { partition, epoch, heads, more })
            }
            _ => None,
        }
    }

    /// Reads all parked lanes of a partition into `pages`. `Err`: they are not all there, the partition has to be
    /// given up.
    pub(crate) async fn lanes(
        &self,
        partition: Partition,
        pages: mpsc::Sender<LanesPage>,
    ) -> Result<(), Error> {
        let (sender, mut raw) = mpsc::channel(1);
        let reading = parked_lanes_read(&self.pool, partition, sender);
        let naming = async {
            let mut seen = HashSet::new();
            while let Some(lanes) = raw.recv().await {
                let named: Vec<EndpointId> = lanes
                    .iter()
                    .map(|(_, endpoint, _): &(LaneId, EndpointId, Timestamp)| *endpoint)
                    .filter(|endpoint| seen.insert(*endpoint))
                    .collect();
                let rows = endpoints_load(&self.pool, &named).await?;
                if pages.send(LanesPage { lanes, named, rows }).await.is_err() {
                    return Ok(());
                }
            }
            Ok(())
        };
        let (read, named) = tokio::join!(reading, naming);
        read?;
        named
    }
}

/// Tries until it succeeds, as long as the lease runs.
async fn retried<T, F, Fut>(lease: &Lease, mut load: F) -> Option<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Error>>,
{
    while lease.holds() {
        match tokio::time::timeout(TRY, load()).await {
            Ok(Ok(found)) => return Some(found),
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "load is repeated");
                tokio::time::sleep(PAUSE).await;
            }
            Err(_) => tracing::warn!(limit = ?TRY, "load hangs and is repeated"),
        }
    }
    None
}
