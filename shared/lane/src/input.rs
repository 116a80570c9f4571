//! What the world tells the core.

use bytes::Bytes;
use laneway_wire::{DeliveryId, EndpointId, LaneId, Record, TenantId, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// A Kafka partition of the deliveries topic.
pub type Partition = u32;
/// One ownership of one partition (design 5.3). Never used twice.
pub type Epoch = u64;
/// Place of an item in a partition's settle queue: 1, 2, 3… within one epoch.
pub type SettleSeq = u64;

/// Where a waiting event stands in its lane (design section 3), compared in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Generation of the topic.
    pub generation: u64,
    /// Number of moves of the lane's bucket.
    pub moves: u32,
    /// Offset in the partition.
    pub offset: i64,
}

/// One thing that happened. Inputs that carry an epoch other than the partition's present one change nothing.
#[derive(Debug, Clone)]
pub enum Input {
    /// An endpoint's settings, at first sight and at each change.
    Endpoint(Endpoint),
    /// The take-over of a partition committed; the ids of its parked lanes follow in pages.
    Assigned {
        /// The partition.
        partition: Partition,
        /// The epoch that the take-over wrote.
        epoch: Epoch,
        /// The first offset that is not yet complete.
        next_offset: i64,
        /// Generation and moves that positions of this partition's records get (per-bucket moves are all 0 until
        /// buckets can move).
        generation: u64,
    },
    /// A page of parked lanes of a partition just assigned. No record is taken in before the last page.
    ParkedLanes {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// Lane, its endpoint, and when its head is due.
        lanes: Vec<(LaneId, EndpointId, Timestamp)>,
        /// Whether this is the last page.
        last: bool,
    },
    /// Give the partition back in good order: start nothing more of it; [`Effect::Drained`](crate::Effect::Drained) when
    /// all is settled.
    Revoke {
        /// The partition.
        partition: Partition,
    },
    /// The partition is gone (fenced, lost, or released after [`Effect::Drained`](crate::Effect::Drained)): forget all of
    /// it.
    Lost {
        /// The partition.
        partition: Partition,
    },
    /// Records in offset order, each with what the database knew of it.
    Intake {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// The records.
        records: Vec<Incoming>,
    },
    /// A request that [`Effect::Send`](crate::Effect::Send) asked for has ended, one way or another.
    AttemptEnded {
        /// Which one.
        ticket: Ticket,
        /// What came back.
        result: AttemptResult,
        /// How long it took.
        took: Duration,
    },
    /// A group of a partition's settle queue is durable.
    Settled {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// Every item up to and including this one is durable.
        through: SettleSeq,
        /// Lanes among the items with `may_unpark` whose last row is gone: they are parked no more.
        unparked: Vec<LaneId>,
    },
    /// Answer to [`Effect::LoadDue`](crate::Effect::LoadDue).
    Due {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// The endpoint asked for.
        endpoint: EndpointId,
        /// Heads of parked lanes that are due, by (due time, lane).
        heads: Vec<ParkedEvent>,
        /// Whether more are due behind the last one.
        more: bool,
        /// When nothing more is due now: the next due time of a lane of this endpoint here, if there is one.
        next_due: Option<Timestamp>,
    },
    /// Answer to [`Effect::LoadPage`](crate::Effect::LoadPage): what follows in a lane.
    Page {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
        /// Its events in order of position, after the position asked for.
        events: Vec<ParkedEvent>,
        /// Whether there are more behind the last one.
        more: bool,
    },
    /// Answer to [`Effect::LoadExpired`](crate::Effect::LoadExpired): heads whose horizon has passed.
    Expired {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// The heads.
        heads: Vec<ParkedEvent>,
        /// Whether there may be more.
        more: bool,
    },
    /// Answer to [`Effect::ClaimProbe`](crate::Effect::ClaimProbe).
    Probe {
        /// The endpoint.
        endpoint: EndpointId,
        /// The partition and epoch that the head is of, and the head least recently tried; none if another instance
        /// holds the claim or no own partition has a head of this endpoint (then nothing was claimed).
        head: Option<(Partition, Epoch, ParkedEvent)>,
        /// Nothing may be claimed before this.
        probe_until: Timestamp,
    },
    /// The present view of all endpoints that are not healthy, read from the database at `read_at`. An endpoint not
    /// in it is healthy. A view older than [`crate::Limits::health_view_max_age`] counts as "all are degraded".
    Health {
        /// When it was read.
        read_at: Timestamp,
        /// The endpoints that are degraded, each with the time before which no probe is claimed.
        degraded: Vec<(EndpointId, Timestamp)>,
    },
    /// An operator's command for a delivery of an owned partition (design 5.8).
    Command {
        /// The partition that the delivery's lane is in.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// The command row.
        command: CommandId,
        /// The lane.
        lane: LaneId,
        /// The unknown head as stored, or none if the delivery is no held unknown (any more).
        head: Option<ParkedEvent>,
        /// What to do.
        verdict: Verdict,
    },
    /// Time has passed; nothing else happened.
    Tick,
}

/// Number of a row of the command table.
pub type CommandId = i64;

