//! The store on a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod delivery;
mod erasures;
mod migrations;
mod partitions;
mod pool;
mod rewinds;
mod source;
mod topology;
