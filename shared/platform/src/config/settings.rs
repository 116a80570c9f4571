//! The sections that more than one service reads.

use super::{ExposeSecret, Problems, SecretString, Validate, redact, redact_option, redact_url};
use base64::Engine;
use laneway_wire::TenantId;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;
use url::Url;

/// `database`: the control database.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// `postgres://user:password@host:port/database`. Required.
    #[serde(serialize_with = "redact_url")]
    pub url: SecretString,
    /// Connections of this process at most, 1 to 1,000.
    pub max_connections: u32,
    /// How long a caller waits for a free connection, 100 ms to 5 min.
    #[serde(with = "humantime_serde")]
    pub acquire_timeout: Duration,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: SecretString::default(),
            max_connections: 16,
            acquire_timeout: Duration::from_secs(5),
        }
    }
}

impl Validate for Database {
    fn validate(&self, problems: &mut Problems) {
        postgres_url(problems, "url", &self.url);
        problems.range("max_connections", self.max_connections, 1..=1_000);
        let range = Duration::from_millis(100)..=Duration::from_secs(300);
        problems.duration("acquire_timeout", self.acquire_timeout, range);
    }
}

/// One of `sources`: a database with an outbox that the relay reads.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// What the source is called in metrics, cursors and logs: 1 to 40 of a–z, 0–9 and `-`. Never change it.
    pub name: String,
    /// `postgres://user:password@host:port/database`. Required.
    #[serde(serialize_with = "redact_url")]
    pub url: SecretString,
    /// The tenants whose rows are taken from it; rows of others are held.
    pub tenants: Tenants,
}

/// The longest name of a source, in bytes.
const MAX_SOURCE_NAME: usize = 40;

impl Validate for Source {
    fn validate(&self, problems: &mut Problems) {
        let name = self.name.as_bytes();
        let allowed = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
        if name.is_empty() {
            problems.report("name", "is required");
        } else if name.len() > MAX_SOURCE_NAME || !name.iter().all(allowed) {
            problems.report("name", format!("expected 1 to {MAX_SOURCE_NAME} of a-z, 0-9 and `-`"));
        }
        postgres_url(problems, "url", &self.url);
        if self.tenants == Tenants::These(Vec::new()) {
            problems.report("tenants", "expected `all` or at least one project id");
        }
    }
}

/// Which tenants a source may speak for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tenants {
    /// `"all"`: whatever tenant a row names.
    #[default]
    All,
    /// These only.
    These(Vec<TenantId>),
}

impl Tenants {
    /// Whether rows of `tenant` are taken.
    pub fn contains(&self, tenant: TenantId) -> bool {
        match self {
            Self::All => true,
            Self::These(tenants) => tenants.contains(&tenant),
        }
    }
}

impl Serialize for Tenants {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => to.serialize_str("all"),
            Self::These(tenants) => tenants.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Tenants {
    /// `"all"`, or a list of project ids (in one variable: parted by commas).
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        if texts.iter().any(|text| text == "all") {
            return match texts.len() {
                1 => Ok(Self::All),
                _ => Err(serde::de::Error::custom("`all` stands alone")),
            };
        }
        let ids: Result<Vec<TenantId>, _> = texts.iter().map(|text| text.parse()).collect();
        ids.map(Self::These).map_err(serde::de::Error::custom)
    }
}

