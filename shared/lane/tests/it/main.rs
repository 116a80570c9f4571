//! The core against a tiny model of the world around it: rules one by one, and random schedules.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod cost;
mod database;
mod erasing;
mod horizon;
mod parking;
mod properties;
mod rules;
mod unknown;
mod world;
