//! Configuration: defaults in code ← file ← environment, checked as a whole, every problem reported at once.
//!
//! * File: `--config FILE` or `LANEWAY_CONFIG`; TOML or YAML by its extension.
//! * Environment: `LANEWAY_` + the key's path in capitals with `__` between its parts:
//!   `LANEWAY_DATABASE__MAX_CONNECTIONS=32`, `LANEWAY_SOURCES__0__NAME=shop`. An unknown `LANEWAY_…` variable is an
//!   error; [`OTHER_VARIABLES`] lists the ones that are no settings.
//! * A service's settings are a serde struct with `#[serde(default, deny_unknown_fields)]` in the service's crate and
//!   an implementation of [`Validate`]; a missing required setting is a problem that `validate` reports.
//! * One file serves all services: top-level sections of [`SECTIONS`] that a service does not know are left alone.
//! * Secrets are [`SecretString`]s; nothing prints them, and [`Loaded::show`] writes [`REDACTED`] in their place.

mod layers;
mod node;
mod problems;
mod settings;
mod show;
mod tree;

pub use node::Tree;
pub use problems::{ConfigErrors, Origin, Problem, Problems, Validate};
pub use secrecy::{ExposeSecret, SecretString};
pub use settings::{
    Admin, Database, Kafka, LogFormat, Secrets, SecurityProtocol, Service, Source, Telemetry,
    Tenants,
};
pub use show::{REDACTED, redact, redact_option, redact_url};

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The top-level sections that exist, whichever crate owns them; any other one is a problem in every process.
pub const SECTIONS: &[&str] = &[
    "database",
    "sources",
    "kafka",
    "telemetry",
    "admin",
    "service",
    "secrets",
    "relay",
    "deliver",
    "reconciler",
    "api",
    "courier",
];

/// Variables that begin with `LANEWAY_` and are no settings; a name that ends in `_` stands for all that
/// begin so and have no `__`.
pub const OTHER_VARIABLES: &[&str] = &[
    "LANEWAY_CONFIG",
    "LANEWAY_CONTEXT",
    "LANEWAY_DATABASE_URL",
    "LANEWAY_PROJECT",
    "LANEWAY_POSTGRES",
    "LANEWAY_POSTGRES_",
    "LANEWAY_KAFKA_",
    "LANEWAY_STACK_DIR",
    "LANEWAY_TOOLS",
    "LANEWAY_SIM_",
    "LANEWAY_DEV_",
    "LANEWAY_DEMO_",
    "LANEWAY_TEST_",
    "LANEWAY_BENCH_",
    "LANEWAY_FAILPOINT",
    "LANEWAY_FAILPOINT_",
];

/// Where a configuration comes from, beside the defaults in code.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// Defaults that go before those in code, by the names of their variables: for `laneway dev` and tests. The file
    /// and the environment go before them.
    pub defaults: BTreeMap<String, String>,
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// Variables by their full names; those without the prefix `LANEWAY_` are ignored.
    pub environment: BTreeMap<String, String>,
    /// Variables whose values are not UTF-8, each reported as a problem.
    pub unreadable: Vec<String>,
}

impl Origins {
    /// The process's own: the environment, and `file` or else the file that `LANEWAY_CONFIG` names.
    pub fn of_process(file: Option<PathBuf>) -> Self {
        let (environment, unreadable) = crate::env::with_prefix(layers::PREFIX);
        let file = file.or_else(|| {
            environment.get("LANEWAY_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
        });
        Self { file, environment, unreadable, ..Self::default() }
    }

    /// A configuration written in code, for tests: `(variable, value)` pairs and nothing else.
    pub fn of_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let environment =
            pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { environment, ..Self::default() }
    }
}

/// Settings that were read and found valid.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The settings.
    pub settings: T,
    /// What was read before it became settings, with the origin of each value.
    pub tree: Tree,
}

impl<T> Loaded<T> {
    /// Refuses what was found wrong later, e.g. by a comparison with other settings of the same configuration.
    ///
    /// # Errors
    /// All that was found, each with the origin of its value.
    pub fn refuse(&self, found: Problems) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        problems::add_new(found, &self.tree, &mut problems);
        if problems.is_empty() { Ok(()) } else { Err(ConfigErrors::new(problems)) }
    }
}

impl<T: Serialize> Loaded<T> {
    /// The effective configuration as TOML, secrets replaced, each value that is not a default with its origin.
    pub fn show(&self) -> String {
        show::render(&self.settings, &self.tree)
    }
}

/// Reads, merges, deserialises and validates.
///
/// # Errors
/// [`ConfigErrors`] with every problem found, each with the path of its key and where the value came from. The
/// process ends with [`crate::ExitCode::Config`] then.
pub fn load<T: DeserializeOwned + Validate>(origins: &Origins) -> Result<Loaded<T>, ConfigErrors> {
    let mut problems = Vec::new();
    let tree = layers::read(origins, &mut problems);
    let settings = tree::settle::<T>(&tree, &mut problems);
    if let Some(settings) = &settings {
        let mut found = Problems::default();
        settings.validate(&mut found);
        problems::add_new(found, &tree, &mut problems);
    }
    match settings {
        Some(settings) if problems.is_empty() => Ok(Loaded { settings, tree }),
        _ => Err(ConfigErrors::new(problems)),
    }
}

#[cfg(test)]
mod tests;
