//! Real processes under real faults (reliability.md): each test is a world of its own on the shared servers, or on
//! servers of its own where it breaks them, and is judged by the receivers' journal.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod crash;
mod erasing;
mod faults;
mod isolation;
mod kill_points;
mod log_loss;
mod lost_commits;
mod reconciler_kills;
mod restarts;
mod rows;
mod storm;
mod support;
mod topic_loss;
mod window;
mod zombie;
