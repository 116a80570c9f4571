//! Projects and their API keys.

use super::connect;
use crate::args::{Keys, Projects};
use crate::failure::{Failure, Result};
use crate::output::{Output, maybe_time, shown, time};
use laneway_platform::ExitCode;
use laneway_platform::config::Origins;
use laneway_store::keys::{self, Scope};
use laneway_store::projects;
use serde_json::Value;

/// `laneway projects …`
pub(super) async fn projects(command: Projects, origins: &Origins, output: Output) -> Result {
    match command {
        Projects::Create { name, database } => {
            let length = name.chars().count();
            if length == 0 || length > projects::MAX_NAME {
                let message =
                    format!("a project's name has 1 to {} characters", projects::MAX_NAME);
                return Err(Failure::new(ExitCode::Usage, message));
            }
            let pool = connect(&database, origins).await?;
            let made = projects::project_create(&pool, &name).await?;
            let id = made.id.to_string();
            output.made(
                &id,
                vec![
                    ("id", shown(&id)),
                    ("name", shown(made.name)),
                    ("createdAt", time(made.created_at)),
                ],
            )
        }
        Projects::List { database, limit } => {
            let pool = connect(&database, origins).await?;
            let rows = projects::projects_list(&pool, None, limit)
                .await?
                .into_iter()
                .map(|row| vec![shown(row.id), shown(row.name), time(row.created_at)])
                .collect();
            output.list(&["id", "name", "createdAt"], rows)
        }
    }
}

/// `laneway keys …`
pub(super) async fn keys(command: Keys, origins: &Origins, output: Output) -> Result {
    match command {
        Keys::Create { project, scopes, expires_in, database } => {
            let pool = connect(&database, origins).await?;
            let made = keys::key_create(&pool, project, &scopes, expires_in).await?;
            let Some(made) = made else { return Err(no_project(project)) };
            output.say("this key is shown once:");
            output.made(
                &made.text,
                vec![
                    ("id", shown(made.key_id)),
                    ("key", shown(&*made.text)),
                    ("projectId", shown(project)),
                    ("scopes", words(&scopes)),
                ],
            )
        }
        Keys::List { project, database, limit } => {
            let pool = connect(&database, origins).await?;
            let rows = keys::keys_list(&pool, project, limit)
                .await?
                .into_iter()
                .map(|key| {
                    vec![
                        shown(key.key_id),
                        shown(key.last4),
                        words(&key.scopes),
                        time(key.created_at),
                        maybe_time(key.expires_at),
                        maybe_time(key.revoked_at),
                        maybe_time(key.last_used_at),
                    ]
                })
                .collect();
            let columns =
                ["id", "last4", "scopes", "createdAt", "expiresAt", "revokedAt", "lastUsedAt"];
            output.list(&columns, rows)
        }
        Keys::Revoke { key, project, database } => {
            let pool = connect(&database, origins).await?;
            if keys::key_revoke(&pool, project, &key).await? {
                output.say("revoked");
                Ok(())
            } else {
                let message = format!("project {project} has no key {key} that is still good");
                Err(Failure::new(ExitCode::NotFound, message))
            }
        }
    }
}

fn no_project(project: laneway_wire::TenantId) -> Failure {
    Failure::new(ExitCode::NotFound, format!("there is no project {project}"))
        .hint("`laneway projects list` shows which there are")
}

fn words(scopes: &[Scope]) -> Value {
    Value::Array(scopes.iter().map(|scope| shown(scope.as_str())).collect())
}
