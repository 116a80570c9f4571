//! Waiting for a server that is away: with growing pauses, telling what is waited for.

use crate::admin::Probe;
use crate::clock;
use crate::service::Chain;
use std::error::Error;
use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A pause that doubles up to a limit while something keeps failing.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    since: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(5);

    /// One that begins with the shortest pause.
    pub fn begin() -> Self {
        Self { next: Self::FIRST, since: clock::monotonic() }
    }

    /// The next pause; back at the first after a while without failure.
    pub fn pause(&mut self) -> Duration {
        let now = clock::monotonic();
        if now.saturating_sub(self.since) > Self::LAST * 2 {
            self.next = Self::FIRST;
        }
        self.since = now;
        let pause = self.next;
        self.next = (pause * 2).min(Self::LAST);
        pause
    }
}

/// Tries until it works or fails for good; `probe` and the log say that `what` is waited for.
///
/// # Errors
/// The first that is not `transient`.
pub async fn patiently<T, E, F, Fut>(
    what: &str,
    probe: &Probe,
    transient: impl Fn(&E) -> bool,
    mut attempt: F,
) -> Result<T, E>
where
    E: Error + 'static,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::begin();
    loop {
        match attempt().await {
            Err(error) if transient(&error) => {
                tracing::warn!(error = %Chain(&error), "waiting for {what}");
                probe.not_ready(format!("waiting for {what}"));
                tokio::time::sleep(backoff.pause()).await;
            }
            ended => return ended,
        }
    }
}

/// How often a server is asked whether it answers, and how long an answer counts.
const WATCH_PERIOD: Duration = Duration::from_secs(2);
const WATCH_VALIDITY: Duration = Duration::from_secs(6);

/// Connects to the database, and waits for it and for the schema of this build: `connect` gives nothing as long as that is
/// not there. `None` if `shutdown` comes first.
///
/// # Errors
/// The first that is not `transient`.
pub async fn database<P, E, F, Fut>(
    probe: &Probe,
    shutdown: &CancellationToken,
    transient: impl Fn(&E) -> bool,
    mut connect: F,
) -> Result<Option<P>, E>
where
    E: Error + 'static,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<P>, E>>,
{
    let waits = async {
        loop {
            if let Some(pool) = patiently("the database", probe, &transient, &mut connect).await? {
                return Ok(Some(pool));
            }
            tracing::warn!("waiting for the schema of this build: run `laneway migrate`");
            probe.not_ready("waiting for the schema");
            tokio::time::sleep(WATCH_PERIOD).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => Ok(None),
        ended = waits => ended,
    }
}

/// Says that a service is ready as long as the database answers; until `shutdown`.
pub async fn watch_database<E, F, Fut>(probe: &Probe, shutdown: &CancellationToken, mut ask: F)
where
    E: Error + 'static,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), E>>,
{
    loop {
        match ask().await {
            Ok(()) => probe.ready_for(WATCH_VALIDITY),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the database does not answer");
                probe.not_ready("the database does not answer");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
    }
}
