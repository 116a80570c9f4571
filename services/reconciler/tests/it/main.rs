//! The reconciler on a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod rewinds;
mod world;
