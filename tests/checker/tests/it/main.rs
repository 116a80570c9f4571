//! The judge judged: good histories pass, each bad one is refused with its number, and no mutation of a good one
//! slips through.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of their functions")]

mod bad;
mod good;
mod history;
mod mutations;
mod unknown;
