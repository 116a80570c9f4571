//! A whole Laneway on real servers: a database and a topic of its own, services as processes, one project.

use crate::app::App;
use crate::faults::Faults;
use anyhow::{Context, Result, bail};
use laneway_client::{Client, NewEndpoint, NewSubscription};
use laneway_testkit::{Child, Stack, free_port, fresh_topic_name, temp_dir, wait_for};
use laneway_wire::{EndpointId, TenantId};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

/// A service is ready within this, migrations and a rebalance included.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// The key of endpoint secrets in tests: 32 bytes in base64.
const SECRETS_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// How a world is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Partitions of the deliveries topic.
    pub partitions: u16,
    /// More settings for all processes, as environment variables, e.g. `LANEWAY_DELIVER__WINDOW_EVENTS`.
    pub settings: Vec<(&'static str, String)>,
    /// Level of the processes' logs.
    pub log_level: String,
    /// `host:port` at which the services reach PostgreSQL, if a proxy stands in between.
    pub postgres_via: Option<String>,
    /// The same of Kafka.
    pub kafka_via: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partitions: 4,
            settings: Vec::new(),
            log_level: "info".to_owned(),
            postgres_via: None,
            kafka_via: None,
        }
    }
}

/// How an endpoint is made.
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// `resend`, `lookup` or `hold`.
    pub on_unknown: &'static str,
    /// Deadline of a request.
    pub timeout: Duration,
    /// Requests in flight from one process at most.
    pub max_connections: u32,
    /// `user` or `none`.
    pub ordering: &'static str,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            on_unknown: "resend",
            timeout: Duration::from_secs(2),
            max_connections: 16,
            ordering: "user",
        }
    }
}

/// Everything of one test or demo. Processes end when it is dropped.
#[derive(Debug)]
pub struct World {
    /// `host:port` of the broker.
    pub kafka: String,
    /// URL of its own database: control and source in one.
    pub database: String,
    /// Its own deliveries topic.
    pub topic: String,
    /// Logs and journals.
    pub dir: PathBuf,
    /// The project.
    pub tenant: TenantId,
    /// The application.
    pub app: Arc<App>,
    /// What was done to whom.
    pub faults: Faults,
    config: PathBuf,
    admin: BTreeMap<String, u16>,
    children: BTreeMap<String, Child>,
    api_url: String,
    api_key: String,
    endpoints: Vec<Made>,
    settings: Vec<(&'static str, String)>,
}

/// An endpoint that a world made, with its one subscription.
#[derive(Debug, Clone)]
pub struct Made {
    /// Its id.
    pub id: EndpointId,
    /// Its URL.
    pub url: String,
    /// The path of it: the journal's name for the endpoint.
    pub path: String,
    /// The event types subscribed to.
    pub event_type: String,
    /// `user` or `none`.
    pub ordering: &'static str,
}

impl World {
    /// Makes database, schemas, project and key, and starts the API. Relays and deliver processes are the caller's.
    ///
    /// # Errors
    /// When any of it cannot be had.
    pub async fn start(stack: &Stack, options: Options) -> Result<Self> {
        let database = stack.fresh_database().await;
        let topic = fresh_topic_name("laneway.deliveries");
        let dir = temp_dir("world");
        let api_port = free_port();
        let config = dir.join("laneway.toml");
        std::fs::write(&config, configuration(stack, &database, &topic, api_port, &options))?;
        let mut world = Self {
            app: Arc::new(App::new(&database, uuid::Uuid::nil())?),
            kafka: stack.kafka().to_owned(),
            database,
            topic,
            dir,
            tenant: TenantId::from_uuid(uuid::Uuid::nil()),
            faults: Faults::default(),
            config,
            admin: BTreeMap::new(),
            children: BTreeMap::new(),
            api_url: format!("http://127.0.0.1:{api_port}"),
            api_key: String::new(),
            endpoints: Vec::new(),
            settings: options.settings,
        };
        world.cli(&["migrate"])?;
        world.cli(&["source", "install"])?;
        let project = world.cli_json(&["projects", "create", "world"])?;
        let tenant = text(&project, "id").context("project id")?;
        world.tenant = tenant.parse()?;
        world.app = Arc::new(App::new(&world.database, world.tenant.as_uuid())?);
        let key = world.cli_json(&["keys", "create", "--project", &tenant])?;
        world.api_key = text(&key, "key").context("key")?;
        world.spawn("api", "api", &[])?;
        world.ready("api").await?;
        Ok(world)
    }

    /// The binary under test, built beside this one.
    ///
    /// # Errors
    /// When it was not built.
    pub fn binary() -> Result<PathBuf> {
        let mut folder = std::env::current_exe()?;
        while folder.pop() {
            let binary = folder.join("laneway");
            if binary.is_file() {
                return Ok(binary);
            }
            if folder.file_name().is_some_and(|name| name == "target") {
                break;
            }
        }
        bail!("the laneway binary is not built: cargo build -p laneway")
    }

