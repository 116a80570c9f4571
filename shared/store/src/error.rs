//! What can go wrong with a database, and the questions that callers ask of it.

/// A failed database operation. `Display` says what was being done; the source says why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A statement failed, or its connection did. Whether a commit happened is then unknown.
    #[error("{doing}")]
    Database {
        /// What was being done, e.g. `reading the cursor`.
        doing: &'static str,
        /// Why it failed.
        source: sqlx::Error,
    },
    /// The database URL cannot be read.
    #[error("database URL is not valid")]
    Url(#[source] sqlx::Error),
    /// The server would not keep what it acknowledges (design section 1, "Assumed").
    #[error("database is not safe to use: {0}")]
    Unsafe(&'static str),
    /// Migrations could not be applied.
    #[error("migrating schema {schema}")]
    Migrate {
        /// The schema.
        schema: &'static str,
        /// Why not.
        source: sqlx::migrate::MigrateError,
    },
    /// A stored value is not one that this build can have written.
    #[error("stored {what} is not valid: {value}")]
    Stored {
        /// What was read.
        what: &'static str,
        /// What stood there, shortened by the caller if it may be long.
        value: String,
    },
    /// The topic has another number of partitions than this database was set up for: its lanes would move silently.
    #[error("topic {topic} has {found} partitions, this installation was set up for {stored}")]
    PartitionCount {
        /// The topic.
        topic: String,
        /// What the control database says.
        stored: u32,
        /// What the topic has.
        found: u32,
    },
}

impl Error {
    /// For `map_err`: the error of a statement, with what it was for.
    pub(crate) fn doing(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { doing, source }
    }

    /// Whether the same call may succeed later without anyone doing anything: connection trouble, an overloaded or
    /// restarting server, a deadlock, a lock or statement timeout, a server that is (still) read-only.
    pub fn is_transient(&self) -> bool {
        let (Self::Database { source, .. }
        | Self::Migrate { source: sqlx::migrate::MigrateError::Execute(source), .. }) = self
        else {
            return false;
        };
        match source {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::WorkerCrashed => true,
            sqlx::Error::Database(error) => error.code().is_some_and(|code| {
                // 08 connection, 40 deadlock and serialization, 53 resources, 57P restarting, 55P03 lock timeout,
                // 57014 statement timeout, 25006 read-only, 25P03 silent in a transaction for too long.
                ["08", "40", "53", "57P", "55P03", "57014", "25006", "25P03"]
                    .iter()
                    .any(|class| code.starts_with(class))
            }),
            _ => false,
        }
    }

    /// Whether a uniqueness constraint refused the row.
    pub fn is_unique_violation(&self) -> bool {
        self.has_code("23505")
    }

    /// Whether a foreign key refused the row: what it points to does not exist.
    pub fn is_foreign_key_violation(&self) -> bool {
        self.has_code("23503")
    }

    /// Whether a CHECK refused the row.
    pub fn is_check_violation(&self) -> bool {
        self.has_code("23514")
    }

    /// Whether the statement's values were refused: a constraint, or a value that its type does not hold. Nothing of
    /// the statement was written, and it will be refused again.
    pub fn is_value_refused(&self) -> bool {
        self.has_class("22") || self.has_class("23")
    }

    /// Whether a schema, table, column or function is missing: the migrations have not been run.
    pub fn is_schema_missing(&self) -> bool {
        ["3F000", "42P01", "42703", "42883"].iter().any(|code| self.has_code(code))
    }

    /// Whether a NOWAIT lock or a lock timeout was refused.
    pub fn is_lock_not_available(&self) -> bool {
        self.has_code("55P03")
    }

    /// Whether the statement did not end within its `statement_timeout`.
    pub fn is_statement_timeout(&self) -> bool {
        self.has_code("57014")
    }

    /// Name of the constraint that refused the row, if one did.
    pub fn constraint(&self) -> Option<&str> {
        match self {
            Self::Database { source: sqlx::Error::Database(error), .. } => error.constraint(),
            _ => None,
        }
    }

    /// Whether the connection was lost or never made: a commit under way may or may not have happened.
    pub fn is_connection_lost(&self) -> bool {
        matches!(
            self,
            Self::Database {
                source: sqlx::Error::Io(_)
                    | sqlx::Error::Tls(_)
                    | sqlx::Error::Protocol(_)
                    | sqlx::Error::PoolTimedOut
                    | sqlx::Error::WorkerCrashed,
                ..
            }
        ) || self.has_code("57P01")
            || self.has_code("57P02")
    }

    /// What was being done, and what the database says to it: for whoever gave a command that failed.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Database { doing, source: sqlx::Error::Database(error) } => {
                format!("{doing}: {}", error.message())
            }
            _ => self.to_string(),
        }
    }

    fn has_class(&self, wanted: &str) -> bool {
        matches!(
            self,
            Self::Database { source: sqlx::Error::Database(error), .. }
                if error.code().is_some_and(|code| code.starts_with(wanted))
        )
    }

    fn has_code(&self, wanted: &str) -> bool {
        matches!(
            self,
            Self::Database { source: sqlx::Error::Database(error), .. }
                if error.code().as_deref() == Some(wanted)
        )
    }
}