/// `kafka`: the cluster and the deliveries topic.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kafka {
    /// `host:port`, several parted by commas. Required.
    pub brokers: String,
    /// The topic between relay and deliver; all processes of an installation name the same one.
    pub deliveries_topic: String,
    /// How many partitions the topic is made with, 1 to 1,024 (as many as there are buckets); 12 for development,
    /// 48 in the chart.
    pub partitions: u16,
    /// How many brokers hold each partition, 1 to 9; 3 where records must survive a broker.
    pub replication_factor: u16,
    /// After this long without a heartbeat Kafka gives a consumer's partitions away, 3 s to 5 min.
    #[serde(with = "humantime_serde")]
    pub session_timeout: Duration,
    /// Whether the connection is encrypted and authenticated.
    pub security_protocol: SecurityProtocol,
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; with `sasl_*` protocols only.
    pub sasl_mechanism: String,
    /// The principal; with `sasl_*` protocols only.
    pub sasl_username: Option<String>,
    /// Its password; with `sasl_*` protocols only.
    #[serde(serialize_with = "redact_option")]
    pub sasl_password: Option<SecretString>,
    /// A file of trusted certificates (PEM); the system's if it is not set.
    pub ssl_ca_location: Option<String>,
}

impl Default for Kafka {
    fn default() -> Self {
        Self {
            brokers: String::new(),
            deliveries_topic: "laneway.deliveries.v1".to_owned(),
            partitions: 12,
            replication_factor: 1,
            session_timeout: Duration::from_secs(45),
            security_protocol: SecurityProtocol::default(),
            sasl_mechanism: "SCRAM-SHA-512".to_owned(),
            sasl_username: None,
            sasl_password: None,
            ssl_ca_location: None,
        }
    }
}

/// How Kafka is spoken to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProtocol {
    /// Neither: a broker on the same machine.
    #[default]
    Plaintext,
    /// Encrypted.
    Ssl,
    /// Authenticated.
    SaslPlaintext,
    /// Both.
    SaslSsl,
}

impl SecurityProtocol {
    /// The word that Kafka clients use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plaintext => "plaintext",
            Self::Ssl => "ssl",
            Self::SaslPlaintext => "sasl_plaintext",
            Self::SaslSsl => "sasl_ssl",
        }
    }

    /// Whether the client authenticates with SASL.
    pub const fn is_sasl(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

/// The longest topic name that Kafka takes, in bytes.
const MAX_TOPIC_NAME: usize = 249;
/// As many partitions as there are buckets: more would stay empty.
const MAX_PARTITIONS: u16 = 1_024;

impl Validate for Kafka {
    fn validate(&self, problems: &mut Problems) {
        if self.brokers.trim().is_empty() {
            problems.report("brokers", "is required");
        } else {
            for broker in self.brokers.split(',').map(str::trim) {
                let port = broker.rsplit_once(':').and_then(|(host, port)| {
                    (!host.is_empty()).then(|| port.parse::<u16>().ok()).flatten()
                });
                if port.is_none_or(|port| port == 0) {
                    problems.report("brokers", format!("expected host:port, found `{broker}`"));
                }
            }
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let topic = &self.deliveries_topic;
        if topic.is_empty() || topic.len() > MAX_TOPIC_NAME || !topic.bytes().all(allowed) {
            problems.report(
                "deliveries_topic",
                format!("expected 1 to {MAX_TOPIC_NAME} letters, digits, `.`, `_` or `-`"),
            );
        }
        problems.range("partitions", self.partitions, 1..=MAX_PARTITIONS);
        problems.range("replication_factor", self.replication_factor, 1..=9);
        let range = Duration::from_secs(3)..=Duration::from_secs(300);
        problems.duration("session_timeout", self.session_timeout, range);
        if self.security_protocol.is_sasl() {
            if !["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"].contains(&self.sasl_mechanism.as_str())
            {
                problems.report("sasl_mechanism", "expected PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512");
            }
            problems.required("sasl_username", self.sasl_username.as_deref().unwrap_or_default());
            let password = self.sasl_password.as_ref().map_or("", ExposeSecret::expose_secret);
            problems.required("sasl_password", password);
        }
    }
}

/// `telemetry`: logs and traces; metrics are on the admin port.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which lines there are: a level, or directives as in `info,laneway_relay=debug`.
    pub log_level: String,
    /// Where spans go (OTLP over HTTP, e.g. `http://localhost:4318`); nowhere if it is not set.
    pub otlp_endpoint: Option<Url>,
    /// The share of traces begun here that is kept, 0 to 1; traces begun elsewhere keep their own decision.
    pub sample_ratio: f64,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Auto,
            log_level: "info".to_owned(),
            otlp_endpoint: None,
            sample_ratio: 1.0,
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

impl Validate for Telemetry {
    fn validate(&self, problems: &mut Problems) {
        if tracing_subscriber::EnvFilter::try_new(&self.log_level).is_err() {
            problems.report("log_level", "expected a level or directives as in `info,sqlx=warn`");
        }
        problems.range("sample_ratio", self.sample_ratio, 0.0..=1.0);
        if let Some(url) = &self.otlp_endpoint
            && !matches!(url.scheme(), "http" | "https")
        {
            problems.report("otlp_endpoint", "expected an http or https URL");
        }
    }
}

/// `admin`: the port for probes and metrics; never reachable from outside.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port; port 0 takes any free one (the log says which).
    pub listen: SocketAddr,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 0)) }
    }
}

