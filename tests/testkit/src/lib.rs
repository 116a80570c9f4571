//! Real PostgreSQL and Kafka for tests, processes that can be killed, and a receiver that misbehaves on request.
//!
//! - [`Stack`] gives the servers: the ones of `make test`, or some of its own for tests that break them.
//! - [`Child`] is a process of the product that a test kills, stops and continues.
//! - [`Receiver`] is the destination: scripted behaviour, and a [`Journal`] of what it read and answered.
//! - [`Provider`] is a system with effects that can be asked about them: a destination and its authority.
//! - [`wait_for`] waits for a condition with a limit; nothing here sleeps for a fixed time.
//!
//! Failures panic or return `anyhow::Error`: only tests, the demo and the bench use this crate.

#![expect(
    clippy::disallowed_methods,
    reason = "test support: clocks, environment and tasks are used freely"
)]

mod child;
mod postgres;
mod provider;
mod receiver;
mod stack;
mod wait;

pub use child::Child;
pub use postgres::sql;
pub use provider::{Account, First, LedgerLine, Provider, Says};
pub use receiver::{
    Behaviour, Door, Entry, Journal, Kind, Receiver, ReceiverConfig, Request, Rule, run_receiver,
};
pub use stack::Stack;
pub use wait::{free_port, fresh_topic_name, temp_dir, wait_for, wait_for_some};
