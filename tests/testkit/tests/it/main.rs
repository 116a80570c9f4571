//! The test support itself: servers that come back, processes that obey, a receiver that misbehaves as told.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod provider;
mod receiver;
mod stack;
