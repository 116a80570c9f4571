//! Loads of parked lanes: order, bounds, what is left out.

use super::{NOW, World, append, lane, park, parked};
use laneway_lane::{Position, SettleItem};
use laneway_store::delivery::load::MAX_BYTES;
use laneway_store::delivery::{
    commands_open, parked_due_load, parked_expired_load, parked_lanes_read, parked_page_load,
    waiting_read,
};
use laneway_store::inspect::{Resolve, Verdict, unknown_resolve};
use laneway_testkit::sql;
use laneway_wire::{Record, Timestamp};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

fn park_due(record: &Arc<Record>, offset: i64, due: Timestamp, unknown: bool) -> SettleItem {
    let mut head = parked(record, offset, 1);
    (head.due, head.unknown) = (due, unknown);
    SettleItem::Park { lane: lane(record), head, reason: "retry", attempt: None }
}

#[tokio::test]
async fn due_heads_come_in_order_page_by_page_and_then_the_next_due_time() {
    let world = World::new().await;
    let records: Vec<_> = (0..6).map(|n| world.record(n, &format!("k{n}"))).collect();
    let at = |second| NOW + Duration::from_secs(second);
    let items: Vec<_> = [3, 1, 2, 1, 30, 1]
        .into_iter()
        .zip(&records)
        .enumerate()
        .map(|(n, (second, record))| park_due(record, n as i64, at(second), n == 5))
        .collect();
    world.settle(&items).await;
    let first = parked_due_load(&world.pool, 0, world.endpoint, None, at(10), 3).await.unwrap();
    let mut early = [lane(&records[1]), lane(&records[3])];
    early.sort();
    let order: Vec<_> = first.heads.iter().map(|head| head.lane).collect();
    assert_eq!(order, [early[0], early[1], lane(&records[2])]);
    assert!(first.more && first.next_due.is_none());
    assert_eq!((first.heads[0].attempts, first.heads[0].due), (1, at(1)));
    let after = first.heads.last().map(|head| (head.due, head.lane));
    let second = parked_due_load(&world.pool, 0, world.endpoint, after, at(10), 3).await.unwrap();
    assert_eq!(second.heads.len(), 1);
    assert!(!second.more);
    assert_eq!(second.next_due, Some(at(30)));
    let other = parked_due_load(&world.pool, 1, world.endpoint, None, at(10), 3).await.unwrap();
    assert!(other.heads.is_empty() && !other.more && other.next_due.is_none());
}

#[tokio::test]
async fn pages_of_a_lane_follow_its_positions_and_know_what_is_settled() {
    let world = World::new().await;
    let records: Vec<_> = (0..5).map(|n| world.record(n, "k")).collect();
    let mut items = vec![park(&records[0], 10)];
    items.extend((1..5).map(|n| append(&records[n], 20 - n as i64)));
    world.settle(&items).await;
    sql(
        &world.url,
        &format!(
            "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, \
             took_ms) VALUES ('{0}', '{0}', '{0}', '{0}', 1, 1, 1)",
            records[4].head.delivery
        ),
    )
    .await
    .unwrap();
    let id = lane(&records[0]);
    let page = parked_page_load(&world.pool, id, None, 3).await.unwrap();
    let offsets = |events: &[laneway_lane::ParkedEvent]| -> Vec<i64> {
        events.iter().map(|event| event.position.offset).collect()
    };
    assert_eq!(offsets(&page.events), [10, 16, 17]);
    assert!(page.more);
    assert_eq!(page.events.iter().map(|e| e.settled).collect::<Vec<_>>(), [false, true, false]);
    let after = Position { generation: 1, moves: 0, offset: 17 };
    let rest = parked_page_load(&world.pool, id, Some(after), 3).await.unwrap();
    assert_eq!(offsets(&rest.events), [18, 19]);
    assert!(!rest.more);
    assert_eq!(*rest.events[1].record, *records[1]);
}

