//! When a failed head is tried again (A6, design 5.6): fixed first steps, then doubling, lengthened by a jitter that
//! is a hash of (delivery, attempt), never shortened (I17).

use crate::hash;
use crate::limits::Limits;
use laneway_wire::DeliveryId;
use std::time::Duration;

/// The wait after attempt number `attempt` (1 for the first) of `delivery`.
pub(crate) fn step(limits: &Limits, delivery: DeliveryId, attempt: u32) -> Duration {
    let index = attempt.saturating_sub(1);
    let known = u32::try_from(limits.retry_steps.len()).unwrap_or(u32::MAX);
    let base = match limits.retry_steps.get(index as usize) {
        Some(step) => *step,
        None => {
            let last = limits.retry_steps.last().copied().unwrap_or(limits.retry_max);
            let doublings = (index - known).saturating_add(1).min(31);
            last.saturating_mul(1 << doublings).min(limits.retry_max)
        }
    };
    let percent_of_percent = hash::of(delivery.as_uuid().as_u128(), attempt) % 10_001;
    let most = base.as_millis() as u64 * u64::from(limits.retry_jitter_percent) / 100;
    // Millisecond stamps: what is cut off here is below the clock's own resolution and never below the step.
    base + Duration::from_millis(most * percent_of_percent / 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    #[test]
    fn steps_are_1_2_4_8_then_double_up_to_a_quarter_of_an_hour() {
        let limits = Limits { retry_jitter_percent: 0, ..Limits::default() };
        let id = DeliveryId::from_uuid(Uuid::from_u128(7));
        let steps: Vec<u64> = (1..=13).map(|n| step(&limits, id, n).as_secs()).collect();
        assert_eq!(steps, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]);
        assert_eq!(step(&limits, id, u32::MAX).as_secs(), 900);
    }

    proptest! {
        #[test]
        fn jitter_only_lengthens_and_by_at_most_its_part(id: u128, attempt in 1u32..200) {
            let limits = Limits::default();
            let bare = Limits { retry_jitter_percent: 0, ..Limits::default() };
            let id = DeliveryId::from_uuid(Uuid::from_u128(id));
            let (long, short) = (step(&limits, id, attempt), step(&bare, id, attempt));
            prop_assert!(long >= short && long <= short + short / 5);
            prop_assert_eq!(long, step(&limits, id, attempt));
        }
    }
}
