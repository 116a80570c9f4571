//! All SQL: migrations and one file per table family.
//!
//! Two schemas, which may lie in one database or in two: `laneway` (the outbox and what the relay keeps beside it) is
//! put into every source database, `laneway_control` (everything else) exists once. Functions are called noun_verb,
//! take a [`Pool`], and give back their own types: no caller sees a row or a driver's type.

mod error;
pub mod migrate;
mod pool;

pub use error::Error;
pub use pool::{Options, Pool};
