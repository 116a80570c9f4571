//! `laneway dev`: everything on this machine, real PostgreSQL and Kafka included, until Ctrl-C.
//!
//! With `database.url` and `kafka.brokers` configured it uses those servers; otherwise it starts its own by
//! `deploy/dev/stack` of the checkout that it is run in. It installs the schemas, makes a project, a key and an
//! endpoint, and prints them as lines that a shell takes. What it sets beyond the configuration is in [`overlay`].

mod echo;
mod overlay;
mod servers;
mod setup;

use crate::args;
use crate::command::{Everything, Runnable};
use crate::failure::{Failure, Result};
use crate::output::Output;
use laneway_platform::config::{Admin, Origins};
use laneway_platform::service::{self, Context, Process, live};
use laneway_platform::{ExitCode, task};
use servers::Servers;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long the services may take to be ready: Kafka's first group takes a while on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// Between two looks at their readiness.
const READY_POLL: Duration = Duration::from_millis(100);

/// What ended the local installation before it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevError {
    /// A step of the set-up; the failure says it all.
    #[error("{}", .0.message)]
    Setup(Failure),
    /// A service did not get ready.
    #[error("not ready after {READY_LIMIT:?}: {0}")]
    NotReady(String),
    /// A service ended; the log has said why.
    #[error("{0} ended")]
    Ended(&'static str),
}

impl From<Failure> for DevError {
    fn from(failure: Failure) -> Self {
        Self::Setup(failure)
    }
}

/// `laneway dev`
pub(crate) async fn run(args: args::Dev, origins: Origins, output: Output) -> Result {
    let servers = Servers::find_or_start(&args, &origins, output).await?;
    let code = with(&servers, &args, origins, output).await;
    servers.stop(output).await;
    match code? {
        ExitCode::Ok => Ok(()),
        code => Err(Failure::silent(code)),
    }
}

async fn with(
    servers: &Servers,
    args: &args::Dev,
    mut origins: Origins,
    output: Output,
) -> Result<ExitCode> {
    overlay::apply(&mut origins, servers)?;
    let settings = Everything::load(&origins)?;
    let process = Process { admin: Admin::default(), ..settings.api.settings.process() };
    let endpoint = args.endpoint.clone();
    Ok(service::run("dev", &process, |context| work(settings, endpoint, context, output)).await)
}

/// The services side by side; returns when they have been stopped, or the first of them has ended.
async fn work(
    settings: Everything,
    endpoint: Option<String>,
    context: Context,
    output: Output,
) -> std::result::Result<(), DevError> {
    let pool = setup::schemas(&settings).await?;
    let receiver = match endpoint {
        Some(url) => url,
        None => echo::start(context.shutdown.clone(), output).await.map_err(|e| Failure::of(&e))?,
    };
    let api = format!("http://{}", settings.api.settings.api.listen);
    let mut services = vec![
        start(settings.relay.settings, &context),
        start(settings.deliver.settings, &context),
        start(settings.reconciler.settings, &context),
        start(settings.api.settings, &context),
    ];
    let contexts: Vec<Context> = services.iter().map(|service| service.context.clone()).collect();
    let probe = context.readiness.probe("services");
    let ready = async {
        wait_ready(&contexts).await?;
        let made = setup::first(&pool, &api, &receiver).await?;
        probe.ready();
        made.print(output)?;
        output.say("running; Ctrl-C ends everything");
        Ok::<(), DevError>(())
    };
    // Set-up is waited for only as long as everything runs and nobody stops it.
    let mut done = tokio::select! {
        done = ready => done,
        () = context.shutdown.cancelled() => Ok(()),
        name = first_end(&mut services) => Err(DevError::Ended(name)),
    };
    if done.is_ok() {
        tokio::select! {
            () = context.shutdown.cancelled() => {}
            name = first_end(&mut services) => done = Err(DevError::Ended(name)),
        }
    }
    context.shutdown.cancel();
    for service in services {
        if let Some(handle) = service.handle
            && !matches!(handle.await, Ok(ExitCode::Ok))
            && done.is_ok()
        {
            done = Err(DevError::Ended(service.context.name));
        }
    }
    pool.close().await;
    done
}

/// One of the services in this process.
struct Running {
    context: Context,
    /// `None` once its end has been seen.
    handle: Option<JoinHandle<ExitCode>>,
}

fn start<S: Runnable + Send + 'static>(settings: S, parent: &Context) -> Running {
    let context = parent.child(S::NAME);
    let own = context.clone();
    let handle = task::spawn(S::NAME, async move {
        live(own, &Admin::default(), |context| settings.work(context)).await
    });
    Running { context, handle: Some(handle) }
}

/// Waits until one of the services has ended, and says which.
async fn first_end(services: &mut [Running]) -> &'static str {
    let ends = services.iter_mut().filter_map(|service| {
        let (name, slot) = (service.context.name, &mut service.handle);
        slot.as_mut()?;
        Some(Box::pin(async move {
            if let Some(handle) = slot {
                // A panic has been logged by the task itself.
                let _ = handle.await;
            }
            *slot = None;
            name
        }))
    });
    futures_util::future::select_all(ends).await.0
}

async fn wait_ready(services: &[Context]) -> std::result::Result<(), DevError> {
    let waiting = || {
        services.iter().find_map(|service| {
            let report = service.readiness.report();
            (!report.ready).then(|| {
                let why: Vec<String> =
                    report.waiting.iter().map(|(probe, why)| format!("{probe}: {why}")).collect();
                format!("{} ({})", service.name, why.join(", "))
            })
        })
    };
    let ready = async {
        while waiting().is_some() {
            tokio::time::sleep(READY_POLL).await;
        }
    };
    match tokio::time::timeout(READY_LIMIT, ready).await {
        Ok(()) => Ok(()),
        Err(_) => Err(DevError::NotReady(waiting().unwrap_or_default())),
    }
}
