//! The log of the relay's runs: all that checkers may know.

use laneway_lane::relay::Fence;

/// An outbox row's id.
pub type RowId = i64;
/// A user key of the world.
pub type Key = u8;
/// An endpoint of the world.
pub type To = u8;
/// One delivery: a row for an endpoint.
pub type Delivery = (RowId, To);

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields are what their names and types say")]
pub enum Event {
    /// A change of subscriptions has been answered: `to` gets what is committed from now on.
    Subscribed {
        to: To,
    },
    /// A writer's transaction, with its rows in the order of their inserts.
    Committed {
        xid: u64,
        rows: Vec<(RowId, Key)>,
    },
    RolledBack {
        xid: u64,
    },
    /// A record is in the log.
    Appended {
        partition: u32,
        offset: i64,
        generation: u64,
        delivery: Delivery,
        key: Key,
    },
    /// The log of a partition ends here now.
    Truncated {
        partition: u32,
        end: i64,
    },
    /// The topic was made anew.
    Recreated,
    /// A generation began; from its fences on older records do not count.
    Raised {
        generation: u64,
        fences: Vec<(u32, i64)>,
    },
    Leased {
        shard: usize,
        instance: usize,
        token: u64,
    },
    Released {
        shard: usize,
    },
    /// A batch was opened, up to this snapshot.
    Opened {
        shard: usize,
        token: u64,
        entry: u64,
        s2: String,
    },
    /// The cursor moved behind a page: `sent` are acknowledged by the relay's word, `held` are durably held.
    Passed {
        shard: usize,
        token: u64,
        last_id: RowId,
        sent: Vec<Delivery>,
        held: Vec<Delivery>,
    },
    /// Held rows were published.
    Left {
        shard: usize,
        token: u64,
        sent: Vec<Delivery>,
    },
    /// The cursor went back to an entry, or only noted a generation.
    WentBack {
        shard: usize,
        token: u64,
        generation: u64,
        to: Option<u64>,
    },
    /// A write found its lease gone and changed nothing.
    Fenced {
        shard: usize,
        token: u64,
    },
    Crashed {
        instance: usize,
    },
    Paused {
        instance: usize,
    },
    /// The source database was killed: what was open is gone.
    DatabaseCrashed,
    /// Faults are over.
    Healed,
    /// The end: whether nothing was left to do.
    Over {
        drained: bool,
    },
}

/// A fence as the log has it.
pub(super) fn fence(fence: &Fence) -> (u32, i64) {
    (fence.partition, fence.first_lost)
}
