//! The core against a tiny model of the world around it: rules one by one, and random schedules.

mod database;
mod properties;
mod rules;
mod world;
