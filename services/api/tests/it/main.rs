//! The API on a real PostgreSQL, over real connections: each test has a database and an API of its own.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "tests use tasks and the environment freely, and fail by panicking"
)]

mod authority;
mod bad_input;
mod enabling;
mod events;
mod idempotency;
mod isolation;
mod life;
mod reading;
mod rewinds;
mod secrets;
mod support;
mod unknowns;
