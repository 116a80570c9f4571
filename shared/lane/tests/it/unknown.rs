//! Outcomes that nobody knows, and words on them.

use crate::rules::*;
use crate::world::*;
use laneway_lane::*;
use std::time::Duration;

#[test]
fn an_unknown_of_a_hold_endpoint_waits_for_a_word() {
    for verdict in [Verdict::Delivered, Verdict::NotApplied, Verdict::GivenUp] {
        let mut world = world(roomy());
        let first = world.publish(HOLD, "k", 0);
        let second = world.publish(HOLD, "k", 0);
        let lane = World::lane(HOLD, "k");
        world.pump();
        unknown_of(&mut world, first);
        world.pass(SECOND * 3600 * 100);
        assert_eq!(world.sent(), [first], "it neither expires nor is sent");
        let early = world.command(World::lane(HOLD, "nothing"), verdict);
        let command = world.command(lane, verdict);
        world.pump();
        assert_eq!(world.db.commands_done[&early], "not_unknown");
        match verdict {
            Verdict::Delivered => {
                assert_eq!(world.db.commands_done[&command], "applied");
                assert_eq!(world.sent(), [first, second]);
            }
            Verdict::NotApplied => {
                assert_eq!(world.db.commands_done[&command], "released");
                assert_eq!(world.sent(), [first, first], "and time on hold is no trying time");
            }
            Verdict::GivenUp => {
                assert_eq!(world.db.commands_done[&command], "applied");
                let given_up = FinalOutcome::DeadLettered { reason: "unknown" };
                assert_eq!(world.db.inbox[&first], given_up);
                assert_eq!(world.sent(), [first, second]);
            }
            Verdict::Erase { .. } => unreachable!("not among the words above"),
        }
        let again = world.command(lane, verdict);
        world.pump();
        assert_eq!(world.db.commands_done[&again], "not_unknown");
        world.drain();
        world.check_end();
    }
}

/// Seen in the simulator: a probe of another owner went out beside a request that had been cut and could still travel.
#[test]
fn a_probe_does_not_go_out_while_the_last_request_may_still_travel() {
    let mut world = world(Limits { live_retry: Duration::ZERO, ..roomy() });
    let delivery = world.publish(0, "k", 0);
    world.pump();
    let index = world.under_way(delivery).unwrap();
    let clear_at = world.now + 5 * SECOND;
    world.answer(index, AttemptResult::Unknown { class: "cut", clear_at });
    world.db.health.insert(endpoint_id(0), world.now);
    world.view();
    world.pump();
    world.pass(SECOND * 49 / 10);
    assert_eq!(world.sent(), [delivery]);
    world.pass(3 * SECOND);
    assert_eq!(world.sent(), [delivery, delivery]);
}

#[test]
fn a_word_that_comes_before_the_core_knows_of_the_unknown_waits_for_it() {
    let mut world = world(roomy());
    let first = world.publish(HOLD, "k", 0);
    world.pump();
    let index = world.under_way(first).unwrap();
    let result = unknown(world.now);
    world.answer(index, result);
    let lane = World::lane(HOLD, "k");
    world.commit(World::partition_of(lane), 10);
    let command = world.command(lane, Verdict::Delivered);
    world.pump();
    assert!(!world.db.commands_done.contains_key(&command), "the request may still travel (P1)");
    world.pass(2 * SECOND);
    assert_eq!(world.db.commands_done[&command], "applied");
    world.check_end();
}

/// Seen by the simulator: the second release took the intent of the repeat away while it was queued (P5, P6, I16).
#[test]
fn a_word_that_was_read_before_another_was_durable_is_refused() {
    for late in [Verdict::Delivered, Verdict::NotApplied] {
        let mut world = world(roomy());
        let first = world.publish(HOLD, "k", 0);
        world.pump();
        unknown_of(&mut world, first);
        // Its request travels no longer.
        world.pass(2 * SECOND);
        let lane = World::lane(HOLD, "k");
        let read = world.db.unknown_head(lane);
        let command = world.command(lane, Verdict::NotApplied);
        world.commit(World::partition_of(lane), 10);
        assert_eq!(world.db.commands_done[&command], "released");
        let late = world.command_on(lane, read, late);
        world.pump();
        assert_eq!(world.db.commands_done[&late], "not_unknown");
        world.pass(2 * SECOND);
        assert_eq!(world.sent(), [first, first]);
        world.drain();
        world.check_end();
    }
}

#[test]
fn a_crash_with_an_intent_and_no_outcome_is_an_unknown() {
    let mut world = world(roomy());
    let first = world.publish(HOLD, "k", 0);
    world.pump();
    assert_eq!(world.sent(), [first]);
    world.crash(Core::new(roomy()));
    world.pump();
    world.pass(100 * SECOND);
    assert_eq!(world.sent(), [first]);
    assert!(world.db.unknown_head(World::lane(HOLD, "k")).is_some());
    world.drain();
    world.check_end();
}
