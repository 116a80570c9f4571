//! What the core wants done.

use crate::input::{CommandId, Epoch, Partition, Position, SettleSeq, Ticket};
use bytes::Bytes;
use laneway_wire::{DeliveryId, EndpointId, LaneId, Record, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// One thing to do. The order of effects is the order in which they must be begun.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Append to the partition's settle queue.
    Settle {
        /// The partition.
        partition: Partition,
        /// Its epoch: the fence that the transaction proves.
        epoch: Epoch,
        /// Its place in the queue.
        seq: SettleSeq,
        /// What to write.
        item: SettleItem,
    },
    /// Make a request. Answered by `AttemptEnded`. The shell checks the lease directly before the first byte and
    /// answers `NotStarted` if less than a second of it is left.
    Send {
        /// Its name.
        ticket: Ticket,
        /// What to send.
        record: Arc<Record>,
        /// Cut after this.
        timeout: Duration,
        /// It is the probe of a degraded endpoint.
        probe: bool,
    },
    /// Load heads of due parked lanes of one endpoint in one partition; held unknowns are not among them. `until` lies
    /// beyond every due time (year 9999) when the endpoint was deleted and all of it is to be discarded.
    LoadDue {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// The endpoint.
        endpoint: EndpointId,
        /// Only lanes behind this (due time, lane), or from the beginning.
        after: Option<(Timestamp, LaneId)>,
        /// Due at or before this.
        until: Timestamp,
        /// At most so many.
        limit: u32,
    },
    /// Load what follows in a parked lane.
    LoadPage {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
        /// Only events behind this position, or from the beginning.
        after: Option<Position>,
        /// At most so many.
        limit: u32,
    },
    /// Load heads (not unknown ones) whose horizon passed before `held_before`, on whatever endpoint but a disabled one.
    LoadExpired {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
        /// Heads held since before this.
        held_before: Timestamp,
        /// At most so many.
        limit: u32,
    },
    /// Claim the endpoint's probe by compare-and-set and load the head least recently tried of the owned partitions
    /// (never tried first). Answered by `Probe`.
    ClaimProbe {
        /// The endpoint.
        endpoint: EndpointId,
        /// The probe's hard timeout: the claim holds for this and a second.
        timeout: Duration,
    },
    /// The endpoint failed over and over: make it degraded for all instances (compare-and-set; a loser does nothing).
    Degrade {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// The probe's outcome: the endpoint is healthy again, or the next probe comes a second later.
    ProbeEnded {
        /// The endpoint.
        endpoint: EndpointId,
        /// Whether it showed that the endpoint is alive.
        alive: bool,
    },
    /// The endpoint said 410: disable it, with an alert.
    Disable {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// Nothing of the revoked partition is in flight or unsettled: it can be released.
    Drained {
        /// The partition.
        partition: Partition,
        /// Its epoch.
        epoch: Epoch,
    },
}

/// One entry of a settle queue. Within one group, the writes of these go in the order: parks, appends, intents,
/// attempts, finals, releases of unknowns, quarantine, commands; the core never queues two items of one lane in one
/// group whose order in that list would be wrong.
#[derive(Debug, Clone)]
pub enum SettleItem {
    /// Make the lane parked: its row and its head's row.
    Park {
        /// The lane.
        lane: LaneId,
        /// Its head.
        head: NewParked,
        /// Why, for people: `retry`, `endpoint_degraded`, `endpoint_disabled`, `window`, `unknown`.
        reason: &'static str,
        /// The attempt that just failed, if that is why.
        attempt: Option<AttemptRow>,
    },
    /// Add an event to a parked lane. A row with the same delivery id stays, with the lower of the two positions.
    Append {
        /// The lane.
        lane: LaneId,
        /// The event.
        event: NewParked,
    },
    /// A request will be made of an endpoint that does not take a resend.
    Intent {
        /// Which.
        ticket: Ticket,
        /// The lane.
        lane: LaneId,
        /// The record (its tenant and endpoint are stored).
        record: Arc<Record>,
        /// It can travel until this.
        deadline: Timestamp,
    },
    /// An attempt failed and its lane stays as it is: live, or parked with its head due again. The first attempt of a
    /// parked head raises its stored `first_held` to the lane's `clock_from` of that moment.
    Failed {
        /// The lane.
        lane: LaneId,
        /// The record.
        record: Arc<Record>,
        /// The attempt.
        attempt: AttemptRow,
        /// For a parked head: when it is due again (an unknown: as [`NewParked::due`]); none for a live lane.
        parked_due: Option<Timestamp>,
        /// For a parked head: it is now a held unknown.
        unknown: bool,
    },
    /// The delivery has its final outcome: an inbox row, and what goes with it. A delivery that has its inbox row
    /// already (a parked event loaded with `settled`) keeps that one: then only its parked row goes, and `outcome`,
    /// [`FinalOutcome::Delivered`] without an attempt, says nothing.
    Final {
        /// The lane.
        lane: LaneId,
        /// The record.
        record: Arc<Record>,
        /// Delivered, dead-lettered or discarded.
        outcome: FinalOutcome,
        /// Attempts in all, the last one included.
        attempts: u32,
        /// When the service first held it.
        first_held: Timestamp,
        /// The last attempt, to be stored as a row: for every outcome but a success at the first attempt.
        attempt: Option<AttemptRow>,
        /// Status of the last answer, if there was one.
        status: Option<u16>,
        /// How long the last attempt took.
        took: Duration,
        /// It was a parked row: delete that.
        parked: bool,
        /// Delete the lane's row if no event is left, and tell (`Settled::unparked`). Set only for parked rows and
        /// only if no append of the lane is queued.
        may_unpark: bool,
        /// The command that decided it, if one did.
        command: Option<CommandId>,
    },
    /// A held unknown is to be sent again: it is due now, and the lane's horizon goes on.
    ReleaseUnknown {
        /// The lane.
        lane: LaneId,
        /// The delivery.
        delivery: DeliveryId,
        /// Its `first_held`, moved by the time it was held.
        first_held: Timestamp,
        /// Due.
        due: Timestamp,
        /// The command that says so.
        command: CommandId,
    },
    /// A command that applies to nothing.
    RefuseCommand {
        /// Which.
        command: CommandId,
        /// Why, as a stable code.
        reason: &'static str,
    },
    /// Bytes that are no delivery.
    Quarantine {
        /// Their offset.
        offset: i64,
        /// Stable reason code.
        reason: &'static str,
        /// The bytes, capped.
        raw: Bytes,
    },
}

/// An event that goes into a parked row.
#[derive(Debug, Clone)]
pub struct NewParked {
    /// Its place.
    pub position: Position,
    /// The record.
    pub record: Arc<Record>,
    /// When the service first held it.
    pub first_held: Timestamp,
    /// Recorded attempts, the one in the same item included.
    pub attempts: u32,
    /// Not before this. For a held unknown: since when it is held, or until when its request may still travel, if
    /// that is later.
    pub due: Timestamp,
    /// It is a held unknown.
    pub unknown: bool,
}

/// A recorded attempt.
#[derive(Debug, Clone)]
pub struct AttemptRow {
    /// 1 for the first.
    pub number: u32,
    /// When it ended; for a cut or unknown one, the time until which it may travel, if later.
    pub ended: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// `not_sent`, `responded` or `unknown` (I11).
    pub kind: AttemptKind,
    /// The status, if one came.
    pub status: Option<u16>,
    /// Stable error class, e.g. `http_5xx`, `timeout`, `refused`.
    pub class: &'static str,
    /// First part of the answer's body.
    pub body: Bytes,
}

/// I11: the three things that an attempt can have come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptKind {
    /// No byte left.
    NotSent,
    /// A status line came back.
    Responded,
    /// It cannot be told.
    Unknown,
}

/// The three ways in which a delivery ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalOutcome {
    /// A 2xx, or a person's word.
    Delivered,
    /// Given up, kept for people.
    DeadLettered {
        /// `rejected`, `expired`, `erased`, `unknown`.
        reason: &'static str,
    },
    /// Its endpoint was deleted.
    Discarded {
        /// `endpoint_deleted`.
        reason: &'static str,
    },
}
