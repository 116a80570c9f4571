//! Pure: what decides in the relay (design section 4): which rows a batch has ([`Window`]), which deliveries are sent and
//! which are held ([`plan`]), one unacknowledged record of a lane at a time ([`Chain`]), what an acknowledgement covers
//! ([`Published`], [`EntryAcks`]), whether the log was lost and where a shard goes back to ([`look_back`]).
//!
//! `services/relay` and the store act on it; the simulator (`tests/simulation`) drives the same.

mod chain;
mod cursor;
mod loss;
mod mutant;
mod plan;
mod snapshot;

pub use chain::{Acked, Chain, Published, PublishedAt};
pub use cursor::{Cursor, EntryAcks, Step};
pub use loss::{Back, Fence, Suspicions, is_lost, look_back, losses};
#[cfg(feature = "mutants")]
pub use mutant::{Mutant, plant};
pub use plan::{HoldReason, Plan, plan};
pub use snapshot::{Snapshot, Window};
