//! What a local installation sets where the configuration says nothing.

use super::servers::Servers;
use crate::failure::{Failure, Result};
use laneway_platform::ExitCode;
use laneway_platform::config::Origins;
use std::net::TcpListener;
use std::path::Path;

/// Defaults for one machine: short leases, so that a killed process is replaced within seconds (design 5.3), and
/// endpoints on loopback over plain HTTP, which an installation for others must not have.
const DEFAULTS: &[(&str, &str)] = &[
    ("LANEWAY_KAFKA__SESSION_TIMEOUT", "6s"),
    ("LANEWAY_DELIVER__LEASE", "3s"),
    ("LANEWAY_COURIER__ADDRESS__ALLOW_HTTP", "true"),
    ("LANEWAY_COURIER__ADDRESS__ALLOWED", "127.0.0.0/8,::1/128"),
    ("LANEWAY_TELEMETRY__LOG_LEVEL", "warn,laneway=info"),
    ("LANEWAY_SERVICE__DRAIN_GRACE", "10s"),
];
/// The port of the API, if nobody has it.
const API_PORT: u16 = 8080;

/// Puts the servers' addresses and the defaults behind what is configured.
pub(super) fn apply(origins: &mut Origins, servers: &Servers) -> Result {
    let url = servers.database_url.as_str();
    let mut set = |name: &str, value: &str| {
        origins.defaults.insert(name.to_owned(), value.to_owned());
    };
    for (name, value) in DEFAULTS {
        set(name, value);
    }
    set("LANEWAY_DATABASE__URL", url);
    set("LANEWAY_KAFKA__BROKERS", &servers.brokers);
    set("LANEWAY_SOURCES__0__NAME", "control");
    set("LANEWAY_SOURCES__0__URL", url);
    set("LANEWAY_SECRETS__KEY", &key(&servers.dir)?);
    set("LANEWAY_API__LISTEN", &format!("127.0.0.1:{}", free_port()?));
    Ok(())
}

/// The key of endpoint secrets: made once and kept beside the data that needs it.
fn key(dir: &Path) -> Result<String> {
    let file = dir.join("secrets.key");
    let cannot = |error: std::io::Error| {
        Failure::new(ExitCode::Failure, format!("cannot keep a key in {}: {error}", file.display()))
    };
    match std::fs::read_to_string(&file) {
        Ok(key) => Ok(key.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            use base64::Engine;
            use std::io::Write;
            use std::os::unix::fs::OpenOptionsExt;
            let key = base64::engine::general_purpose::STANDARD.encode(rand::random::<[u8; 32]>());
            std::fs::create_dir_all(dir).map_err(cannot)?;
            std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&file)
                .and_then(|mut file| file.write_all(key.as_bytes()))
                .map_err(cannot)?;
            Ok(key)
        }
        Err(error) => Err(cannot(error)),
    }
}

/// The usual port if it is free, else any that is.
fn free_port() -> Result<u16> {
    TcpListener::bind(("127.0.0.1", API_PORT))
        .or_else(|_| TcpListener::bind(("127.0.0.1", 0)))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| Failure::of(&error))
}
