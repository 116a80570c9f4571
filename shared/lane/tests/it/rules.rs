//! Rules one by one.

use crate::world::*;
use laneway_lane::*;
use laneway_wire::{DeliveryId, Timestamp};
use std::time::Duration;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The endpoint of the model that holds unknown outcomes.
pub(crate) const HOLD: u128 = 1;

pub(crate) fn roomy() -> Limits {
    Limits {
        window_events: 1_000,
        max_in_flight: 100,
        loaded_lanes: 100,
        loaded_bytes: 1 << 20,
        horizon: Duration::from_secs(72 * 3600),
        degrade_after: 10,
        ..small_limits()
    }
}

pub(crate) fn world(limits: Limits) -> World {
    let mut world = World::new(limits.clone(), Core::new(limits));
    for endpoint in world.endpoints.values_mut() {
        endpoint.max_in_flight = 20;
    }
    world.start();
    world
}

pub(crate) fn unknown(now: Timestamp) -> AttemptResult {
    AttemptResult::Unknown { class: "timeout", clear_at: now + SECOND }
}

pub(crate) fn unknown_of(world: &mut World, delivery: DeliveryId) {
    let index = world.under_way(delivery).unwrap();
    let result = unknown(world.now);
    world.answer(index, result);
    world.pump();
}

#[test]
fn a_failing_head_blocks_only_its_lane() {
    let mut world = world(roomy());
    let bad = world.publish(0, "bad", 0);
    let behind = world.publish(0, "bad", 0);
    let good: Vec<DeliveryId> = (0..30).map(|_| world.publish(0, "good", 0)).collect();
    world.pump();
    world.respond(bad, 503);
    for delivery in &good {
        world.pump();
        world.respond(*delivery, 200);
    }
    world.pump();
    assert!(good.iter().all(|delivery| world.db.inbox.contains_key(delivery)));
    assert!(!world.sent().contains(&behind));
    world.drain();
    world.check_end();
}

#[test]
fn the_next_event_goes_out_only_when_the_outcome_is_durable() {
    let mut world = world(roomy());
    let first = world.publish(0, "k", 0);
    let second = world.publish(0, "k", 0);
    world.pump();
    world.respond(first, 200);
    world.give(Input::Tick);
    assert_eq!(world.sent(), [first]);
    world.pump();
    assert_eq!(world.sent(), [first, second]);
}

#[test]
fn retries_come_after_1_2_4_8_seconds_and_then_from_the_parked_rows() {
    let mut world = world(roomy());
    let delivery = world.publish(0, "k", 0);
    world.publish(0, "other", 0);
    world.pump();
    for attempt in 1..=6u32 {
        world.respond(delivery, 500);
        world.pump();
        let step = SECOND * (1 << (attempt - 1));
        world.pass(step - Duration::from_millis(1));
        assert!(world.under_way(delivery).is_none(), "attempt {attempt}");
        world.pass(step / 5 + Duration::from_millis(2));
        assert!(world.under_way(delivery).is_some(), "attempt {attempt}");
    }
    assert_eq!(world.db.attempts[&delivery].len(), 6);
    assert_eq!(world.core.gauges().lanes_parked, 1, "after the short retries it is parked");
    world.drain();
    world.check_end();
}

#[test]
fn a_rejected_payload_is_a_dead_letter_and_its_lane_goes_on() {
    let mut world = world(roomy());
    let first = world.publish(0, "k", 0);
    let second = world.publish(0, "k", 0);
    world.pump();
    world.respond(first, 422);
    world.pump();
    assert_eq!(world.db.inbox[&first], FinalOutcome::DeadLettered { reason: "rejected" });
    assert_eq!(world.sent(), [first, second]);
}

#[test]
fn a_410_disables_the_endpoint_and_keeps_its_lanes_until_it_is_enabled_again() {
    let mut world = world(roomy());
    let first = world.publish(0, "k", 0);
    let second = world.publish(0, "k", 0);
    let third = world.publish(0, "l", 0);
    world.pump();
    world.respond(first, 410);
    world.respond(third, 200);
    world.pump();
    world.pass(20 * SECOND);
    let fourth = world.publish(0, "m", 0);
    world.pump();
    assert_eq!(world.endpoints[&endpoint_id(0)].state, EndpointState::Disabled);
    assert_eq!(world.sent(), [first, third]);
    world.set_state(0, EndpointState::Enabled);
    world.pump();
    assert_eq!(world.sent().len(), 4, "{first} again and {fourth}");
    world.drain();
    assert!(world.db.inbox.contains_key(&second));
    world.check_end();
}

#[test]
fn the_attempt_count_and_the_backoff_survive_a_crash() {
    let mut world = world(roomy());
    let delivery = world.publish(0, "k", 0);
    world.pump();
    for _ in 0..3 {
        world.respond(delivery, 500);
        world.pump();
        world.pass(10 * SECOND);
    }
    world.respond(delivery, 500);
    world.pump();
    world.crash(Core::new(roomy()));
    world.pump();
    assert!(world.under_way(delivery).is_none(), "not before 8 seconds");
    world.pass(10 * SECOND);
    let index = world.under_way(delivery).unwrap();
    assert_eq!(world.requests[index].ticket.attempt, 5);
}