    /// Runs a command of the CLI to its end and gives its standard output.
    ///
    /// # Errors
    /// When it fails: with what it said.
    pub fn cli(&self, args: &[&str]) -> Result<String> {
        let output = self.cli_output(args)?;
        if !output.status.success() {
            bail!("laneway {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a command of the CLI to its end and gives all that came of it, whatever its exit code.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn cli_output(&self, args: &[&str]) -> Result<Output> {
        Ok(self.command(args)?.output()?)
    }

    /// A command of the CLI, not yet started.
    ///
    /// # Errors
    /// When the binary was not built.
    pub fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(Self::binary()?);
        command.arg("--config").arg(&self.config).args(args).env_remove("RUST_BACKTRACE");
        Ok(command)
    }

    /// As [`World::cli`] with `-o json`.
    ///
    /// # Errors
    /// As [`World::cli`], and when what it prints is not JSON.
    pub fn cli_json(&self, args: &[&str]) -> Result<Value> {
        let args: Vec<&str> = ["-o", "json"].iter().chain(args).copied().collect();
        let output = self.cli(&args)?;
        serde_json::from_str(&output)
            .with_context(|| format!("laneway {}: {output}", args.join(" ")))
    }

    /// Makes an endpoint at `url` with a subscription to everything.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn endpoint(&mut self, url: &str, options: EndpointOptions) -> Result<EndpointId> {
        self.endpoint_for(url, "*", options).await
    }

    /// Makes an endpoint at `url` subscribed to `event_type`.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn endpoint_for(
        &mut self,
        url: &str,
        event_type: &str,
        options: EndpointOptions,
    ) -> Result<EndpointId> {
        let new = NewEndpoint {
            url: url.to_owned(),
            on_unknown: Some(options.on_unknown.to_owned()),
            timeout_ms: Some(u32::try_from(options.timeout.as_millis())?),
            max_connections: Some(options.max_connections),
            ordering: Some(options.ordering.to_owned()),
            ..NewEndpoint::default()
        };
        let client = self.client()?;
        let id = client.endpoint_create(&new).await?.endpoint.id;
        let event_type = event_type.to_owned();
        let subscription = NewSubscription {
            endpoint_id: id,
            event_type: event_type.clone(),
            ordering_enabled: None,
        };
        client.subscription_create(&subscription).await?;
        let path = url.splitn(4, '/').nth(3).map_or("/".to_owned(), |path| format!("/{path}"));
        let ordering = options.ordering;
        self.endpoints.push(Made { id, url: url.to_owned(), path, event_type, ordering });
        Ok(id)
    }

    /// The endpoints made so far.
    pub fn endpoints(&self) -> &[Made] {
        &self.endpoints
    }

    /// A client of the API with the project's key.
    ///
    /// # Errors
    /// When no client can be made.
    pub fn client(&self) -> Result<Client> {
        self.client_via(&self.api_url)
    }

    /// As [`World::client`] where the API is reached at `url`, a way of the test's own.
    ///
    /// # Errors
    /// As [`World::client`].
    pub fn client_via(&self, url: &str) -> Result<Client> {
        Ok(Client::new(url, self.tenant, &self.api_key)?)
    }

    /// Where the API listens: `host:port`.
    pub fn api_address(&self) -> &str {
        self.api_url.trim_start_matches("http://")
    }

