//! Endpoints as this process knows them: a bounded cache of settings, refreshed once a second.
//!
//! An id without a row counts as deleted: deliveries that were routed to it before are discarded, audited in the
//! inbox.

use laneway_courier::Target;
use laneway_lane::{Endpoint, EndpointState, OnUnknown};
use laneway_store::delivery::EndpointRow;
use laneway_store::endpoints::endpoint_secret_open;
use laneway_store::secrets::SecretsKey;
use laneway_wire::{EndpointId, TenantId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What a request needs.
#[derive(Debug)]
pub(crate) struct Sendable {
    pub(crate) target: Target,
    pub(crate) on_unknown: OnUnknown,
}

#[derive(Debug)]
struct Known {
    tenant: Option<TenantId>,
    revision: i64,
    sendable: Option<Arc<Sendable>>,
    /// Turn of the last use.
    used: u64,
}

pub(crate) struct Endpoints {
    known: HashMap<EndpointId, Known>,
    /// What the core was ever told of: it has to hear of changes even of what is forgotten here.
    told: HashSet<EndpointId>,
    key: Arc<SecretsKey>,
    max: usize,
    turn: u64,
}

impl Endpoints {
    pub(crate) fn new(key: Arc<SecretsKey>, max: usize) -> Self {
        Self { known: HashMap::new(), told: HashSet::new(), key, max, turn: 0 }
    }

    pub(crate) fn has(&self, id: EndpointId) -> bool {
        self.known.contains_key(&id)
    }

    /// Whether the core knows of it.
    pub(crate) fn is_told(&self, id: EndpointId) -> bool {
        self.told.contains(&id)
    }

    /// Whether a record that names this tenant may speak of this endpoint.
    pub(crate) fn is_of(&self, id: EndpointId, tenant: TenantId) -> bool {
        self.known.get(&id).is_none_or(|known| known.tenant.is_none_or(|own| own == tenant))
    }

    /// What a request to it needs; none if it is not known here or its secret cannot be read.
    pub(crate) fn sendable(&mut self, id: EndpointId) -> Option<Arc<Sendable>> {
        self.turn += 1;
        let known = self.known.get_mut(&id)?;
        known.used = self.turn;
        known.sendable.clone()
    }

    /// Takes rows in and gives what the core has to be told: those that are new or changed.
    pub(crate) fn take(&mut self, rows: Vec<EndpointRow>) -> Vec<Endpoint> {
        let mut news = Vec::new();
        for row in rows {
            if self.known.get(&row.id).is_some_and(|known| known.revision >= row.revision) {
                continue;
            }
            self.turn += 1;
            self.told.insert(row.id);
            news.push(Endpoint {
                id: row.id,
                tenant: row.tenant,
                state: row.state,
                on_unknown: row.on_unknown,
                timeout: row.timeout,
                max_in_flight: row.max_connections,
            });
            let known = Known {
                tenant: Some(row.tenant),
                revision: row.revision,
                sendable: self.open(&row),
                used: self.turn,
            };
            self.known.insert(row.id, known);
        }
        self.shrink();
        news
    }

    /// Takes in that there is no row of `id`, for a record of `tenant`.
    pub(crate) fn missing(&mut self, id: EndpointId, tenant: TenantId) -> Endpoint {
        self.turn += 1;
        let known = Known { tenant: None, revision: 0, sendable: None, used: self.turn };
        self.known.insert(id, known);
        self.told.insert(id);
        self.shrink();
        Endpoint {
            id,
            tenant,
            state: EndpointState::Deleted,
            on_unknown: OnUnknown::Resend,
            timeout: Duration::from_secs(1),
            max_in_flight: 1,
        }
    }

    fn open(&self, row: &EndpointRow) -> Option<Arc<Sendable>> {
        let secret = match endpoint_secret_open(&self.key, row.tenant, row.id, &row.sealed_secret) {
            Ok(secret) => secret,
            Err(error) => {
                tracing::error!(endpoint = %row.id, %error, "the endpoint's secret cannot be read");
                return None;
            }
        };
        Some(Arc::new(Sendable {
            target: Target {
                tenant: row.tenant,
                endpoint: row.id,
                version: row.revision,
                url: row.url.clone(),
                secrets: vec![secret],
                max_connections: row.max_connections,
                headers: Vec::new(),
            },
            on_unknown: row.on_unknown,
        }))
    }

    /// Forgets the eighth least recently used when there are too many: the next use looks them up again.
    fn shrink(&mut self) {
        if self.known.len() <= self.max {
            return;
        }
        let mut turns: Vec<u64> = self.known.values().map(|known| known.used).collect();
        turns.sort_unstable();
        let oldest = turns[turns.len() / 8];
        self.known.retain(|_, known| known.used > oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn row(n: u128, revision: i64) -> EndpointRow {
        EndpointRow {
            id: EndpointId::from_uuid(Uuid::from_u128(n)),
            tenant: TenantId::from_uuid(Uuid::from_u128(1)),
            url: "https://example.org/".into(),
            on_unknown: OnUnknown::Resend,
            timeout: Duration::from_secs(2),
            max_connections: 4,
            state: EndpointState::Enabled,
            sealed_secret: vec![],
            revision,
        }
    }

    #[test]
    fn only_news_is_told_and_the_cache_is_bounded() {
        let key = Arc::new(SecretsKey::new("k1", [1; 32]));
        let mut endpoints = Endpoints::new(key, 100);
        assert_eq!(endpoints.take(vec![row(1, 1), row(2, 1)]).len(), 2);
        assert_eq!(endpoints.take(vec![row(1, 1), row(2, 2)]).len(), 1);
        for n in 3..1_000 {
            endpoints.take(vec![row(n, 1)]);
            assert!(endpoints.known.len() <= 100);
        }
        assert!(endpoints.has(row(999, 1).id) && !endpoints.has(row(1, 1).id));
    }

    #[test]
    fn a_record_of_another_tenant_does_not_speak_for_an_endpoint() {
        let mut endpoints = Endpoints::new(Arc::new(SecretsKey::new("k1", [1; 32])), 100);
        endpoints.take(vec![row(1, 1)]);
        let other = TenantId::from_uuid(Uuid::from_u128(9));
        assert!(!endpoints.is_of(row(1, 1).id, other));
        assert!(endpoints.is_of(row(1, 1).id, row(1, 1).tenant));
    }
}
