//! The real core in a simulated world.
