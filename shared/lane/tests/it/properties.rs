//! Random schedules against the model world: every promise is checked at every effect, and at the end nothing is lost.

use crate::world::*;
use bytes::Bytes;
use laneway_lane::*;
use laneway_wire::Timestamp;
use proptest::prelude::*;
use std::time::Duration;

/// One decision, drawn from a number: proptest shrinks the list.
fn step(world: &mut World, number: u32, faults: bool, fresh: &dyn Fn() -> Core) {
    let (what, detail) = (number % 100, number / 100);
    let pick = |len: usize| if len == 0 { 0 } else { detail as usize % len };
    let partition = detail % PARTITIONS;
    match what {
        0..=17 => {
            let endpoint = u128::from(detail % 3);
            let key = ["a", "b", "c", "d"][(detail / 3 % 4) as usize];
            world.publish(endpoint, key, i64::from(detail % 7 == 0));
        }
        18..=29 => world.read_log(partition, 1 + pick(6)),
        30..=41 => world.commit(partition, 1 + (detail / 2) as usize % 5),
        42..=55 => {
            world.tell(partition);
        }
        56..=67 => {
            if !world.asked.is_empty() {
                let index = pick(world.asked.len());
                world.serve(index);
            }
        }
        68..=81 => {
            if !world.requests.is_empty() {
                let index = pick(world.requests.len());
                let result = result(detail / 8, world.now);
                world.answer(index, result);
            }
        }
        82..=86 => {
            world.now = world.now + Duration::from_millis(u64::from(detail % 1500));
            if detail % 5 != 0 {
                world.view();
            }
            world.give(Input::Tick);
        }
        87 => {
            world.now = world.now + Duration::from_secs(u64::from(detail % 40));
            world.view();
        }
        88 => {
            // Somebody publishes again what was published before.
            let log = &world.log[partition as usize];
            if !log.is_empty() {
                let entry = log[pick(log.len())].record.clone();
                world.log_entry(partition, entry, 0);
            }
        }
        89 => world.log_entry(partition, None, 0),
        90 | 91 => {
            let lanes: Vec<_> = world.order.keys().copied().collect();
            if !lanes.is_empty() {
                let verdict = match detail % 5 {
                    0 | 1 => Verdict::Delivered,
                    2 => Verdict::NotApplied,
                    3 => Verdict::GivenUp,
                    _ => Verdict::Erase { before: world.now },
                };
                world.command(lanes[pick(lanes.len())], verdict);
            }
        }
        92 => {
            let ids: Vec<_> = world.endpoints.keys().copied().collect();
            let id = ids[pick(ids.len())];
            let state = match world.endpoints[&id].state {
                EndpointState::Enabled => EndpointState::Disabled,
                _ => EndpointState::Enabled,
            };
            let endpoint = world.switch(id, state);
            world.give(Input::Endpoint(endpoint));
        }
        93 | 94 => {
            if !world.late.is_empty() {
                let index = pick(world.late.len());
                let input = world.late[index].clone();
                // A repeat under the present epoch is not something that a shell does with anything but results.
                if !matches!(&input, Input::Settled { .. } | Input::Intake { .. })
                    || detail % 2 == 0
                {
                    world.give(input);
                }
            }
        }
        95 if faults => {
            world.lose(partition);
            world.now = world.now + TIMEOUT + Duration::from_secs(3);
            world.view();
            world.assign(partition);
        }
        96 if faults => {
            world.give(Input::Revoke { partition });
            for _ in 0..10_000 {
                if world.owned[partition as usize].drained {
                    break;
                }
                world.commit(partition, 3);
                if !world.tell(partition) && world.owned[partition as usize].queue.is_empty() {
                    let own = world.requests.iter().position(|r| r.ticket.partition == partition);
                    if let Some(index) = own {
                        let result = result(detail, world.now);
                        world.answer(index, result);
                    }
                }
            }
            assert!(world.owned[partition as usize].drained, "a revoked partition drains");
            world.next_offset[partition as usize] = world.core.position(partition).unwrap();
            world.lose(partition);
            world.assign(partition);
        }
        97 if faults => world.crash(fresh()),
        _ => {
            world.view();
            world.give(Input::Tick);
        }
    }
}

