//! What deliver reads and writes: ownership of partitions, groups of outcomes, parked lanes, endpoints, health.
//!
//! Every write of an owner proves its epoch first ([`settle`], [`owner`]): a stale owner can write nothing (P13).

pub mod command;
pub mod endpoint;
pub mod health;
pub mod inbox;
pub mod known;
pub mod load;
pub mod owner;
pub mod settle;
mod settle_columns;
mod settle_outcomes;
mod settle_parked;
pub(crate) mod value;

pub use command::{OpenCommand, commands_open};
pub use endpoint::{EndpointRow, endpoint_disable, endpoints_changed, endpoints_load};
pub use health::{
    Claim, HealthView, health_degrade, health_probe_claim, health_probe_ended, health_read,
};
pub use inbox::inbox_partitions_make;
pub use known::known_read;
pub use load::{
    DueLoad, KeptDead, PageLoad, Waiting, dead_letters_read, parked_due_load, parked_expired_load,
    parked_lanes_read, parked_page_load, waiting_read,
};
pub use owner::{
    Owner, OwnerState, Taken, owner_position_raise, owner_read, owner_release, owner_take,
    owner_timeout_raise,
};
pub use settle::{Group, GroupEnd, Written, groups_write};
