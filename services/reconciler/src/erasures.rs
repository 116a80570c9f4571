//! Works off erasures, step by step (C17). A step is one transaction of the store; nothing about an erasure is kept here.

use crate::error::Error;
use crate::metrics::Metrics;
use laneway_platform::failpoint;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::erasures::erasure_step;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// After an error.
const PAUSE: Duration = Duration::from_secs(1);

/// Works until `shutdown`; a step under way is ended first.
pub(crate) async fn work(
    pool: Pool,
    metrics: Metrics,
    poll: Duration,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    while !shutdown.is_cancelled() {
        let pause = match erasure_step(&pool).await {
            Ok(Some(erasure)) => {
                failpoint::hit("erasure.after_step");
                if erasure.finished_at.is_some() {
                    tracing::info!(
                        erasure = %erasure.id, project = %erasure.tenant, rows = erasure.rows,
                        dead_letters = erasure.dead_letters, "an erasure is done"
                    );
                }
                continue;
            }
            Ok(None) => poll,
            Err(error) => {
                metrics.error("erasures");
                tracing::warn!(error = %Chain(&error), "a step of an erasure was not done");
                PAUSE
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    Ok(())
}
