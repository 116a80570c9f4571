//! The receiver without delay as a process of its own: the one of `../shared/bench` where it is, else ours.

use crate::process::run;
use crate::report::say;
use crate::root;
use anyhow::{Context, Result};
use laneway_testkit::{Child, free_port, temp_dir, wait_for};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const START_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// The running receiver; ends when dropped.
#[derive(Debug)]
pub(crate) struct Sink {
    child: Child,
    port: u16,
    /// Checks order and knows the times of its first and last request itself.
    counts: bool,
    /// Requests that ours had seen before.
    before: u64,
}

/// What arrived since the last reset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) accepted: u64,
    pub(crate) span: Duration,
    pub(crate) violations: u64,
    pub(crate) duplicates: u64,
}

impl Arrived {
    pub(crate) fn per_second(&self) -> f64 {
        self.accepted as f64 / self.span.as_secs_f64()
    }
}

impl Sink {
    pub(crate) async fn start() -> Result<Self> {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let log = temp_dir("bench").join("receiver.log");
        let peer = root().join("../shared/bench/receiver");
        let (child, counts) = match go_receiver(&peer).await {
            Ok(binary) => {
                (Child::spawn("receiver", binary, ["-addr", &listen], NO_ENV, &log)?, true)
            }
            Err(error) => {
                say(format!("our own receiver is used: {error:#}"));
                let config = log.with_file_name("receiver.json");
                let text = serde_json::json!({"listen": listen, "in_memory": false}).to_string();
                std::fs::write(&config, text)?;
                let binary = std::env::current_exe()?.with_file_name("laneway-receiver");
                let args = [config.display().to_string()];
                (Child::spawn("receiver", binary, args, NO_ENV, &log)?, false)
            }
        };
        let sink = Self { child, port, counts, before: 0 };
        wait_for("the receiver", START_LIMIT, || async { sink.counted().await.is_ok() }).await;
        Ok(sink)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Forgets what arrived.
    pub(crate) async fn reset(&mut self) -> Result<()> {
        if self.counts {
            self.ask("POST", "/reset").await?;
        } else {
            self.before = self.counted().await?;
        }
        Ok(())
    }

    /// Waits until `count` events have arrived.
    pub(crate) async fn wait(&self, count: u32, limit: Duration) -> Result<Arrived> {
        let start = Instant::now();
        let mut first = None;
        loop {
            let seen = self.counted().await?.saturating_sub(self.before);
            if seen > 0 && first.is_none() {
                first = Some(Instant::now());
            }
            if seen >= u64::from(count) {
                break;
            }
            let far = format!("{seen} of {count} events arrived within {limit:?}");
            anyhow::ensure!(start.elapsed() < limit, far);
            tokio::time::sleep(POLL).await;
        }
        if !self.counts {
            let span = first.map(|first| first.elapsed()).unwrap_or_default();
            let accepted = u64::from(count);
            return Ok(Arrived { accepted, span, violations: 0, duplicates: 0 });
        }
        let stats = self.ask("GET", "/stats").await?;
        let number = |name: &str| stats.get(name).and_then(Value::as_u64).unwrap_or_default();
        let seconds = stats.get("seconds").and_then(Value::as_f64).context("seconds in /stats")?;
        Ok(Arrived {
            accepted: number("accepted"),
            span: Duration::from_secs_f64(seconds),
            violations: number("violations"),
            duplicates: number("duplicates"),
        })
    }

    async fn counted(&self) -> Result<u64> {
        let (path, name) =
            if self.counts { ("/stats", "accepted") } else { ("/-/counts", "requests") };
        let stats = self.ask("GET", path).await?;
        stats.get(name).and_then(Value::as_u64).context("a count from the receiver")
    }

    /// Null for an empty body.
    async fn ask(&self, method: &str, path: &str) -> Result<Value> {
        let work = async {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await?;
            if !self.counts {
                stream.shutdown().await?; // ours closes when we do
            }
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            let answer = String::from_utf8_lossy(&answer);
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
            anyhow::Ok(if body.is_empty() { Value::Null } else { serde_json::from_str(body)? })
        };
        tokio::time::timeout(Duration::from_secs(10), work)
            .await
            .context("the receiver is silent")?
    }
}

const NO_ENV: [(&str, &str); 0] = [];

/// Builds the Go receiver into `.tools/bench`.
async fn go_receiver(source: &std::path::Path) -> Result<PathBuf> {
    anyhow::ensure!(source.is_dir(), "../shared/bench/receiver is not there");
    let binary = root().join(".tools/bench/receiver");
    if !binary.is_file() {
        let output = binary.display().to_string();
        run("go", &["build", "-o", &output, "."], source).await?;
    }
    Ok(binary)
}
