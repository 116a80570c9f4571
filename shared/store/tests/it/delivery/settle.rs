//! Settle groups: each kind of item, written once and written twice, and under a lost fence.

use super::{NOW, World, append, attempt, lane, park, parked};
use bytes::Bytes;
use laneway_lane::{FinalOutcome, Known, SettleItem, Ticket, Tried};
use laneway_store::delivery::{Group, GroupEnd, groups_write, known_read, owner_read};
use laneway_testkit::sql;
use laneway_wire::Record;
use std::sync::Arc;
use std::time::Duration;

fn last(record: &Arc<Record>, outcome: FinalOutcome, parked: bool) -> SettleItem {
    let delivered = outcome == FinalOutcome::Delivered;
    SettleItem::Final {
        lane: lane(record),
        record: Arc::clone(record),
        outcome,
        attempts: 2,
        first_held: NOW,
        attempt: (!delivered).then(|| attempt(2)),
        status: Some(if delivered { 200 } else { 400 }),
        took: Duration::from_millis(5),
        parked,
        may_unpark: parked,
        command: None,
    }
}

fn delivered(record: &Arc<Record>, parked: bool) -> SettleItem {
    last(record, FinalOutcome::Delivered, parked)
}

fn dump_query() -> &'static str {
    "SELECT (SELECT json_agg(i ORDER BY delivery_id)::text FROM (SELECT delivery_id, outcome, status, attempts FROM \
       laneway_control.inbox) i), (SELECT json_agg(a ORDER BY delivery_id, number)::text FROM (SELECT delivery_id, \
       number, kind, status, class, ended_at FROM laneway_control.attempts) a), \
     (SELECT json_agg(l ORDER BY lane)::text FROM (SELECT lane, partition, reason, due, head_held, unknown \
       FROM laneway_control.parked_lanes) l), (SELECT json_agg(e ORDER BY delivery_id)::text FROM (SELECT delivery_id, \
       lane, log_offset, attempts, first_held FROM laneway_control.parked_events) e), \
     (SELECT json_agg(d ORDER BY delivery_id)::text FROM (SELECT delivery_id, reason, first_class, last_class \
       FROM laneway_control.dead_letters) d), (SELECT json_agg(n ORDER BY delivery_id)::text FROM (SELECT delivery_id, \
       number FROM laneway_control.intents) n), (SELECT json_agg(q)::text FROM (SELECT log_offset, reason, raw \
       FROM laneway_control.quarantine ORDER BY log_offset) q), (SELECT json_agg(c ORDER BY command_id)::text \
       FROM (SELECT command_id, result FROM laneway_control.commands) c)"
}

