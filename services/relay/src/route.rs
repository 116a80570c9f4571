//! Which endpoints a row goes to, and in which lane (design sections 3 and 4, routing): a function of (row, version).

use laneway_store::relay::OutboxRow;
use laneway_store::routing::{Subscriber, subscribers};
use laneway_store::{Error, Pool};
use laneway_wire::{EndpointId, LaneId, LaneMode, TenantId};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Tenants' routes that are kept, over all versions; beyond it all are read anew.
const MAX_CACHED: usize = 20_000;

/// One event for one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Index of its row in the page.
    pub(crate) row: usize,
    pub(crate) endpoint: EndpointId,
    pub(crate) mode: LaneMode,
    pub(crate) lane: LaneId,
}

/// What a tenant at a version is subscribed to.
type Routes = HashMap<(TenantId, u64), Arc<[Subscriber]>>;

/// Routes of tenants at versions, read when they are needed.
#[derive(Debug)]
pub(crate) struct Router {
    control: Pool,
    cache: Mutex<Routes>,
}

impl Router {
    pub(crate) fn new(control: Pool) -> Self {
        Self { control, cache: Mutex::default() }
    }

    /// The deliveries of `rows` at `version`, in row order.
    pub(crate) async fn route(
        &self,
        rows: &[OutboxRow],
        version: u64,
    ) -> Result<Vec<Delivery>, Error> {
        let tenants: BTreeSet<TenantId> = rows.iter().map(|row| row.tenant).collect();
        let routes = self.routes(&tenants, version).await?;
        let mut deliveries = Vec::with_capacity(rows.len());
        for (index, row) in rows.iter().enumerate() {
            if let Some(routes) = routes.get(&row.tenant) {
                expand(index, row, routes, &mut deliveries);
            }
        }
        Ok(deliveries)
    }

    async fn routes(
        &self,
        tenants: &BTreeSet<TenantId>,
        version: u64,
    ) -> Result<HashMap<TenantId, Arc<[Subscriber]>>, Error> {
        let mut routes = HashMap::with_capacity(tenants.len());
        let mut missing = Vec::new();
        {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            for tenant in tenants {
                match cache.get(&(*tenant, version)) {
                    Some(known) => drop(routes.insert(*tenant, known.clone())),
                    None => missing.push(*tenant),
                }
            }
        }
        if missing.is_empty() {
            return Ok(routes);
        }
        let found = subscribers(&self.control, &missing, version).await?;
        let mut of_tenant: HashMap<TenantId, Vec<Subscriber>> = HashMap::new();
        for subscriber in found {
            of_tenant.entry(subscriber.tenant).or_default().push(subscriber);
        }
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() + missing.len() > MAX_CACHED {
            cache.clear();
        }
        for tenant in missing {
            let known: Arc<[Subscriber]> = of_tenant.remove(&tenant).unwrap_or_default().into();
            cache.insert((tenant, version), known.clone());
            routes.insert(tenant, known);
        }
        Ok(routes)
    }
}

/// Several matching subscriptions of one endpoint make one delivery; it is total if any of them is ordered.
/// `subscribers` are in order of endpoint. A rewind goes to its endpoint alone, subscribed or not: in the mode that the
/// endpoint's subscriptions give it now, or else in the one that it had.
fn expand(index: usize, row: &OutboxRow, subscribers: &[Subscriber], to: &mut Vec<Delivery>) {
    let mut last: Option<(EndpointId, bool, bool)> = None;
    let mut push = |found: Option<(EndpointId, bool, bool)>| {
        let Some((endpoint, ordered, unordered)) = found else { return };
        let mode = match row.user_key {
            _ if ordered => LaneMode::Total,
            Some(_) if !unordered => LaneMode::User,
            _ => LaneMode::None,
        };
        to.push(delivery(index, row, endpoint, mode));
    };
    let wanted = |s: &&Subscriber| {
        row.rewind.is_none_or(|rewind| rewind.endpoint == s.endpoint)
            && matches(&s.pattern, &row.event_type)
    };
    for subscriber in subscribers.iter().filter(wanted) {
        match &mut last {
            Some((endpoint, ordered, _)) if *endpoint == subscriber.endpoint => {
                *ordered |= subscriber.ordered;
            }
            _ => {
                push(last.replace((subscriber.endpoint, subscriber.ordered, subscriber.unordered)))
            }
        }
    }
    match (row.rewind, last) {
        (Some(rewind), None) => {
            let keyless = rewind.mode == LaneMode::User && row.user_key.is_none();
            let mode = if keyless { LaneMode::None } else { rewind.mode };
            to.push(delivery(index, row, rewind.endpoint, mode));
        }
        (_, last) => push(last),
    }
}

fn delivery(index: usize, row: &OutboxRow, endpoint: EndpointId, mode: LaneMode) -> Delivery {
    let lane = LaneId::of(endpoint, mode, row.user_key.as_deref(), row.delivery_id(endpoint));
    Delivery { row: index, endpoint, mode, lane }
}

