//! Events whose payload is erased are never sent and end in their place (C17).

use crate::rules::{HOLD, SECOND, roomy, unknown_of, world};
use crate::world::{PARTITIONS, World, endpoint_id};
use laneway_lane::{EndpointState, FinalOutcome, Limits, Verdict};
use laneway_wire::{DeliveryId, Timestamp};

const ERASED: FinalOutcome = FinalOutcome::DeadLettered { reason: "erased" };

/// Four events of a lane with a second between them; gives them and a time between the third and the fourth.
fn four(world: &mut World, endpoint: u128) -> ([DeliveryId; 4], Timestamp) {
    let mut before = world.now;
    let events = [0, 1, 2, 3].map(|n| {
        before = if n == 3 { world.now } else { before };
        let delivery = world.publish(endpoint, "k", 0);
        world.pump();
        world.pass(SECOND);
        delivery
    });
    (events, before)
}

#[test]
fn a_parked_lane_ends_what_was_written_before_whatever_it_waits_for_and_goes_on() {
    for degraded in [false, true] {
        let mut world = world(roomy());
        let lane = World::lane(0, "k");
        if degraded {
            world.db.health.insert(endpoint_id(0), world.now + SECOND * 3600);
            world.view();
        } else {
            world.set_state(0, EndpointState::Disabled);
        }
        let ([a, b, c, d], before) = four(&mut world, 0);
        let command = world.command(lane, Verdict::Erase { before });
        world.pump();
        for delivery in [a, b, c] {
            assert_eq!(world.db.inbox.get(&delivery), Some(&ERASED), "degraded: {degraded}");
            assert!(!world.sent().contains(&delivery));
        }
        assert!(!world.db.inbox.contains_key(&d), "what was written later waits on");
        assert!(world.db.commands_done.contains_key(&command));
        assert_eq!(world.core.gauges().lanes_parked, 1);
        if !degraded {
            world.set_state(0, EndpointState::Enabled);
            world.drain();
            assert_eq!(world.sent(), [d]);
            world.check_end();
        }
    }
}

/// The command's reader saw a head that an earlier command was about to end.
#[test]
fn a_command_that_finds_nothing_to_end_is_answered() {
    let mut world = world(roomy());
    world.set_state(0, EndpointState::Disabled);
    let ([.., d], before) = four(&mut world, 0);
    let lane = World::lane(0, "k");
    world.command(lane, Verdict::Erase { before });
    world.pump();
    let late = world.command(lane, Verdict::Erase { before });
    world.pump();
    assert_eq!(world.db.commands_done[&late], "nothing_to_erase");
    assert!(!world.db.inbox.contains_key(&d));
    world.set_state(0, EndpointState::Enabled);
    world.drain();
    assert_eq!(world.sent(), [d]);
    world.check_end();
}

#[test]
fn a_held_unknown_ends_when_its_request_can_travel_no_more() {
    let mut world = world(roomy());
    let first = world.publish(HOLD, "k", 0);
    let second = world.publish(HOLD, "k", 0);
    world.pump();
    unknown_of(&mut world, first);
    world.pump();
    let lane = World::lane(HOLD, "k");
    let before = world.now + SECOND;
    let early = world.command(lane, Verdict::Erase { before });
    world.pump();
    assert!(!world.db.commands_done.contains_key(&early), "its request may still travel");
    world.pass(SECOND * 10);
    let command = world.command(lane, Verdict::Erase { before });
    world.pump();
    assert!(world.db.commands_done.contains_key(&command));
    assert_eq!((world.db.inbox[&first], world.db.inbox[&second]), (ERASED, ERASED));
    assert_eq!(world.sent(), [first]);
    let again = world.command(lane, Verdict::Erase { before });
    world.pump();
    assert_eq!(world.db.commands_done[&again], "not_parked");
    world.drain();
    world.check_end();
}

