//! What every process of Laneway shares and what belongs to none of them: time, configuration, telemetry, the admin
//! port, signals, supervised tasks, exit codes.
//!
//! A service's life is told in [`service`]: configuration → telemetry → admin port → connect → ready → signal → not
//! ready → drain within grace → exit. Reading the environment, the clocks, spawning tasks and ending the process
//! happen here and nowhere else (clippy.toml refuses them elsewhere).

pub mod admin;
pub mod clock;
pub mod config;
mod env;
mod exit;
pub mod failpoint;
pub mod invariants;
pub mod metrics;
pub mod patience;
pub mod service;
pub mod task;
pub mod telemetry;
pub mod trace;

pub use exit::ExitCode;