    /// Starts a service as a process called `name` (its instance name, kept over restarts).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&mut self, service: &str, name: &str, envs: &[(&str, &str)]) -> Result<()> {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let mut all =
            vec![("LANEWAY_ADMIN__LISTEN", listen.as_str()), ("LANEWAY_SERVICE__INSTANCE", name)];
        all.extend(self.settings.iter().map(|(name, value)| (*name, value.as_str())));
        all.extend(envs);
        let config = self.config.display().to_string();
        let args = ["--config", config.as_str(), service];
        let log = self.dir.join(format!("{name}.log"));
        let child = Child::spawn(name, Self::binary()?, args, all, log)?;
        self.admin.insert(name.to_owned(), port);
        self.children.insert(name.to_owned(), child);
        Ok(())
    }

    /// Waits until the process says that it is ready.
    ///
    /// # Errors
    /// When it ended instead: with the end of its log.
    pub async fn ready(&mut self, name: &str) -> Result<()> {
        let port = *self.admin.get(name).context("a process of that name")?;
        let start = std::time::Instant::now();
        while !is_ready(port).await {
            let child = self.process(name);
            if !child.is_running() || start.elapsed() > READY_LIMIT {
                bail!("{name} is not ready: {}", tail(child.log()));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Whether a process says that it is ready now.
    pub async fn is_ready(&self, name: &str) -> bool {
        match self.admin.get(name) {
            Some(&port) => is_ready(port).await,
            None => false,
        }
    }

    /// The admin port of a process.
    pub fn admin_port(&self, name: &str) -> Option<u16> {
        self.admin.get(name).copied()
    }

    /// Starts `service` under `name` and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn up(&mut self, service: &str, name: &str) -> Result<()> {
        self.spawn(service, name, &[])?;
        self.ready(name).await
    }

    /// A process by its name.
    ///
    /// Panics when there is none.
    pub fn process(&mut self, name: &str) -> &mut Child {
        self.children.get_mut(name).unwrap_or_else(|| panic!("no process {name}"))
    }

    /// The names of all processes started and not stopped.
    pub fn names(&self) -> Vec<String> {
        self.children.keys().cloned().collect()
    }

    /// Forgets a process, and kills it if it runs.
    pub fn forget(&mut self, name: &str) {
        self.children.remove(name);
    }

    /// Kills a process with SIGKILL and writes that down. Whether it ran until then.
    pub fn kill(&mut self, name: &str) -> bool {
        let killed = self.process(name).kill9();
        if killed {
            self.faults.note("kill", name);
        }
        killed
    }

    /// Stops a process in good order and waits for its end.
    ///
    /// # Errors
    /// When it does not end in time or not with success.
    pub async fn stop(&mut self, name: &str) -> Result<()> {
        let child = self.process(name);
        child.terminate();
        let status = child.wait(Duration::from_secs(40)).await?;
        if !status.success() {
            bail!("{name} ended with {status}: {}", tail(child.log()));
        }
        self.children.remove(name);
        Ok(())
    }

    /// A metric of a process: the sum over all its label values; 0 if it is not there.
    ///
    /// # Errors
    /// When the admin port does not answer.
    pub async fn metric(&self, name: &str, metric: &str) -> Result<f64> {
        metric_at(*self.admin.get(name).context("a process of that name")?, metric).await
    }

    /// Deliveries with a final outcome so far.
    ///
    /// # Errors
    /// When PostgreSQL is away.
    pub async fn settled(&self) -> Result<i64> {
        self.app.number("SELECT count(*) FROM laneway_control.inbox").await
    }

    /// Waits until `count` deliveries have a final outcome.
    ///
    /// Panics with where things stand when `limit` passes first.
    pub async fn wait_settled(&self, count: i64, limit: Duration) {
        let what = format!("{count} settled deliveries; logs in {}", self.dir.display());
        wait_for(&what, limit, || async {
            self.settled().await.is_ok_and(|settled| settled >= count)
        })
        .await;
    }

    /// Every process and what it said last, for a test that fails.
    pub fn tails(&self) -> String {
        self.children.iter().fold(String::new(), |mut all, (name, child)| {
            let _ = writeln!(all, "--- {name}\n{}", tail(child.log()));
            all
        })
    }
}

fn configuration(
    stack: &Stack,
    database: &str,
    topic: &str,
    api_port: u16,
    options: &Options,
) -> String {
    let Options { partitions, log_level, .. } = options;
    let kafka = options.kafka_via.as_deref().unwrap_or_else(|| stack.kafka());
    let database = match (&options.postgres_via, database.split_once('@')) {
        (Some(via), Some((user, rest))) => {
            let name = rest.split_once('/').map_or("", |(_, name)| name);
            format!("{user}@{via}/{name}")
        }
        _ => database.to_owned(),
    };
    format!(
        r#"
[database]
url = "{database}"
[[sources]]
name = "main"
url = "{database}"
[kafka]
brokers = "{kafka}"
deliveries_topic = "{topic}"
partitions = {partitions}
session_timeout = "6s"
[secrets]
key = "{SECRETS_KEY}"
[telemetry]
log_format = "text"
log_level = "{log_level}"
[courier.address]
allow_http = true
allowed = ["127.0.0.0/8"]
[api]
listen = "127.0.0.1:{api_port}"
[relay]
lease = "3s"
[deliver]
group = "{topic}"
lease = "3s"
"#
    )
}

fn text(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_str).map(str::to_owned)
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

pub(crate) async fn is_ready(port: u16) -> bool {
    http_get(port, "/readyz").await.is_ok_and(|(status, _)| status == 200)
}

/// A metric at an admin port: the sum over all its label values; 0 if it is not there.
pub(crate) async fn metric_at(port: u16, metric: &str) -> Result<f64> {
    let body = http_get(port, "/metrics").await?.1;
    let of_metric =
        |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with(['{', ' ']));
    Ok(body
        .lines()
        .filter(of_metric)
        .filter_map(|line| line.split(" # ").next()?.rsplit(' ').next()?.parse::<f64>().ok())
        .sum())
}

async fn http_get(port: u16, path: &str) -> Result<(u16, String)> {
    http(port, "GET", path, "").await
}

/// A request to a loopback port: status and body. Admin ports speak plain HTTP/1.1 and close when asked to.
pub(crate) async fn http(port: u16, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let work = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        Ok((status.context("a status line")?, body))
    };
    tokio::time::timeout(Duration::from_secs(5), work).await.context("the admin port is silent")?
}
