//! Settings of the service, and all its bounds with their defaults.

use laneway_platform::config::{
    Admin, Database, Kafka, Problems, Secrets, Service, Telemetry, Validate,
};
use laneway_platform::service::Process;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Everything that the service reads.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The control database.
    pub database: Database,
    /// The cluster and the deliveries topic.
    pub kafka: Kafka,
    /// The key of the endpoints' secrets.
    pub secrets: Secrets,
    /// Where requests may go, and how they are made.
    pub courier: laneway_courier::Settings,
    /// The service's own section.
    pub deliver: Deliver,
    /// Logs and spans.
    pub telemetry: Telemetry,
    /// The port for probes and metrics.
    pub admin: Admin,
    /// Name and grace.
    pub service: Service,
}

impl Settings {
    /// What the process around the service needs.
    pub fn process(&self) -> Process {
        Process {
            telemetry: self.telemetry.clone(),
            admin: self.admin.clone(),
            service: self.service.clone(),
        }
    }
}

impl Validate for Settings {
    fn validate(&self, problems: &mut Problems) {
        problems.section("database", &self.database);
        problems.section("kafka", &self.kafka);
        problems.section("secrets", &self.secrets);
        problems.section("deliver", &self.deliver);
        problems.section("telemetry", &self.telemetry);
        problems.section("admin", &self.admin);
        problems.section("service", &self.service);
        if self.courier.max_clients == 0 {
            problems.report("courier.max_clients", "expected at least 1");
        }
    }
}

/// `deliver`: ownership, settling and the bounds of lanes (`laneway_lane::Limits` says what each of those means).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deliver {
    /// The consumer group.
    pub group: String,
    /// How long an ownership holds after the statement that renewed it was sent; the same for all instances. 10 s,
    /// and 3 s for development and tests.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How long a partition that is given back may take to drain before what is in flight is cut.
    #[serde(with = "humantime_serde")]
    pub drain_limit: Duration,
    /// Rows in one settle transaction, 1 to 5,000.
    pub settle_rows: usize,
    /// Bytes of records in one settle transaction.
    pub settle_bytes: usize,
    /// Under load a settle transaction waits so long for company.
    #[serde(with = "humantime_serde")]
    pub settle_linger: Duration,
    /// Settle transactions at a time, 1 to 8.
    pub settle_workers: usize,
    /// Loads of parked lanes at a time, 1 to 32.
    pub load_workers: usize,
    /// Records read and not yet taken in, over all partitions, in bytes.
    pub buffer_bytes: usize,
    /// Endpoints kept with their settings.
    pub max_endpoints: usize,
    /// Requests in flight from this process.
    pub max_in_flight: u32,
    /// Records that a restart replays per partition at most.
    pub window_events: u32,
    /// The same in bytes.
    pub window_bytes: u64,
    /// Percent of a window that live events of one slow endpoint may fill.
    pub endpoint_share_percent: u32,
    /// A failed head stays in memory so long at most.
    #[serde(with = "humantime_serde")]
    pub live_retry: Duration,
    /// Events loaded of one parked lane at a time.
    pub page_events: u32,
    /// Parked lanes with something in memory.
    pub loaded_lanes: u32,
    /// Bytes of loaded parked events.
    pub loaded_bytes: u64,
    /// How often owners look for expired heads.
    #[serde(with = "humantime_serde")]
    pub expiry_every: Duration,
    /// Nothing is tried for longer (P8).
    #[serde(with = "humantime_serde")]
    pub horizon: Duration,
    /// The longest step between two attempts.
    #[serde(with = "humantime_serde")]
    pub retry_max: Duration,
    /// Percent by which steps are lengthened at most.
    pub retry_jitter_percent: u32,
    /// Failures in a row that make an endpoint degraded.
    pub degrade_after: u32,
    /// Endpoints that have metric series of their own; the rest are `other`.
    pub max_endpoint_series: usize,
}