impl Validate for Admin {
    fn validate(&self, _problems: &mut Problems) {}
}

/// `service`: the process itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// A name for this process that no other one running has, and that a restart keeps (in Kubernetes the pod's):
    /// 1 to 80 letters, digits, `.`, `_` or `-`. Made up if it is not set.
    pub instance: Option<String>,
    /// How long a stopping process may take to finish what is in flight, 1 s to 10 min.
    #[serde(with = "humantime_serde")]
    pub drain_grace: Duration,
}

impl Default for Service {
    fn default() -> Self {
        Self { instance: None, drain_grace: Duration::from_secs(25) }
    }
}

/// The longest name of an instance, in bytes.
const MAX_INSTANCE_NAME: usize = 80;

impl Validate for Service {
    fn validate(&self, problems: &mut Problems) {
        if let Some(name) = &self.instance {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            if name.is_empty() || name.len() > MAX_INSTANCE_NAME || !name.bytes().all(allowed) {
                problems.report(
                    "instance",
                    format!("expected 1 to {MAX_INSTANCE_NAME} letters, digits, `.`, `_` or `-`"),
                );
            }
        }
        let range = Duration::from_secs(1)..=Duration::from_secs(600);
        problems.duration("drain_grace", self.drain_grace, range);
    }
}

/// `secrets`: the key that endpoint secrets are encrypted with at rest (security.md 5.3).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secrets {
    /// 32 random bytes in base64 (`openssl rand -base64 32`). Required. Whoever loses it loses the secrets.
    #[serde(serialize_with = "redact")]
    pub key: SecretString,
    /// What the key is called in stored secrets: 1 to 32 of a–z, 0–9 and `-`.
    pub key_id: String,
}

impl Default for Secrets {
    fn default() -> Self {
        Self { key: SecretString::default(), key_id: "k1".to_owned() }
    }
}

impl Secrets {
    /// The key's 32 bytes; `None` if it is not that, which validation has reported.
    pub fn key_bytes(&self) -> Option<[u8; 32]> {
        let text = self.key.expose_secret().trim();
        base64::engine::general_purpose::STANDARD.decode(text).ok()?.try_into().ok()
    }
}

impl Validate for Secrets {
    fn validate(&self, problems: &mut Problems) {
        if self.key.expose_secret().is_empty() {
            problems.report("key", "is required");
        } else if self.key_bytes().is_none() {
            problems.report("key", "expected 32 bytes in base64");
        }
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if self.key_id.is_empty() || self.key_id.len() > 32 || !self.key_id.bytes().all(allowed) {
            problems.report("key_id", "expected 1 to 32 of a-z, 0-9 and `-`");
        }
    }
}

fn postgres_url(problems: &mut Problems, key: &str, url: &SecretString) {
    let url = url.expose_secret();
    if url.is_empty() {
        problems.report(key, "is required");
    } else if !Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "postgres" | "postgresql")) {
        problems.report(key, "expected postgres://user:password@host:port/database");
    }
}
