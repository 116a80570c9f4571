//! The built binary: usage, configuration, and the operator's commands against a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests spawn freely")]

mod config;
mod dev;
mod emit;
mod operator;
mod service;
mod usage;

use laneway_testkit::Stack;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs `laneway` with nothing in its environment but `envs`.
fn laneway(args: &[&str], envs: &[(&str, &str)]) -> Ended {
    with_input(args, envs, None)
}

/// The same with `input` on standard input.
fn with_input(args: &[&str], envs: &[(&str, &str)], input: Option<&[u8]>) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_laneway"))
        .args(args)
        .env_clear()
        .envs(envs.iter().copied())
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        pipe.write_all(input).unwrap();
    }
    Ended(child.wait_with_output().unwrap())
}

struct Ended(Output);

impl Ended {
    fn code(&self) -> i32 {
        self.0.status.code().unwrap()
    }

    fn out(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    fn err(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    /// Standard output of a command that must have succeeded.
    #[track_caller]
    fn ok(&self) -> String {
        assert_eq!(self.code(), 0, "{}{}", self.out(), self.err());
        self.out()
    }

    /// Standard error of a command that must have ended with `code`.
    #[track_caller]
    fn fails(&self, code: i32) -> String {
        assert_eq!(self.code(), code, "{}{}", self.out(), self.err());
        self.err()
    }
}

/// A database with both schemas, a project, and the commands on it.
struct Installed {
    url: String,
    project: String,
}

impl Installed {
    async fn new() -> Self {
        let url = Stack::shared().await.fresh_database().await;
        let me = Self { url, project: String::new() };
        me.run(&["migrate"]).ok();
        me.run(&["source", "install"]).ok();
        let project = me.run(&["projects", "create", "shop"]).ok().trim().to_owned();
        Self { project, ..me }
    }

    fn run(&self, args: &[&str]) -> Ended {
        laneway(args, &[("LANEWAY_DATABASE_URL", &self.url)])
    }

    async fn sql(&self, statement: &str) -> Vec<Vec<Option<String>>> {
        laneway_testkit::sql(&self.url, statement).await.unwrap()
    }
}
