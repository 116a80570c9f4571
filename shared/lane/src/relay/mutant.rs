//! Planted faults of the relay's rules: what the simulator must catch. Without the feature `mutants` none can be
//! planted and the question costs nothing.

/// One rule broken.
#[cfg_attr(not(feature = "mutants"), allow(unreachable_pub))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Transactions under way at a batch's begin are in no later batch (P4).
    OpenTransactionPassed,
    /// A lane's next record is sent before the one before is acknowledged (P2).
    SecondWaveEarly,
    /// What follows in a lane that has held rows is published (P2).
    HeldLaneOvertaken,
    /// The rest of a hot lane is neither sent nor held (P4).
    HotRestDropped,
    /// What comes behind a refused record in its lane is sent (P2).
    BehindRefusedSent,
    /// Of an entry's acknowledgements in a partition the lowest is kept (P4).
    LowestAckKept,
    /// An acknowledgement at or below the mark counts (P4).
    ReusedOffsetCounts,
    /// What an acknowledgement of an earlier generation has shown is forgotten (P4).
    OlderSuspicionDropped,
    /// An end that is the mark's own offset is no loss, though that record is gone (P4).
    LastRecordSpared,
    /// A topic made anew under its name goes unnoticed as long as it is long enough (P4).
    RecreationUnseen,
    /// Going back ends at the last entry that a loss has touched, not at the first (P4).
    BackToLast,
    /// Held rows follow while what was published is published again, and overtake it (P2).
    HeldFollowTooEarly,
}

#[cfg(feature = "mutants")]
impl Mutant {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::OpenTransactionPassed,
        Self::SecondWaveEarly,
        Self::HeldLaneOvertaken,
        Self::HotRestDropped,
        Self::BehindRefusedSent,
        Self::LowestAckKept,
        Self::ReusedOffsetCounts,
        Self::OlderSuspicionDropped,
        Self::LastRecordSpared,
        Self::RecreationUnseen,
        Self::BackToLast,
        Self::HeldFollowTooEarly,
    ];
}

#[cfg(feature = "mutants")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault, or none, in what this thread decides from now on.
#[cfg(feature = "mutants")]
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

/// Whether this rule is broken on purpose.
#[inline]
pub(super) fn broken(mutant: Mutant) -> bool {
    #[cfg(feature = "mutants")]
    return PLANTED.get() == Some(mutant);
    #[cfg(not(feature = "mutants"))]
    {
        let _ = mutant;
        false
    }
}