fn result(detail: u32, now: Timestamp) -> AttemptResult {
    let status = |status| AttemptResult::Responded { status, body: Bytes::new() };
    match detail % 20 {
        0..=6 => status(200),
        7..=10 => status(503),
        11 => status(400),
        12 => status(410),
        13 => status(504),
        14 | 15 => AttemptResult::NotSent { class: "refused" },
        16 => AttemptResult::NotStarted,
        17 => AttemptResult::Unknown { class: "reset", clear_at: now },
        _ => AttemptResult::Unknown { class: "cut", clear_at: now + Duration::from_secs(2) },
    }
}

pub(crate) fn run(steps: &[u32], faults: bool, fresh: &dyn Fn() -> Core) -> World {
    let mut world = World::new(small_limits(), fresh());
    world.start();
    for number in steps {
        step(&mut world, *number, faults, fresh);
    }
    for id in world.endpoints.keys().copied().collect::<Vec<_>>() {
        world.switch(id, EndpointState::Enabled);
    }
    for endpoint in world.endpoints.values().cloned().collect::<Vec<_>>() {
        world.give(Input::Endpoint(endpoint));
    }
    world.drain();
    world.check_end();
    world
}

fn plain() -> Core {
    Core::new(small_limits())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    /// P1, P2, P4, P5, P6, P8, P10, I9, I16, I17.
    #[test]
    fn no_schedule_without_faults_breaks_a_promise(steps in prop::collection::vec(any::<u32>(), 1..500)) {
        run(&steps, false, &plain);
    }

    /// The same, and P13, with partitions lost, revoked and taken over, and processes that die.
    #[test]
    fn no_schedule_with_faults_breaks_a_promise(steps in prop::collection::vec(any::<u32>(), 1..500)) {
        run(&steps, true, &plain);
    }

    /// I53.
    #[test]
    fn equal_inputs_give_equal_effects(steps in prop::collection::vec(any::<u32>(), 1..300)) {
        let mut world = World::new(small_limits(), plain());
        world.recording = true;
        world.checked = false;
        world.start();
        for number in &steps {
            step(&mut world, *number % 95, false, &plain);
        }
        let mut again = plain();
        let mut effects = Vec::new();
        for (now, input) in world.inputs {
            again.handle(now, input, &mut effects);
        }
        let effects: Vec<String> = effects.iter().map(|effect| format!("{effect:?}")).collect();
        prop_assert_eq!(effects, world.effects);
    }
}

/// A schedule from `LANE_STEPS` (numbers with commas), for looking at one that failed: `LANE_TRACE=1` prints it.
#[test]
fn a_schedule_given_by_hand_keeps_the_promises() {
    let steps = std::env::var("LANE_STEPS").unwrap_or_default();
    let steps: Vec<u32> =
        steps.split(',').filter_map(|number| number.trim().parse().ok()).collect();
    run(&steps, true, &plain);
}

/// Each planted fault is found by some schedule.
#[cfg(feature = "mutants")]
mod mutants {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn caught_after(mutant: Mutant) -> Option<u32> {
        let fresh = move || Core::with_mutant(small_limits(), mutant);
        (0..600).find(|seed| {
            let mut state = u64::from(*seed) << 32 | 0x9e37_79b9;
            let steps: Vec<u32> = (0..400)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 32) as u32
                })
                .collect();
            catch_unwind(AssertUnwindSafe(|| run(&steps, true, &fresh))).is_err()
        })
    }

    #[test]
    fn every_planted_fault_is_caught() {
        std::panic::set_hook(Box::new(|_| {}));
        let missed: Vec<Mutant> = Mutant::ALL
            .into_iter()
            // What erasures leave is looked at by the simulator, which knows what the commands meant.
            .filter(|mutant| *mutant != Mutant::ErasureForgotten)
            .filter(|mutant| {
                let seed = caught_after(*mutant);
                println!("{mutant:?}: {seed:?}");
                seed.is_none()
            })
            .collect();
        let _ = std::panic::take_hook();
        assert!(missed.is_empty(), "not caught: {missed:?}");
    }
}
