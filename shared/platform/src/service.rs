//! The life of a service: configuration → telemetry → admin port → connect → ready → signal → not ready → drain
//! within grace → exit.
//!
//! The configuration is read before ([`crate::config::load`]); [`run`] does the rest around the service's own body,
//! which connects, sets its probes ready, works until [`Context::shutdown`] is cancelled, and drains.

use crate::admin::{self, Readiness};
use crate::config::{Admin, Service, Telemetry};
use crate::metrics::Registry;
use crate::{ExitCode, clock, task, telemetry};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The settings of a process, whatever service it runs.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Logs and spans.
    pub telemetry: Telemetry,
    /// The port for probes and metrics.
    pub admin: Admin,
    /// Name and grace.
    pub service: Service,
}

/// What a service's body gets. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Context {
    /// The service's name: `relay`, `deliver`, `api`.
    pub name: &'static str,
    /// The process's own name among all that run, kept over restarts if it was configured.
    pub instance: Arc<str>,
    /// Where the service's metrics go.
    pub registry: Registry,
    /// The service's probes.
    pub readiness: Readiness,
    /// Cancelled when the service has to stop: finish what is in flight and return.
    pub shutdown: CancellationToken,
    /// How long the body may take to return after that.
    pub drain_grace: Duration,
    failed: CancellationToken,
}

impl Context {
    fn new(name: &'static str, settings: &Service, shutdown: CancellationToken) -> Self {
        let instance = settings.instance.clone().unwrap_or_else(made_up_instance);
        Self {
            name,
            instance: instance.into(),
            registry: Registry::new(name),
            readiness: Readiness::default(),
            shutdown,
            drain_grace: settings.drain_grace,
            failed: CancellationToken::new(),
        }
    }

    /// A context without an admin port or signals, for tests: cancel its `shutdown` to stop the body.
    pub fn detached(name: &'static str) -> Self {
        Self::new(name, &Service::default(), CancellationToken::new())
    }

    /// The context of one of several services in this process (`laneway dev`): metrics and probes of its own, stopped
    /// with this one. Run it by [`live`].
    #[must_use]
    pub fn child(&self, name: &'static str) -> Self {
        Self {
            name,
            instance: format!("{}-{name}", self.instance).into(),
            registry: Registry::new(name),
            readiness: Readiness::default(),
            shutdown: self.shutdown.child_token(),
            drain_grace: self.drain_grace,
            failed: CancellationToken::new(),
        }
    }

    /// Runs a part of the service as a task. An error or a panic of it ends the whole service with a non-zero exit
    /// code; it should return when [`Context::shutdown`] is cancelled.
    pub fn spawn<E: Error + Send + Sync + 'static>(
        &self,
        name: &'static str,
        part: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> JoinHandle<()> {
        let failed = self.failed.clone();
        task::spawn(name, async move {
            if let Err(error) = part.await {
                tracing::error!(task = name, error = %Chain(&error), "a part of the service failed");
                failed.cancel();
            }
        })
    }

    /// Ends the service with a non-zero exit code, as if a part of it had failed. The caller has logged why.
    pub fn fail(&self) {
        self.failed.cancel();
    }

    /// Resolves when a part of the service failed.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }
}

/// Unique among processes that run at the same time on a machine, and improbable to repeat elsewhere.
fn made_up_instance() -> String {
    let nanos = clock::wall()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() & 0xffff_ffff);
    format!("{}-{}-{nanos:08x}", hostname(), std::process::id())
}

fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let allowed = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
    name.chars().filter(allowed).take(40).collect()
}

/// An error with all its causes on one line, for the one place where it is handled.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.0.to_string();
        f.write_str(&told)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some libraries' errors print their sources themselves.
            if !told.ends_with(&text) {
                write!(f, ": {text}")?;
                told = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

/// A multi-threaded runtime for the process's whole life. What still blocks at the end is left behind.
///
/// # Errors
/// If the operating system refuses threads.
pub fn block_on<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}

