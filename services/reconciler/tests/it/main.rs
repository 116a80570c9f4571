//! The reconciler on a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod audit;
mod lookups;
mod retention;
mod rewinds;
mod traffic;
mod ways;
mod world;
