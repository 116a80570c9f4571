//! What ends the service. A database that is away does not: it is waited for.

/// Why the reconciler cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The control database cannot be used.
    #[error("the control database cannot be used")]
    Store(#[from] laneway_store::Error),
    /// The HTTP client refuses its settings.
    #[error("authorities cannot be asked")]
    Courier(#[from] laneway_courier::SettingsError),
    /// The key of sealed credentials is missing; validation reports it first.
    #[error("secrets.key is not 32 bytes in base64")]
    SecretsKey,
}
