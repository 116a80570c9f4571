//! What ends the service. Everything else is retried, recorded or counted where it happens.

/// Why the service cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The control database cannot be used.
    #[error("the control database cannot be used")]
    Store(#[from] laneway_store::Error),
    /// The Kafka client cannot be made, or has ended for good.
    #[error("kafka cannot be used")]
    Bus(#[from] laneway_bus::BusError),
    /// The courier cannot be made of its settings.
    #[error("requests cannot be made")]
    Courier(#[from] laneway_courier::SettingsError),
    /// A setting that validation should have refused.
    #[error("setting `{0}` is not usable")]
    Setting(&'static str),
}

impl Error {
    /// Whether starting again later may help without anyone doing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Bus(error) => error.is_transient(),
            Self::Courier(_) | Self::Setting(_) => false,
        }
    }
}
