//! What a seed decides before a run of the relay: the size of its world and which faults it has.

use crate::rng::Rng;

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Fault {
    Crash,
    Pause,
    LostReply,
    DatabaseCrash,
    LongTransaction,
    Rollback,
    SlowLog,
    ProducerError,
    Recreate,
    Truncate,
    TooLarge,
    Tenant,
    HotLane,
    HandOver,
}

/// All that a seed decides in advance.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    faults: u32,
    pub(super) instances: usize,
    pub(super) shards: usize,
    pub(super) partitions: u32,
    /// User keys; key k is of tenant k, in shard k mod shards.
    pub(super) keys: u8,
    /// Endpoints that are subscribed in the end; the first from the beginning.
    pub(super) endpoints: u8,
    pub(super) waves: usize,
    pub(super) page_rows: usize,
    /// Rows that writers insert at most.
    pub(super) rows: usize,
    /// Until this writers write and faults strike, ms.
    pub(super) heal_at: i64,
    /// How long relays lease a shard, ms.
    pub(super) lease: i64,
    /// Between two looks at the topic, ms.
    pub(super) watch: i64,
    /// Batches younger than this share an entry, ms.
    pub(super) entry_age: i64,
    /// Between two faults at most, ms.
    pub(super) pace: i64,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 101);
        let mut faults = 0;
        for bit in 0..=Fault::HandOver as u32 {
            faults |= u32::from(rng.chance(50)) << bit;
        }
        Self {
            faults,
            instances: rng.range(1, 3) as usize,
            shards: rng.range(1, 3) as usize,
            partitions: rng.range(1, 3) as u32,
            keys: rng.range(2, 6) as u8,
            endpoints: rng.range(1, 2) as u8,
            waves: rng.pick(&[1, 2, 4]),
            page_rows: rng.pick(&[2, 4, 16]),
            rows: rng.range(20, 100) as usize,
            heal_at: rng.range(1_500, 4_000),
            lease: rng.pick(&[150, 400]),
            watch: rng.pick(&[30, 100, 300]),
            entry_age: rng.pick(&[0, 100, 1_000]),
            pace: rng.pick(&[60, 200, 600]),
        }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults >> fault as u32 & 1 == 1
    }
}
