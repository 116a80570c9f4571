//! Removing a day's partition in two steps: it is detached, with the locks that stop writers, and dropped after that, for
//! the removal of its files takes as long as they are large. What a crash leaves between the two has a name of its own
//! and goes the next time.

use crate::source::Day;
use crate::{Error, Pool};
use sqlx::{AssertSqlSafe, PgConnection};

/// A table that is partitioned by days: the names of all its tables begin with its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Daily {
    pub(crate) schema: &'static str,
    pub(crate) table: &'static str,
}

pub(crate) const OUTBOX: Daily = Daily { schema: "laneway", table: "outbox" };
pub(crate) const INBOX: Daily = Daily { schema: "laneway_control", table: "inbox" };

impl Daily {
    /// The name of a day's partition. Digits only, so that it can stand in a statement.
    pub(crate) fn of(self, day: Day) -> String {
        format!("{}.{}_{}", self.schema, self.table, day.format("%Y%m%d"))
    }

    /// Takes the locks of a removal: the parent's first, as inserts do. `parent` says how its lock is waited for, the others
    /// are had at once or not at all.
    pub(crate) async fn lock(
        self,
        connection: &mut PgConnection,
        day: Day,
        parent: &str,
    ) -> Result<(), Error> {
        let Self { schema, table } = self;
        for statement in [
            format!("LOCK TABLE ONLY {schema}.{table} IN ACCESS EXCLUSIVE MODE {parent}"),
            format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE NOWAIT", self.of(day)),
            format!("LOCK TABLE ONLY {schema}.{table}_default IN ACCESS EXCLUSIVE MODE NOWAIT"),
        ] {
            run(connection, statement).await?;
        }
        Ok(())
    }

    /// Takes the day out of the table under the locks of [`Daily::lock`], and gives it the name of what is to be dropped.
    pub(crate) async fn detach(self, connection: &mut PgConnection, day: Day) -> Result<(), Error> {
        let Self { schema, table } = self;
        let name = self.of(day);
        let gone = format!("{table}_gone_{}", day.format("%Y%m%d"));
        run(connection, format!("ALTER TABLE {schema}.{table} DETACH PARTITION {name}")).await?;
        run(connection, format!("ALTER TABLE {name} RENAME TO {gone}")).await
    }

    /// Drops what was detached. One that somebody reads, a backup say, stays for the next time.
    pub(crate) async fn drop_detached(self, pool: &Pool) -> Result<(), Error> {
        let Self { schema, table } = self;
        let detached: Vec<String> = sqlx::query_scalar(
            "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname ~ ('^' || $2 || '_gone_[0-9]{8}$') AND c.relkind = 'r' ORDER BY 1",
        )
        .bind(schema)
        .bind(table)
        .fetch_all(pool.inner())
        .await
        .map_err(Error::doing(DOING))?;
        for name in detached {
            let mut transaction = pool.begin().await?;
            run(&mut transaction, "SET LOCAL lock_timeout = '1s'".to_owned()).await?;
            match run(&mut transaction, format!("DROP TABLE IF EXISTS {schema}.{name}")).await {
                Err(error) if error.is_lock_not_available() => {}
                dropped => {
                    dropped?;
                    transaction.commit().await.map_err(Error::doing(DOING))?;
                }
            }
        }
        Ok(())
    }
}

const DOING: &str = "removing an old partition";

/// `statement` is made of names that this module knows, and digits.
async fn run(connection: &mut PgConnection, statement: String) -> Result<(), Error> {
    sqlx::query(AssertSqlSafe(statement))
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(Error::doing(DOING))
}
