//! Settings of the service, and all its bounds with their defaults.

use laneway_bus::{Connection, SaslMechanism, SecurityProtocol as BusSecurity};
use laneway_platform::config::{
    Admin, Database, Kafka, Problems, SecurityProtocol, Service, Source, Telemetry, Tenants,
    Validate,
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
    /// The databases with an outbox; the control database's own alone, as `control`, if none is named.
    pub sources: Vec<Source>,
    /// The cluster and the deliveries topic.
    pub kafka: Kafka,
    /// The service's own section.
    pub relay: Relay,
    /// Logs and spans.
    pub telemetry: Telemetry,
    /// The port for probes and metrics.
    pub admin: Admin,
    /// Name and grace.
    pub service: Service,
}

/// `relay`: how the outbox is read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Relay {
    /// Rows of a shard that are read, published and saved together, 1 to 10,000.
    pub page_rows: u32,
    /// Payload bytes of a page at most (and one row), 64 KiB to 64 MiB; a shard holds two pages.
    pub page_bytes: u64,
    /// Records of one lane that a page publishes, one after the other; the rest is held and follows by itself.
    pub waves: u32,
    /// How long a record may wait for others to share its request, at most 100 ms.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Between two looks at the outbox while rows keep coming, 1 ms to 1 s.
    #[serde(with = "humantime_serde")]
    pub poll_busy: Duration,
    /// Between two looks when nothing comes, at least `poll_busy`, at most 10 s.
    #[serde(with = "humantime_serde")]
    pub poll_idle: Duration,
    /// How long a relay that says nothing keeps its shards, 1 s to 5 min; the same for all instances.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// Between two looks at the topic and its generation, 100 ms to 1 min.
    #[serde(with = "humantime_serde")]
    pub watch: Duration,
    /// Between two rounds of partition care, 1 s to 1 h.
    #[serde(with = "humantime_serde")]
    pub upkeep: Duration,
    /// How long outbox rows are kept at least, 1 min to 90 days: what can be published again after a loss.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// How long a dedupe key is remembered, 1 min to 90 days.
    #[serde(with = "humantime_serde")]
    pub dedupe_window: Duration,
    /// Connections to each source, 3 to 100.
    pub source_connections: u32,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            page_rows: 2_000,
            page_bytes: 4 * 1024 * 1024,
            waves: 16,
            linger: Duration::from_millis(2),
            poll_busy: Duration::from_millis(2),
            poll_idle: Duration::from_millis(25),
            lease: Duration::from_secs(10),
            watch: Duration::from_secs(1),
            upkeep: Duration::from_secs(60),
            window: Duration::from_secs(96 * 3600),
            dedupe_window: Duration::from_secs(7 * 24 * 3600),
            source_connections: 8,
        }
    }
}

impl Validate for Relay {
    fn validate(&self, problems: &mut Problems) {
        let ms = Duration::from_millis;
        let days = |n: u64| Duration::from_secs(n * 24 * 3600);
        problems.range("page_rows", self.page_rows, 1..=10_000);
        problems.range("page_bytes", self.page_bytes, 64 * 1024..=64 * 1024 * 1024);
        problems.range("waves", self.waves, 1..=1_000);
        problems.duration("linger", self.linger, ms(0)..=ms(100));
        problems.duration("poll_busy", self.poll_busy, ms(1)..=ms(1_000));
        problems.duration("poll_idle", self.poll_idle, self.poll_busy..=ms(10_000));
        problems.duration("lease", self.lease, ms(1_000)..=ms(300_000));
        problems.duration("watch", self.watch, ms(100)..=ms(60_000));
        problems.duration("upkeep", self.upkeep, ms(1_000)..=ms(3_600_000));
        problems.duration("window", self.window, ms(60_000)..=days(90));
        problems.duration("dedupe_window", self.dedupe_window, ms(60_000)..=days(90));
        problems.range("source_connections", self.source_connections, 3..=100);
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

    pub(crate) fn sources(&self) -> Vec<Source> {
        if self.sources.is_empty() {
            let url = self.database.url.clone();
            return vec![Source { name: "control".to_owned(), url, tenants: Tenants::All }];
        }
        self.sources.clone()
    }
}

impl Validate for Settings {
    fn validate(&self, problems: &mut Problems) {
        problems.section("database", &self.database);
        problems.list("sources", &self.sources);
        for (index, source) in self.sources.iter().enumerate() {
            if self.sources[..index].iter().any(|other| other.name == source.name) {
                problems.report(&format!("sources[{index}].name"), "is used twice");
            }
        }
        problems.section("kafka", &self.kafka);
        problems.section("relay", &self.relay);
        problems.section("telemetry", &self.telemetry);
        problems.section("admin", &self.admin);
        problems.section("service", &self.service);
    }
}

/// How the Kafka client is to connect.
pub(crate) fn connection(kafka: &Kafka) -> Connection {
    let sasl = kafka.security_protocol.is_sasl();
    Connection {
        client_id: "laneway-relay".to_owned(),
        security_protocol: match kafka.security_protocol {
            SecurityProtocol::Plaintext => BusSecurity::Plaintext,
            SecurityProtocol::Ssl => BusSecurity::Ssl,
            SecurityProtocol::SaslPlaintext => BusSecurity::SaslPlaintext,
            SecurityProtocol::SaslSsl => BusSecurity::SaslSsl,
        },
        sasl_mechanism: sasl.then_some(match kafka.sasl_mechanism.as_str() {
            "PLAIN" => SaslMechanism::Plain,
            "SCRAM-SHA-256" => SaslMechanism::ScramSha256,
            _ => SaslMechanism::ScramSha512,
        }),
        sasl_username: kafka.sasl_username.clone(),
        sasl_password: kafka.sasl_password.clone(),
        ssl_ca_location: kafka.ssl_ca_location.clone().map(Into::into),
        ..Connection::plaintext(&kafka.brokers)
    }
}