/// P10.
#[tokio::test]
async fn a_page_is_cut_by_bytes_and_never_empty() {
    let world = World::new().await;
    let big = |n| {
        let mut record = (*world.record(n, "k")).clone();
        record.payload = vec![b'x'; 250 * 1024].into();
        Arc::new(record)
    };
    let records: Vec<_> = (0..30).map(big).collect();
    let mut items = vec![park(&records[0], 0)];
    items.extend((1..30).map(|n| append(&records[n], n as i64)));
    world.settle(&items).await;
    let page = parked_page_load(&world.pool, lane(&records[0]), None, 64).await.unwrap();
    let bytes: usize = page.events.iter().map(|event| event.record.payload.len()).sum();
    assert!(page.more && page.events.len() < 20, "{}", page.events.len());
    assert!(bytes < usize::try_from(MAX_BYTES).unwrap() + 260 * 1024);
}

/// P8, I22.
#[tokio::test]
async fn expired_heads_leave_out_held_unknowns_and_disabled_endpoints() {
    let world = World::new().await;
    let records: Vec<_> = (0..3).map(|n| world.record(n, &format!("k{n}"))).collect();
    let mut young = parked(&records[2], 3, 1);
    young.first_held = NOW + Duration::from_secs(100);
    world
        .settle(&[
            park(&records[0], 1),
            park_due(&records[1], 2, NOW, true),
            SettleItem::Park {
                lane: lane(&records[2]),
                head: young,
                reason: "retry",
                attempt: None,
            },
        ])
        .await;
    let before = NOW + Duration::from_secs(50);
    let (heads, more) = parked_expired_load(&world.pool, 0, before, 10).await.unwrap();
    assert_eq!(heads.iter().map(|head| head.lane).collect::<Vec<_>>(), [lane(&records[0])]);
    assert!(!more);
    sql(&world.url, "UPDATE laneway_control.endpoints SET state = 'disabled'").await.unwrap();
    let (heads, _) = parked_expired_load(&world.pool, 0, before, 10).await.unwrap();
    assert!(heads.is_empty());
}

#[tokio::test]
async fn a_hundred_thousand_parked_lanes_are_read_in_pages() {
    let world = World::new().await;
    sql(
        &world.url,
        &format!(
            "INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, reason, \
             due, head_held, unknown) SELECT decode(lpad(to_hex(n), 32, '0'), 'hex'), 1, 0, '{}', '{}', 1, 'retry', \
             now(), now(), n % 1000 = 0 FROM generate_series(1, 100000) n",
            world.tenant,
            world.endpoint.as_uuid()
        ),
    )
    .await
    .unwrap();
    let (sender, mut pages) = mpsc::channel(1);
    let pool = world.pool.clone();
    let reading = tokio::spawn(async move { parked_lanes_read(&pool, 0, sender).await });
    let (mut lanes, mut held) = (HashSet::new(), 0);
    while let Some(page) = pages.recv().await {
        held += page.iter().filter(|(_, _, due)| *due == Timestamp(i64::MAX)).count();
        lanes.extend(page.into_iter().map(|(lane, _, _)| lane));
    }
    assert_eq!(reading.await.unwrap().unwrap(), 100_000);
    assert_eq!((lanes.len(), held), (100_000, 100));
}

#[tokio::test]
async fn a_command_comes_with_its_unknown_head_or_without() {
    let world = World::new().await;
    // Buckets are dealt out by parity here, so the lane's own bucket says whose it is.
    let (held, other) = (world.record(1, "a"), world.record(2, "b"));
    world.settle(&[park_due(&held, 1, NOW, true), park(&other, 2)]).await;
    for record in [&held, &other] {
        let id = lane(record);
        sql(
            &world.url,
            &format!(
                "INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor) \
                 SELECT tenant_id, '{}', lane, bucket, 'not_applied', 'asked', 'ann' \
                 FROM laneway_control.parked_lanes WHERE lane = '\\x{id}'",
                record.head.delivery
            ),
        )
        .await
        .unwrap();
    }
    let commands = commands_open(&world.pool, &[0, 1], &[], 10).await.unwrap();
    let heads: Vec<_> = commands.iter().map(|c| (c.lane, c.head.is_some())).collect();
    assert_eq!(heads, [(lane(&held), true), (lane(&other), false)]);
    let partition = u32::from(lane(&held).bucket().number() % 2);
    assert_eq!(commands[0].partition, partition);
    let known = [commands[0].command];
    let more = commands_open(&world.pool, &[0, 1], &known, 1).await.unwrap();
    assert_eq!(more[0].lane, lane(&other), "what waits keeps none from being read");
    let none = commands_open(&world.pool, &[], &[], 10).await.unwrap();
    assert!(none.is_empty());
}

