//! The relay on a real PostgreSQL and a real Kafka.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod held;
mod kills;
mod leases;
mod loss;
mod order;
mod rate;
mod repair;
mod retention;
mod routing;
mod sizes;
mod sources;
mod support;
