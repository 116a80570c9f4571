//! The outbox and what the relay keeps beside it, on a real PostgreSQL.

mod reading;
mod writing;

use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, sql};
use std::time::Duration;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A source database.
pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) pool: Pool,
}

impl World {
    pub(crate) async fn new() -> Self {
        let url = Stack::shared().await.fresh_database().await;
        let pool = Pool::connect(&url.as_str().into(), Options::new("test")).await.unwrap();
        migrate::source_migrate(&pool).await.unwrap();
        Self { url, pool }
    }

    pub(crate) async fn sql(&self, statement: &str) -> Vec<Vec<Option<String>>> {
        sql(&self.url, statement).await.unwrap()
    }

    /// Why a statement is refused.
    pub(crate) async fn refusal(&self, statement: &str) -> String {
        sql(&self.url, statement).await.unwrap_err().root_cause().to_string()
    }

    pub(crate) async fn text(&self, statement: &str) -> String {
        self.sql(statement).await[0][0].clone().unwrap()
    }
}
