//! P8, I22: for how long something is tried.

use crate::rules::{HOLD, SECOND, roomy, unknown_of, world};
use crate::world::*;
use laneway_lane::*;
use laneway_wire::{DeliveryId, Timestamp};
use std::time::Duration;

#[test]
fn an_expired_head_is_a_dead_letter_also_on_a_degraded_endpoint() {
    let mut world = world(Limits { horizon: Duration::from_secs(100), ..roomy() });
    world.db.health.insert(endpoint_id(0), Timestamp(i64::MAX));
    world.view();
    let all: Vec<DeliveryId> = (0..7).map(|_| world.publish(0, "k", 0)).collect();
    world.pump();
    world.pass(99 * SECOND);
    assert!(world.db.inbox.is_empty());
    world.pass(12 * SECOND);
    assert!(world.sends.is_empty());
    for delivery in all {
        assert_eq!(world.db.inbox[&delivery], FinalOutcome::DeadLettered { reason: "expired" });
    }
    world.check_end();
}

/// P8, I22: the first attempt does not make the time count that was spent behind an unknown.
#[test]
fn an_event_that_waited_behind_an_unknown_has_its_whole_horizon_also_after_it_failed() {
    let mut world = world(Limits { horizon: Duration::from_secs(100), ..roomy() });
    let first = world.publish(HOLD, "k", 0);
    let second = world.publish(HOLD, "k", 0);
    world.pump();
    unknown_of(&mut world, first);
    world.pass(90 * SECOND);
    world.command(World::lane(HOLD, "k"), Verdict::Delivered);
    world.pump();
    let word = world.now;
    while !world.db.inbox.contains_key(&second) {
        assert!(world.now.since(word) < 130 * SECOND, "its horizon ends at last");
        if world.under_way(second).is_some() {
            world.respond(second, 500);
        }
        world.pass(SECOND);
    }
    assert!(world.now.since(word) >= 100 * SECOND, "it has all of it from the word on");
    assert!(world.db.attempts[&second].len() > 4);
    let expired = FinalOutcome::DeadLettered { reason: "expired" };
    assert_eq!(world.db.inbox[&second], expired);
    world.check_end();
}

/// P8, I22: what waits in memory behind a request under way is in no row that would tell that the endpoint stood still.
#[test]
fn the_time_of_a_disabled_endpoint_does_not_count_for_what_was_in_memory_all_the_while() {
    let mut world = world(Limits { horizon: Duration::from_secs(100), ..roomy() });
    let tried = world.publish(0, "a", 0);
    let ahead = world.publish(0, "b", 0);
    let behind = world.publish(0, "b", 0);
    world.pump();
    world.respond(tried, 500);
    world.pass(2 * SECOND);
    assert_eq!(world.sent(), [tried, ahead, tried], "the other two are under way");
    world.set_state(0, EndpointState::Disabled);
    world.pass(80 * SECOND);
    world.set_state(0, EndpointState::Enabled);
    world.pass(40 * SECOND);
    world.respond(tried, 500);
    world.respond(ahead, 200);
    world.pass(30 * SECOND);
    assert_eq!(world.sent(), [tried, ahead, tried, behind, tried]);
}