/// A word that was said of one attempt says nothing of the next, though that may have become an unknown as well (P6).
#[tokio::test]
async fn a_word_on_an_attempt_is_not_taken_for_one_on_a_later_attempt() {
    let world = World::new().await;
    let held = world.record(1, "a");
    world.settle(&[park_due(&held, 1, NOW, true)]).await;
    let delivery = held.head.delivery_id();
    let written =
        unknown_resolve(&world.pool, None, delivery, Verdict::Delivered, "seen", "ann").await;
    assert!(matches!(written.unwrap(), Resolve::Written(_)));
    let head =
        || async { commands_open(&world.pool, &[0, 1], &[], 10).await.unwrap().remove(0).head };
    assert!(head().await.is_some(), "it is about what is held");
    sql(&world.url, "UPDATE laneway_control.parked_events SET attempts = attempts + 1")
        .await
        .unwrap();
    assert!(head().await.is_none(), "another attempt is held");
}

#[tokio::test]
async fn held_unknowns_and_the_oldest_heads_are_counted() {
    let world = World::new().await;
    let records: Vec<_> = (0..3).map(|n| world.record(n, &format!("k{n}"))).collect();
    world
        .settle(&[
            park_due(&records[0], 1, NOW, true),
            park_due(&records[1], 2, NOW, true),
            park(&records[2], 3),
        ])
        .await;
    let waiting = waiting_read(&world.pool, &[0, 1]).await.unwrap();
    assert_eq!(waiting.iter().map(|one| one.unknowns).collect::<Vec<_>>(), [2, 0]);
    assert!(waiting[0].head_age.is_none() && waiting[1].head_age.is_some());
}

/// P3: what cannot be read holds up its own lane.
#[tokio::test]
async fn a_head_that_cannot_be_read_keeps_no_other_from_being_loaded() {
    let world = World::new().await;
    let records: Vec<_> = (0..5).map(|n| world.record(n, &format!("k{n}"))).collect();
    let at = |second| NOW + Duration::from_secs(second);
    let items: Vec<_> = records
        .iter()
        .enumerate()
        .map(|(n, record)| park_due(record, n as i64, at(n as u64), n == 4))
        .collect();
    world.settle(&items).await;
    for bad in [0, 1, 4] {
        sql(
            &world.url,
            &format!(
                "UPDATE laneway_control.parked_events SET record = set_byte(record, 0, 9) WHERE delivery_id = '{}'; \
                 INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor) \
                 SELECT tenant_id, delivery_id, lane, bucket, 'not_applied', 'r', 'ann' \
                 FROM laneway_control.parked_events WHERE delivery_id = '{0}'",
                records[bad].head.delivery
            ),
        )
        .await
        .unwrap();
    }
    for limit in [1, 2, 10] {
        let due = parked_due_load(&world.pool, 0, world.endpoint, None, at(9), limit).await;
        let due = due.unwrap();
        assert_eq!(due.heads[0].lane, lane(&records[2]), "{limit}");
        assert_eq!((due.heads.len() == 1, due.more), (limit == 1, limit == 1), "{limit}");
        let (heads, _) = parked_expired_load(&world.pool, 0, at(60), limit).await.unwrap();
        let lanes: HashSet<_> = heads.iter().map(|head| head.lane).collect();
        let good: HashSet<_> = [lane(&records[2]), lane(&records[3])].into();
        assert!(!lanes.is_empty() && lanes.is_subset(&good), "{limit}");
    }
    let last = Some((at(3), lane(&records[3])));
    let due = parked_due_load(&world.pool, 0, world.endpoint, last, at(9), 10).await.unwrap();
    assert!(due.heads.is_empty() && !due.more && due.next_due.is_none());

    // Others' words, and those of a later build, keep nobody's from being applied.
    sql(
        &world.url,
        "ALTER TABLE laneway_control.commands DROP CONSTRAINT commands_verdict_is_known; \
         INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor) \
         SELECT tenant_id, delivery_id, lane, bucket, 'later', 'r', 'ann' FROM laneway_control.parked_events LIMIT 1",
    )
    .await
    .unwrap();
    let commands = commands_open(&world.pool, &[0, 1], &[], 10).await.unwrap();
    assert_eq!(commands.len(), 3);
    assert!(commands.iter().all(|command| command.head.is_none()));
}
