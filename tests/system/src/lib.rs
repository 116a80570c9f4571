//! A whole Laneway as processes, with an application that writes, receivers that keep a journal, faults that are
//! written down, and a judge that shares no code with the product. The demo and the system tests are built on it.

#![expect(
    clippy::disallowed_methods,
    reason = "test support: clocks, environment and tasks are used freely"
)]

mod app;
pub mod chaos;
pub mod charges;
mod faults;
mod verdict;
mod world;

pub use app::App;
pub use faults::{Fault, Faults, monotonic_ns};
pub use verdict::Verdict;
pub use world::{EndpointOptions, Made, Options, World};