/// Seen by the simulator: what was read behind the unknown expired by the time for which it had stood there (I22).
#[test]
fn what_stood_behind_an_unknown_that_is_erased_has_its_whole_horizon() {
    let mut world = world(roomy());
    let ([unknown, second, third, last], before) = {
        let first = world.publish(HOLD, "k", 0);
        world.pump();
        unknown_of(&mut world, first);
        world.pass(SECOND);
        let [second, third, last] = [0, 1, 2].map(|n| {
            world.pass(SECOND * n);
            world.publish(HOLD, "k", 0)
        });
        world.pump();
        ([first, second, third, last], world.now)
    };
    world.pass(SECOND * 3600 * 100);
    world.command(World::lane(HOLD, "k"), Verdict::Erase { before });
    world.pump();
    assert_eq!(world.db.inbox[&unknown], ERASED);
    assert_eq!((world.db.inbox[&second], world.db.inbox[&third]), (ERASED, ERASED));
    world.drain();
    assert_eq!(world.db.inbox[&last], FinalOutcome::Delivered);
    assert_eq!(world.sent(), [unknown, last]);
    world.check_end();
}

#[test]
fn a_request_that_is_under_way_decides_before_the_erasure_does() {
    for (status, end) in [(200, FinalOutcome::Delivered), (503, ERASED)] {
        let mut world = world(roomy());
        world.set_state(0, EndpointState::Disabled);
        let first = world.publish(0, "k", 0);
        let second = world.publish(0, "k", 0);
        world.pump();
        world.set_state(0, EndpointState::Enabled);
        world.pump();
        assert_eq!(world.sent(), [first]);
        let before = world.now + SECOND;
        world.command(World::lane(0, "k"), Verdict::Erase { before });
        world.pump();
        assert!(world.db.inbox.is_empty(), "its request is under way");
        world.respond(first, status);
        world.pump();
        // A head that failed is put away until it is due; the command is offered again.
        world.command(World::lane(0, "k"), Verdict::Erase { before });
        world.pump();
        assert_eq!((world.db.inbox[&first], world.db.inbox[&second]), (end, ERASED));
        assert_eq!(world.sent(), [first]);
        world.drain();
        world.check_end();
    }
}

/// What the relay publishes again of a row that was erased meanwhile.
#[test]
fn a_record_that_says_it_is_erased_ends_unsent_in_its_place() {
    let mut world = world(roomy());
    let first = world.publish(0, "k", 0);
    let erased = world.publish_erased(0, "k");
    let third = world.publish(0, "k", 0);
    world.pump();
    world.respond(first, 200);
    world.pump();
    assert_eq!(world.sent(), [first, third]);
    assert_eq!(world.db.inbox[&erased], ERASED);
    world.drain();
    world.check_end();
}

/// Seen in the simulator: the lane was put away for want of memory in the middle, which forgot the command that had been
/// answered with its first event, and the next was sent.
#[test]
fn what_a_lane_was_told_to_end_is_not_sent_when_memory_is_short() {
    let mut world = world(Limits { loaded_bytes: 40, page_events: 1, ..roomy() });
    for endpoint in [0, 2] {
        world.set_state(endpoint, EndpointState::Disabled);
    }
    let ([a, b, c, d], before) = four(&mut world, 0);
    let other = world.publish(2, "other", 0);
    world.pump();
    world.command(World::lane(0, "k"), Verdict::Erase { before });
    while !world.db.inbox.contains_key(&a) {
        world.serve(0);
        for partition in 0..PARTITIONS {
            world.commit(partition, 7);
        }
    }
    // All memory for loaded events is taken when the next page comes.
    world.set_state(2, EndpointState::Enabled);
    let due = world.asked.len() - 1;
    world.serve(due);
    world.serve(due);
    for partition in 0..PARTITIONS {
        while world.tell(partition) {}
    }
    assert_eq!(world.sent(), [other]);
    world.set_state(0, EndpointState::Enabled);
    world.drain();
    for delivery in [a, b, c] {
        assert_eq!(world.db.inbox[&delivery], ERASED);
    }
    assert_eq!(world.sent(), [other, d]);
    world.check_end();
}

#[test]
fn a_second_command_with_an_earlier_moment_takes_nothing_back() {
    let mut world = world(Limits { page_events: 1, ..roomy() });
    world.set_state(0, EndpointState::Disabled);
    let ([a, b, c, d], before) = four(&mut world, 0);
    let lane = World::lane(0, "k");
    world.command(lane, Verdict::Erase { before });
    let earlier = before - SECOND * 3600;
    world.command(lane, Verdict::Erase { before: earlier });
    world.set_state(0, EndpointState::Enabled);
    world.drain();
    for delivery in [a, b, c] {
        assert_eq!(world.db.inbox[&delivery], ERASED);
    }
    assert_eq!(world.sent(), [d]);
    world.check_end();
}
