//! Receivers and the road to them: what a request meets depends on when it arrives, on its endpoint's mood, on its
//! lane and on its payload.

use crate::event::Time;
use crate::plan::{Mood, Plan};
use crate::rng::Rng;

/// What a receiver does with a request that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Writes this status after so many ms.
    Status(u16, Time),
    /// Breaks the connection after so many ms.
    Reset(Time),
    /// Never answers.
    Silence,
}

/// How far the world is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Faults strike.
    Faulty,
    /// Faults are over; what lingers, lingers.
    Healed,
    /// Nothing lingers.
    Cured,
}

/// The mood of an endpoint now.
pub(crate) fn mood(plan: &Plan, phase: Phase, endpoint: usize, now: Time) -> Mood {
    let endpoint = &plan.endpoints[endpoint];
    match phase {
        Phase::Cured => Mood::Fine,
        Phase::Healed if endpoint.lingers => Mood::Status(503),
        Phase::Healed => Mood::Fine,
        Phase::Faulty => endpoint
            .moods
            .iter()
            .take_while(|(from, _)| *from <= now)
            .last()
            .map_or(Mood::Fine, |(_, mood)| *mood),
    }
}

/// Whether the lane alone is answered 503 now.
pub(crate) fn lane_is_bad(plan: &Plan, phase: Phase, lane: usize, now: Time) -> bool {
    plan.lanes[lane].bad.is_some_and(|(from, to)| {
        phase < Phase::Cured
            && from <= now
            && now < to
            && (phase < Phase::Healed || to == Time::MAX)
    })
}

/// What happens to a request that arrives now.
pub(crate) fn answer(
    plan: &Plan,
    phase: Phase,
    (endpoint, lane, rejected): (usize, usize, bool),
    now: Time,
    rng: &mut Rng,
) -> Answer {
    let quick = rng.range(1, 40);
    let timeout = plan.endpoints[endpoint].timeout;
    let fine = |quick| {
        if lane_is_bad(plan, phase, lane, now) {
            Answer::Status(503, quick)
        } else if rejected {
            Answer::Status(422, quick)
        } else {
            Answer::Status(200, quick)
        }
    };
    match mood(plan, phase, endpoint, now) {
        Mood::Fine | Mood::Refused => fine(quick),
        Mood::Status(status) => Answer::Status(status, quick),
        Mood::Hangs => Answer::Silence,
        Mood::Resets => Answer::Reset(quick),
        Mood::Slow => fine(rng.range(timeout / 3, timeout + timeout / 5)),
        Mood::Flaps if now / 1_000 % 2 == 0 => fine(quick),
        Mood::Flaps => Answer::Status(503, quick),
        Mood::Mixed => match rng.range(0, 9) {
            0 => Answer::Status(500, quick),
            1 => Answer::Status(rng.pick(&[408, 499, 502, 504]), quick),
            2 => Answer::Silence,
            3 => Answer::Reset(quick),
            4 => fine(rng.range(timeout / 3, timeout + timeout / 5)),
            _ => fine(quick),
        },
    }
}
