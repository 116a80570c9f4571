//! The Kafka client on a real broker.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod admin;
mod consumer;
mod faults;
mod producer;
mod support;
