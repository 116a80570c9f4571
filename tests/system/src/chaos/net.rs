//! The ways between the parts: toxiproxy on each, and packet filters where the run has a network of its own.

use super::plan::{Link, Loss, Toxic};
use crate::world::http;
use anyhow::{Context, Result, bail, ensure};
use laneway_testkit::{Child, free_port, wait_for};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Toxiproxy as a process of its own, with one proxy a way.
#[derive(Debug)]
pub struct Proxies {
    port: u16,
    _child: Child,
    /// The way's name and the port that clients use.
    ways: BTreeMap<String, u16>,
}

fn name(link: Link) -> String {
    match link {
        Link::Postgres => "postgres".to_owned(),
        Link::Kafka => "kafka".to_owned(),
        Link::Receiver(number) => format!("receiver-{number}"),
    }
}

/// Where the repository's set-up puts it.
fn server() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tools = std::env::var_os("LANEWAY_TOOLS").map_or(root.join(".tools"), PathBuf::from);
    tools.join("toxiproxy/server")
}

impl Proxies {
    /// None where toxiproxy was not built.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(log: &Path) -> Result<Option<Self>> {
        let server = server();
        if !server.is_file() {
            return Ok(None);
        }
        let port = free_port();
        let number = port.to_string();
        let args = ["-host", "127.0.0.1", "-port", number.as_str()];
        let child = Child::spawn("toxiproxy", server, args, [("LOG_LEVEL", "warn")], log)?;
        wait_for("toxiproxy", Duration::from_secs(20), || async {
            http(port, "GET", "/version", "").await.is_ok()
        })
        .await;
        Ok(Some(Self { port, _child: child, ways: BTreeMap::new() }))
    }

    /// Puts a proxy in front of `upstream` and gives its address.
    ///
    /// # Errors
    /// When toxiproxy refuses.
    pub async fn add(&mut self, link: Link, listen: u16, upstream: &str) -> Result<String> {
        let address = format!("127.0.0.1:{listen}");
        let proxy =
            json!({"name": name(link), "listen": address, "upstream": upstream, "enabled": true});
        self.ask("POST", "/proxies", &proxy.to_string()).await?;
        self.ways.insert(name(link), listen);
        Ok(address)
    }

    /// Begins to disturb a way.
    ///
    /// # Errors
    /// When toxiproxy refuses.
    pub async fn begin(&self, link: Link, toxic: Toxic) -> Result<()> {
        let (kind, attributes) = match toxic {
            Toxic::Down => {
                let path = format!("/proxies/{}", name(link));
                return self.ask("POST", &path, r#"{"enabled":false}"#).await.map(drop);
            }
            Toxic::Latency => ("latency", json!({"latency": 200, "jitter": 150})),
            Toxic::Bandwidth => ("bandwidth", json!({"rate": 50})),
            Toxic::Slicer => {
                ("slicer", json!({"average_size": 200, "size_variation": 100, "delay": 500}))
            }
            Toxic::Swallow => ("timeout", json!({"timeout": 0})),
            Toxic::Reset => ("reset_peer", json!({"timeout": 0})),
        };
        let toxic =
            json!({"name": "now", "type": kind, "stream": "downstream", "attributes": attributes});
        self.ask("POST", &format!("/proxies/{}/toxics", name(link)), &toxic.to_string()).await?;
        Ok(())
    }

    /// Leaves it alone again. Whether it was disturbed until now.
    ///
    /// # Errors
    /// When toxiproxy refuses.
    pub async fn end(&self, link: Link, toxic: Toxic) -> Result<bool> {
        let path = format!("/proxies/{}", name(link));
        let now = self.ask("GET", &path, "").await?;
        let disturbed = if toxic == Toxic::Down {
            self.ask("POST", &path, r#"{"enabled":true}"#).await?;
            now.contains(r#""enabled":false"#)
        } else {
            self.ask("DELETE", &format!("{path}/toxics/now"), "").await?;
            now.contains(r#""name":"now""#)
        };
        Ok(disturbed)
    }

    /// The port that clients of a way use.
    pub fn port(&self, link: Link) -> Option<u16> {
        self.ways.get(&name(link)).copied()
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let (status, answer) = http(self.port, method, path, body).await?;
        ensure!((200..300).contains(&status), "toxiproxy: {method} {path}: {status} {answer}");
        Ok(answer)
    }
}

/// Whether packets may be dropped here without anybody else's losing some: `deploy/dev/apart` says so.
pub fn has_own_network() -> bool {
    let is_own = std::env::var_os("OWN_NETWORK").is_some();
    is_own && iptables(&["-w", "-n", "-L", "INPUT"]).is_ok()
}

/// The rule that does `loss` to what goes to or from `port`.
fn rule(port: u16, direction: &str, loss: Loss) -> Vec<String> {
    let mut rule = format!("INPUT -i lo -p tcp {direction} {port}");
    rule += match loss {
        Loss::Some => " -m statistic --mode random --probability 0.3 -j DROP",
        Loss::All => " -j DROP",
        Loss::Reset => " -j REJECT --reject-with tcp-reset",
    };
    rule.split(' ').map(str::to_owned).collect()
}

/// Begins to lose packets to and from `port`.
///
/// # Errors
/// When iptables refuses.
pub fn lose(port: u16, loss: Loss) -> Result<()> {
    for direction in ["--dport", "--sport"] {
        filter("-A", &rule(port, direction, loss))?;
    }
    Ok(())
}

/// Loses none any more. Whether any was lost.
///
/// # Errors
/// When iptables refuses.
pub fn lose_no_more(port: u16, loss: Loss) -> Result<bool> {
    let counts = iptables(&["-w", "-n", "-v", "-x", "-L", "INPUT"])?;
    let of_port = [format!("dpt:{port}"), format!("spt:{port}")];
    let lost = counts.lines().any(|line| {
        let packets = line.split_whitespace().next().and_then(|count| count.parse::<u64>().ok());
        of_port.iter().any(|port| line.contains(port.as_str())) && packets > Some(0)
    });
    for direction in ["--dport", "--sport"] {
        filter("-D", &rule(port, direction, loss))?;
    }
    Ok(lost)
}

fn filter(verb: &str, rule: &[String]) -> Result<()> {
    let args: Vec<&str> = ["-w", verb].into_iter().chain(rule.iter().map(String::as_str)).collect();
    iptables(&args).map(drop)
}

fn iptables(args: &[&str]) -> Result<String> {
    let output = Command::new("iptables").args(args).output().context("iptables")?;
    if !output.status.success() {
        bail!("iptables {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
