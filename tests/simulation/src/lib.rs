//! The real core in a simulated world (design section 9): many processes, each with a [`laneway_lane::Core`], over a
//! simulated topic, database, clocks and receivers, in virtual time. One seed is one schedule.
//!
//! * [`plan`]: what a seed decides in advance; * [`world`]: what happens; `shell`: what a process does by contract;
//!   `nemesis`: what goes wrong; [`store`], `receiver`: the parts around;
//! * [`event`]: the log; [`book`]: what follows from it; [`check`]: one checker per promise, fed by the log only;
//! * [`relay`]: the same for the relay's rules, in a world of its own;
//! * [`run`]: many seeds on all processors, replay and shrinking; [`mutants`]: planted faults and who catches them.
//!
//! Checks carry the numbers of the design: P1–P13 (design section 1), I1–I54 (reliability).

pub mod book;
pub mod check;
pub mod event;
pub mod journal;
pub mod mutants;
mod nemesis;
pub mod plan;
mod receiver;
pub mod relay;
mod rng;
pub mod run;
mod shell;
pub mod store;
pub mod world;
