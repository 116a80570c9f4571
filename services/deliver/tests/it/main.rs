//! Deliver on real parts: records produced to a fresh topic, requests read by a scripted receiver.

#![expect(clippy::disallowed_methods, reason = "tests use clocks and tasks freely")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod gauges;
mod owners;
mod parking;
mod poison;
mod records;
mod road;
mod start;
mod unknowns;
mod world;