#[tokio::test]
async fn every_kind_of_item_written_again_changes_nothing() {
    let world = World::new().await;
    let records: Vec<_> = (0..8).map(|n| world.record(n, &format!("user_{n}"))).collect();
    let follow = world.record(20, "user_0");
    for (n, record) in records.iter().enumerate().skip(1).take(3) {
        sql(
            &world.url,
            &format!(
                "INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor) \
                 VALUES ('{}', '{}', '\\x00', 1, 'delivered', 'r{n}', 'a')",
                world.tenant, record.head.delivery
            ),
        )
        .await
        .unwrap();
    }
    let ticket = |record: &Record| Ticket {
        partition: 0,
        epoch: world.epochs[0],
        delivery: record.head.delivery_id(),
        attempt: 1,
    };
    let unknown = {
        let mut head = parked(&records[2], 12, 1);
        head.unknown = true;
        SettleItem::Park {
            lane: lane(&records[2]),
            head,
            reason: "unknown",
            attempt: Some(attempt(1)),
        }
    };
    let groups: [Vec<SettleItem>; 3] = [
        vec![park(&records[0], 10), append(&follow, 11), unknown],
        vec![
            SettleItem::Intent {
                ticket: ticket(&records[3]),
                lane: lane(&records[3]),
                record: Arc::clone(&records[3]),
                deadline: NOW + Duration::from_secs(15),
            },
            SettleItem::Failed {
                lane: lane(&records[0]),
                record: Arc::clone(&records[0]),
                attempt: attempt(2),
                parked_due: Some(NOW + Duration::from_secs(60)),
                unknown: false,
            },
            SettleItem::Failed {
                lane: lane(&records[4]),
                record: Arc::clone(&records[4]),
                attempt: attempt(1),
                parked_due: None,
                unknown: false,
            },
            delivered(&records[5], false),
            last(&records[6], FinalOutcome::DeadLettered { reason: "rejected" }, false),
            last(&records[7], FinalOutcome::Discarded { reason: "endpoint_deleted" }, false),
            SettleItem::ReleaseUnknown {
                lane: lane(&records[2]),
                delivery: records[2].head.delivery_id(),
                first_held: NOW + Duration::from_secs(5),
                due: NOW,
                command: 1,
            },
            SettleItem::RefuseCommand { command: 2, reason: "not_unknown" },
            SettleItem::Quarantine {
                offset: 17,
                reason: "bad_head",
                raw: Bytes::from_static(b"\0x"),
            },
        ],
        vec![delivered(&records[0], true)],
    ];
    for items in &groups {
        assert!(world.settle(items).await.is_empty());
        let once = sql(&world.url, dump_query()).await.unwrap();
        assert!(world.settle(items).await.is_empty());
        assert_eq!(sql(&world.url, dump_query()).await.unwrap(), once);
    }
    // The lane's second event is its head now; with it the lane goes, and says so twice.
    let due =
        "SELECT (due <= now())::text FROM laneway_control.parked_lanes WHERE user_key = 'user_0'";
    assert_eq!(world.value(due).await, "true");
    let end = [delivered(&follow, true)];
    assert_eq!(world.settle(&end).await, [lane(&follow)]);
    assert_eq!(world.settle(&end).await, [lane(&follow)]);
    for (query, want) in [
        ("SELECT count(*)::text FROM laneway_control.inbox", "5"),
        ("SELECT count(*)::text FROM laneway_control.attempts", "6"),
        (
            "SELECT string_agg(result, ',' ORDER BY command_id) FROM laneway_control.commands",
            "applied,not_unknown",
        ),
        ("SELECT first_class || last_class FROM laneway_control.dead_letters", "http_5xxhttp_5xx"),
        ("SELECT count(*)::text FROM laneway_control.parked_lanes", "1"),
        ("SELECT unknown::text FROM laneway_control.parked_lanes", "false"),
        ("SELECT count(*)::text FROM laneway_control.intents", "1"),
        ("SELECT raw_bytes::text FROM laneway_control.quarantine", "2"),
    ] {
        assert_eq!(world.value(query).await, want, "{query}");
    }
}

/// P13, I10.
#[tokio::test]
async fn a_fenced_group_writes_nothing_and_the_others_of_its_transaction_do() {
    let world = World::new().await;
    let (a, b) = (world.record(1, "a"), world.record(2, "b"));
    let successor = world.take(0).await;
    assert!(successor > world.epochs[1], "epochs are never used twice");
    let (mine, theirs) = ([delivered(&a, false)], [delivered(&b, false)]);
    let stale = Group { next_offset: Some(99), ..world.group(0, &mine) };
    let good = Group { next_offset: Some(5), ..world.group(1, &theirs) };
    let ends = groups_write(&world.pool, &[stale, good]).await.unwrap().commit().await.unwrap();
    assert!(matches!(ends[0], GroupEnd::Fenced));
    assert!(matches!(ends[1], GroupEnd::Written { generation: 1, .. }));
    let written = "SELECT string_agg(delivery_id::text, ',') FROM laneway_control.inbox";
    assert_eq!(world.value(written).await, b.head.delivery.to_string());
    let owners =
        [owner_read(&world.pool, 0).await.unwrap(), owner_read(&world.pool, 1).await.unwrap()];
    let [first, second] = owners.map(Option::unwrap);
    assert_eq!((first.next_offset, first.renewal, first.epoch), (0, 0, successor));
    assert_eq!((second.next_offset, second.renewal), (5, 1));
}

