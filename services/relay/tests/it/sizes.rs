//! Records that the broker refuses for their size (design section 4, "Held rows").

use crate::support::{LIMIT, World};
use laneway_bus::{Admin, Connection, TopicSpec};
use laneway_testkit::wait_for;
use laneway_wire::Record;
use std::collections::BTreeSet;

/// Smaller than one record with this payload, larger than all the others together.
const LIMIT_BYTES: u32 = 16 * 1024;
const HELD: &str = "SELECT count(*) FROM laneway.relay_held WHERE left_entry IS NULL";

/// P2, P3: what is refused is held, and what is behind it in its lane. Records of other lanes that shared a batch with
/// it are refused with it by the broker and are not held for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_broker_refuses_for_its_size_is_held_with_its_lane_and_no_other() {
    let world = World::new().await;
    let admin = Admin::new(&Connection::plaintext(&world.kafka)).unwrap();
    let spec = TopicSpec { max_message_bytes: LIMIT_BYTES, ..TopicSpec::new(&world.topic, 1) };
    assert!(admin.create_topic(&spec).await.unwrap());
    let (tenant, _) = world.tenant().await;
    // Three of each lane in turn, all at once: the second of lane `big` does not even fit when compressed.
    let keys = "(SELECT 'big' UNION ALL SELECT 'u' || n FROM generate_series(1, 30) n)";
    world
        .sql(&format!(
            "SELECT laneway.emit_many('{}', array_agg('test.made'::text ORDER BY round, key), \
               array_agg(key ORDER BY round, key), array_agg(convert_to(payload, 'UTF8') ORDER BY round, key)) \
             FROM (SELECT round, key, CASE WHEN key = 'big' AND round = 2 \
                 THEN (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 4000) n) \
                 ELSE key || round END AS payload \
               FROM generate_series(1, 3) round CROSS JOIN {keys} k (key)) rows",
            tenant.as_uuid()
        ))
        .await;
    let mut settings = world.settings();
    settings.kafka.partitions = 1;
    settings.relay.linger = std::time::Duration::from_millis(50);
    let relay = world.start_with(settings.clone());
    let mut log = world.log().await;
    log.read_until("all others", |log| log.pairs().len() == 91).await;
    log.assert_lanes_in_order();
    wait_for("two held rows", LIMIT, || async { world.number(HELD).await == 2 }).await;
    let reasons = world
        .sql("SELECT string_agg(reason, ' ' ORDER BY row_id) FROM laneway.relay_held WHERE left_entry IS NULL")
        .await;
    assert_eq!(reasons[0][0].as_deref(), Some("size behind"));
    let is_big = |record: &Record| record.head.user_key.as_deref() == Some("big");
    let of_big = log.records.iter().filter(|(_, _, record)| is_big(record)).count();
    assert_eq!(of_big, 1, "nothing overtakes in its lane");
    // Later ones of its lane wait too, others flow.
    world.emit(tenant, "big", "later").await;
    world.emit(tenant, "u1", "later").await;
    log.read_until("the later one of another lane", |log| log.pairs().len() == 92).await;
    wait_for("three held rows", LIMIT, || async { world.number(HELD).await == 3 }).await;
    wait_for("the gauge", LIMIT, || async {
        relay.metric("laneway_relay_held{source=\"control\",reason=\"size\"}") == 1.0
    })
    .await;
    relay.stop().await;

    // A start tries it again: still refused, it stays.
    let relay = world.start_with(settings);
    world.emit(tenant, "u2", "later").await;
    log.read_until("another lane after the start", |log| log.pairs().len() == 93).await;
    wait_for("the held ones", LIMIT, || async {
        let size =
            "SELECT count(*) FROM laneway.relay_held WHERE left_entry IS NULL AND reason = 'size'";
        world.number(size).await == 1 && world.number(HELD).await == 3
    })
    .await;
    relay.stop().await;
    let rows: BTreeSet<i64> = log.records.iter().map(|(_, _, record)| record.head.row).collect();
    assert_eq!(rows.len(), 93);
}
