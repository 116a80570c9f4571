//! `laneway audit`: the promises about rows, looked up.

use super::connect;
use crate::args::Database;
use crate::failure::{Failure, Result};
use crate::output::{Output, shown};
use laneway_platform::ExitCode;
use laneway_platform::config::Origins;
use laneway_store::audit::{Scope, audit};
use serde_json::json;

/// Makes every check, and ends with 8 if one has found something.
pub(super) async fn run(
    scope: Scope,
    database: &Database,
    origins: &Origins,
    output: Output,
) -> Result {
    let pool = connect(database, origins).await?;
    let findings = audit(&pool, scope).await?;
    let broken: Vec<&str> =
        findings.iter().filter(|finding| finding.count > 0).map(|finding| finding.check).collect();
    let rows = findings
        .iter()
        .map(|finding| {
            vec![
                shown(finding.check),
                json!(finding.count),
                shown(finding.meaning),
                shown(finding.examples.join("; ")),
            ]
        })
        .collect();
    output.list(&["check", "count", "meaning", "examples"], rows)?;
    if broken.is_empty() {
        return Ok(());
    }
    let message = format!("the audit has found something: {}", broken.join(", "));
    Err(Failure::new(ExitCode::CheckFailed, message).hint("docs/runbooks/LanewayAuditViolation.md"))
}
