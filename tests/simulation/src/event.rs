//! The event log: all that checkers may know, and what the history hash is made of (I53).

use laneway_lane::{AttemptKind, Epoch, FinalOutcome, OnUnknown, Partition, Verdict};
use std::hash::{Hash, Hasher};

/// Index of a delivery in the order in which the world made them.
pub type Delivery = u32;
/// Index of a lane.
pub type Lane = u32;
/// Index of a request.
pub type Request = u32;
/// Index of a process; a restarted one keeps it.
pub type Instance = u32;
/// True time since the world began, ms: no process knows it.
pub type Time = i64;

/// What a request came to, as its process saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    /// No byte left.
    NotSent,
    /// A status line was read.
    Status(u16),
    /// It cannot be told.
    Unknown,
    /// It was given up before its deadline and may travel until then.
    Cut,
}

/// What is kept of a durable write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the settle items")]
pub enum Write {
    Park {
        first_held: Time,
        unknown: bool,
    },
    Append,
    Intent {
        attempt: u32,
    },
    /// `made` is false for a request that had an intent and was not begun.
    Attempt {
        attempt: u32,
        kind: Kind,
        status: Option<u16>,
        ended: Time,
        unknown: bool,
        made: bool,
    },
    Final {
        outcome: Outcome,
        attempts: u32,
        command: bool,
        again: bool,
    },
    Release,
}

/// [`FinalOutcome`], hashable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Outcome {
    Delivered,
    Rejected,
    Expired,
    Erased,
    Discarded,
    /// It may have been applied, and a person has given it up.
    GivenUp,
}

impl From<FinalOutcome> for Outcome {
    fn from(outcome: FinalOutcome) -> Self {
        match outcome {
            FinalOutcome::Delivered => Self::Delivered,
            FinalOutcome::DeadLettered { reason: "expired" } => Self::Expired,
            FinalOutcome::DeadLettered { reason: "erased" } => Self::Erased,
            FinalOutcome::DeadLettered { reason: "unknown" } => Self::GivenUp,
            FinalOutcome::DeadLettered { .. } => Self::Rejected,
            FinalOutcome::Discarded { .. } => Self::Discarded,
        }
    }
}

/// [`AttemptKind`], hashable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of I11")]
pub enum Kind {
    NotSent,
    Responded,
    Unknown,
}

impl From<AttemptKind> for Kind {
    fn from(kind: AttemptKind) -> Self {
        match kind {
            AttemptKind::NotSent => Self::NotSent,
            AttemptKind::Responded => Self::Responded,
            AttemptKind::Unknown => Self::Unknown,
        }
    }
}

/// State of an endpoint, hashable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Switch {
    Enabled,
    Disabled,
    Deleted,
}

/// What an endpoint does with unknown outcomes, hashable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Policy {
    Resend,
    Lookup,
    Hold,
}

impl From<OnUnknown> for Policy {
    fn from(on: OnUnknown) -> Self {
        match on {
            OnUnknown::Resend => Self::Resend,
            OnUnknown::Lookup => Self::Lookup,
            OnUnknown::Hold => Self::Hold,
        }
    }
}

/// Bounded things of one process after one step of its core (P10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gauges {
    /// Requests in flight.
    pub in_flight: u32,
    /// Parked lanes with something in memory.
    pub loaded_lanes: u32,
    /// Payload bytes of loaded parked events.
    pub loaded_bytes: u64,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields are what their names and types say")]
