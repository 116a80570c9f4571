//! Settings of the service, and its bounds with their defaults.

use laneway_platform::config::{Admin, Database, Problems, Service, Telemetry, Validate};
use laneway_platform::service::Process;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Everything that the service reads.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The control database.
    pub database: Database,
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
}

impl Default for Reconciler {
    fn default() -> Self {
        Self { poll: Duration::from_millis(500) }
    }
}

impl Validate for Reconciler {
    fn validate(&self, problems: &mut Problems) {
        problems.duration("poll", self.poll, Duration::from_millis(10)..=Duration::from_secs(60));
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
        problems.section("reconciler", &self.reconciler);
        problems.section("telemetry", &self.telemetry);
        problems.section("admin", &self.admin);
        problems.section("service", &self.service);
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
        Reconciler { poll: Duration::ZERO }.validate(&mut problems);
        let keys: Vec<_> = problems.found().iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["poll"]);
    }
}
