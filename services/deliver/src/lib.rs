//! Records of the deliveries topic become HTTP requests, lane by lane.
//!
//! ```text
//! bus thread ──records──▶ engine ──requests──▶ send tasks (courier) ──▶ endpoints
//!     ▲ start, pause,       │ ▲                     │
//!     │ released            │ └────── ended ────────┘
//!     └─────────────────────┤ ▲
//!                     settle slots ──▶ PostgreSQL (fence, inbox, parked rows, attempts, position)
//! ```
//! The engine is one task that owns the pure core ([`laneway_lane::Core`]): whatever happens becomes an input, and the
//! effects that come back are begun in their order. The rest by verb: `ownership` and `lease` (who may), `log` (is
//! the position still in the topic), `rebalance` (what Kafka proposes), `intake`, `send`, `settle` and `slots`,
//! `load`, `health`, `rounds`.
//!
//! When things fail: a process that dies leaves its partitions to others, who watch its lease run out (P13) and find
//! everything recorded, so that a lane repeats its head at most (P2). PostgreSQL away: requests stop before the lease
//! ends, results wait for their transaction, and when it is back the partitions are taken again. Kafka away: what was
//! taken in goes on. A lost log raises the generation, and the relay publishes again (P4). Memory is bounded by the
//! settings, whatever waits (P10).

mod config;
mod endpoints;
mod engine;
mod error;
mod health;
mod intake;
mod lease;
mod load;
mod log;
mod metrics;
mod ownership;
mod part;
mod rebalance;
mod rounds;
mod send;
mod settle;
mod slots;
mod spans;
mod start;

pub use config::{Deliver, Settings};
pub use error::Error;
pub use start::run;
