//! Settings of the API.

use laneway_courier::Settings as Courier;
use laneway_platform::config::{Admin, Database, Problems, Secrets, Service, Telemetry, Validate};
use laneway_platform::service::Process;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Everything that the API reads from its configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The control database.
    pub database: Database,
    /// The key of endpoint secrets.
    pub secrets: Secrets,
    /// What requests to endpoints are allowed; the API asks only the address policy.
    pub courier: Courier,
    /// Logs and traces.
    pub telemetry: Telemetry,
    /// The port of probes and metrics.
    pub admin: Admin,
    /// The process.
    pub service: Service,
    /// The API itself.
    pub api: Api,
}

/// `api`: the public port and its limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// Address and port; port 0 takes any free one (the log says which).
    pub listen: SocketAddr,
    /// Connections open at once, 1 to 65,535; more wait in the operating system's queue.
    pub max_connections: u32,
    /// Requests worked on at once, 1 to 10,000; more are answered 503.
    pub max_in_flight: u32,
    /// How long a request may take from its last header to its answer, 1 s to 60 s.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// How long a client may take to send the headers, and how long a connection may be idle, 1 s to 5 min.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// How long an `Idempotency-Key` is remembered, 72 h to 90 days. Longer than anything is retried, on purpose.
    #[serde(with = "humantime_serde")]
    pub idempotency_retention: Duration,
    /// How long a request waits for a running one with the same `Idempotency-Key` before it is answered 409, 1 ms to
    /// 5 s.
    #[serde(with = "humantime_serde")]
    pub idempotency_wait: Duration,
    /// What the `type` of a problem document begins with. The API serves the pages itself under `/problems/`.
    pub problem_base: String,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            max_connections: 1_024,
            max_in_flight: 256,
            request_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            idempotency_retention: Duration::from_secs(7 * 24 * 3_600),
            idempotency_wait: Duration::from_millis(250),
            problem_base: "/problems/".to_owned(),
        }
    }
}

impl Settings {
    /// What the platform needs of them.
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
        problems.section("telemetry", &self.telemetry);
        problems.section("admin", &self.admin);
        problems.section("service", &self.service);
        problems.section("api", &self.api);
    }
}

impl Validate for Api {
    fn validate(&self, problems: &mut Problems) {
        const S: Duration = Duration::from_secs(1);
        const MS: Duration = Duration::from_millis(1);
        problems.range("max_connections", self.max_connections, 1..=65_535);
        problems.range("max_in_flight", self.max_in_flight, 1..=10_000);
        problems.duration("request_timeout", self.request_timeout, S..=60 * S);
        problems.duration("header_timeout", self.header_timeout, S..=300 * S);
        let (h72, d90) = (72 * 3_600 * S, 90 * 24 * 3_600 * S);
        problems.duration("idempotency_retention", self.idempotency_retention, h72..=d90);
        problems.duration("idempotency_wait", self.idempotency_wait, MS..=5 * S);
        problems.required("problem_base", &self.problem_base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_platform::config::{Origins, load};

    #[test]
    fn what_is_required_and_out_of_range_is_reported_at_once() {
        let origins = Origins::of_pairs([
            ("LANEWAY_API__IDEMPOTENCY_RETENTION", "71h"),
            ("LANEWAY_API__MAX_IN_FLIGHT", "0"),
        ]);
        let errors = load::<Settings>(&origins).unwrap_err();
        let mut paths: Vec<&str> = errors.problems().iter().map(|p| p.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(
            paths,
            ["api.idempotency_retention", "api.max_in_flight", "database.url", "secrets.key"]
        );
    }
}
