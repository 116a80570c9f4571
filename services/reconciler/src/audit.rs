//! The audit on a schedule: its findings become gauges and, when there are any, errors in the log.

use crate::error::Error;
use crate::metrics::Metrics;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::audit::{Scope, audit};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Audits every `every` until `shutdown`, the first time after one such pause: what a restart has left behind is on its
/// way then.
pub(crate) async fn work(
    pool: Pool,
    metrics: Metrics,
    every: Duration,
    scope: Scope,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(every) => {}
        }
        match audit(&pool, scope).await {
            Ok(findings) => {
                for finding in findings {
                    metrics.violations(finding.check, finding.count);
                    if finding.count > 0 {
                        tracing::error!(
                            check = finding.check, count = finding.count, examples = ?finding.examples,
                            "{}", finding.meaning
                        );
                    }
                }
                metrics.audited();
            }
            Err(error) => {
                metrics.error("audit");
                tracing::warn!(error = %Chain(&error), "the audit could not be made");
            }
        }
    }
}
