//! The only outgoing HTTP to endpoints: where a request may go, what it carries, and what it came to.
//!
//! A caller hands [`Courier::send`] an endpoint ([`Target`]) and a delivery ([`Outgoing`]) and gets one of three
//! things back ([`SendResult`], design 5.5): it is certain that nothing was sent; a status line was read; or a byte
//! may have left and nobody can tell (P6). Nothing is ever sent twice by this crate: no redirects, no retries, no
//! proxy. [`AddressPolicy`] is also what the API asks before it stores an endpoint's URL.
//!
//! | bound | where |
//! |---|---|
//! | clients (connection pools) kept | [`Settings::max_clients`] |
//! | connections of one endpoint | [`Target::max_connections`] |
//! | an authority's answer | [`ANSWER_LIMIT`], within the deadline |
//! | response body kept | [`BODY_LIMIT`], read no longer than [`BODY_WAIT`] |
//! | name lookups at once, addresses of one name | [`MAX_LOOKUPS`], [`MAX_ADDRESSES`] |
//! | length of a URL | [`MAX_URL`] |

mod address;
mod ask;
mod classify;
mod request;
mod resolver;
mod routes;
mod send;
mod settings;
mod target;
mod tls;

pub use address::{AddressPolicy, CheckedUrl, MAX_URL, UrlProblem};
pub use ask::{ANSWER_LIMIT, CONNECTIONS_BUSY, Question};
pub use resolver::{MAX_ADDRESSES, MAX_LOOKUPS};
pub use send::{BODY_LIMIT, BODY_WAIT, Courier};
pub use settings::{Settings, SettingsError};
pub use target::{MAX_CONNECTIONS, Outgoing, SendResult, Sent, Target};
