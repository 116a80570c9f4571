//! Projects: the tenants, and everything else belongs to one of them.

use crate::{Error, Pool};
use laneway_wire::{TenantId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

/// The longest name, in characters.
pub const MAX_NAME: usize = 200;

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Its id.
    pub id: TenantId,
    /// What people call it.
    pub name: String,
    /// Since when it exists.
    pub created_at: Timestamp,
}

/// Makes a project. `name` has 1 to [`MAX_NAME`] characters (a CHECK refuses others); two may have the same.
pub async fn project_create(pool: &Pool, name: &str) -> Result<Project, Error> {
    sqlx::query(
        "INSERT INTO laneway_control.projects (tenant_id, name) VALUES ($1, $2) \
         RETURNING tenant_id, name, (extract(epoch FROM created_at) * 1000)::bigint",
    )
    .bind(Uuid::now_v7())
    .bind(name)
    .fetch_one(pool.inner())
    .await
    .and_then(|row| read(&row))
    .map_err(Error::doing("making a project"))
}

/// At most `limit` projects in the order of their ids (oldest first), those after `after`.
pub async fn projects_list(
    pool: &Pool,
    after: Option<TenantId>,
    limit: u16,
) -> Result<Vec<Project>, Error> {
    sqlx::query(
        "SELECT tenant_id, name, (extract(epoch FROM created_at) * 1000)::bigint \
         FROM laneway_control.projects WHERE $1::uuid IS NULL OR tenant_id > $1 \
         ORDER BY tenant_id LIMIT $2",
    )
    .bind(after.map(|id| id.as_uuid()))
    .bind(i32::from(limit))
    .fetch_all(pool.inner())
    .await
    .and_then(|rows| rows.iter().map(read).collect())
    .map_err(Error::doing("listing projects"))
}

fn read(row: &PgRow) -> Result<Project, sqlx::Error> {
    Ok(Project {
        id: TenantId::from_uuid(row.try_get(0)?),
        name: row.try_get(1)?,
        created_at: Timestamp(row.try_get(2)?),
    })
}
