//! Pure formats that outlive a process: ids, the delivery record, lane ids and buckets, signatures.
//!
//! Nothing here does IO, reads a clock or draws randomness; what is fixed for ever (lane id, bucket, delivery id,
//! record version 1) has golden vectors in its tests.

pub mod authority;
mod base62;
pub mod fingerprint;
pub mod headers;
pub mod ids;
pub mod lane;
pub mod record;
pub mod signature;
pub mod time;

pub use ids::{
    DeliveryId, EndpointId, ErasureId, EventId, IdError, RewindId, SubscriptionId, TenantId,
};
pub use lane::{BUCKETS, Bucket, LaneId, LaneMode};
pub use record::{Record, RecordError};
pub use time::Timestamp;
