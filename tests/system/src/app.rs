//! The application: it commits rows with `laneway.emit` and knows nothing else of Laneway.

use anyhow::Result;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// An application with its own connection to the source database.
#[derive(Debug)]
pub struct App {
    pool: PgPool,
    tenant: Uuid,
    committed: AtomicU64,
}

impl App {
    /// Connects as whoever `url` names.
    ///
    /// # Errors
    /// When `url` cannot be read.
    pub fn new(url: &str, tenant: Uuid) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .acquire_timeout(Duration::from_secs(30))
            .connect_lazy_with(PgConnectOptions::from_str(url)?);
        Ok(Self { pool, tenant, committed: AtomicU64::new(0) })
    }

    /// Commits one event in a transaction of its own and gives its id.
    ///
    /// # Errors
    /// Whatever PostgreSQL says; a lost connection says nothing about the commit.
    pub async fn emit(&self, event_type: &str, key: Option<&str>, payload: &[u8]) -> Result<Uuid> {
        let id = sqlx::query_scalar("SELECT laneway.emit($1, $2, $3, $4)")
            .bind(self.tenant)
            .bind(event_type)
            .bind(key)
            .bind(payload)
            .fetch_one(&self.pool)
            .await?;
        self.committed.fetch_add(1, Ordering::Relaxed);
        Ok(id)
    }

    /// Commits many events of the same type in one transaction.
    ///
    /// # Errors
    /// As [`App::emit`].
    pub async fn emit_many(&self, event_type: &str, events: &[(String, Vec<u8>)]) -> Result<()> {
        let (keys, payloads): (Vec<&str>, Vec<&[u8]>) =
            events.iter().map(|(key, payload)| (key.as_str(), payload.as_slice())).unzip();
        sqlx::query("SELECT laneway.emit_many($1, $2, $3, $4)")
            .bind(self.tenant)
            .bind(vec![event_type; events.len()])
            .bind(keys)
            .bind(payloads)
            .execute(&self.pool)
            .await?;
        self.committed.fetch_add(events.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// How many commits were acknowledged.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// The one number that a statement of a test gives.
    ///
    /// # Errors
    /// Whatever PostgreSQL says.
    pub async fn number(&self, sql: &'static str) -> Result<i64> {
        Ok(sqlx::query_scalar(sql).fetch_one(&self.pool).await?)
    }

    /// Rows as JSON values, one per row: `sql` selects what it likes.
    ///
    /// # Errors
    /// Whatever PostgreSQL says.
    pub async fn rows(&self, sql: &str) -> Result<Vec<serde_json::Value>> {
        let wrapped = format!("SELECT to_jsonb(r) FROM ({sql}) r");
        let rows = sqlx::query(AssertSqlSafe(wrapped)).fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// The pool, for tests that hold transactions open.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}