pub enum Event {
    /// A record is in the topic, stamped with the generation that its relay knows; `first` if its delivery was not
    /// there before.
    Produced {
        partition: Partition,
        offset: i64,
        generation: u64,
        delivery: Delivery,
        lane: Lane,
        endpoint: u32,
        first: bool,
    },
    /// Something undecodable is in the topic.
    Garbage {
        partition: Partition,
        offset: i64,
    },
    /// A take-over committed.
    Owned {
        partition: Partition,
        epoch: Epoch,
        instance: Instance,
        clean: bool,
    },
    /// A clean release committed.
    Released {
        partition: Partition,
        epoch: Epoch,
    },
    /// A process dropped what it held under an epoch.
    Lost {
        partition: Partition,
        epoch: Epoch,
        instance: Instance,
    },
    Crashed {
        instance: Instance,
    },
    Started {
        instance: Instance,
    },
    Paused {
        instance: Instance,
        until: Time,
    },
    /// Its machine sleeps: time goes on, timers do not.
    Suspended {
        instance: Instance,
        until: Time,
    },
    /// Its machine's wall clock was set.
    ClockSet {
        instance: Instance,
        by: Time,
    },
    /// A core was handed the record.
    Took {
        partition: Partition,
        epoch: Epoch,
        delivery: Delivery,
    },
    /// A request begins; its lease was checked just now.
    Began {
        request: Request,
        instance: Instance,
        partition: Partition,
        epoch: Epoch,
        delivery: Delivery,
        attempt: u32,
        probe: bool,
        deadline: Time,
        lease_left: i64,
        /// Nothing is left of its payload.
        empty: bool,
    },
    /// The receiver has read it.
    Arrived {
        request: Request,
        status: Option<u16>,
    },
    /// Its process knows how it ended.
    Ended {
        request: Request,
        seen: Seen,
    },
    /// A durable write about a delivery.
    Wrote {
        partition: Partition,
        epoch: Epoch,
        delivery: Delivery,
        write: Write,
    },
    Quarantined {
        partition: Partition,
        epoch: Epoch,
        offset: i64,
    },
    /// Items of one lane in one group that the order of writes within a group turns round, or a write that finds its
    /// rows in a state that the contract rules out.
    Contract {
        partition: Partition,
        epoch: Epoch,
        what: String,
    },
    Position {
        partition: Partition,
        epoch: Epoch,
        next_offset: i64,
    },
    /// A write found its epoch gone and changed nothing.
    Fenced {
        partition: Partition,
        epoch: Epoch,
    },
    Commanded {
        command: i64,
        delivery: Delivery,
        verdict: Word,
    },
    /// The receiver has done what a request asks for; `late`: when its sender could not be waited for any more.
    Worked {
        request: Request,
        delivery: Delivery,
        late: bool,
    },
    /// An authority is asked what became of a request.
    Asked {
        delivery: Delivery,
    },
    /// Its answer on the unknown of so many attempts became a command.
    Answered {
        command: i64,
        delivery: Delivery,
        attempts: u32,
        verdict: Word,
    },
    CommandDone {
        command: i64,
        epoch: Epoch,
        refused: bool,
    },
    /// What was written to the lane before a moment is to be erased.
    ErasureBegan {
        lane: Lane,
        before: Time,
    },
    /// Nothing of it is left to be sent.
    ErasureDone {
        lane: Lane,
        before: Time,
    },
    Endpoint {
        endpoint: u32,
        state: Switch,
    },
    Degraded {
        endpoint: u32,
    },
    Healthy {
        endpoint: u32,
    },
    Gauge {
        instance: Instance,
        gauges: Gauges,
    },
    /// Faults are over, but for lanes, unknowns and endpoints that linger.
    Healed,
    /// Lanes that nothing holds back must be empty by now.
    Lingered {
        blocked: Vec<Lane>,
    },
    /// Nothing at all is left to hold anything back.
    Cured,
    /// Another server takes the database over: every connection is cut, what was acknowledged is there, and nothing
    /// can be asked before `until`.
    Failover {
        until: Time,
    },
    /// Of this partition's log only what lies from `begin` on and before `end` is left.
    LogLost {
        partition: Partition,
        begin: i64,
        end: i64,
    },
    /// The topic is gone, and later made again with nothing in it.
    TopicGone,
    /// A generation begins: what lies from the first lost offset of a partition on and is stamped with an older one
    /// counts for nothing, and comes again.
    Raised {
        generation: u64,
        lost: Vec<(Partition, i64)>,
    },
    /// A position that lay before the log's beginning is moved there: what lay between is fenced.
    PositionMoved {
        partition: Partition,
        next_offset: i64,
    },
    /// Dead letters that are there now and are meant (all, those of an endpoint, of a lane) are to be sent again, or not
    /// to be sent any more; of those whose outcome is unknown `unknowns` alone means them.
    RewindBegan {
        rewind: u32,
        endpoint: Option<u32>,
        lane: Option<Lane>,
        unknowns: bool,
        discards: bool,
    },
    RewindDone {
        rewind: u32,
    },
    /// A person has ended it; what was done stays.
    RewindCancelled {
        rewind: u32,
    },
    /// A row of the outbox repeats the delivery.
    Rewound {
        rewind: u32,
        of: Delivery,
        row: u32,
    },
    /// The dead letter is not to be sent any more.
    Discarded {
        rewind: u32,
        delivery: Delivery,
    },
    /// Such a row is about to be published first, as this delivery.
    Repeated {
        row: u32,
        delivery: Delivery,
    },
    /// The end: how many rows wait and what stands in the way.
    Over {
        drained: bool,
        parked: usize,
        intents: usize,
        commands: usize,
        lag: i64,
    },
}

/// [`Verdict`], hashable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Word {
    Delivered,
    NotApplied,
    GivenUp,
    Erase { before: Time },
}

impl From<Verdict> for Word {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Delivered => Self::Delivered,
            Verdict::NotApplied => Self::NotApplied,
            Verdict::GivenUp => Self::GivenUp,
            Verdict::Erase { before } => Self::Erase { before: before.0 },
        }
    }
}

/// Hash of a history: equal seeds give equal ones in every process (no per-process keys).
#[derive(Debug, Clone)]
pub struct HistoryHash(u64);

impl Default for HistoryHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl HistoryHash {
    /// Adds one line.
    pub fn add(&mut self, at: Time, event: &Event) {
        self.write_i64(at);
        event.hash(self);
    }
}

impl Hasher for HistoryHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(word))
                .wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }
}
