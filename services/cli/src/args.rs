//! The command line as clap reads it: nouns are plural and the glossary's, verbs below (cli.md).

use crate::output::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};
use laneway_store::dead_letters::CAUSES;
use laneway_wire::{DeliveryId, EndpointId, ErasureId, TenantId};
use std::path::PathBuf;

/// What `laneway help` says about how a command ends.
const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed, or some of many items failed
    2  the command line was not understood
    3  not found
    4  refused, or not confirmed
    5  conflict, or a precondition does not hold
    6  not authenticated or not allowed
    7  a server is unavailable, or did not answer in time
    8  a check found something wrong
   64  the configuration is wrong (every problem is told)
  130  interrupted";

/// Laneway: committed PostgreSQL rows to HTTP endpoints, in order.
#[derive(Debug, Parser)]
#[command(name = "laneway", version, after_help = EXIT_CODES, propagate_version = true)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Configuration file, TOML or YAML; the environment (LANEWAY_SECTION__KEY) goes before it.
    #[arg(long, global = true, env = "LANEWAY_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How results are written to standard output.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Tables without their first line.
    #[arg(long, global = true)]
    pub(crate) no_headers: bool,
    /// Say nothing but results and errors.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the relay: committed outbox rows to the deliveries topic.
    Relay,
    /// Run a delivery service: deliveries topic to lanes to HTTP.
    Deliver,
    /// Run a reconciler: unknown outcomes, commands over dead letters.
    Reconciler,
    /// Run the HTTP API.
    Api,
    /// Run everything on this machine until Ctrl-C, with a first project, key and endpoint.
    Dev(Dev),
    /// Databases whose committed rows become events.
    #[command(subcommand)]
    Source(Source),
    /// Bring the control schema up to this version.
    Migrate(Database),
    /// Projects (tenants).
    #[command(subcommand)]
    Projects(Projects),
    /// API keys of a project.
    #[command(subcommand)]
    Keys(Keys),
    /// Endpoints: where requests go.
    #[command(subcommand)]
    Endpoints(Endpoints),
    /// Write events into a source database, one per line of NDJSON: {"type", "key"?, "payload"}.
    Emit(Emit),
    /// Lanes that are parked.
    #[command(subcommand)]
    Lanes(Lanes),
    /// Deliveries: one event for one endpoint.
    #[command(subcommand)]
    Deliveries(Deliveries),
    /// Outcomes that nobody knows, held for a person.
    #[command(subcommand)]
    Unknowns(Unknowns),
    /// Deliveries that were given up on.
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Send dead letters again, discard them, replay; and how far that is.
    #[command(subcommand)]
    Rewind(Rewind),
    /// Erase what one project's, or one user key's, events said: outbox, dead letters, answers' bodies. Waiting events
    /// are never sent.
    Erase(Erase),
    /// Look up in the database what is promised about its rows; exit code 8 if something is not as it must be.
    Audit {
        /// Rows that are at most so old; more than `--settled`, at most 90d.
        #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = duration)]
        window: std::time::Duration,
        /// Rows that are at least so old, 1s or more: what is younger may be on its way.
        #[arg(long, default_value = "10m", value_name = "DURATION", value_parser = duration)]
        settled: std::time::Duration,
        /// Publish again what is missing and may be sent again; the rest is only told.
        #[arg(long)]
        repair: bool,
        /// Who says so; stored in the audit log.
        #[arg(long, env = "USER", default_value = "operator", value_name = "NAME")]
        actor: String,
        #[command(flatten)]
        database: Database,
    },
    /// The configuration that the services would run with.
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// The database that a command works on.
#[derive(Debug, Args)]
pub(crate) struct Database {
    /// postgres://user:password@host:port/database; `database.url` of the configuration if it is not given.
    #[arg(long, env = "LANEWAY_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Dev {
    /// Where the local PostgreSQL and Kafka keep their data.
    #[arg(long, default_value = ".laneway/dev", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Keep the data of the last run.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Deliver to this URL instead of a built-in receiver that prints what it gets.
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Source {
    /// Put the `laneway` schema with the outbox into a database, or bring it up to this version.
    Install(Database),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Projects {
    /// Make a project and print its id.
    Create {
        /// What people call it, up to 200 characters.
        name: String,
        #[command(flatten)]
        database: Database,
    },
    /// List projects, oldest first.
    List {
        #[command(flatten)]
        database: Database,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: u16,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make a key and print it: it is shown this once.
    Create {
        /// The project that it belongs to.
        #[arg(long, value_name = "PROJECT")]
        project: TenantId,
        /// What it may be used for; may be given several times.
        #[arg(long = "scope", value_name = "SCOPE", value_parser = scope, default_value = "admin")]
        scopes: Vec<laneway_store::keys::Scope>,
        /// After so long it is no longer good, e.g. `90d`; for ever if not given.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires_in: Option<std::time::Duration>,
        #[command(flatten)]
        database: Database,
    },
    /// List a project's keys, without their secrets.
    List {
        /// The project.
        #[arg(long, value_name = "PROJECT")]
        project: TenantId,
        #[command(flatten)]
        database: Database,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: u16,
    },
    /// End a key at once.
    Revoke {
        /// The key's public id: the 8 characters after `lw_live_`.
        key: String,
        /// The project.
        #[arg(long, value_name = "PROJECT")]
        project: TenantId,
        #[command(flatten)]
        database: Database,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Endpoints {
    /// List a project's endpoints, oldest first, and whether they are sent to.
    List {
        /// The project.
        #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
        project: TenantId,
        #[command(flatten)]
        database: Database,
    },
    /// Enable an endpoint that is disabled (it answered 410): what waits goes on in order.
    Enable {
        /// The endpoint's id.
        endpoint: EndpointId,
        /// Its project.
        #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
        project: TenantId,
        /// Why it takes requests again; stored in the audit log.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Who says so; stored in the audit log.
        #[arg(long, env = "USER", default_value = "operator", value_name = "NAME")]
        actor: String,
        #[command(flatten)]
        database: Database,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Emit {
    /// File of events, one JSON object a line; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: PathBuf,
    /// The project whose events they are.
    #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
    pub(crate) project: TenantId,
    #[command(flatten)]
    pub(crate) database: Database,
    /// Stop at the first bad line instead of leaving it out.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Events in one transaction.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
}

/// Which rows of a list.
#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// Of this project only.
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<TenantId>,
    /// Of this endpoint only.
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<EndpointId>,
    /// At most so many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) limit: u16,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Lanes {
    /// List parked lanes, the next due first. Lanes that wait in the memory of a deliver process (a request under way,
    /// the first retries within 30 s) are not among them: `laneway_lanes{state="live"}` counts those.
    List(Selection),
    /// Show one parked lane and the first of its waiting events.
    Show {
        /// The lane's id (32 hexadecimal digits), or leave it out and name endpoint and key.
        #[arg(required_unless_present = "endpoint")]
        lane: Option<laneway_wire::LaneId>,
        /// The endpoint that the lane leads to.
        #[arg(long, value_name = "ENDPOINT", conflicts_with = "lane", requires = "key")]
        endpoint: Option<EndpointId>,
        /// The lane's user key.
        #[arg(long, value_name = "KEY", requires = "endpoint")]
        key: Option<String>,
        /// Waiting events at most.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=10_000))]
        limit: u16,
        #[command(flatten)]
        database: Database,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Deliveries {
    /// Show where a delivery is, and its recorded attempts.
    Show {
        /// The delivery's id (`dlv_…`, in `X-Delivery-Id`).
        delivery: DeliveryId,
        /// Its project; looked up if not given, and then only deliveries of which something is recorded are found.
        #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
        project: Option<TenantId>,
        #[command(flatten)]
        database: Database,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Unknowns {
    /// List held unknown outcomes, oldest first.
    List(Selection),
    /// Say what happened; the owner of the lane applies it and the lane goes on.
    Resolve {
        /// The delivery's id.
        delivery: DeliveryId,
        /// What the receiver's own records say.
        #[arg(long = "as", value_enum, value_name = "VERDICT")]
        verdict: Verdict,
        /// How you know; stored in the audit log.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Who says so; stored in the audit log.
        #[arg(long, env = "USER", default_value = "operator", value_name = "NAME")]
        actor: String,
        /// Do not wait until the owner has applied it.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        database: Database,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verdict {
    /// It was received: the lane goes on with the next event.
    Delivered,
    /// It was not: it is sent again under the same ids.
    NotApplied,
    /// Nobody can say: it becomes a dead letter, and the lane goes on.
    GivenUp,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// List dead letters, newest first.
    List {
        /// Of this project only.
        #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
        project: Option<TenantId>,
        #[command(flatten)]
        filter: DeadFilter,
        /// Only those in this state.
        #[arg(long, value_enum, value_name = "STATE")]
        state: Option<DeadState>,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
        limit: u16,
        #[command(flatten)]
        database: Database,
    },
    /// Show one dead letter and its attempts.
    Show {
        /// The delivery's id.
        delivery: DeliveryId,
        /// Its project; looked up if not given.
        #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
        project: Option<TenantId>,
        /// Show what could not be delivered too: it may be personal data.
        #[arg(long)]
        payload: bool,
        #[command(flatten)]
        database: Database,
    },
    /// Send dead letters again, as new deliveries at the back of their lanes, in their order.
    Rewind(DeadCommand),
    /// Give dead letters up for good.
    Discard(DeadCommand),
}

/// Which dead letters; all of the project if nothing is given.
#[derive(Debug, Args)]
pub(crate) struct DeadFilter {
    /// These alone, up to 1,000.
    pub(crate) deliveries: Vec<DeliveryId>,
    /// Of this endpoint.
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) endpoint: Option<EndpointId>,
    /// Of this lane.
    #[arg(long, value_name = "LANE")]
    pub(crate) lane: Option<laneway_wire::LaneId>,
    /// Of this user key.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Of this event type; `order.*` is everything below `order`.
    #[arg(long = "event-type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Given up for this.
    #[arg(long, value_name = "CAUSE", value_parser = clap::builder::PossibleValuesParser::new(CAUSES))]
    pub(crate) cause: Option<String>,
    /// Given up at this time (RFC 3339) or later, or within this span, e.g. `2h`.
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<When>,
    /// Given up before this time (RFC 3339), or longer ago than this span.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<When>,
}

#[derive(Debug, Args)]
pub(crate) struct DeadCommand {
    /// Whose dead letters.
    #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
    pub(crate) project: TenantId,
    #[command(flatten)]
    pub(crate) filter: DeadFilter,
    #[command(flatten)]
    pub(crate) how: How,
}

#[derive(Debug, Args)]
pub(crate) struct Erase {
    /// Whose payloads.
    #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
    pub(crate) project: TenantId,
    /// Of this user key alone; of the whole project without it.
    #[arg(long, value_name = "KEY")]
    pub(crate) user_key: Option<String>,
    /// End this erasure where it is: rewinds of the project wait no more. What is erased stays so.
    #[arg(long, value_name = "ERASURE", conflicts_with_all = ["user_key", "dry_run"])]
    pub(crate) cancel: Option<ErasureId>,
    #[command(flatten)]
    pub(crate) how: How,
}

/// How a command over many deliveries is given.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// Why; stored in the audit log.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    pub(crate) reason: Option<String>,
    /// Who says so; stored in the audit log.
    #[arg(long, env = "USER", default_value = "operator", value_name = "NAME")]
    pub(crate) actor: String,
    /// Only count what it would mean.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask; needed where nobody can be asked.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Do not wait until it is done.
    #[arg(long)]
    pub(crate) no_wait: bool,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeadState {
    Open,
    Rewound,
    Discarded,
    Erased,
}

/// A point of time, or a span before now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    At(laneway_wire::Timestamp),
    Ago(std::time::Duration),
}

impl std::str::FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(at) = chrono::DateTime::parse_from_rfc3339(text) {
            return Ok(Self::At(laneway_wire::Timestamp(at.timestamp_millis())));
        }
        let span = humantime::parse_duration(text);
        span.map(Self::Ago).map_err(|_| "expected an RFC 3339 time or a span like `2h`".to_owned())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rewind {
    /// List commands over many deliveries, newest first.
    List {
        /// Of this project only.
        #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
        project: Option<TenantId>,
        /// At most so many.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1_000))]
        limit: u16,
        #[command(flatten)]
        database: Database,
    },
    /// Show one command and how far it is.
    Show(RewindName),
    /// Wait until a command has ended; Ctrl-C ends the waiting, not the command.
    Watch(RewindName),
    /// Stop a command where it is; it can go on.
    Pause(RewindChange),
    /// Let a paused command go on.
    Resume(RewindChange),
    /// End a command where it is; what was done stays.
    Cancel(RewindChange),
    /// Send an endpoint again what it was delivered since a moment, from the retained log, as new deliveries.
    Replay {
        /// Whose endpoint.
        #[arg(long, env = "LANEWAY_PROJECT", value_name = "PROJECT")]
        project: TenantId,
        /// The endpoint.
        #[arg(long, value_name = "ENDPOINT")]
        endpoint: EndpointId,
        /// Events emitted at this time (RFC 3339) or later, or within this span, e.g. `2h`.
        #[arg(long, value_name = "TIME")]
        since: When,
        /// Of this event type; `order.*` is everything below `order`.
        #[arg(long = "event-type", value_name = "TYPE")]
        event_type: Option<String>,
        #[command(flatten)]
        how: How,
    },
}

/// A command by its id.
#[derive(Debug, Args)]
pub(crate) struct RewindName {
    /// The command's id, `rwd_…`.
    pub(crate) rewind: laneway_wire::RewindId,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Args)]
pub(crate) struct RewindChange {
    /// The command's id, `rwd_…`.
    pub(crate) rewind: laneway_wire::RewindId,
    /// Why; stored in the audit log.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Who says so; stored in the audit log.
    #[arg(long, env = "USER", default_value = "operator", value_name = "NAME")]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read and validate the configuration of one service or of all; exit code 64 if it is wrong.
    Check {
        /// Only this one's.
        service: Option<ServiceName>,
    },
    /// Print the effective configuration with the origin of each value; secrets are not shown.
    Show {
        /// Only this one's.
        service: Option<ServiceName>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceName {
    Relay,
    Deliver,
    Reconciler,
    Api,
}

fn scope(text: &str) -> Result<laneway_store::keys::Scope, String> {
    laneway_store::keys::Scope::parse(text).ok_or_else(|| {
        let all: Vec<&str> =
            laneway_store::keys::Scope::ALL.iter().map(|scope| scope.as_str()).collect();
        format!("expected one of {}", all.join(", "))
    })
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_moment_is_a_time_or_a_span() {
        let hour = std::time::Duration::from_secs(3_600);
        assert_eq!("1h".parse(), Ok(When::Ago(hour)));
        let at = laneway_wire::Timestamp(1_000);
        assert_eq!("1970-01-01T01:00:01+01:00".parse(), Ok(When::At(at)));
        assert!("yesterday".parse::<When>().is_err());
    }
}
