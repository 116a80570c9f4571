//! Endpoints as an operator sees them, and the way back for one that is disabled.

use super::connect;
use crate::args::Endpoints;
use crate::failure::{Failure, Result};
use crate::output::{Output, shown, time};
use laneway_platform::ExitCode;
use laneway_platform::config::Origins;
use laneway_store::endpoints::{
    EndpointState, MAX_ENDPOINTS, endpoint_get_in, endpoint_set_enabled, endpoints_list,
};
use laneway_store::idempotency::{Answer, Work};
use laneway_store::reason::reason_is_line;
use serde_json::json;

/// `laneway endpoints …`
pub(super) async fn endpoints(command: Endpoints, origins: &Origins, output: Output) -> Result {
    match command {
        Endpoints::List { project, database } => {
            let pool = connect(&database, origins).await?;
            let rows = endpoints_list(&pool, project, None, MAX_ENDPOINTS)
                .await?
                .into_iter()
                .map(|endpoint| {
                    vec![
                        shown(endpoint.id),
                        shown(endpoint.url),
                        shown(endpoint.state.as_str()),
                        json!(endpoint.state_reason),
                        shown(endpoint.on_unknown.as_str()),
                        time(endpoint.updated_at),
                    ]
                })
                .collect();
            let columns = ["id", "url", "state", "stateReason", "onUnknown", "updatedAt"];
            output.list(&columns, rows)
        }
        Endpoints::Enable { endpoint, project, reason, actor, database } => {
            if !reason_is_line(&reason) {
                let message = "a reason has 1 to 1,000 characters, no control characters";
                return Err(Failure::new(ExitCode::Usage, message));
            }
            let pool = connect(&database, origins).await?;
            let mut work = Work::begin(&pool, project).await?;
            let changed = endpoint_set_enabled(&mut work, endpoint, true, &actor, &reason).await?;
            match endpoint_get_in(&mut work, endpoint).await?.map(|found| found.state) {
                None => {
                    let message = format!("project {project} has no endpoint {endpoint}");
                    return Err(Failure::new(ExitCode::NotFound, message)
                        .hint("`laneway endpoints list` shows which there are"));
                }
                Some(EndpointState::Enabled) if !changed => {
                    output.say("it is enabled already");
                    return Ok(());
                }
                Some(_) => {}
            }
            // No claim: the answer is stored nowhere.
            work.commit(&Answer { status: 200, body: Vec::new() }, None).await?;
            output.say("enabled; what waits goes on in order");
            Ok(())
        }
    }
}
