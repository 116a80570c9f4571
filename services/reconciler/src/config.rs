//! Settings of the service, and its bounds with their defaults.

use laneway_platform::config::{Admin, Database, Problems, Secrets, Service, Telemetry, Validate};
use laneway_platform::service::Process;
use laneway_store::retention::Kind;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Everything that the service reads.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The control database.
    pub database: Database,
    /// The key of the authorities' credentials.
    pub secrets: Secrets,
    /// Where questions may go, and how they are made.
    pub courier: laneway_courier::Settings,
    /// The service's own section.
    pub reconciler: Reconciler,
    /// Logs and spans.
    pub telemetry: Telemetry,
    /// The port for probes and metrics.
    pub admin: Admin,
    /// Name and grace.
    pub service: Service,
}

/// `reconciler`: how often it looks, and its bounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reconciler {
    /// Between two looks for work when there is none, 10 ms to 1 min.
    #[serde(with = "humantime_serde")]
    pub poll: Duration,
    /// So long after an unknown request can have ended the authority is asked at the earliest, at most 1 h: whoever
    /// works on it needs time to write down what he did (I13).
    #[serde(with = "humantime_serde")]
    pub lookup_grace: Duration,
    /// How long an authority may take to answer, 1 s to 1 min.
    #[serde(with = "humantime_serde")]
    pub lookup_deadline: Duration,
    /// The pause after the first answer that tells nothing; it doubles, 100 ms to 1 h.
    #[serde(with = "humantime_serde")]
    pub lookup_first: Duration,
    /// The longest such pause, at least `lookup_first`, at most 24 h.
    #[serde(with = "humantime_serde")]
    pub lookup_max: Duration,
    /// Questions under way from this process, 1 to 1,000.
    pub lookups_at_once: usize,
    /// Connections to one authority from this process, 1 to 64.
    pub lookup_connections: u32,
    /// Between two audits, 1 s to 24 h.
    #[serde(with = "humantime_serde")]
    pub audit_every: Duration,
    /// How far an audit looks back, at most 90 days; more than `audit_every`, so that nothing falls between two.
    #[serde(with = "humantime_serde")]
    pub audit_window: Duration,
    /// What is younger may be on its way and is not looked at, 1 s to `audit_window`.
    #[serde(with = "humantime_serde")]
    pub audit_settled: Duration,
    /// Whether an audit on a schedule publishes again what is missing and may be sent again.
    pub audit_repair: bool,
    /// How long rows are kept when they are over.
    pub keep: Windows,
}

/// `reconciler.keep`: how long rows are kept when they are over, each at most 10 years. What is not final is kept
/// whatever its age: open dead letters, waiting events, unknowns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Windows {
    /// Final outcomes. They are what makes a record that comes again harmless, so they outlive everything that an event
    /// can come again from: every source's outbox (`relay.window`), the topic (7 days) and the horizon. At least 8 days. What
    /// relays and deliver processes tell of theirs is compared; while it contradicts, no outcome is removed.
    #[serde(with = "humantime_serde")]
    pub inbox: Duration,
    /// Failed attempts of deliveries that have their outcome; at most as long as the outcome, at least 1 h.
    #[serde(with = "humantime_serde")]
    pub attempts: Duration,
    /// Dead letters that were rewound or discarded, from then on; at least 1 h.
    #[serde(with = "humantime_serde")]
    pub closed_dead_letters: Duration,
    /// Answers to requests with an `Idempotency-Key`; at least 72 h, and not below `api.idempotency_retention`.
    #[serde(with = "humantime_serde")]
    pub idempotency_keys: Duration,
    /// Commands and rewinds that have ended; at least 1 h.
    #[serde(with = "humantime_serde")]
    pub commands: Duration,
    /// Records that were no deliveries; at least 1 h.
    #[serde(with = "humantime_serde")]
    pub quarantine: Duration,
    /// What operators did; at least 30 days.
    #[serde(with = "humantime_serde")]
    pub audit_log: Duration,
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

