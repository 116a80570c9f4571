//! Rules one by one.

use crate::world::*;
use bytes::Bytes;
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

fn unknown(now: Timestamp) -> AttemptResult {
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
fn a_lane_that_holds_the_position_back_is_parked_and_the_partition_flows() {
    let limits = Limits { window_events: 100, live_retry: Duration::from_secs(60), ..roomy() };
    let mut world = world(limits);
    let bad = world.publish(0, "bad", 0);
    let lane = World::lane(0, "bad");
    let partition = World::partition_of(lane);
    let good = (0..50)
        .map(|n| format!("good{n}"))
        .find(|key| World::partition_of(World::lane(0, key)) == partition);
    let good = good.unwrap();
    world.pump();
    world.respond(bad, 503);
    for _ in 0..400 {
        let delivery = world.publish(0, &good, 0);
        world.pump();
        world.respond(delivery, 200);
        world.pump();
    }
    assert!(world.db.lanes.contains_key(&lane), "it is parked");
    let end = world.log[partition as usize].len() as i64;
    assert_eq!(world.core.position(partition), Some(end), "and holds nothing back");
    assert_eq!(world.db.attempts[&bad].len(), 1);
    world.drain();
    world.check_end();
}

#[test]
fn a_lane_in_flight_that_holds_the_position_back_is_parked_and_its_request_ends_as_a_parked_heads()
{
    for status in [200, 503] {
        let mut world = world(Limits { window_events: 100, ..roomy() });
        let slow = world.publish(0, "bad", 0);
        let behind = world.publish(0, "bad", 0);
        let lane = World::lane(0, "bad");
        let partition = World::partition_of(lane);
        let key = (0..50)
            .map(|n| format!("good{n}"))
            .find(|key| World::partition_of(World::lane(0, key)) == partition);
        let key = key.unwrap();
        world.pump();
        for _ in 0..60 {
            let delivery = world.publish(0, &key, 0);
            world.pump();
            world.respond(delivery, 200);
        }
        world.pump();
        assert!(world.db.has_row(lane, slow) && world.db.has_row(lane, behind));
        let end = world.log[partition as usize].len() as i64;
        assert_eq!(world.core.position(partition), Some(end), "it holds nothing back");
        assert_eq!(world.sent().iter().filter(|id| **id == slow).count(), 1);
        world.respond(slow, status);
        world.pump();
        assert_eq!(world.db.inbox.contains_key(&slow), status == 200);
        assert_eq!(world.under_way(behind).is_some(), status == 200);
        world.drain();
        world.check_end();
    }
}

#[test]
fn a_slow_endpoint_does_not_fill_the_window() {
    let mut world = world(Limits { window_events: 200, open_percent: 25, ..roomy() });
    world.endpoints.get_mut(&endpoint_id(2)).unwrap().max_in_flight = 1;
    world.set_state(2, EndpointState::Enabled);
    for n in 0..400 {
        world.publish(2, &format!("slow{n}"), 0);
        world.publish(0, &format!("fast{n}"), 0);
    }
    let fast_done = |world: &World| {
        let ids = world.records.iter();
        let fast = ids.filter(|(_, (_, record))| record.head.endpoint_id() == endpoint_id(0));
        fast.filter(|(delivery, _)| world.db.inbox.contains_key(delivery)).count()
    };
    for _ in 0..60 {
        world.pump();
        let fast: Vec<DeliveryId> = world
            .requests
            .iter()
            .filter(|r| r.endpoint == endpoint_id(0))
            .map(|r| r.ticket.delivery)
            .collect();
        for delivery in fast {
            world.respond(delivery, 200);
        }
        world.pass(Duration::from_millis(500));
    }
    assert_eq!(fast_done(&world), 400, "the slow one never answered, the others are through");
    world.drain();
    world.check_end();
}

#[test]
fn a_backlog_that_flows_is_not_parked() {
    let mut world = world(Limits { window_events: 200, open_percent: 25, ..roomy() });
    for n in 0..600 {
        world.publish(0, &format!("k{}", n % 80), 0);
    }
    let mut parked = 0;
    while world.db.inbox.len() < 600 {
        world.pump();
        let under_way: Vec<DeliveryId> = world.requests.iter().map(|r| r.ticket.delivery).collect();
        for delivery in under_way {
            world.respond(delivery, 200);
        }
        world.pass(Duration::from_millis(20));
        parked = parked.max(world.core.gauges().lanes_parked);
    }
    assert_eq!(parked, 0);
}

/// Seen in the measurements: 5,000 open events a partition look slow at any pace that a small machine has, and a backlog
/// went through PostgreSQL twice instead of waiting in the log.
#[test]
fn a_backlog_of_more_than_slow_after_waits_in_the_log() {
    let mut world = world(Limits { window_events: 20_000, ..roomy() });
    for n in 0..5_000 {
        world.publish(0, &format!("k{}", n % 400), 0);
    }
    let (mut parked, mut open) = (0, 0);
    while world.db.inbox.len() < 5_000 {
        world.pump();
        let ids: Vec<DeliveryId> = world.requests.iter().map(|r| r.ticket.delivery).collect();
        for delivery in ids.into_iter().take(10) {
            world.respond(delivery, 200);
        }
        world.pass(Duration::from_millis(20));
        let gauges = world.core.gauges();
        parked = parked.max(gauges.lanes_parked);
        open = open.max(gauges.open_events);
    }
    assert_eq!(parked, 0, "500 a second is no slow endpoint");
    assert!((192..2_000).contains(&open), "no more is open than a few seconds' work: {open}");
}

/// Parking would add to what the database has to do, and once parked a backlog goes through it twice.
#[test]
fn a_database_that_stalls_makes_no_endpoint_slow() {
    let mut world = world(Limits { open_percent: 25, ..roomy() });
    for n in 0..400 {
        world.publish(0, &format!("k{}", n % 100), 0);
    }
    world.pump();
    while let Some(delivery) = world.requests.first().map(|r| r.ticket.delivery) {
        world.respond(delivery, 200);
    }
    for _ in 0..16 {
        world.now = world.now + Duration::from_millis(500);
        world.view();
        world.give(Input::Tick);
        assert_eq!(world.core.gauges().lanes_parked, 0);
    }
    world.pump();
    assert_eq!(world.core.gauges().lanes_parked, 0, "what was not tried meanwhile is no sign");
    world.drain();
    world.check_end();
}

/// An event that ends now and then in an otherwise idle partition is no sign of a stalled database: the endpoint's pace
/// stays what it is, and the others of the partition do not wait behind it.
#[test]
fn a_slow_endpoint_is_found_out_though_its_partitions_are_idle_for_long() {
    let mut world = world(Limits { window_events: 4_000, open_percent: 25, ..roomy() });
    world.endpoints.get_mut(&endpoint_id(2)).unwrap().max_in_flight = 1;
    world.set_state(2, EndpointState::Enabled);
    for n in 0..1_200 {
        world.publish(2, &format!("slow{n}"), 0);
    }
    let last = world.publish(0, "fast", 0);
    for _ in 0..12 {
        world.pass(Duration::from_secs(5));
        // One ends.
        if let Some(slow) = world.requests.iter().find(|r| r.endpoint == endpoint_id(2)) {
            let slow = slow.ticket.delivery;
            world.respond(slow, 200);
        }
        if world.under_way(last).is_some() {
            world.respond(last, 200);
        }
        world.pump();
    }
    assert!(world.db.inbox.contains_key(&last), "it waited behind a slow endpoint's backlog");
    world.drain();
    world.check_end();
}

#[test]
fn an_event_of_a_parked_lane_goes_out_behind_what_waits() {
    let mut world = world(roomy());
    world.set_state(0, EndpointState::Disabled);
    let first = world.publish(0, "k", 0);
    let second = world.publish(0, "k", 0);
    world.pump();
    let lane = World::lane(0, "k");
    assert!(world.db.has_row(lane, first) && world.db.has_row(lane, second));
    world.set_state(0, EndpointState::Enabled);
    world.pump();
    let third = world.publish(0, "k", 0);
    world.pump();
    assert_eq!(world.sent(), [first]);
    for delivery in [first, second, third] {
        world.respond(delivery, 200);
        world.pump();
    }
    assert_eq!(world.sent(), [first, second, third]);
    world.check_end();
}

#[test]
fn what_comes_while_a_lane_may_leave_the_parked_state_waits_in_memory_and_is_not_appended() {
    let mut world = world(roomy());
    world.set_state(0, EndpointState::Disabled);
    let first = world.publish(0, "k", 0);
    world.pump();
    world.set_state(0, EndpointState::Enabled);
    world.pump();
    world.respond(first, 200);
    let partition = World::partition_of(World::lane(0, "k"));
    let second = world.publish(0, "k", 0);
    world.read_log(partition, 1);
    world.tell(partition);
    assert_eq!(world.owned[partition as usize].queue.len(), 1, "the outcome alone is queued");
    world.pump();
    assert_eq!(world.sent(), [first, second]);
    assert_eq!(world.core.gauges().lanes_parked, 0);
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

/// Prints what the core costs; not a test of time. Run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_a_delivery_costs() {
    const EVENTS: usize = 200_000;
    let limits = Limits::default();
    let mut world = World::new(limits.clone(), Core::new(limits.clone()));
    world.checked = false;
    world.endpoints.get_mut(&endpoint_id(0)).unwrap().max_in_flight = 400;
    world.start();
    let mut incoming = Vec::new();
    for n in 0..EVENTS {
        world.publish(0, &format!("k{}", n % 10_000), 0);
    }
    for (delivery, (lane, record)) in &world.records {
        let _ = delivery;
        if World::partition_of(*lane) == 0 {
            incoming.push((record.clone(), *lane));
        }
    }
    let mut core = world.core;
    let (mut effects, mut in_flight, mut through) = (Vec::new(), Vec::new(), 0);
    let (mut offset, mut done, mut inputs) = (0i64, 0usize, 0usize);
    let start = std::time::Instant::now();
    while done < incoming.len() {
        let now = START + Duration::from_millis(done as u64 / 20);
        if done % 1_000 == 0 {
            core.handle(now, Input::Health { read_at: now, degraded: vec![] }, &mut effects);
        }
        let room = (core.intake_room(0) as usize).min(incoming.len() - offset as usize).min(100);
        if room > 0 {
            let records = incoming[offset as usize..offset as usize + room].iter();
            let records = records.zip(offset..).map(|((record, lane), offset)| {
                let (record, lane) = (record.clone(), *lane);
                Incoming::Delivery { offset, record, lane, known: Known::New }
            });
            let records = records.collect();
            offset += room as i64;
            core.handle(now, Input::Intake { partition: 0, epoch: 1, records }, &mut effects);
        }
        for ticket in std::mem::take(&mut in_flight) {
            let result = AttemptResult::Responded { status: 200, body: Bytes::new() };
            core.handle(
                now,
                Input::AttemptEnded { ticket, result, took: SECOND / 100 },
                &mut effects,
            );
            inputs += 1;
        }
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { ticket, .. } => in_flight.push(ticket),
                Effect::Settle { seq, item, .. } => {
                    through = seq;
                    done += usize::from(matches!(item, SettleItem::Final { .. }));
                }
                _ => {}
            }
        }
        let settled = Input::Settled { partition: 0, epoch: 1, through, unparked: vec![] };
        core.handle(now, settled, &mut effects);
    }
    let spent = start.elapsed();
    println!(
        "{} ns a delivery, {inputs} deliveries, parked {}",
        spent.as_nanos() / done as u128,
        core.gauges().lanes_parked
    );
}