/// What a person says of an unknown outcome, or of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has applied it: final outcome delivered, nothing is sent.
    Delivered,
    /// The receiver has not applied it: it is sent again, same ids.
    NotApplied,
    /// Nobody can say, and the lane is to go on: it ends as a dead letter, nothing is sent.
    GivenUp,
    /// What was written before this is never sent: each such head of the parked lane ends as a dead letter, whatever it
    /// waits for (C17).
    Erase {
        /// Compared with [`laneway_wire::record::Head::created_at`].
        before: Timestamp,
    },
}

/// A record as taken from the topic.
#[derive(Debug, Clone)]
pub enum Incoming {
    /// A delivery.
    Delivery {
        /// Its offset.
        offset: i64,
        /// What it says. `record.head.lane()` was computed once and stands in `lane`.
        record: Arc<Record>,
        /// Its lane.
        lane: LaneId,
        /// What the database knew of it.
        known: Known,
    },
    /// Bytes that are no delivery: to quarantine, with a reason; the partition goes on (I46).
    Unreadable {
        /// Its offset.
        offset: i64,
        /// Stable reason code.
        reason: &'static str,
        /// The record as it was, capped by the shell.
        raw: Bytes,
    },
    /// A record that is complete unsent (stamped by an older generation at or beyond a fence).
    Skip {
        /// Its offset.
        offset: i64,
    },
}

/// What inbox, attempts and intents knew of a delivery when its record was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    New,
    /// It has its final outcome.
    Settled,
    /// It was tried: number, schedule and horizon go on from there.
    Tried(Tried),
}

/// What is recorded of a delivery's attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// Recorded attempts.
    pub attempts: u32,
    /// When the first one began (the horizon runs from here).
    pub first_at: Timestamp,
    /// When the last one ended, or, cut or unknown, the deadline before which nothing of the lane is sent.
    pub last_end: Timestamp,
    /// An intent without outcome: the attempt after `attempts` is unknown.
    pub open_intent: bool,
}

/// An event of a parked lane, as loaded from its row.
#[derive(Debug, Clone)]
pub struct ParkedEvent {
    /// The lane.
    pub lane: LaneId,
    /// Its place in the lane.
    pub position: Position,
    /// The record.
    pub record: Arc<Record>,
    /// When the delivery service first held it; of one that was tried, moved by the time for which its endpoint was
    /// disabled since.
    pub first_held: Timestamp,
    /// The lane's horizon does not begin before this (end of an unknown, a pause, a disabled time); applies to
    /// events never tried. The first attempt makes it the event's own `first_held` ([`crate::SettleItem::Failed`]).
    pub clock_from: Timestamp,
    /// Recorded attempts; 0 for all but heads.
    pub attempts: u32,
    /// Not before this (heads); for a held unknown as it was written ([`crate::NewParked::due`]).
    pub due: Timestamp,
    /// It is a held unknown: it waits for a command and neither is sent nor expires.
    pub unknown: bool,
    /// An intent without outcome exists.
    pub open_intent: bool,
    /// It already has a final outcome in the inbox (checked when the page was loaded): completes unsent.
    pub settled: bool,
}

/// Names one request: late answers of an old epoch are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The partition.
    pub partition: Partition,
    /// Its epoch.
    pub epoch: Epoch,
    /// The delivery.
    pub delivery: DeliveryId,
    /// 1 for the first attempt.
    pub attempt: u32,
}

/// What a request came to (design 5.5). The core classifies; the courier only tells what it saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptResult {
    /// The shell did not start it (lease too short, draining): no attempt was made.
    NotStarted,
    /// It is certain that no byte of the request left.
    NotSent {
        /// Stable class, e.g. `refused`, `dns`, `tls`, `connect_timeout`, `target_not_allowed`.
        class: &'static str,
    },
    /// A status line was read.
    Responded {
        /// The status.
        status: u16,
        /// The first part of the body (bounded by the courier), for the attempt row of a failure.
        body: Bytes,
    },
    /// A byte may have left and no status line came back.
    Unknown {
        /// Stable class, e.g. `timeout`, `reset`, `broken_reply`, `cut`.
        class: &'static str,
        /// The request may still be travelling until this: the lane's next send waits for it.
        clear_at: Timestamp,
    },
}

/// What an endpoint wants done with an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// Send again with the same ids.
    Resend,
    /// Wait for the authority (until there is a reconciler: like `Hold`).
    Lookup,
    /// Wait for a person.
    Hold,
}

/// Whether an endpoint takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointState {
    /// It does.
    Enabled,
    /// Not now: its lanes are parked and kept.
    Disabled,
    /// Never again: its open deliveries are discarded.
    Deleted,
}

/// An endpoint's settings as far as lanes care.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its id.
    pub id: EndpointId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Whether it takes requests.
    pub state: EndpointState,
    /// What to do with an unknown outcome.
    pub on_unknown: OnUnknown,
    /// Hard deadline of a request.
    pub timeout: Duration,
    /// Requests in flight from this instance at most.
    pub max_in_flight: u32,
}