impl Default for Windows {
    fn default() -> Self {
        Self {
            inbox: 14 * DAY,
            attempts: 14 * DAY,
            closed_dead_letters: 30 * DAY,
            idempotency_keys: 8 * DAY,
            commands: 30 * DAY,
            quarantine: 30 * DAY,
            audit_log: 400 * DAY,
        }
    }
}

impl Windows {
    /// The window of a kind of rows.
    pub(crate) fn of(&self, kind: Kind) -> Duration {
        match kind {
            Kind::IdempotencyKeys => self.idempotency_keys,
            Kind::Attempts => self.attempts,
            Kind::Rewound => self.inbox,
            Kind::ClosedDeadLetters => self.closed_dead_letters,
            Kind::Commands => self.commands,
            Kind::Quarantine => self.quarantine,
            Kind::AuditLog => self.audit_log,
        }
    }
}

impl Validate for Windows {
    fn validate(&self, problems: &mut Problems) {
        let longest = 3_650 * DAY;
        problems.duration("inbox", self.inbox, 8 * DAY..=longest);
        problems.duration("attempts", self.attempts, HOUR..=self.inbox.max(HOUR));
        problems.duration("closed_dead_letters", self.closed_dead_letters, HOUR..=longest);
        problems.duration("idempotency_keys", self.idempotency_keys, 72 * HOUR..=longest);
        problems.duration("commands", self.commands, HOUR..=longest);
        problems.duration("quarantine", self.quarantine, HOUR..=longest);
        problems.duration("audit_log", self.audit_log, 30 * DAY..=longest);
    }
}

impl Default for Reconciler {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(500),
            lookup_grace: Duration::from_secs(5),
            lookup_deadline: Duration::from_secs(10),
            lookup_first: Duration::from_secs(5),
            lookup_max: Duration::from_secs(15 * 60),
            lookups_at_once: 64,
            lookup_connections: 4,
            audit_every: Duration::from_secs(15 * 60),
            audit_window: Duration::from_secs(3_600),
            audit_settled: Duration::from_secs(10 * 60),
            audit_repair: true,
            keep: Windows::default(),
        }
    }
}

impl Validate for Reconciler {
    fn validate(&self, problems: &mut Problems) {
        const MS: Duration = Duration::from_millis(1);
        const S: Duration = Duration::from_secs(1);
        problems.duration("poll", self.poll, 10 * MS..=60 * S);
        problems.duration("lookup_grace", self.lookup_grace, Duration::ZERO..=3_600 * S);
        problems.duration("lookup_deadline", self.lookup_deadline, S..=60 * S);
        problems.duration("lookup_first", self.lookup_first, 100 * MS..=3_600 * S);
        problems.duration("lookup_max", self.lookup_max, self.lookup_first..=24 * 3_600 * S);
        problems.range("lookups_at_once", self.lookups_at_once, 1..=1_000);
        problems.range("lookup_connections", self.lookup_connections, 1..=64);
        let days = 24 * 3_600 * S;
        problems.duration("audit_every", self.audit_every, S..=days);
        let longest = self.audit_every.saturating_add(self.audit_settled);
        problems.duration("audit_window", self.audit_window, longest..=90 * days);
        problems.duration("audit_settled", self.audit_settled, S..=days);
        problems.section("keep", &self.keep);
    }
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
        problems.section("secrets", &self.secrets);
        problems.section("reconciler", &self.reconciler);
        problems.section("telemetry", &self.telemetry);
        problems.section("admin", &self.admin);
        problems.section("service", &self.service);
        if self.courier.max_clients == 0 {
            problems.report("courier.max_clients", "expected at least 1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid_and_every_fault_is_reported() {
        let mut problems = Problems::default();
        Reconciler::default().validate(&mut problems);
        assert!(problems.is_empty(), "{:?}", problems.found());
        let bad = Reconciler { poll: Duration::ZERO, lookups_at_once: 0, ..Reconciler::default() };
        bad.validate(&mut problems);
        let short = Windows { inbox: DAY, attempts: 20 * DAY, ..Windows::default() };
        short.validate(&mut problems);
        let keys: Vec<_> = problems.found().iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["poll", "lookups_at_once", "inbox", "attempts"]);
    }
}
