//! Connections to one database, each checked before it is used: an acknowledged commit must be one that stays
//! (design section 1, "Assumed").

use crate::Error;
use laneway_wire::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{Postgres, Row, Transaction};
use std::str::FromStr;
use std::time::Duration;

/// How a pool connects.
#[derive(Debug, Clone)]
pub struct Options {
    /// Shown in `pg_stat_activity`, e.g. `laneway-relay`.
    pub application: &'static str,
    /// Connections at most.
    pub max_connections: u32,
    /// How long a caller waits for a connection, the making of one included.
    pub acquire_timeout: Duration,
}

impl Options {
    /// Ten connections, 10 s.
    pub const fn new(application: &'static str) -> Self {
        Self { application, max_connections: 10, acquire_timeout: Duration::from_secs(10) }
    }

    /// The same with at most `max_connections`.
    #[must_use]
    pub const fn max_connections(mut self, max_connections: u32) -> Self {
        self.max_connections = max_connections;
        self
    }

    /// The same with callers that wait for at most `acquire_timeout`.
    #[must_use]
    pub const fn acquire_timeout(mut self, acquire_timeout: Duration) -> Self {
        self.acquire_timeout = acquire_timeout;
        self
    }
}

/// The server ends a session that leaves a transaction open for so long without a word: a process that is paused, or cut
/// off, in the middle of one must not hold its locks against whoever takes over (P13). Our transactions have nothing to
/// wait for between their statements; this is well below a lease, and only a machine that stands still reaches it.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(5);

/// Connections to one database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: PgPool,
}

impl Pool {
    /// Connects and refuses a server that is a standby, older than 15, or runs with `fsync` or `synchronous_commit`
    /// off. Later connections are checked the same way (a failover may have put another server there).
    ///
    /// TLS is as the URL says (`sslmode=verify-full` and the like).
    pub async fn connect(url: &SecretString, options: Options) -> Result<Self, Error> {
        let connect = PgConnectOptions::from_str(url.expose_secret())
            .map_err(Error::Url)?
            .application_name(options.application);
        let inner = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    match refusal(connection).await? {
                        None => Ok(()),
                        Some(reason) => Err(sqlx::Error::Configuration(reason.into())),
                    }
                })
            })
            .connect_lazy_with(connect.clone());
        // By hand first: the pool would hide the reason behind a timeout.
        let mut first = tokio::time::timeout(
            options.acquire_timeout,
            <PgConnection as sqlx::Connection>::connect_with(&connect),
        )
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
        .map_err(Error::doing("connecting to the database"))?;
        let refused =
            refusal(&mut first).await.map_err(Error::doing("checking the database's settings"))?;
        let _ = sqlx::Connection::close(first).await;
        match refused {
            None => Ok(Self { inner }),
            Some(reason) => Err(Error::Unsafe(reason)),
        }
    }

    /// The database's clock (`clock_timestamp()`).
    pub async fn now(&self) -> Result<Timestamp, Error> {
        sqlx::query("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            .fetch_one(&self.inner)
            .await
            .and_then(|row| row.try_get(0))
            .map(Timestamp)
            .map_err(Error::doing("reading the database's clock"))
    }

    /// Waits for connections in use and closes all.
    pub async fn close(&self) {
        self.inner.close().await;
    }

    pub(crate) fn inner(&self) -> &PgPool {
        &self.inner
    }

    /// Begins a transaction in a task of its own, so that a caller that goes away in the middle (a time limit, a
    /// client that hung up) cannot leave a `BEGIN` half done: sqlx would give that connection back with the transaction
    /// open, and what others then write through it would be locked and not durable.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Postgres>, Error> {
        const DOING: &str = "beginning a transaction";
        let pool = self.inner.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "its only end is the transaction, dropped if nobody waits for it"
        )]
        let begun = tokio::spawn(async move { pool.begin().await }).await;
        match begun {
            Ok(begun) => begun.map_err(Error::doing(DOING)),
            // Never aborted: the task panicked, or the runtime is going down.
            Err(_) => Err(Error::doing(DOING)(sqlx::Error::WorkerCrashed)),
        }
    }
}

/// Why this server may not be used, if it may not. What our transactions rely on is set here too, whatever the role's
/// defaults are: a snapshot for each of their statements, and an end if nobody goes on with them.
async fn refusal(connection: &mut PgConnection) -> Result<Option<&'static str>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('fsync'), \
         current_setting('synchronous_commit'), \
         set_config('default_transaction_isolation', 'read committed', false), \
         set_config('idle_in_transaction_session_timeout', $1, false)",
    )
    .bind(IDLE_IN_TRANSACTION.as_millis().to_string())
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let version: i32 = row.try_get(0)?;
    let standby: bool = row.try_get(1)?;
    let fsync: &str = row.try_get(2)?;
    let synchronous_commit: &str = row.try_get(3)?;
    Ok(if version < 150_000 {
        Some("PostgreSQL 15 or later is needed")
    } else if standby {
        Some("it is a standby")
    } else if fsync != "on" {
        Some("fsync is off")
    } else if synchronous_commit == "off" {
        Some("synchronous_commit is off")
    } else {
        None
    })
}
