//! What the courier is told by configuration.

use crate::address::AddressPolicy;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a courier; part of the delivery service's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where requests may go.
    pub address: AddressPolicy,
    /// A PEM file with root certificates that are trusted beside the platform's.
    pub extra_ca_file: Option<PathBuf>,
    /// Clients (one per endpoint, each with its pool of connections) kept at most; the least recently used one that
    /// is idle goes first.
    pub max_clients: usize,
    /// Name lookup, connection and TLS handshake together take no longer than this, and no longer than half of a
    /// request's deadline.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// A connection that was idle for longer is not used again. Below the 5 s after which common servers close one:
    /// a request that meets the closing has an unknown outcome.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address: AddressPolicy::default(),
            extra_ca_file: None,
            max_clients: 5_000,
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(4),
        }
    }
}

/// Why no courier can be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file of extra root certificates cannot be read.
    #[error("cannot read root certificates from `{}`", path.display())]
    ExtraCa {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// No TLS configuration can be made of the root certificates.
    #[error("cannot configure TLS")]
    Tls(#[source] rustls::Error),
    /// The HTTP client refuses its configuration.
    #[error("cannot make an HTTP client")]
    Client(#[source] reqwest::Error),
}