#[test]
fn a_dead_endpoint_degrades_and_gets_one_probe_a_second_heads_in_turn() {
    let mut world = world(roomy());
    for n in 0..20 {
        world.publish(0, &format!("k{n}"), 0);
    }
    world.pump();
    while !world.requests.is_empty() {
        world.answer(0, AttemptResult::NotSent { class: "refused" });
    }
    world.pump();
    assert!(world.core.is_degraded(endpoint_id(0)));
    let before = world.sends.len();
    for _ in 0..200 {
        world.pass(Duration::from_millis(50));
        while !world.requests.is_empty() {
            world.answer(0, AttemptResult::NotSent { class: "refused" });
        }
    }
    let probes = &world.sends[before..];
    assert!((8..=10).contains(&probes.len()), "{} probes in 10 s", probes.len());
    assert!(probes.iter().all(|(_, _, probe)| *probe));
    assert!(probes.windows(2).all(|two| two[1].0.since(two[0].0) >= SECOND));
    let mut heads: Vec<DeliveryId> = probes.iter().map(|(_, delivery, _)| *delivery).collect();
    heads.sort();
    heads.dedup();
    assert_eq!(heads.len(), probes.len(), "each time another head");
    world.drain();
    assert!(!world.core.is_degraded(endpoint_id(0)));
    world.check_end();
}

#[test]
fn nothing_is_sent_by_a_view_older_than_two_seconds() {
    let mut world = world(roomy());
    world.now = world.now + 3 * SECOND;
    let delivery = world.publish(0, "k", 0);
    world.pump();
    assert!(world.sent().is_empty());
    assert_eq!(world.core.gauges().lanes_parked, 0, "an old view parks nobody");
    world.view();
    world.pump();
    assert_eq!(world.sent(), [delivery]);
}

#[test]
fn a_revoked_partition_starts_nothing_and_is_drained_when_all_is_durable() {
    let mut world = world(roomy());
    let first = world.publish(0, "k", 0);
    let second = world.publish(0, "k", 0);
    let partition = World::partition_of(World::lane(0, "k"));
    world.pump();
    world.give(Input::Revoke { partition });
    assert_eq!(world.core.intake_room(partition), 0);
    world.respond(first, 200);
    assert!(!world.owned[partition as usize].drained);
    world.pump();
    assert!(world.owned[partition as usize].drained);
    assert_eq!(world.sent(), [first]);
    world.next_offset[partition as usize] = world.core.position(partition).unwrap();
    world.lose(partition);
    world.assign(partition);
    world.pump();
    assert_eq!(world.sent(), [first, second]);
}

#[test]
fn inputs_of_an_old_epoch_change_nothing_and_are_counted() {
    let mut world = world(roomy());
    let first = world.publish(0, "k", 0);
    let partition = World::partition_of(World::lane(0, "k"));
    world.pump();
    world.lose(partition);
    world.assign(partition);
    world.pump();
    let late = world.late.pop().unwrap();
    assert!(matches!(late, Input::AttemptEnded { .. }));
    let before = world.core.gauges();
    world.give(late);
    let after = world.core.gauges();
    assert_eq!(after, Gauges { stale_inputs: before.stale_inputs + 1, ..before });
    assert!(!world.db.inbox.contains_key(&first));
    let epoch = world.owned[partition as usize].epoch;
    world.give(Input::Assigned { partition, epoch, next_offset: 0, generation: 1 });
    assert_eq!(world.core.gauges().stale_inputs, before.stale_inputs + 2, "no epoch is used twice");
}

#[test]
fn deliveries_of_a_deleted_endpoint_are_discarded_whatever_state_their_lane_is_in() {
    let mut world = world(roomy());
    let parked = world.publish(0, "parked", 0);
    let live = world.publish(2, "live", 0);
    let waiting = world.publish(2, "live", 0);
    world.pump();
    world.respond(parked, 410);
    world.respond(live, 503);
    world.pump();
    world.set_state(0, EndpointState::Deleted);
    world.set_state(2, EndpointState::Deleted);
    let later = world.publish(0, "parked", 0);
    world.pump();
    for delivery in [parked, live, waiting, later] {
        let discarded = FinalOutcome::Discarded { reason: "endpoint_deleted" };
        assert_eq!(world.db.inbox[&delivery], discarded);
    }
    world.check_end();
}

#[test]
fn many_due_lanes_of_one_endpoint_do_not_keep_another_waiting() {
    let mut world = world(Limits { loaded_lanes: 40, due_page: 8, ..roomy() });
    for endpoint in world.endpoints.values_mut() {
        endpoint.max_in_flight = 4;
    }
    world.set_state(0, EndpointState::Disabled);
    world.set_state(2, EndpointState::Disabled);
    for n in 0..100 {
        world.publish(0, &format!("k{n}"), 0);
    }
    let other = world.publish(2, "k", 0);
    world.pump();
    assert_eq!(world.core.gauges().lanes_parked, 101);
    world.set_state(0, EndpointState::Enabled);
    world.set_state(2, EndpointState::Enabled);
    world.pump();
    assert!(world.under_way(other).is_some());
    world.drain();
    world.check_end();
}

#[test]
fn a_record_published_twice_is_delivered_once() {
    let mut world = world(roomy());
    let delivery = world.publish(0, "k", 0);
    let partition = World::partition_of(World::lane(0, "k"));
    let entry = world.log[partition as usize][0].record.clone();
    world.log_entry(partition, entry.clone(), 3);
    world.pump();
    world.respond(delivery, 200);
    world.log_entry(partition, entry, 0);
    world.pump();
    assert_eq!(world.sent(), [delivery]);
    assert_eq!(world.core.gauges().duplicates, 2);
    world.check_end();
}

#[test]
fn what_is_no_delivery_is_quarantined_and_the_partition_goes_on() {
    let mut world = world(roomy());
    world.log_entry(0, None, 0);
    world.log_entry(0, None, 5);
    world.pump();
    assert_eq!(world.db.quarantine.len(), 2);
    world.check_end();
}
