//! All SQL: migrations and one file per table family.
//!
//! Two schemas, which may lie in one database or in two: `laneway` (the outbox and what the relay keeps beside it) is
//! put into every source database, `laneway_control` (everything else) exists once. Functions are called noun_verb,
//! take a [`Pool`], and give back their own types: no caller sees a row or a driver's type.

pub mod audit;
pub mod authorities;
pub mod dead_letters;
pub mod deliveries;
pub mod delivery;
pub mod emit;
pub mod endpoints;
pub mod erasures;
mod error;
pub mod events;
pub mod idempotency;
pub mod inspect;
pub mod keys;
pub mod lookups;
pub mod migrate;
mod partitions;
mod pool;
pub mod projects;
pub mod reason;
pub mod relay;
pub mod retention;
pub mod rewinds;
pub mod routing;
pub mod secrets;
pub mod source;
mod stored;
pub mod subscriptions;
pub mod topology;
pub mod windows;

pub use error::Error;
pub use pool::{Options, Pool};
