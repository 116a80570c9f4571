//! Schemas, and the first project, key and endpoint of `laneway dev`.

use crate::command::Everything;
use crate::failure::{Failure, Result};
use crate::output::Output;
use laneway_client::{Client, NewEndpoint};
use laneway_platform::ExitCode;
use laneway_store::keys::Scope;
use laneway_store::{Options, Pool, keys, migrate, projects};
use serde_json::json;

/// Connections for the set-up.
const CONNECTIONS: u32 = 2;
/// Deadline of the first endpoint's requests: short, as everything here (design 5.3).
const ENDPOINT_TIMEOUT_MS: u32 = 2_000;

/// Brings the control database and every source up to this version.
pub(super) async fn schemas(settings: &Everything) -> Result<Pool> {
    let options = || Options::new("laneway-dev").max_connections(CONNECTIONS);
    let pool = Pool::connect(&settings.api.settings.database.url, options()).await?;
    migrate::control_migrate(&pool).await?;
    // The API's own outbox is in the control database.
    migrate::source_migrate(&pool).await?;
    for source in &settings.relay.settings.sources {
        let source = Pool::connect(&source.url, options()).await?;
        migrate::source_migrate(&source).await?;
        source.close().await;
    }
    Ok(pool)
}

/// What a first look at the product needs.
#[derive(Debug)]
pub(super) struct First {
    api: String,
    project: String,
    key: String,
    endpoint: String,
}

/// Makes a project and a key in the database, and an endpoint at `receiver` through the API at `api`.
pub(super) async fn first(pool: &Pool, api: &str, receiver: &str) -> Result<First> {
    let project = projects::project_create(pool, "dev").await?;
    let key = keys::key_create(pool, project.id, &[Scope::Admin], None)
        .await?
        .ok_or_else(|| Failure::new(ExitCode::Failure, "the project has gone"))?;
    let client = Client::new(api, project.id, &key.text).map_err(|error| Failure::of(&error))?;
    let endpoint = NewEndpoint {
        url: receiver.to_owned(),
        timeout_ms: Some(ENDPOINT_TIMEOUT_MS),
        ..NewEndpoint::default()
    };
    let made = client.endpoint_create(&endpoint).await.map_err(|error| Failure::of(&error))?;
    Ok(First {
        api: api.to_owned(),
        project: project.id.to_string(),
        key: key.text.to_string(),
        endpoint: made.endpoint.id.to_string(),
    })
}

impl First {
    /// The lines that document B's examples take, on standard output; what to try next, on standard error.
    pub(super) fn print(&self, output: Output) -> Result {
        for (name, value) in [
            ("RAILHOOK_URL", &self.api),
            ("PROJECT_ID", &self.project),
            ("API_KEY", &self.key),
            ("ENDPOINT_ID", &self.endpoint),
        ] {
            output.line(&format!("export {name}={value}"))?;
        }
        let subscription = json!({"endpointId": self.endpoint, "eventType": "order.*"});
        let event = json!({"type": "order.created", "key": "user-1", "payload": {"total": 42}});
        output.say(&format!(
            "try:\n  curl -X POST $RAILHOOK_URL/api/v1/projects/$PROJECT_ID/subscriptions \
             -H \"X-API-Key: $API_KEY\" -H 'Content-Type: application/json' -d '{subscription}'\n  \
             curl -X POST $RAILHOOK_URL/api/v1/projects/$PROJECT_ID/events \
             -H \"X-API-Key: $API_KEY\" -H 'Idempotency-Key: first' \
             -H 'Content-Type: application/json' -d '{event}'"
        ));
        Ok(())
    }
}