/// Runs one service as this process, from telemetry to exit code.
///
/// SIGTERM or SIGINT cancels [`Context::shutdown`] and the body has `drain_grace` to return; a second signal ends the
/// process at once with [`ExitCode::Interrupted`]. The code is [`ExitCode::Ok`] only if the body returned `Ok` after
/// a signal and nothing failed on the way.
pub async fn run<F, Fut, E>(name: &'static str, process: &Process, body: F) -> ExitCode
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Error + Send + Sync + 'static,
{
    install_crypto();
    let context = Context::new(name, &process.service, CancellationToken::new());
    let guard = match telemetry::init(name, &context.instance, &process.telemetry) {
        Ok(guard) => guard,
        Err(error) => {
            // Logs are not set up yet, so this subscriber is made for one line.
            tracing::subscriber::with_default(
                tracing_subscriber::fmt().with_writer(std::io::stderr).finish(),
                || {
                    tracing::error!(error = %Chain(&error), "telemetry could not be set up");
                },
            );
            return ExitCode::Config;
        }
    };
    let code = match Signals::new() {
        Ok(mut signals) => {
            let shutdown = context.shutdown.clone();
            tokio::select! {
                biased;
                () = signals.second(&shutdown) => {
                    tracing::warn!("second signal, ending at once");
                    ExitCode::Interrupted
                }
                code = live(context, &process.admin, body) => code,
            }
        }
        Err(error) => {
            tracing::error!(%error, "signals cannot be handled");
            ExitCode::Failure
        }
    };
    guard.flush().await;
    code
}

/// TLS for everything: two providers are linked in, so one must be chosen before the first use.
pub fn install_crypto() {
    // Refused only if it was installed before, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Runs a service inside a process that has telemetry and signals: opens its admin port, runs the body, stops it when
/// `context.shutdown` is cancelled or a part of it fails.
pub async fn live<F, Fut, E>(context: Context, admin: &Admin, body: F) -> ExitCode
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Error + Send + Sync + 'static,
{
    let closed = CancellationToken::new();
    let _close_at_the_end = closed.clone().drop_guard();
    let name = context.name;
    let bound =
        admin::serve(admin.listen, context.readiness.clone(), context.registry.clone(), closed);
    match bound.await {
        Ok(address) => {
            tracing::info!(service = name, instance = %context.instance, admin = %address, "started");
        }
        Err(error) => {
            tracing::error!(%error, listen = %admin.listen, "the admin port cannot be opened");
            return ExitCode::Failure;
        }
    }
    let (shutdown, readiness) = (context.shutdown.clone(), context.readiness.clone());
    let (failed, grace) = (context.failed.clone(), context.drain_grace);
    let mut working = std::pin::pin!(body(context));
    let broken = tokio::select! {
        ended = &mut working => {
            return match ended {
                Ok(()) if shutdown.is_cancelled() => ExitCode::Ok,
                Ok(()) => {
                    tracing::error!(service = name, "ended without being asked to");
                    ExitCode::Failure
                }
                Err(error) => {
                    tracing::error!(service = name, error = %Chain(&error), "failed");
                    ExitCode::Failure
                }
            };
        }
        () = shutdown.cancelled() => false,
        () = failed.cancelled() => true,
        () = task::panicked().cancelled() => true,
    };
    readiness.drain();
    shutdown.cancel();
    tracing::info!(service = name, ?grace, "stopping");
    let drained = tokio::time::timeout(grace, working).await;
    let broken = broken || failed.is_cancelled() || task::panicked().is_cancelled();
    match drained {
        Ok(Ok(())) if !broken => {
            tracing::info!(service = name, "stopped");
            ExitCode::Ok
        }
        Ok(Ok(())) => ExitCode::Failure,
        Ok(Err(error)) => {
            tracing::error!(service = name, error = %Chain(&error), "failed while stopping");
            ExitCode::Failure
        }
        Err(_) => {
            tracing::error!(service = name, ?grace, "did not stop in time");
            ExitCode::Failure
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The first signal cancels `shutdown`; resolves at the second.
    async fn second(&mut self, shutdown: &CancellationToken) {
        self.next().await;
        shutdown.cancel();
        self.next().await;
    }
}

#[cfg(test)]
mod tests;
