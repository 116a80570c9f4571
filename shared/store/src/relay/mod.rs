//! What the relay reads and writes in a source database: leases and cursors of the 16 shards, batches by snapshot
//! difference, the history of what was published, held rows (design section 4).

mod cursor;
mod held;
mod lease;
mod read;

pub use cursor::{
    Advance, acks_all, acks_of, batch_advance, batch_open, batch_reopen, cursor_go_back,
    cursor_load, cursor_restore, generation_looked_at,
};
pub use held::{
    HeldCount, HeldRow, Hold, Leave, held_any, held_counts, held_lanes, held_leave,
    held_reconsider, held_refuse, held_sendable,
};
pub use laneway_lane::relay::{Cursor, EntryAcks, HoldReason, Snapshot};
pub use lease::{
    Lease, leases_acquire, leases_release, leases_renew, member_beat, member_leave,
    shard_is_owned_by,
};
pub(crate) use read::StoredRewind;
pub use read::{
    Bounds, OutboxRow, Page, Pending, Poll, Rewind, batch_bounds, batch_page, pending, poll,
    rows_by_id,
};

/// How many shards an outbox has; fixed for ever, as the column that holds it.
pub const SHARDS: u8 = 16;

/// One of [`SHARDS`] parts of an outbox: a tenant is in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard(pub u8);

impl Shard {
    pub(crate) fn db(self) -> i16 {
        i16::from(self.0)
    }

    pub(crate) fn from_db(value: i16) -> Result<Self, crate::Error> {
        u8::try_from(value)
            .ok()
            .filter(|shard| *shard < SHARDS)
            .map(Self)
            .ok_or_else(|| crate::Error::Stored { what: "shard", value: value.to_string() })
    }
}

/// A snapshot that PostgreSQL wrote.
pub(crate) fn snapshot(text: &str) -> Result<Snapshot, crate::Error> {
    let bad = || crate::Error::Stored { what: "snapshot", value: text.chars().take(60).collect() };
    Snapshot::parse(text).ok_or_else(bad)
}

pub(crate) fn millis(span: std::time::Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}
