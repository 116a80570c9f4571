//! `laneway audit`: the promises about rows, looked up.

use super::connect;
use crate::args::Database;
use crate::failure::{Failure, Result};
use crate::output::{Output, shown};
use laneway_platform::ExitCode;
use laneway_platform::config::Origins;
use laneway_store::audit::{self, Scope};
use serde_json::json;
use std::time::Duration;

/// As in the configuration (`reconciler.audit_window`).
const LONGEST: Duration = Duration::from_secs(90 * 24 * 3_600);
/// As in the configuration (`reconciler.audit_settled`).
const SETTLED_LEAST: Duration = Duration::from_secs(1);

/// Refuses a scope with nothing in it, by which everything would be well.
fn check(scope: Scope) -> Result {
    let usage = |message: &str| Err(Failure::new(ExitCode::Usage, message));
    if scope.window > LONGEST {
        return usage("--window is at most 90d");
    }
    if scope.settled < SETTLED_LEAST {
        return usage("--settled is at least 1s");
    }
    if scope.window <= scope.settled {
        return usage("--window is not longer than --settled: there is nothing between them");
    }
    Ok(())
}

/// Makes every check, and ends with 8 if one has found something, repaired or not; `repair` is who wants it.
pub(super) async fn run(
    scope: Scope,
    repair: Option<&str>,
    database: &Database,
    origins: &Origins,
    output: Output,
) -> Result {
    check(scope)?;
    let pool = connect(database, origins).await?;
    let Some(mut findings) = audit::audit(&pool, scope).await? else {
        return Err(Failure::new(ExitCode::Conflict, "another audit is under way".to_owned()));
    };
    if let Some(actor) = repair {
        audit::repair(&pool, scope, actor, &mut findings).await?;
    }
    let broken: Vec<&str> =
        findings.iter().filter(|finding| finding.count > 0).map(|finding| finding.check).collect();
    let rows = findings
        .iter()
        .map(|finding| {
            vec![
                shown(finding.check),
                json!(finding.count),
                json!(finding.repaired),
                shown(finding.meaning),
                json!(finding.examples),
            ]
        })
        .collect();
    output.list(&["check", "count", "repaired", "meaning", "examples"], rows)?;
    if broken.is_empty() {
        return Ok(());
    }
    let message = format!("the audit has found something: {}", broken.join(", "));
    Err(Failure::new(ExitCode::CheckFailed, message).hint("docs/runbooks/LanewayAuditViolation.md"))
}