impl Default for Deliver {
    fn default() -> Self {
        let limits = laneway_lane::Limits::default();
        Self {
            group: "laneway-deliver".to_owned(),
            lease: Duration::from_secs(10),
            drain_limit: Duration::from_secs(20),
            settle_rows: 500,
            settle_bytes: 4 * 1024 * 1024,
            settle_linger: Duration::from_millis(10),
            settle_workers: 2,
            load_workers: 4,
            buffer_bytes: 32 * 1024 * 1024,
            max_endpoints: 20_000,
            max_in_flight: limits.max_in_flight,
            window_events: limits.window_events,
            window_bytes: limits.window_bytes,
            endpoint_share_percent: limits.endpoint_share_percent,
            live_retry: limits.live_retry,
            page_events: limits.page_events,
            loaded_lanes: limits.loaded_lanes,
            loaded_bytes: limits.loaded_bytes,
            expiry_every: limits.expiry_every,
            horizon: limits.horizon,
            retry_max: limits.retry_max,
            retry_jitter_percent: limits.retry_jitter_percent,
            degrade_after: limits.degrade_after,
            max_endpoint_series: 200,
        }
    }
}

impl Deliver {
    /// The bounds as the core takes them.
    pub(crate) fn limits(&self) -> laneway_lane::Limits {
        laneway_lane::Limits {
            window_events: self.window_events,
            window_bytes: self.window_bytes,
            endpoint_share_percent: self.endpoint_share_percent,
            max_in_flight: self.max_in_flight,
            live_retry: self.live_retry,
            page_events: self.page_events,
            loaded_lanes: self.loaded_lanes,
            loaded_bytes: self.loaded_bytes,
            expiry_every: self.expiry_every,
            horizon: self.horizon,
            retry_max: self.retry_max,
            retry_jitter_percent: self.retry_jitter_percent,
            degrade_after: self.degrade_after,
            ..laneway_lane::Limits::default()
        }
    }
}

impl Validate for Deliver {
    fn validate(&self, problems: &mut Problems) {
        const S: Duration = Duration::from_secs(1);
        problems.required("group", &self.group);
        problems.duration("lease", self.lease, 2 * S..=60 * S);
        problems.duration("drain_limit", self.drain_limit, S..=300 * S);
        problems.range("settle_rows", self.settle_rows, 1..=5_000);
        problems.range("settle_bytes", self.settle_bytes, 64 * 1024..=64 * 1024 * 1024);
        problems.duration("settle_linger", self.settle_linger, Duration::ZERO..=S);
        problems.range("settle_workers", self.settle_workers, 1..=8);
        problems.range("load_workers", self.load_workers, 1..=32);
        problems.range("buffer_bytes", self.buffer_bytes, 1024 * 1024..=1024 * 1024 * 1024);
        problems.range("max_endpoints", self.max_endpoints, 100..=1_000_000);
        problems.range("max_in_flight", self.max_in_flight, 1..=10_000);
        problems.range("window_events", self.window_events, 100..=1_000_000);
        problems.range("window_bytes", self.window_bytes, 1024 * 1024..=4 * 1024 * 1024 * 1024);
        problems.range("endpoint_share_percent", self.endpoint_share_percent, 1..=100);
        problems.duration("live_retry", self.live_retry, Duration::ZERO..=300 * S);
        problems.range("page_events", self.page_events, 1..=1_000);
        problems.range("loaded_lanes", self.loaded_lanes, 16..=100_000);
        problems.range("loaded_bytes", self.loaded_bytes, 1024 * 1024..=4 * 1024 * 1024 * 1024);
        problems.duration("expiry_every", self.expiry_every, S / 10..=300 * S);
        problems.duration("horizon", self.horizon, S..=30 * 24 * 3600 * S);
        problems.duration("retry_max", self.retry_max, S..=24 * 3600 * S);
        problems.range("retry_jitter_percent", self.retry_jitter_percent, 0..=100);
        problems.range("degrade_after", self.degrade_after, 2..=1_000);
        problems.range("max_endpoint_series", self.max_endpoint_series, 0..=10_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_every_fault_is_reported() {
        let mut problems = Problems::default();
        Deliver::default().validate(&mut problems);
        assert!(problems.is_empty(), "{:?}", problems.found());
        let bad = Deliver { lease: Duration::ZERO, settle_rows: 0, ..Deliver::default() };
        bad.validate(&mut problems);
        let keys: Vec<_> = problems.found().iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["lease", "settle_rows"]);
    }
}
