//! The servers of a test: shared by all tests of a run, or private for tests that break them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use tokio::sync::OnceCell;

/// Set by `make test` and `deploy/dev/stack run`.
const DATABASE_VARIABLE: &str = "LANEWAY_TEST_DATABASE_URL";
const KAFKA_VARIABLE: &str = "LANEWAY_TEST_KAFKA";

static SHARED: OnceCell<Stack> = OnceCell::const_new();
static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A real PostgreSQL and a real Kafka on loopback.
#[derive(Debug)]
pub struct Stack {
    database_url: String,
    kafka: String,
    // Where the listener behind a proxy listens.
    kafka_via: Option<String>,
    // Of a stack of our own; `None` when the servers belong to whoever started the tests.
    folder: Option<PathBuf>,
    discard: bool,
}

impl Stack {
    /// The servers that all tests of this run share; started by the first caller when `make test` did not.
    ///
    /// Panics when they cannot be had. Started ones are stopped soon after this process ends, however it ends.
    pub async fn shared() -> &'static Self {
        SHARED
            .get_or_init(|| async {
                match (std::env::var(DATABASE_VARIABLE), std::env::var(KAFKA_VARIABLE)) {
                    (Ok(database_url), Ok(kafka)) => {
                        Self { database_url, kafka, kafka_via: None, folder: None, discard: false }
                    }
                    _ => Self::start(None, None).await.expect("the local stack can be started"),
                }
            })
            .await
    }

    /// Servers of its own; stopped and removed on drop.
    ///
    /// # Errors
    /// When they do not start.
    pub async fn private() -> Result<Self> {
        let mut stack = Self::start(None, None).await?;
        stack.discard = true;
        Ok(stack)
    }

    /// As [`Stack::private`]; clients that reach Kafka at [`Stack::kafka_via`] are told to go on to `port`, where the
    /// caller's proxy listens.
    ///
    /// # Errors
    /// When they do not start.
    pub async fn private_behind(port: u16) -> Result<Self> {
        let mut stack = Self::start(None, Some(port)).await?;
        stack.discard = true;
        Ok(stack)
    }

    /// A PostgreSQL of its own beside the shared Kafka.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn private_postgres() -> Result<Self> {
        let mut stack = Self::start(Some("postgres"), None).await?;
        stack.discard = true;
        stack.kafka.clone_from(&Self::shared().await.kafka);
        Ok(stack)
    }

    /// A Kafka of its own beside the shared PostgreSQL.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn private_kafka() -> Result<Self> {
        let mut stack = Self::start(Some("kafka"), None).await?;
        stack.discard = true;
        stack.database_url.clone_from(&Self::shared().await.database_url);
        Ok(stack)
    }

    /// `postgres://…` of the server's maintenance database, as superuser. Tests use [`Stack::fresh_database`].
    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    /// `127.0.0.1:port` of the broker.
    pub fn kafka(&self) -> &str {
        &self.kafka
    }

    /// The address that a proxy in front of Kafka forwards to, if there is to be one.
    pub fn kafka_via(&self) -> Option<&str> {
        self.kafka_via.as_deref()
    }

    /// The folder of a stack of its own: `postgres` and `kafka` are in it.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref().filter(|_| self.discard)
    }

    /// Makes an empty database that no other test uses and gives its URL (superuser).
    ///
    /// Panics when PostgreSQL refuses.
    pub async fn fresh_database(&self) -> String {
        let name = format!("lw_{}", uuid::Uuid::now_v7().simple());
        crate::sql(&self.database_url, &format!("CREATE DATABASE {name}"))
            .await
            .expect("PostgreSQL makes a database");
        let server = self.database_url.rsplit_once('/').map_or("", |(server, _)| server);
        format!("{server}/{name}")
    }

    /// Kills every process of PostgreSQL with SIGKILL. [`Stack::start_postgres`] brings it back on the same port.
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn crash_postgres(&self) -> Result<()> {
        self.verb("pg-crash").await
    }

    /// Stops PostgreSQL in order (sessions are cut).
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn stop_postgres(&self) -> Result<()> {
        self.verb("pg-stop").await
    }

    /// Starts PostgreSQL again with its data, on its port; returns when it answers.
    ///
    /// # Errors
    /// On the shared stack, or when it does not start.
    pub async fn start_postgres(&self) -> Result<()> {
        self.verb("pg-start").await?;
        self.same_address("LANEWAY_TEST_DATABASE_URL", &self.database_url)
    }

    /// Stop and start.
    ///
    /// # Errors
    /// As the two.
    pub async fn restart_postgres(&self) -> Result<()> {
        self.stop_postgres().await?;
        self.start_postgres().await
    }

    /// SIGSTOP of every process of PostgreSQL, until [`Stack::resume_postgres`].
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn pause_postgres(&self) -> Result<()> {
        self.verb("pg-pause").await
    }

    /// SIGCONT of every process of PostgreSQL.
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn resume_postgres(&self) -> Result<()> {
        self.verb("pg-resume").await
    }

    /// SIGSTOP of Kafka, until [`Stack::resume_kafka`].
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn pause_kafka(&self) -> Result<()> {
        self.verb("kafka-pause").await
    }

    /// SIGCONT of Kafka.
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn resume_kafka(&self) -> Result<()> {
        self.verb("kafka-resume").await
    }

    /// Kills Kafka with SIGKILL.
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn kill_kafka(&self) -> Result<()> {
        self.verb("kafka-kill").await
    }

    /// Stops Kafka in order.
    ///
    /// # Errors
    /// On the shared stack.
    pub async fn stop_kafka(&self) -> Result<()> {
        self.verb("kafka-stop").await
    }

    /// Changes settings (`name=value,…`) of a topic of Kafka, those of others and its other ones stay.
    ///
    /// # Errors
    /// On the shared stack, or when the broker refuses.
    pub async fn kafka_topic_config(&self, topic: &str, settings: &str) -> Result<()> {
        let Some(folder) = self.folder() else {
            bail!("a test may only change a stack of its own (Stack::private)");
        };
        let folder = folder.display().to_string();
        let args = ["kafka-topic-config", &folder, topic, settings];
        stack_command(args.map(str::to_owned).to_vec()).await
    }

    /// What the broker is set to beside its settings (`name=value` lines) from its next start on.
    ///
    /// # Errors
    /// On the shared stack, or when the file cannot be written.
    pub fn kafka_extra(&self, settings: &str) -> Result<()> {
        let Some(folder) = self.folder() else {
            bail!("a test may only change a stack of its own (Stack::private)");
        };
        Ok(std::fs::write(folder.join("kafka/extra.properties"), settings)?)
    }

    /// Gives a topic of Kafka so many partitions, more than it has.
    ///
    /// # Errors
    /// On the shared stack, or when the broker refuses.
    pub async fn kafka_partitions(&self, topic: &str, count: u16) -> Result<()> {
        let Some(folder) = self.folder() else {
            bail!("a test may only change a stack of its own (Stack::private)");
        };
        let (folder, count) = (folder.display().to_string(), count.to_string());
        let args = ["kafka-partitions", &folder, topic, &count];
        stack_command(args.map(str::to_owned).to_vec()).await
    }

    /// Starts Kafka again with its data, on its port; returns when it answers.
    ///
    /// # Errors
    /// On the shared stack, or when it does not start.
    pub async fn start_kafka(&self) -> Result<()> {
        self.verb("kafka-start").await?;
        self.same_address("LANEWAY_TEST_KAFKA", &self.kafka)
    }

    /// Stop and start.
    ///
    /// # Errors
    /// As the two.
    pub async fn restart_kafka(&self) -> Result<()> {
        self.stop_kafka().await?;
        self.start_kafka().await
    }

    async fn start(only: Option<&str>, kafka_via: Option<u16>) -> Result<Self> {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = root().join(format!(".laneway/tests/{}-{number}", std::process::id()));
        let parent = std::process::id().to_string();
        let mut args = vec!["up".to_owned(), folder.display().to_string()];
        args.extend(["--parent".to_owned(), parent, "--discard".to_owned()]);
        args.extend(only.into_iter().flat_map(|part| ["--only".to_owned(), part.to_owned()]));
        if let Some(port) = kafka_via {
            args.extend(["--kafka-via".to_owned(), port.to_string()]);
        }
        stack_command(vec!["setup".to_owned()]).await?;
        stack_command(args).await?;
        let read = |name| read_env(&folder, name).unwrap_or_default();
        Ok(Self {
            database_url: read("LANEWAY_TEST_DATABASE_URL"),
            kafka: read("LANEWAY_TEST_KAFKA"),
            kafka_via: read_env(&folder, "LANEWAY_KAFKA_VIA"),
            folder: Some(folder),
            discard: false,
        })
    }

    async fn verb(&self, verb: &str) -> Result<()> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.discard) else {
            bail!("{verb}: a test may only break a stack of its own (Stack::private)");
        };
        stack_command(vec![verb.to_owned(), folder.display().to_string()]).await
    }

    fn same_address(&self, variable: &str, before: &str) -> Result<()> {
        let folder = self.folder.as_ref().context("a stack of its own has a folder")?;
        let after = read_env(folder, variable).unwrap_or_default();
        if after != before {
            bail!("the server came back as {after}, was {before}: its port was taken meanwhile");
        }
        Ok(())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.as_ref().filter(|_| self.discard) {
            let _ = stack_command_blocking(&["clean".to_owned(), folder.display().to_string()]);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository is there")
}

fn read_env(folder: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("env")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

async fn stack_command(args: Vec<String>) -> Result<()> {
    tokio::task::spawn_blocking(move || stack_command_blocking(&args)).await?
}

fn stack_command_blocking(args: &[String]) -> Result<()> {
    // Servers outlive the script: they must not hold our output, so it goes to a pipe that only the script has.
    let output = Command::new(root().join("deploy/dev/stack"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .context("cannot run deploy/dev/stack")?;
    if !output.status.success() {
        bail!("deploy/dev/stack {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
