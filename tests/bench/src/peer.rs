//! What the engine is measured against: Parallel Consumer from `../shared/bench`, and `wrk` as the ceiling.

use crate::process::run;
use crate::root;
use crate::sink::{Arrived, Sink};
use crate::workload::{BODY, IN_FLIGHT, PARTITIONS, body};
use anyhow::{Context, Result, bail, ensure};
use laneway_testkit::{Child, Stack, fresh_topic_name, temp_dir};
use std::path::PathBuf;
use std::time::Duration;

/// Seconds of one run of `wrk`.
const CEILING_SECONDS: u32 = 8;

/// Parallel Consumer, built, with a topic that it filled itself.
#[derive(Debug)]
pub(crate) struct Peer {
    tools: PathBuf,
    kafka: String,
    topic: String,
}

impl Peer {
    /// Builds it into `.tools/bench` and fills its topic with the same events.
    pub(crate) async fn load(stack: &Stack, events: u32, keys: u32) -> Result<Self> {
        let source = root().join("../shared/bench/parallel-consumer");
        ensure!(source.is_dir(), "../shared/bench/parallel-consumer is not there");
        let tools = root().join(".tools/bench");
        let (lib, classes) = (tools.join("lib"), tools.join("classes"));
        std::fs::create_dir_all(&tools)?;
        if !classes.join("Bench.class").is_file() {
            let output = format!("-DoutputDirectory={}", lib.display());
            let goal = "dependency:copy-dependencies";
            run("mvn", &["-q", "-B", goal, &output, "-DincludeScope=runtime"], &source).await?;
            let path = format!("{}/*", lib.display());
            let classes = classes.display().to_string();
            run("javac", &["-cp", &path, "-d", &classes, "src/Bench.java"], &source).await?;
        }
        let topic = fresh_topic_name("bench.peer");
        let peer = Self { tools, kafka: stack.kafka().to_owned(), topic };
        let numbers = [u32::from(PARTITIONS), events, keys, BODY as u32].map(|n| n.to_string());
        let mut args =
            vec!["-cp".to_owned(), peer.class_path(), "Bench".to_owned(), "load".to_owned()];
        args.extend([peer.kafka.clone(), peer.topic.clone()]);
        args.extend(numbers);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run("java", &args, &peer.tools).await?;
        Ok(peer)
    }

    /// Delivers the topic from its beginning, under a new consumer group.
    pub(crate) async fn deliver(
        &self,
        sink: &mut Sink,
        events: u32,
        limit: Duration,
    ) -> Result<Arrived> {
        sink.reset().await?;
        let log = temp_dir("bench").join("parallel-consumer.log");
        let (url, in_flight) = (sink.url("/peer"), IN_FLIGHT.to_string());
        let seconds = limit.as_secs().to_string();
        let path = self.class_path();
        let args = [
            "-Xmx1g",
            "-cp",
            &path,
            "Bench",
            "deliver",
            &self.kafka,
            &self.topic,
            &url,
            &in_flight,
            &seconds,
        ];
        let child = Child::spawn("parallel-consumer", "java", args, [("LC_ALL", "C")], &log)?;
        let arrived = sink.wait(events, limit).await;
        drop(child);
        arrived
    }

    fn class_path(&self) -> String {
        format!("{0}/classes:{0}/lib/*", self.tools.display())
    }
}

/// `wrk` with the same body over 200 connections.
#[derive(Debug)]
pub(crate) struct Ceiling {
    script: PathBuf,
}

impl Ceiling {
    /// Finds `wrk`, or installs it as root.
    pub(crate) async fn prepare() -> Result<Self> {
        let folder = temp_dir("bench");
        if run("sh", &["-c", "command -v wrk"], &folder).await.is_err() {
            run("apt-get", &["install", "-y", "-q", "wrk"], &folder)
                .await
                .context("wrk is not installed and could not be")?;
        }
        let script = folder.join("post.lua");
        let body = String::from_utf8(body("u1", 1))?;
        let text = format!(
            "wrk.method = \"POST\"\nwrk.body = '{body}'\nwrk.headers[\"content-type\"] = \"application/json\"\n"
        );
        std::fs::write(&script, text)?;
        Ok(Self { script })
    }

    /// Requests per second.
    pub(crate) async fn run(&self, url: &str) -> Result<f64> {
        let connections = format!("-c{IN_FLIGHT}");
        let seconds = format!("-d{CEILING_SECONDS}s");
        let script = self.script.display().to_string();
        let args = ["-t1", &connections, &seconds, "-s", &script, url];
        let said = run("wrk", &args, &std::env::temp_dir()).await?;
        let Some(rate) = said.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"))
        else {
            bail!("wrk said no rate: {said}");
        };
        Ok(rate.trim().parse()?)
    }
}
