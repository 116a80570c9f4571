//! The courier against a scripted receiver that speaks raw TCP on loopback: the destination rows of the fault matrix
//! (reliability.md 3.4) and the addresses that must not be reached.

mod corpus;
mod faults;
mod limits;
mod receiver;
mod request;
