//! The Kafka client on a real broker.

mod admin;
mod consumer;
mod faults;
mod producer;
mod support;
