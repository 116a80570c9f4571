//! What ends the service. A database or broker that is away does not: it is waited for.

/// Why the relay cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A database cannot be used.
    #[error("a database cannot be used")]
    Store(#[from] laneway_store::Error),
    /// Kafka cannot be used.
    #[error("kafka cannot be used")]
    Bus(#[from] laneway_bus::BusError),
}

impl Error {
    /// Whether trying again may help without anyone doing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Bus(error) => error.is_transient(),
        }
    }
}
