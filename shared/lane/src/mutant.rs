//! Planted faults, each at the line of one rule: what the simulator and the property tests must catch. Without the
//! feature `mutants` none can be set and the question costs nothing.

/// One rule broken.
#[cfg_attr(not(feature = "mutants"), allow(unreachable_pub))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A second event of a lane goes out beside its head (P1, A2).
    HeadRuleRemoved,
    /// A failed head goes behind its followers (P2, A1).
    FailedHeadToBack,
    /// An offset completes when its park is queued, not when it is durable (P4, I9).
    OffsetBeforeParkDurable,
    /// An event of a parked lane is sent from memory (P2).
    AppendSkippedWhileParked,
    /// The next event of a lane goes out before the previous outcome is durable (P2).
    NextBeforeSettled,
    /// An append of a lane is queued behind the outcome that unparks it (P2, P4).
    UnparkWithQueuedAppend,
    /// An unknown outcome of a `hold` endpoint is sent again (P6).
    ResendOnHold,
    /// Recorded attempts are not looked at on intake (P5, I17).
    AttemptCountForgotten,
    /// A result of an old epoch counts (P13).
    LateResultAccepted,
    /// The horizon is not looked at (P8).
    ExpiredSent,
    /// A `hold` endpoint's request goes out without an intent (I16).
    IntentSkipped,
    /// A record that has its outcome is sent once more (P5).
    DuplicateIntakeSent,
    /// What a command erases is forgotten once its first event has ended (C17).
    ErasureForgotten,
}

#[cfg(feature = "mutants")]
impl Mutant {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::HeadRuleRemoved,
        Self::FailedHeadToBack,
        Self::OffsetBeforeParkDurable,
        Self::AppendSkippedWhileParked,
        Self::NextBeforeSettled,
        Self::UnparkWithQueuedAppend,
        Self::ResendOnHold,
        Self::AttemptCountForgotten,
        Self::LateResultAccepted,
        Self::ExpiredSent,
        Self::IntentSkipped,
        Self::DuplicateIntakeSent,
        Self::ErasureForgotten,
    ];
}

/// The planted fault, if one is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planted {
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

impl Planted {
    #[cfg(feature = "mutants")]
    pub(crate) fn new(mutant: Mutant) -> Self {
        Self { mutant: Some(mutant) }
    }

    /// Whether any rule is broken on purpose.
    #[inline]
    pub(crate) fn is_any(self) -> bool {
        #[cfg(feature = "mutants")]
        return self.mutant.is_some();
        #[cfg(not(feature = "mutants"))]
        false
    }

    /// Whether this rule is broken on purpose.
    #[inline]
    pub(crate) fn is(self, mutant: Mutant) -> bool {
        #[cfg(feature = "mutants")]
        return self.mutant == Some(mutant);
        #[cfg(not(feature = "mutants"))]
        {
            let _ = mutant;
            false
        }
    }
}
