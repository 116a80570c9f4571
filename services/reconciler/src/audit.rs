//! The audit on a schedule: its findings become gauges and, when there are any, errors in the log; what is missing and may
//! be sent again is published again.

use crate::error::Error;
use crate::metrics::Metrics;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::audit::{Finding, Scope, audit, repair};
use laneway_store::lookups::ACTOR;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The longest pause after another one's audit was met: what this process tells of the last is old.
const BUSY_PAUSE: Duration = Duration::from_secs(60);

/// When and what is audited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    pub(crate) every: Duration,
    pub(crate) scope: Scope,
    pub(crate) repair: bool,
}

/// Audits by the schedule until `shutdown`, the first time after one pause: what a restart has left behind is on its way
/// then.
pub(crate) async fn work(
    pool: Pool,
    metrics: Metrics,
    schedule: Schedule,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let mut pause = schedule.every;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
        pause = schedule.every;
        match round(&pool, schedule).await {
            Ok(Some(findings)) => {
                tell(&metrics, findings);
                metrics.audited();
            }
            Ok(None) => {
                tracing::info!("another audit is under way");
                pause = schedule.every.min(BUSY_PAUSE);
            }
            Err(error) => {
                metrics.error("audit");
                tracing::warn!(error = %Chain(&error), "the audit could not be made");
            }
        }
    }
}

async fn round(
    pool: &Pool,
    schedule: Schedule,
) -> Result<Option<Vec<Finding>>, laneway_store::Error> {
    let Some(mut findings) = audit(pool, schedule.scope).await? else { return Ok(None) };
    if schedule.repair {
        repair(pool, schedule.scope, ACTOR, &mut findings).await?;
    }
    Ok(Some(findings))
}

fn tell(metrics: &Metrics, findings: Vec<Finding>) {
    for finding in findings {
        metrics.violations(finding.check, finding.count);
        metrics.repaired(finding.check, finding.repaired);
        if finding.count > 0 {
            tracing::error!(
                check = finding.check, count = finding.count, repaired = finding.repaired,
                examples = ?finding.examples, "{}", finding.meaning
            );
        }
    }
}
