//! What each command does, one file for a family.

mod audit;
mod config;
mod dead;
mod endpoints;
mod erase;
mod inspect;
mod install;
mod services;
mod tenancy;

use crate::args::{Cli, Command, Database};
use crate::failure::{Failure, Result};
use crate::output::Output;
use laneway_platform::ExitCode;
use laneway_platform::config::{self as configuration, Origins, Problems, SecretString, Validate};
use laneway_store::audit::Scope;
use laneway_store::reason::reason_is_valid;
use laneway_store::{Options, Pool};
use serde::{Deserialize, Serialize};

pub(crate) use services::{Everything, Runnable};

/// Connections of a command that asks one thing after the other.
const CONNECTIONS: u32 = 2;

/// Does what the command line says.
pub(crate) async fn run(cli: Cli) -> Result {
    let output = Output { format: cli.output, headers: !cli.no_headers, quiet: cli.quiet };
    let origins = Origins::of_process(cli.config);
    match cli.command {
        Command::Relay => services::run::<laneway_relay::Settings>(&origins).await,
        Command::Deliver => services::run::<laneway_deliver::Settings>(&origins).await,
        Command::Reconciler => services::run::<laneway_reconciler::Settings>(&origins).await,
        Command::Api => services::run::<laneway_api::Settings>(&origins).await,
        Command::Dev(args) => crate::dev::run(args, origins, output).await,
        Command::Source(command) => install::source(command, &origins, output).await,
        Command::Migrate(database) => install::migrate(&database, &origins, output).await,
        Command::Projects(command) => tenancy::projects(command, &origins, output).await,
        Command::Keys(command) => tenancy::keys(command, &origins, output).await,
        Command::Endpoints(command) => endpoints::endpoints(command, &origins, output).await,
        Command::Emit(args) => crate::emit::run(args, &origins, output).await,
        Command::Lanes(command) => inspect::lanes(command, &origins, output).await,
        Command::Deliveries(command) => inspect::deliveries(command, &origins, output).await,
        Command::Unknowns(command) => inspect::unknowns(command, &origins, output).await,
        Command::DeadLetters(command) => dead::dead_letters(command, &origins, output).await,
        Command::Rewind(command) => dead::rewind(command, &origins, output).await,
        Command::Erase(command) => erase::run(command, &origins, output).await,
        Command::Audit { window, settled, repair, actor, database } => {
            let repair = repair.then_some(actor.as_str());
            audit::run(Scope { window, settled }, repair, &database, &origins, output).await
        }
        Command::Config(command) => config::run(command, &origins, output),
    }
}

/// Refuses a reason that would leave the audit log without one.
fn check_reason(reason: &str) -> Result {
    if reason_is_valid(reason) {
        return Ok(());
    }
    Err(Failure::new(ExitCode::Usage, "a reason has 1 to 1,000 characters, not only blanks"))
}

/// The one section that an operator's command needs.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Operator {
    database: configuration::Database,
}

impl Validate for Operator {
    fn validate(&self, problems: &mut Problems) {
        problems.section("database", &self.database);
    }
}

/// Connects to the database of the command line, or else to the configuration's.
pub(crate) async fn connect(database: &Database, origins: &Origins) -> Result<Pool> {
    let url = match &database.database_url {
        Some(url) => SecretString::from(url.as_str()),
        None => {
            configuration::load::<Operator>(origins)
                .map_err(|errors| {
                    Failure::from(errors).hint("give --database-url, or set database.url")
                })?
                .settings
                .database
                .url
        }
    };
    let options = Options::new("laneway-cli").max_connections(CONNECTIONS);
    Pool::connect(&url, options).await.map_err(|error| match error {
        laneway_store::Error::Url(_) => Failure::of(&error).code(ExitCode::Usage),
        error => Failure::from(error),
    })
}
