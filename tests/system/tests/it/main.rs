//! Real processes under real faults (reliability.md): each test is a world of its own on the shared servers, or on
//! servers of its own where it breaks them, and is judged by the receivers' journal.

mod crash;
mod isolation;
mod restarts;
mod storm;
mod support;
mod topic_loss;
mod window;
mod zombie;