#[tokio::test]
async fn a_group_under_a_closed_generation_goes_on_in_the_new_row_without_its_position() {
    let world = World::new().await;
    for statement in [
        "INSERT INTO laneway_control.topic_generations (generation, topic, topic_id, partitions, reason) \
         VALUES (2, 't', 'b', 2, 'recreated')",
        "INSERT INTO laneway_control.partition_owners SELECT 2, partition, epoch, renewal, owner, state, \
         max_timeout_ms, 0 FROM laneway_control.partition_owners",
        "UPDATE laneway_control.partition_owners SET state = 'closed' WHERE generation = 1",
    ] {
        sql(&world.url, statement).await.unwrap();
    }
    let items = [delivered(&world.record(1, "a"), false)];
    let group = Group { next_offset: Some(70), ..world.group(0, &items) };
    let ends = groups_write(&world.pool, &[group]).await.unwrap().commit().await.unwrap();
    assert!(matches!(ends[0], GroupEnd::Written { generation: 2, .. }));
    let owner = owner_read(&world.pool, 0).await.unwrap().unwrap();
    assert_eq!((owner.generation, owner.renewal, owner.next_offset), (2, 1, 0));
    assert_eq!(world.value("SELECT count(*)::text FROM laneway_control.inbox").await, "1");
}

#[tokio::test]
async fn what_is_known_of_a_batch_includes_the_group_that_it_rides_with() {
    let world = World::new().await;
    let records: Vec<_> = (0..5).map(|n| world.record(n, &format!("k{n}"))).collect();
    let failed = |number| SettleItem::Failed {
        lane: lane(&records[1]),
        record: Arc::clone(&records[1]),
        attempt: attempt(number),
        parked_due: None,
        unknown: false,
    };
    world.settle(&[failed(1), failed(2)]).await;
    let intent = SettleItem::Intent {
        ticket: Ticket {
            partition: 0,
            epoch: world.epochs[0],
            delivery: records[2].head.delivery_id(),
            attempt: 1,
        },
        lane: lane(&records[2]),
        record: Arc::clone(&records[2]),
        deadline: NOW,
    };
    let items = [delivered(&records[0], false), intent, failed(3)];
    let ids: Vec<_> = records.iter().map(|record| record.head.delivery_id()).collect();
    let group = Group { intake: &ids, ..world.group(0, &items) };
    let end = groups_write(&world.pool, &[group]).await.unwrap().commit().await.unwrap().remove(0);
    let GroupEnd::Written { known, .. } = end else { panic!("the epoch holds") };
    assert_eq!(known, known_read(&world.pool, &ids).await.unwrap());
    assert_eq!(known[&ids[0]], Known::Settled);
    let first_at = attempt(1).ended - attempt(1).took;
    let tried = Tried { attempts: 3, first_at, last_end: attempt(3).ended, open_intent: false };
    assert_eq!(known[&ids[1]], Known::Tried(tried));
    let Known::Tried(open) = known[&ids[2]] else { panic!("it has an intent") };
    assert_eq!((open.attempts, open.last_end, open.open_intent), (0, NOW, true));
    assert_eq!(known.len(), 3);
}

#[tokio::test]
async fn the_first_ten_and_last_twenty_attempts_are_kept() {
    let world = World::new().await;
    let record = world.record(1, "k");
    for number in 1..=45 {
        world
            .settle(&[SettleItem::Failed {
                lane: lane(&record),
                record: Arc::clone(&record),
                attempt: attempt(number),
                parked_due: None,
                unknown: false,
            }])
            .await;
    }
    let numbers =
        "SELECT string_agg(number::text, ' ' ORDER BY number) FROM laneway_control.attempts";
    let want: Vec<String> = (1..=10).chain(26..=45).map(|n: u32| n.to_string()).collect();
    assert_eq!(world.value(numbers).await, want.join(" "));
}

#[tokio::test]
async fn a_second_row_of_a_delivery_keeps_the_lower_position() {
    let world = World::new().await;
    let (head, next) = (world.record(1, "k"), world.record(2, "k"));
    world.settle(&[park(&head, 10), append(&next, 15), append(&next, 16)]).await;
    let offset = format!(
        "SELECT log_offset::text FROM laneway_control.parked_events WHERE delivery_id = '{}'",
        next.head.delivery
    );
    for (again, want) in [(20, "15"), (12, "12"), (13, "12")] {
        world.settle(&[append(&next, again)]).await;
        assert_eq!(world.value(&offset).await, want);
    }
}
