//! Why the API could not start. (What a request comes to is in `problem`.)

use std::net::SocketAddr;

/// Why the API could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database refuses, or is one that may not be used.
    #[error("the control database cannot be used")]
    Database(#[source] laneway_store::Error),
    /// The public port cannot be opened.
    #[error("cannot listen on {listen}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The key of endpoint secrets is missing; validation reports it first.
    #[error("secrets.key is not 32 bytes in base64")]
    SecretsKey,
}