/// A pattern is a type, `prefix.*` (everything below the prefix) or `*`.
fn matches(pattern: &str, event_type: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some("") => true,
        Some(prefix) if prefix.ends_with('.') => {
            event_type.len() > prefix.len() && event_type.starts_with(prefix)
        }
        _ => pattern == event_type,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use laneway_wire::{EventId, Timestamp};
    use uuid::Uuid;

    fn row(event_type: &str, user_key: Option<&str>) -> OutboxRow {
        OutboxRow {
            id: 1,
            event: EventId::from_uuid(Uuid::from_u128(7)),
            tenant: TenantId::from_uuid(Uuid::from_u128(1)),
            event_type: event_type.to_owned(),
            user_key: user_key.map(str::to_owned),
            payload: Bytes::new(),
            content_type: "application/json".to_owned(),
            headers: Vec::new(),
            traceparent: None,
            created_at: Timestamp(0),
            rewind: None,
            erased: false,
        }
    }

    fn subscriber(endpoint: u128, pattern: &str, ordered: bool, unordered: bool) -> Subscriber {
        Subscriber {
            tenant: TenantId::from_uuid(Uuid::from_u128(1)),
            endpoint: EndpointId::from_uuid(Uuid::from_u128(endpoint)),
            pattern: pattern.to_owned(),
            ordered,
            unordered,
        }
    }

    fn modes(row: &OutboxRow, subscribers: &[Subscriber]) -> Vec<(u128, LaneMode)> {
        let mut deliveries = Vec::new();
        expand(0, row, subscribers, &mut deliveries);
        deliveries.iter().map(|d| (d.endpoint.as_uuid().as_u128(), d.mode)).collect()
    }

    #[test]
    fn patterns_are_exact_or_a_prefix_or_everything() {
        assert!(matches("order.created", "order.created"));
        assert!(!matches("order.created", "order.created.late"));
        assert!(matches("order.*", "order.created") && matches("order.*", "order.item.added"));
        assert!(!matches("order.*", "order") && !matches("order.*", "orders.created"));
        assert!(!matches("order.*", "order."));
        assert!(matches("*", "anything"));
        assert!(!matches("ord*", "order"), "a star stands only behind a dot or alone");
    }

    #[test]
    fn several_matching_subscriptions_make_one_delivery_that_is_total_if_one_is_ordered() {
        let subscribers = [
            subscriber(1, "order.*", false, false),
            subscriber(1, "order.created", true, false),
            subscriber(1, "order.gone", false, false),
            subscriber(2, "*", false, false),
            subscriber(3, "other", true, false),
        ];
        let found = modes(&row("order.created", Some("k")), &subscribers);
        assert_eq!(found, [(1, LaneMode::Total), (2, LaneMode::User)]);
        let found = modes(&row("order.gone", Some("k")), &subscribers);
        assert_eq!(found, [(1, LaneMode::User), (2, LaneMode::User)]);
    }

    #[test]
    fn a_rewind_goes_to_its_endpoint_alone_in_the_mode_that_holds_now() {
        let rewind = |endpoint: u128, mode| {
            let id = |n| laneway_wire::DeliveryId::from_uuid(Uuid::from_u128(n));
            let endpoint = EndpointId::from_uuid(Uuid::from_u128(endpoint));
            let rewind = laneway_store::relay::Rewind {
                delivery: id(70),
                endpoint,
                mode,
                number: 1,
                of: id(71),
            };
            OutboxRow { rewind: Some(rewind), ..row("a", Some("k")) }
        };
        let subscribers = [subscriber(1, "*", false, false), subscriber(2, "a", true, false)];
        assert_eq!(modes(&rewind(1, LaneMode::User), &subscribers), [(1, LaneMode::User)]);
        assert_eq!(modes(&rewind(2, LaneMode::User), &subscribers), [(2, LaneMode::Total)]);
        assert_eq!(modes(&rewind(9, LaneMode::User), &subscribers), [(9, LaneMode::User)]);
        assert_eq!(modes(&rewind(9, LaneMode::None), &[]), [(9, LaneMode::None)]);
        let mut deliveries = Vec::new();
        expand(0, &rewind(9, LaneMode::None), &[], &mut deliveries);
        let own = laneway_wire::DeliveryId::from_uuid(Uuid::from_u128(70));
        assert_eq!(
            deliveries[0].lane,
            LaneId::of(deliveries[0].endpoint, LaneMode::None, None, own)
        );
    }

    #[test]
    fn without_a_key_or_for_an_unordered_endpoint_every_delivery_is_its_own_lane() {
        let subscribers = [subscriber(1, "*", false, false), subscriber(2, "*", false, true)];
        assert_eq!(
            modes(&row("a", None), &subscribers),
            [(1, LaneMode::None), (2, LaneMode::None)]
        );
        let keyed = modes(&row("a", Some("k")), &subscribers);
        assert_eq!(keyed, [(1, LaneMode::User), (2, LaneMode::None)]);
    }
}
