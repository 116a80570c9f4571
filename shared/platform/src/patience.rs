//! Waiting for a server that is away: with growing pauses, telling what is waited for.

use crate::admin::Probe;
use crate::clock;
use crate::service::Chain;
use std::error::Error;
use std::future::Future;
use std::time::Duration;

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
