//! The endpoints' health over all instances: the view, probes, and who is made degraded (A5, A7, P7).

use laneway_lane::{Input, Partition};
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::delivery::{
    endpoint_disable, health_degrade, health_probe_claim, health_probe_ended,
};
use laneway_wire::{EndpointId, Timestamp};
use std::time::Duration;

/// Between two looks at the view.
pub(crate) const REFRESH: Duration = Duration::from_millis(500);
/// Tries of a change before it is given up: a claim lapses by itself, and a failing endpoint fails again.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// What came of a claim.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) endpoint: EndpointId,
    /// The partition, and the input without its epoch: the shell knows that.
    pub(crate) head: Option<(Partition, laneway_lane::ParkedEvent)>,
    pub(crate) version: Option<u64>,
    pub(crate) probe_until: Timestamp,
}

/// Claims the probe of `endpoint` for a head of `partitions`; always gives an answer.
pub(crate) async fn claim(
    pool: &Pool,
    endpoint: EndpointId,
    partitions: &[Partition],
    timeout: Duration,
    now: Timestamp,
) -> Claimed {
    match health_probe_claim(pool, endpoint, partitions, timeout).await {
        Ok(claim) => {
            let version = claim.head.as_ref().map(|(_, _, version)| *version);
            let head = claim.head.map(|(partition, event, _)| (partition, event));
            Claimed { endpoint, head, version, probe_until: claim.probe_until }
        }
        Err(error) => {
            // A claim that was made all the same lapses by its own time.
            tracing::warn!(%endpoint, error = %Chain(&error), "probe not claimed");
            let probe_until = now + Duration::from_secs(1);
            Claimed { endpoint, head: None, version: None, probe_until }
        }
    }
}

impl Claimed {
    /// The core's input, with the epoch under which the head's partition is held.
    pub(crate) fn input(self, epoch: impl FnOnce(Partition) -> Option<u64>) -> Input {
        let head = self
            .head
            .and_then(|(partition, event)| epoch(partition).map(|epoch| (partition, epoch, event)));
        Input::Probe { endpoint: self.endpoint, head, probe_until: self.probe_until }
    }
}

/// A change to an endpoint's health that nobody waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    Degrade,
    ProbeEnded { version: u64, alive: bool },
    Disable,
}

/// Makes it; gives up after some tries.
pub(crate) async fn change(pool: &Pool, endpoint: EndpointId, change: Change, actor: &str) {
    for _ in 0..TRIES {
        let tried = match change {
            Change::Degrade => health_degrade(pool, endpoint).await,
            Change::ProbeEnded { version, alive } => {
                health_probe_ended(pool, endpoint, version, alive).await
            }
            Change::Disable => endpoint_disable(pool, endpoint, "gone", actor).await,
        };
        match tried {
            Ok(changed) => {
                if changed {
                    tell(endpoint, change);
                }
                return;
            }
            Err(error) => {
                tracing::warn!(%endpoint, ?change, error = %Chain(&error), "health not changed yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn tell(endpoint: EndpointId, change: Change) {
    match change {
        Change::Degrade => tracing::info!(%endpoint, "endpoint degraded"),
        Change::ProbeEnded { alive: true, .. } => {
            tracing::info!(%endpoint, "endpoint healthy again")
        }
        Change::ProbeEnded { alive: false, .. } => {}
        Change::Disable => tracing::warn!(%endpoint, "endpoint disabled: it answered 410"),
    }
}
