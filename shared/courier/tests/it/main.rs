//! The courier against a scripted receiver that speaks raw TCP on loopback: the destination rows of the fault matrix
//! (reliability.md 3.4) and the addresses that must not be reached.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of their functions")]
#![expect(clippy::disallowed_methods, reason = "tests need no supervisor")]

mod corpus;
mod faults;
mod limits;
mod receiver;
mod request;
mod tls;
