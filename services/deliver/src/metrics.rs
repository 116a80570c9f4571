//! What the service counts (telemetry.md 2.4). `endpoint` is an endpoint's id for the first so many, then `other`.

use laneway_lane::{
    AttemptResult, EndpointGauges, FinalOutcome, Gauges, Invariant, Partition, SettleItem,
};
use laneway_platform::invariants::Invariants;
use laneway_platform::metrics::family::Family;
use laneway_platform::metrics::gauge::Gauge;
use laneway_platform::metrics::{Counter, Histogram, Registry};
use laneway_store::delivery::{KeptDead, Waiting};
use laneway_wire::{EndpointId, Timestamp};
use prometheus_client::encoding::EncodeLabelSet;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Buckets of the delay from commit to first success, seconds.
const DELAYS: [f64; 15] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 43_200.0,
    259_200.0,
];
const GROUP_ROWS: [f64; 9] = [0.0, 1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 500.0, 1_000.0];
const GROUP_SECONDS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];

type DelayFamily = Family<ByOutcome, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    endpoint: Arc<str>,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    endpoint: Arc<str>,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    endpoint: Arc<str>,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKept {
    endpoint: Arc<str>,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPartition {
    topic: Arc<str>,
    partition: Partition,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByEndpoint {
    endpoint: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByEndpointState {
    endpoint: Arc<str>,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByWhat {
    what: &'static str,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    labels: Mutex<HashMap<EndpointId, Arc<str>>>,
    other: Arc<str>,
    max_series: usize,
    attempts: Family<ByResult, Counter>,
    deliveries: Family<ByOutcome, Counter>,
    delay: DelayFamily,
    dead_letters: Family<ByReason, Counter>,
    dead_kept: Family<ByKept, Gauge>,
    lag: Family<ByPartition, Gauge>,
    quarantined: Family<ByState, Counter>,
    lanes: Family<ByEndpointState, Gauge>,
    health: Family<ByEndpoint, Gauge>,
    unknowns: Family<ByEndpoint, Gauge>,
    unknown_oldest: Family<ByEndpoint, Gauge>,
    head_oldest: Family<ByEndpoint, Gauge>,
    held: Counter,
    rebalances: Family<ByWhat, Counter>,
    pub(crate) fenced: Counter,
    pub(crate) stale_settles: Counter,
    pub(crate) lease_lost: Counter,
    pub(crate) generations: Counter,
    duplicates: Counter,
    pub(crate) settle_retries: Counter,
    pub(crate) group_rows: Histogram,
    pub(crate) group_seconds: Histogram,
    owned: Gauge,
    degraded: Gauge,
    in_flight: Gauge,
    open: Gauge,
    stale_inputs: Counter,
    pub(crate) invariants: Invariants,
    seen: Mutex<(u64, u64)>,
    violations_seen: Mutex<[u64; Invariant::ALL.len()]>,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry, max_series: usize) -> Self {
        let r = registry;
        Self {
            invariants: r.invariants(),
            violations_seen: Mutex::default(),
            labels: Mutex::default(),
            other: "other".into(),
            max_series,
            attempts: r.register(
                "laneway_delivery_attempts_total",
                "Requests made, by what came back",
                Family::default(),
            ),
            deliveries: r.register(
                "laneway_deliveries_total",
                "Deliveries that ended, by outcome",
                Family::default(),
            ),
            delay: r.register(
                "laneway_delivery_delay_seconds",
                "From the event's commit to the recorded outcome",
                DelayFamily::new_with_constructor(|| Histogram::new(DELAYS)),
            ),
            dead_letters: r.register(
                "laneway_dead_letters_total",
                "Deliveries given up, by reason",
                Family::default(),
            ),
            dead_kept: r.register(
                "laneway_dead_letters_kept",
                "Dead letters in the database, told by the instance that owns partition 0",
                Family::default(),
            ),
            lag: r.register(
                "laneway_kafka_consumer_lag",
                "Records of an owned partition from the stored position to its end",
                Family::default(),
            ),
            quarantined: r.register(
                "laneway_quarantined_records_total",
                "Records that are no delivery, by reason",
                Family::default(),
            ),
            lanes: r.register(
                "laneway_lanes",
                "Lanes that are not idle, by state, on this instance (in flight ones are counted twice)",
                Family::default(),
            ),
            health: r.register(
                "laneway_endpoint_health",
                "0 healthy, 1 degraded, as this instance sees it",
                Family::default(),
            ),
            unknowns: r.register(
                "laneway_unknowns",
                "Held unknown outcomes in the partitions of this instance",
                Family::default(),
            ),
            unknown_oldest: r.register(
                "laneway_unknown_oldest_seconds",
                "Age of the oldest held unknown",
                Family::default(),
            ),
            head_oldest: r.register(
                "laneway_lane_oldest_head_seconds",
                "Age of the oldest parked head, of the endpoints that have the oldest of a partition",
                Family::default(),
            ),
            held: r.register(
                "laneway_unknowns_recorded_total",
                "Outcomes recorded as unknown and held",
                Counter::default(),
            ),
            rebalances: r.register(
                "laneway_kafka_rebalances_total",
                "Changes of the assignment by the group",
                Family::default(),
            ),
            fenced: r.register(
                "laneway_fenced_total",
                "Ownerships found to be over by a fenced write",
                Counter::default(),
            ),
            stale_settles: r.register(
                "laneway_stale_settles_total",
                "Items of settle groups that came too late: refused by a fence, or dropped with their lease",
                Counter::default(),
            ),
            lease_lost: r.register(
                "laneway_leases_lost_total",
                "Leases that ran out before they were renewed",
                Counter::default(),
            ),
            generations: r.register(
                "laneway_generation_changes_total",
                "Generations of the topic that this instance saw begin",
                Counter::default(),
            ),
            duplicates: r.register(
                "laneway_inbox_duplicates_total",
                "Records whose delivery was settled or open already",
                Counter::default(),
            ),
            settle_retries: r.register(
                "laneway_settle_retries_total",
                "Settle transactions repeated after a database error",
                Counter::default(),
            ),
            group_rows: r.register(
                "laneway_settle_group_rows",
                "Items in one settle transaction",
                Histogram::new(GROUP_ROWS),
            ),
            group_seconds: r.register(
                "laneway_settle_group_seconds",
                "How long a settle transaction took",
                Histogram::new(GROUP_SECONDS),
            ),
            owned: r.register(
                "laneway_partitions_owned",
                "Partitions that this instance owns",
                Gauge::default(),
            ),
            degraded: r.register(
                "laneway_endpoints_degraded",
                "Endpoints that count as degraded here",
                Gauge::default(),
            ),
            in_flight: r.register(
                "laneway_requests_in_flight",
                "Requests under way from this instance",
                Gauge::default(),
            ),
            open: r.register(
                "laneway_records_open",
                "Records taken in and not complete",
                Gauge::default(),
            ),
            stale_inputs: r.register(
                "laneway_stale_inputs_total",
                "Results and answers that came for an ownership that was over",
                Counter::default(),
            ),
            seen: Mutex::default(),
        }
    }

    fn label(&self, endpoint: EndpointId) -> Arc<str> {
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = labels.get(&endpoint) {
            return Arc::clone(label);
        }
        if labels.len() >= self.max_series {
            return Arc::clone(&self.other);
        }
        let label: Arc<str> = endpoint.to_string().into();
        labels.insert(endpoint, Arc::clone(&label));
        label
    }

    pub(crate) fn attempt(&self, endpoint: EndpointId, result: &AttemptResult) {
        let result = match result {
            AttemptResult::NotStarted => return,
            AttemptResult::NotSent { class: "dns" } => "dns",
            AttemptResult::NotSent {
                class:
                    "tls"
                    | "certificate_expired"
                    | "certificate_name"
                    | "certificate_untrusted"
                    | "client_certificate",
            } => "tls",
            AttemptResult::NotSent { class: "target_not_allowed" } => "blocked",
            AttemptResult::NotSent { .. } => "connect",
            AttemptResult::Unknown { class: "timeout", .. } => "timeout",
            AttemptResult::Unknown { .. } => "unknown",
            AttemptResult::Responded { status, .. } => match status / 100 {
                1 => "1xx",
                2 => "2xx",
                3 => "3xx",
                4 => "4xx",
                _ => "5xx",
            },
        };
        self.attempts.get_or_create(&ByResult { endpoint: self.label(endpoint), result }).inc();
    }

    /// Counts what has just become durable.
    pub(crate) fn settled(&self, items: &[SettleItem], now: Timestamp) {
        for item in items {
            match item {
                SettleItem::Final { record, outcome, .. } => {
                    let endpoint = self.label(record.head.endpoint_id());
                    let outcome_name = match outcome {
                        FinalOutcome::Delivered => "delivered",
                        FinalOutcome::DeadLettered { .. } => "dead",
                        FinalOutcome::Discarded { .. } => "discarded",
                    };
                    if let FinalOutcome::DeadLettered { reason } = outcome {
                        let by = ByReason { endpoint: Arc::clone(&endpoint), reason };
                        self.dead_letters.get_or_create(&by).inc();
                    }
                    let by = ByOutcome { endpoint, outcome: outcome_name };
                    self.deliveries.get_or_create(&by).inc();
                    let delay = now.since(record.head.created_at).as_secs_f64();
                    self.delay.get_or_create(&by).observe(delay);
                }
                SettleItem::Park { head, .. } if head.unknown => {
                    self.held.inc();
                }
                SettleItem::Failed { unknown: true, .. } => {
                    self.held.inc();
                }
                SettleItem::Quarantine { reason, .. } => {
                    self.quarantined.get_or_create(&ByState { state: reason }).inc();
                }
                _ => {}
            }
        }
    }

    /// Counts the core's violations that are new.
    pub(crate) fn violations(&self, now: impl Iterator<Item = (Invariant, u64)>) {
        let mut seen = self.violations_seen.lock().unwrap_or_else(PoisonError::into_inner);
        for ((invariant, count), seen) in now.zip(seen.iter_mut()) {
            let new = count.saturating_sub(*seen);
            self.invariants.violated(invariant.promise(), invariant.wrong(), new);
            *seen = count;
        }
    }

    pub(crate) fn rebalance(&self, what: &'static str) {
        self.rebalances.get_or_create(&ByWhat { what }).inc();
    }

    pub(crate) fn gauges(&self, gauges: &Gauges, endpoints: impl Iterator<Item = EndpointGauges>) {
        let mut lanes: HashMap<ByEndpointState, i64> = HashMap::new();
        self.health.clear();
        for one in endpoints {
            let endpoint = self.label(one.endpoint);
            for (state, count) in [
                ("live", one.lanes_live),
                ("parked", one.lanes_parked),
                ("in_flight", one.in_flight),
            ] {
                let by = ByEndpointState { endpoint: Arc::clone(&endpoint), state };
                *lanes.entry(by).or_default() += i64::from(count);
            }
            self.health.get_or_create(&ByEndpoint { endpoint }).set(i64::from(one.degraded));
        }
        self.lanes.clear();
        for (by, count) in lanes {
            self.lanes.get_or_create(&by).set(count);
        }
        self.owned.set(i64::try_from(gauges.partitions).unwrap_or(i64::MAX));
        self.degraded.set(i64::try_from(gauges.endpoints_degraded).unwrap_or(i64::MAX));
        self.in_flight.set(i64::from(gauges.in_flight));
        self.open.set(i64::try_from(gauges.open_events).unwrap_or(i64::MAX));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.duplicates.inc_by(gauges.duplicates.saturating_sub(seen.0));
        self.stale_inputs.inc_by(gauges.stale_inputs.saturating_sub(seen.1));
        *seen = (gauges.duplicates, gauges.stale_inputs);
    }

    /// What was found to wait in the database.
    pub(crate) fn waiting(&self, waiting: &[Waiting]) {
        for family in [&self.unknowns, &self.unknown_oldest, &self.head_oldest] {
            family.clear();
        }
        for one in waiting {
            let by = ByEndpoint { endpoint: self.label(one.endpoint) };
            let seconds =
                |age: std::time::Duration| i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            if one.unknowns > 0 {
                self.unknowns.get_or_create(&by).inc_by(i64::from(one.unknowns));
                let oldest = self.unknown_oldest.get_or_create(&by);
                oldest.set(oldest.get().max(seconds(one.unknown_age)));
            }
            if let Some(age) = one.head_age {
                let oldest = self.head_oldest.get_or_create(&by);
                oldest.set(oldest.get().max(seconds(age)));
            }
        }
    }

    /// Dead letters in the database; nothing: another instance tells.
    pub(crate) fn kept(&self, kept: &[KeptDead]) {
        self.dead_kept.clear();
        for one in kept {
            let by = ByKept { endpoint: self.label(one.endpoint), reason: one.reason.clone() };
            self.dead_kept.get_or_create(&by).inc_by(one.count);
        }
    }

    /// Records of each owned partition that are not complete yet.
    pub(crate) fn lag(&self, topic: &Arc<str>, lag: impl Iterator<Item = (Partition, i64)>) {
        self.lag.clear();
        for (partition, records) in lag {
            let by = ByPartition { topic: Arc::clone(topic), partition };
            self.lag.get_or_create(&by).set(records);
        }
    }
}
