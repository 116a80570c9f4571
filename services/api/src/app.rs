//! What every handler has at hand.

use crate::config::{Api, Settings};
use crate::cursor::Cursors;
use crate::metrics::Metrics;
use laneway_courier::AddressPolicy;
use laneway_store::Pool;
use laneway_store::secrets::SecretsKey;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct App {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    secrets: SecretsKey,
    cursors: Cursors,
    addresses: AddressPolicy,
    settings: Api,
    metrics: Metrics,
    in_flight: Semaphore,
}

impl App {
    pub(crate) fn new(
        pool: Pool,
        secrets: SecretsKey,
        settings: &Settings,
        metrics: Metrics,
    ) -> Self {
        let in_flight = usize::try_from(settings.api.max_in_flight).unwrap_or(usize::MAX);
        Self {
            shared: Arc::new(Shared {
                pool,
                cursors: Cursors::new(secrets.derive("cursor")),
                secrets,
                addresses: settings.courier.address.clone(),
                settings: settings.api.clone(),
                metrics,
                in_flight: Semaphore::new(in_flight),
            }),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(crate) fn secrets(&self) -> &SecretsKey {
        &self.shared.secrets
    }

    pub(crate) fn cursors(&self) -> &Cursors {
        &self.shared.cursors
    }

    pub(crate) fn addresses(&self) -> &AddressPolicy {
        &self.shared.addresses
    }

    pub(crate) fn settings(&self) -> &Api {
        &self.shared.settings
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    pub(crate) fn in_flight(&self) -> &Semaphore {
        &self.shared.in_flight
    }
}
