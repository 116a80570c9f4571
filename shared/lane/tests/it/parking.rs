//! When lanes are parked, and what comes to them while they are.

use crate::rules::*;
use crate::world::*;
use laneway_lane::*;
use laneway_wire::DeliveryId;
use std::time::Duration;

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
