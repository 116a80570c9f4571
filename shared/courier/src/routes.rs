//! One client per (tenant, endpoint): a connection is never shared across endpoints, since a stray second answer
//! would be taken for the next request's (design 5.7). Clients share one TLS configuration; the number kept is
//! bounded.

use crate::address::CheckedUrl;
use crate::request::of_endpoint;
use crate::resolver::Resolver;
use crate::settings::{Settings, SettingsError};
use crate::target::{MAX_CONNECTIONS, Target};
use http::header::{HeaderName, HeaderValue};
use laneway_wire::signature::Signer;
use laneway_wire::{EndpointId, TenantId};
use reqwest::{Client, redirect};
use rustls::ClientConfig;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// A client is made anew after this, so that no connection outlives it and a name is looked up again (security 5.1,
/// item 2).
pub(crate) const CLIENT_MAX_AGE: Duration = Duration::from_secs(60);
/// When the bound is reached, this part of the clients goes at once (1/n), so that making room is rare.
const EVICTED_PART: usize = 16;

/// Everything about an endpoint that is the same for all requests to it.
pub(crate) struct Route {
    pub(crate) client: Client,
    pub(crate) url: CheckedUrl,
    /// None for a target without secrets, which is asked and never sent to.
    pub(crate) signer: Option<Signer>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// One permit per connection that may exist.
    pub(crate) connections: Arc<Semaphore>,
    version: i64,
    max_connections: usize,
    made: Instant,
}

pub(crate) struct Routes {
    settings: Settings,
    tls: ClientConfig,
    resolver: Resolver,
    cache: Mutex<Cache>,
}

type Key = (TenantId, EndpointId);

#[derive(Default)]
struct Cache {
    routes: HashMap<Key, Entry>,
    uses: u64,
}

struct Entry {
    route: Arc<Route>,
    last_use: u64,
}

impl Routes {
    pub(crate) fn new(
        settings: Settings,
        tls: ClientConfig,
        resolver: Resolver,
    ) -> Result<Self, SettingsError> {
        let routes = Self { settings, tls, resolver, cache: Mutex::default() };
        // What no client can be made of is found out at start and not by the first delivery.
        routes.client(1, Duration::from_secs(1)).map_err(SettingsError::Client)?;
        Ok(routes)
    }

    /// The route of an endpoint, or the class of [`crate::SendResult::NotSent`] if there is none.
    pub(crate) fn get(
        &self,
        target: &Target,
        deadline: Duration,
    ) -> Result<Arc<Route>, &'static str> {
        let key = (target.tenant, target.endpoint);
        let known = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key);
        match known {
            Some(route)
                if route.version == target.version && route.made.elapsed() < CLIENT_MAX_AGE =>
            {
                Ok(route)
            }
            before => {
                let route = Arc::new(self.make(target, deadline, before.as_deref())?);
                // Two callers may have made one each; the later one is kept and the other ends with its request.
                let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
                cache.insert(key, Arc::clone(&route), self.settings.max_clients);
                Ok(route)
            }
        }
    }

    /// Clients kept now.
    pub(crate) fn len(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).routes.len()
    }

    fn make(
        &self,
        target: &Target,
        deadline: Duration,
        before: Option<&Route>,
    ) -> Result<Route, &'static str> {
        let url = self.settings.address.check_url(&target.url).map_err(|problem| problem.code())?;
        let signer = match target.secrets.is_empty() {
            true => None,
            false => Some(Signer::new(&target.secrets).map_err(|_| "bad_secrets")?),
        };
        let headers = of_endpoint(target).map_err(|_| "bad_header")?;
        let max_connections = target.max_connections.clamp(1, MAX_CONNECTIONS) as usize;
        let client = self.client(max_connections, deadline).map_err(|_| "bad_request")?;
        // The cap holds over a client made anew: its predecessor's requests still count.
        let connections = match before {
            Some(route) if route.max_connections == max_connections => {
                Arc::clone(&route.connections)
            }
            _ => Arc::new(Semaphore::new(max_connections)),
        };
        let (version, made) = (target.version, Instant::now());
        Ok(Route { client, url, signer, headers, connections, version, max_connections, made })
    }

    fn client(&self, max_connections: usize, deadline: Duration) -> Result<Client, reqwest::Error> {
        Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .dns_resolver(self.resolver.clone())
            .http1_only()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            // Well before the deadline: a connection that does not come about is known as "not sent".
            .connect_timeout(self.settings.connect_timeout.min(deadline / 2))
            .pool_max_idle_per_host(max_connections)
            .pool_idle_timeout(self.settings.idle_timeout)
            .build()
    }
}

impl Cache {
    fn get(&mut self, key: &Key) -> Option<Arc<Route>> {
        self.uses += 1;
        let entry = self.routes.get_mut(key)?;
        entry.last_use = self.uses;
        Some(Arc::clone(&entry.route))
    }

    fn insert(&mut self, key: Key, route: Arc<Route>, max: usize) {
        if self.routes.len() >= max && !self.routes.contains_key(&key) {
            self.make_room(max);
        }
        self.routes.insert(key, Entry { route, last_use: self.uses });
    }

    /// Drops the least recently used routes. One with requests under way stays, or its cap would be forgotten; so
    /// the bound may be passed by the number of requests in flight.
    fn make_room(&mut self, max: usize) {
        let mut uses: Vec<u64> = self.routes.values().map(|entry| entry.last_use).collect();
        let evicted = (max / EVICTED_PART).clamp(1, uses.len());
        let (_, last, _) = uses.select_nth_unstable(evicted - 1);
        let last = *last;
        self.routes.retain(|_, entry| entry.last_use > last || Arc::strong_count(&entry.route) > 1);
    }
}
