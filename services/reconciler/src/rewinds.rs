//! Works off commands over many deliveries, page by page (design section 6). A page is one transaction of the store;
//! nothing about a command is kept here.

use crate::error::Error;
use crate::metrics::Metrics;
use laneway_platform::failpoint;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::rewinds::{State, rewind_step};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// After an error.
const PAUSE: Duration = Duration::from_secs(1);

/// Works until `shutdown`; a page under way is ended first.
pub(crate) async fn work(
    pool: Pool,
    metrics: Metrics,
    poll: Duration,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    while !shutdown.is_cancelled() {
        let pause = match rewind_step(&pool).await {
            Ok(Some(step)) => {
                failpoint::hit("rewind.after_page");
                let rewind = step.rewind;
                metrics.rewound(rewind.action.as_str(), step.done);
                if rewind.state == State::Done && rewind.set_aside > 0 {
                    tracing::warn!(
                        rewind = %rewind.id, set_aside = rewind.set_aside,
                        example = rewind.example.as_deref().unwrap_or_default(),
                        "a command is done but for dead letters that cannot be sent again"
                    );
                }
                if rewind.state == State::Done {
                    tracing::info!(
                        rewind = %rewind.id, action = rewind.action.as_str(), done = rewind.done,
                        skipped = rewind.skipped, "a command is done"
                    );
                }
                continue;
            }
            Ok(None) => poll,
            Err(error) => {
                metrics.error("rewinds");
                tracing::warn!(error = %Chain(&error), "a page of a command was not done");
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
