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
