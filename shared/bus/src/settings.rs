//! How to reach Kafka: the settings that an operator may give, and no other client option.

use std::path::PathBuf;

use rdkafka::ClientConfig;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

/// Where the brokers are and how to talk to them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Comma-separated `host:port` of some brokers.
    pub brokers: String,
    /// Name of this client in the broker's logs and quotas.
    #[serde(default = "default_client_id")]
    pub client_id: String,
    /// Encryption and authentication of the connection.
    #[serde(default)]
    pub security_protocol: SecurityProtocol,
    /// With the SASL protocols.
    #[serde(default)]
    pub sasl_mechanism: Option<SaslMechanism>,
    /// With the SASL protocols.
    #[serde(default)]
    pub sasl_username: Option<String>,
    /// With the SASL protocols.
    #[serde(default)]
    pub sasl_password: Option<SecretString>,
    /// PEM file of the authorities to trust in place of the system's.
    #[serde(default)]
    pub ssl_ca_location: Option<PathBuf>,
}

fn default_client_id() -> String {
    "laneway".to_owned()
}

/// Encryption and authentication of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProtocol {
    /// Neither: for loopback.
    #[default]
    Plaintext,
    /// TLS.
    Ssl,
    /// SASL without encryption.
    SaslPlaintext,
    /// SASL over TLS.
    SaslSsl,
}

/// How SASL proves who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SaslMechanism {
    /// Password as it is: over TLS only.
    Plain,
    /// SCRAM-SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// SCRAM-SHA-512.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl Connection {
    /// Plain text to `brokers`.
    pub fn plaintext(brokers: &str) -> Self {
        Self {
            brokers: brokers.to_owned(),
            client_id: default_client_id(),
            security_protocol: SecurityProtocol::Plaintext,
            sasl_mechanism: None,
            sasl_username: None,
            sasl_password: None,
            ssl_ca_location: None,
        }
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config.set("client.id", &self.client_id);
        config.set(
            "security.protocol",
            match self.security_protocol {
                SecurityProtocol::Plaintext => "plaintext",
                SecurityProtocol::Ssl => "ssl",
                SecurityProtocol::SaslPlaintext => "sasl_plaintext",
                SecurityProtocol::SaslSsl => "sasl_ssl",
            },
        );
        if let Some(mechanism) = self.sasl_mechanism {
            config.set(
                "sasl.mechanism",
                match mechanism {
                    SaslMechanism::Plain => "PLAIN",
                    SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
                    SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
                },
            );
        }
        if let Some(username) = &self.sasl_username {
            config.set("sasl.username", username);
        }
        if let Some(password) = &self.sasl_password {
            config.set("sasl.password", password.expose_secret());
        }
        if let Some(path) = &self.ssl_ca_location {
            config.set("ssl.ca.location", path.to_string_lossy());
        }
        // A broker that comes back is tried again soon; an idle lane must not wait for a long backoff.
        config.set("reconnect.backoff.ms", "50");
        config.set("reconnect.backoff.max.ms", "1000");
        config.set("socket.keepalive.enable", "true");
        // Idle clients say so in the log with every broker restart; the errors that matter come as results.
        config.set("log.connection.close", "false");
        config
    }
}
