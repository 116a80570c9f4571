//! Deliver on real parts: records produced to a fresh topic, requests read by a scripted receiver.

#![expect(clippy::disallowed_methods, reason = "tests use clocks freely")]

mod owners;
mod parking;
mod records;
mod road;
mod unknowns;
mod world;
