//! A process of the product under test: killed, stopped and continued by pid, gone at the latest with the test.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A spawned process; killed with SIGKILL and reaped when dropped, and also when the test process itself is killed.
#[derive(Debug)]
pub struct Child {
    name: String,
    inner: std::process::Child,
    // Reads from a pipe that ends with the test process, then kills; told to end without killing on drop.
    guard: std::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts `program` with `args` and `envs` on top of the inherited environment; its standard output and error are
    /// appended to `log`.
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be started.
    pub fn spawn<A, E, K, V>(
        name: &str,
        program: impl AsRef<Path>,
        args: A,
        envs: E,
        log: impl AsRef<Path>,
    ) -> Result<Self>
    where
        A: IntoIterator,
        A::Item: AsRef<OsStr>,
        E: IntoIterator<Item = (K, V)>,
        K: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let program = program.as_ref();
        let log = log.as_ref().to_path_buf();
        let output = OpenOptions::new().create(true).append(true).open(&log)?;
        let inner = Command::new(program)
            .args(args)
            .envs(envs)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let guard = Command::new("sh")
            .args([
                "-c",
                "read -r _ || kill -9 \"$1\" 2>/dev/null",
                "guard",
                &inner.id().to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { name: name.to_owned(), inner, guard, log })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it has not ended yet (a stopped one runs).
    pub fn is_running(&mut self) -> bool {
        matches!(self.inner.try_wait(), Ok(None))
    }

    /// SIGKILL; returns when it is gone. Whether it was that what ended it.
    pub fn kill9(&mut self) -> bool {
        let _ = self.inner.kill();
        let killed = |status: ExitStatus| status.signal() == Some(Signal::KILL.as_raw());
        self.inner.wait().is_ok_and(killed)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.inner.try_wait().ok().flatten()
    }

    /// SIGSTOP: it runs no instruction until [`Child::resume`].
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM: the product drains and ends.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    fn signal(&mut self, signal: Signal) {
        // Only an unreaped child is signalled: its pid cannot belong to somebody else.
        if self.is_running() {
            let _ = kill_process(Pid::from_child(&self.inner), signal);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When `limit` passes first; the process goes on.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.inner.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                bail!("{} (pid {}) did not end within {limit:?}", self.name, self.pid());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill9();
        if let Some(mut pipe) = self.guard.stdin.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.guard.wait();
    }
}
