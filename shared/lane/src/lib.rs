//! Pure: the state machine of lanes (design section 5), what decides in the relay ([`relay`], design section 4), and what
//! decides in a rewind ([`rewind`], design section 6).
//!
//! [`Core`] takes time and events as values and gives effects as values, in an order that means something: record
//! before send, send before acknowledge. No IO, no async, no clock, no randomness, no logging; equal inputs give
//! equal outputs. The shell (`services/deliver`) owns Kafka, PostgreSQL and HTTP and does what effects say; the
//! simulator (`tests/simulation`) drives the same core.
//!
//! # The contract between core and shell
//! * *One settle queue per partition.* [`Effect::Settle`] items of a partition form one FIFO queue. The shell commits
//!   them in groups, in order, never two transactions of one partition at a time, each under the partition's fence,
//!   and answers [`Input::Settled`] once per committed group with the highest sequence number in it. Nothing that the
//!   core sends depends on an item that is not settled.
//! * *Intake rides in that queue.* The facts of [`Input::Intake`] are read in the same queue: after the groups
//!   committed before, before those committed after; the shell hands `Intake` and `Settled` to the core in that order.
//! * *A fence lost is final.* When a transaction finds its epoch gone the shell gives [`Input::Lost`] and nothing
//!   more for that (partition, epoch). Inputs of an old epoch are legal and change nothing.
//! * *Endpoints first.* Every endpoint that an input names was given by [`Input::Endpoint`] before.
//! * *Loads* ([`Effect::LoadDue`], [`Effect::LoadPage`], [`Effect::LoadExpired`], [`Effect::ClaimProbe`]) are answered
//!   exactly once each, unless the partition is lost; they read committed rows, outside the settle queue but only
//!   rows that this owner wrote: what they return can be older than the queue's end, never newer.

mod classify;
mod command;
mod core;
pub mod effect;
mod endpoint;
mod gauges;
mod hash;
mod health;
pub mod input;
mod intake;
mod invariant;
mod judge;
mod lanes;
mod ledger;
pub mod limits;
mod loads;
mod mutant;
mod outcome;
mod partition;
pub mod relay;
pub mod rewind;
mod schedule;
mod shared;
mod window;

pub use core::Core;
pub use effect::*;
pub use gauges::{EndpointGauges, Gauges};
pub use input::*;
pub use invariant::Invariant;
pub use limits::*;
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use shared::Effects;
