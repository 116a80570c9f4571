//! What the core costs.

use crate::rules::*;
use crate::world::*;
use bytes::Bytes;
use laneway_lane::*;
use std::time::Duration;

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
