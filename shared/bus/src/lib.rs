//! The only Kafka client: the deliveries topic is made, written and read through here and nowhere else.
//!
//! - [`Admin`] makes and describes topics and tells where their partitions begin and end.
//! - [`Producer`] writes to explicit partitions, idempotent, with every acknowledgement's offset: the relay notices a
//!   lost log by them (design section 4).
//! - [`Consumer`] reads on a thread of its own from offsets that the caller gives: PostgreSQL owns the position, Kafka
//!   only proposes who might own a partition (design 5.3).
//!
//! What Kafka does is reported, never repaired here: no offset is ever chosen, no error turns into a jump. There are
//! no Kafka transactions anywhere.

mod admin;
mod consumer;
mod error;
mod producer;
mod settings;

use std::time::Duration;

/// Questions in a row without an answer, while another client is answered, after which a client has forgotten the
/// brokers.
pub const FORGOTTEN: u32 = 3;
/// What a client may take to tell whether it reaches a broker.
const REACH_LIMIT: Duration = Duration::from_secs(1);

pub use admin::{Admin, TopicDescription, TopicSpec};
pub use consumer::{Command, Consumer, ConsumerSettings, Event, Events, RawRecord};
pub use error::BusError;
pub use producer::{Acked, Pending, Producer, ProducerSettings, Witness};
pub use settings::{Connection, SaslMechanism, SecurityProtocol};
