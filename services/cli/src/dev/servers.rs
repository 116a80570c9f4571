//! PostgreSQL and Kafka for `laneway dev`: the configured ones, or a stack of its own.

use crate::args;
use crate::failure::{Failure, Result};
use crate::output::Output;
use laneway_platform::ExitCode;
use laneway_platform::config::{Database, ExposeSecret, Kafka, Origins, Problems, Validate, load};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Output as Ended, Stdio};
use tokio::process::Command;

/// Where the script lies in a checkout.
const SCRIPT: &str = "deploy/dev/stack";

/// The two servers.
#[derive(Debug)]
pub(super) struct Servers {
    /// URL of the database, as a role that may make schemas.
    pub(super) database_url: String,
    /// Kafka's address.
    pub(super) brokers: String,
    /// Where data and keys are kept.
    pub(super) dir: PathBuf,
    /// The script, if the servers were started by it.
    script: Option<PathBuf>,
}

/// What the configuration says about them; whether it is valid shows when the services read it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Given {
    database: Database,
    kafka: Kafka,
}

impl Validate for Given {
    fn validate(&self, _problems: &mut Problems) {}
}

impl Servers {
    /// The configured servers; or those that `deploy/dev/stack run` or `make` gave to this process; or new ones.
    pub(super) async fn find_or_start(
        args: &args::Dev,
        origins: &Origins,
        output: Output,
    ) -> Result<Self> {
        let given = load::<Given>(origins)?.settings;
        let or_test = |value: &str, name: &str| match value {
            "" => origins.environment.get(name).cloned(),
            value => Some(value.to_owned()),
        };
        let database = or_test(given.database.url.expose_secret(), "LANEWAY_TEST_DATABASE_URL");
        let brokers = or_test(&given.kafka.brokers, "LANEWAY_TEST_KAFKA");
        if let (Some(database_url), Some(brokers)) = (database, brokers) {
            return Ok(Self { database_url, brokers, dir: args.dir.clone(), script: None });
        }
        let Some((root, script)) = checkout() else {
            let message =
                "no PostgreSQL and Kafka are configured, and this is no checkout of Laneway";
            return Err(Failure::new(ExitCode::Config, message).hint(
                "set LANEWAY_DATABASE__URL and LANEWAY_KAFKA__BROKERS, or run it inside a checkout",
            ));
        };
        Self::start(root.join(&args.dir), script, args.keep, output).await
    }

    async fn start(dir: PathBuf, script: PathBuf, keep: bool, output: Output) -> Result<Self> {
        output.say(&format!("starting PostgreSQL and Kafka in {}", dir.display()));
        let folder = dir.display().to_string();
        let me = std::process::id().to_string();
        call(&script, &["setup"]).await?;
        if keep {
            call(&script, &["down", &folder]).await?;
        } else {
            call(&script, &["clean", &folder]).await?;
        }
        call(&script, &["up", &folder, "--parent", &me]).await?;
        let env = std::fs::read_to_string(dir.join("env")).map_err(|error| Failure::of(&error))?;
        let value = |name: &str| {
            env.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .map(str::to_owned)
                .ok_or_else(|| Failure::new(ExitCode::Failure, format!("{SCRIPT} gave no {name}")))
        };
        let database_url = value("LANEWAY_TEST_DATABASE_URL")?;
        let brokers = value("LANEWAY_TEST_KAFKA")?;
        Ok(Self { database_url, brokers, dir, script: Some(script) })
    }

    /// Stops what was started; data and logs stay.
    pub(super) async fn stop(&self, output: Output) {
        let Some(script) = &self.script else { return };
        output.say("stopping PostgreSQL and Kafka");
        if let Err(failure) = call(script, &["down", &self.dir.display().to_string()]).await {
            output.warn(&failure.message);
        }
    }
}

/// The root of the checkout that this directory, or else this program, lies in, and the script.
fn checkout() -> Option<(PathBuf, PathBuf)> {
    let above = |path: PathBuf| {
        path.ancestors().map(Path::to_path_buf).find(|root| root.join(SCRIPT).is_file())
    };
    let root = std::env::current_dir()
        .ok()
        .and_then(above)
        .or_else(|| std::env::current_exe().ok().and_then(above))?;
    let script = root.join(SCRIPT);
    Some((root, script))
}

/// Runs a verb of the script and waits for its end.
async fn call(script: &Path, verb: &[&str]) -> Result {
    // Ctrl-C ends this process and not the script half-way; the servers it starts must not hold our output.
    let ended: Ended = Command::new(script)
        .args(verb)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .await
        .map_err(|error| Failure::of(&error))?;
    if ended.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&ended.stderr);
    let message = format!("{SCRIPT} {}: {}", verb.join(" "), told.trim());
    Err(Failure::new(ExitCode::Unavailable, message))
}
