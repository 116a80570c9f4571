//! What must hold of every request that goes out, looked at directly before it does, whatever came in. A test build
//! stops where one does not hold; a product counts it ([`crate::Core::violations`]) and goes on.

use crate::endpoint::Ep;
use crate::lanes::Phase;
use crate::partition::{Part, Stage};
use crate::shared::Shared;
use crate::{EndpointState, OnUnknown};

/// An invariant of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invariant {
    /// No request of the lane is under way.
    OneUnderWay,
    /// What happened in the lane before is durable.
    OutcomeDurable,
    /// An endpoint that takes no resend has its intent stored, and no unknown without a word.
    IntentStored,
    /// The event is not older than the horizon.
    WithinHorizon,
    /// No more requests are under way than allowed.
    WithinBounds,
    /// The partition is owned and not being given back, and the endpoint is enabled.
    Owned,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::OneUnderWay,
        Self::OutcomeDurable,
        Self::IntentStored,
        Self::WithinHorizon,
        Self::WithinBounds,
        Self::Owned,
    ];

    /// The promise that it is part of.
    pub const fn promise(self) -> &'static str {
        match self {
            Self::OneUnderWay => "P1",
            Self::OutcomeDurable => "P2",
            Self::IntentStored => "P6",
            Self::WithinHorizon => "P8",
            Self::WithinBounds => "P10",
            Self::Owned => "P13",
        }
    }

    /// What is wrong if it does not hold.
    pub const fn wrong(self) -> &'static str {
        match self {
            Self::OneUnderWay => "a second request of a lane begins",
            Self::OutcomeDurable => "a request begins before the outcome before it is durable",
            Self::IntentStored => "a request begins without its intent, or without a word",
            Self::WithinHorizon => "an event is tried beyond its horizon",
            Self::WithinBounds => "more requests are under way than allowed",
            Self::Owned => "a request begins without ownership",
        }
    }
}

/// How often each did not hold.
#[derive(Debug, Default)]
pub(crate) struct Violations([u64; Invariant::ALL.len()]);

impl Violations {
    pub(crate) fn of(&self, invariant: Invariant) -> u64 {
        self.0[invariant as usize]
    }
}

impl Shared {
    fn hold(&mut self, invariant: Invariant, holds: bool) {
        if !holds {
            self.violations.0[invariant as usize] += 1;
            // A planted fault is for the checkers to find.
            debug_assert!(self.planted.is_any(), "{}: {}", invariant.promise(), invariant.wrong());
        }
    }
}

impl Part {
    /// Looks at all of them for the lane's head, which is about to be sent.
    pub(crate) fn look(&self, sh: &mut Shared, index: u32, intent: bool) {
        let Some(lane) = self.lanes.get(index) else { return };
        let Some(head) = lane.head.as_ref() else { return };
        let (on_unknown, state) = settings(sh, lane.ep);
        let settled = self.pending.front().is_none_or(|pending| pending.seq > lane.awaits);
        let takes_resend = on_unknown == OnUnknown::Resend;
        let (in_flight, limit) = (sh.in_flight, sh.limits.max_in_flight);
        sh.hold(Invariant::OneUnderWay, !matches!(lane.phase, Phase::InFlight { .. }));
        sh.hold(Invariant::OutcomeDurable, settled);
        sh.hold(Invariant::IntentStored, takes_resend || (intent && !head.unknown));
        sh.hold(Invariant::WithinHorizon, !crate::judge::is_beyond_horizon(sh, head));
        sh.hold(Invariant::WithinBounds, in_flight <= limit);
        let owned = self.stage == Stage::Active && state == EndpointState::Enabled;
        sh.hold(Invariant::Owned, owned);
    }
}

fn settings(sh: &Shared, ep: Ep) -> (OnUnknown, EndpointState) {
    let entry = sh.endpoints.get(ep);
    (entry.on_unknown, entry.state)
}
