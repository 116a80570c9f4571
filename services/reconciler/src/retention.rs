//! Removes what is over (C17), in small transactions: old rows, and days of the inbox whole. Before the outbox's rows go,
//! dead letters take over what only those say.

use crate::config::Windows;
use crate::error::Error;
use crate::metrics::Metrics;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::dead_letters::dead_letters_name;
use laneway_store::retention::{
    Kind, inbox_day_remove, inbox_days_expired, inbox_default_step, inbox_drop_detached,
    retention_step,
};
use laneway_store::windows::{REASONS, windows_contradict};
use laneway_wire::Timestamp;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two rounds.
const EVERY: Duration = Duration::from_secs(60);
/// A dead letter carries the time its transaction began; none takes longer than this.
const OVERLAP: Duration = Duration::from_secs(600);
/// Between two statements of a round, so that a backlog of old rows is no storm of writes.
const BREATH: Duration = Duration::from_millis(50);

/// Works until `shutdown`.
pub(crate) async fn work(
    pool: Pool,
    metrics: Metrics,
    windows: Windows,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let mut unnamed = Timestamp::default();
    loop {
        if let Err(error) = name(&pool, &mut unnamed, &shutdown).await {
            metrics.error("retention");
            tracing::warn!(error = %Chain(&error), "dead letters' users could not be looked up");
        }
        if let Err(error) = round(&pool, &metrics, &windows, &shutdown).await {
            metrics.error("retention");
            tracing::warn!(error = %Chain(&error), "old rows could not be removed");
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Dead letters of endpoints that order nothing get their events' user keys before the events' rows go; those given up
/// since `unnamed`, which moves on.
async fn name(
    pool: &Pool,
    unnamed: &mut Timestamp,
    shutdown: &CancellationToken,
) -> Result<(), laneway_store::Error> {
    let now = pool.now().await?;
    while dead_letters_name(pool, *unnamed).await? > 0 {
        if shutdown.is_cancelled() {
            return Ok(());
        }
        tokio::time::sleep(BREATH).await;
    }
    *unnamed = now - OVERLAP;
    Ok(())
}

async fn round(
    pool: &Pool,
    metrics: &Metrics,
    windows: &Windows,
    shutdown: &CancellationToken,
) -> Result<(), laneway_store::Error> {
    for kind in Kind::ALL {
        loop {
            let gone = retention_step(pool, kind, windows.of(kind)).await?;
            metrics.removed(kind.as_str(), gone);
            if gone == 0 || shutdown.is_cancelled() {
                break;
            }
            tokio::time::sleep(BREATH).await;
        }
    }
    if contradicted(pool, metrics, windows).await? {
        metrics.overdue(inbox_days_expired(pool, windows.inbox).await?.len());
        return Ok(());
    }
    loop {
        let gone = inbox_default_step(pool, windows.inbox).await?;
        metrics.removed("inbox_default", gone);
        if gone == 0 || shutdown.is_cancelled() {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    inbox_drop_detached(pool).await?;
    for day in inbox_days_expired(pool, windows.inbox).await? {
        if shutdown.is_cancelled() {
            return Ok(());
        }
        if !inbox_day_remove(pool, day, windows.inbox).await? {
            // One event that waits for long keeps its own day only.
            continue;
        }
        metrics.removed("inbox_days", 1);
        tracing::info!(%day, "a day of the inbox was removed");
    }
    metrics.overdue(inbox_days_expired(pool, windows.inbox).await?.len());
    Ok(())
}

/// Whether others' windows say that outcomes have to be kept longer than they would be; told in any case.
async fn contradicted(
    pool: &Pool,
    metrics: &Metrics,
    windows: &Windows,
) -> Result<bool, laneway_store::Error> {
    let found = windows_contradict(pool, windows.inbox).await?;
    for (reason, meaning) in REASONS {
        let mut count = 0;
        for one in found.iter().filter(|one| one.reason == reason) {
            count += 1;
            tracing::error!(
                reason, owner = %one.owner, window = ?one.window, bound = ?one.bound, "{meaning}"
            );
        }
        metrics.contradicting(reason, count);
    }
    Ok(found.iter().any(|one| one.reason.starts_with("inbox_")))
}
