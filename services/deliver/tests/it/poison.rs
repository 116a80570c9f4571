//! Row K12 of the fault matrix, written by somebody who has the broker's rights: nothing of theirs is delivered, nothing
//! stops its partition, and nothing beside a record's value is believed.

use crate::world::World;
use laneway_wire::Timestamp;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use uuid::Uuid;

/// What a small record of the log can turn into in its reader's memory.
const BOMB: usize = 32 << 20;
const YEAR_9999: i64 = 253_402_300_799_000;

type Raw<'a> = FutureRecord<'a, [u8], [u8]>;

fn producer(world: &World) -> FutureProducer {
    ClientConfig::new()
        .set("bootstrap.servers", &world.kafka)
        .set("compression.type", "zstd")
        .set("message.max.bytes", (2 * BOMB).to_string())
        .create()
        .unwrap()
}

/// Written and acknowledged.
async fn write(producer: &FutureProducer, record: Raw<'_>) {
    producer.send(record, Timeout::Never).await.unwrap();
}

/// A record with this head.
fn with_head(head: &[u8]) -> Vec<u8> {
    let length = u32::try_from(head.len()).unwrap().to_be_bytes();
    [&[1], length.as_slice(), head, b"{}"].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn k12_what_anybody_with_the_brokers_rights_can_write_harms_nothing() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let producer = producer(&world);
    let good = world.record(endpoint, "k");
    let home = World::partition(&good).cast_signed();
    let key = good.head.lane().as_bytes().to_vec();
    let topic = world.topic.clone();
    let raw = || Raw::to(&topic).partition(home);
    let whole = good.encode().to_vec();
    let head = whole[5..whole.len() - good.payload.len()].to_vec();
    let mut no_text = head.clone();
    no_text[head.len() / 2] = 0xff;
    let mut version = whole.clone();
    version[0] = 0;
    let mut self_made = good.clone();
    self_made.head.delivery = Uuid::from_u128(7);
    let mut bomb = with_head(&head);
    bomb.resize(BOMB, 0);

    write(&producer, raw().key(&key)).await;
    write(&producer, raw().payload(&whole)).await;
    write(&producer, raw().key(&[0xff; 3]).payload(&whole)).await;
    for value in [
        whole[..60].to_vec(),
        with_head(&head[..head.len() - 9]),
        with_head(&no_text),
        with_head(b"[]"),
        version,
        self_made.encode().to_vec(),
        bomb,
    ] {
        write(&producer, raw().key(&key).payload(&value)).await;
    }

    // Valid records, with everything around them forged.
    let forged = OwnedHeaders::new()
        .insert(Header { key: "x-attempt", value: Some("99") })
        .insert(Header { key: "x-attempt", value: Some(&[0xff, 0, 0xfe][..]) })
        .insert(Header { key: "", value: None::<&str> })
        .insert(Header { key: "retry-after", value: Some("1e300") });
    let mut valid = vec![good];
    for created in [-1, YEAR_9999] {
        let mut record = world.record(endpoint, "k");
        record.head.created_at = Timestamp(created);
        valid.push(record);
    }
    for record in &valid {
        let value = record.encode();
        let forged = raw().key(&key).payload(&value).timestamp(1).headers(forged.clone());
        write(&producer, forged).await;
    }
    // An old one again.
    let again = valid[0].encode();
    write(&producer, raw().key(&key).payload(&again)).await;

    let deliver = world.start("one");
    world.wait_settled(3).await;
    let reasons =
        "SELECT string_agg(reason, ' ' ORDER BY log_offset) FROM laneway_control.quarantine";
    let want = "empty foreign_key foreign_key bad_length bad_head bad_head bad_head unknown_version \
                contradiction bad_length";
    world.wait_value(reasons, want).await;
    let position = "SELECT sum(next_offset)::text FROM laneway_control.partition_owners";
    world.wait_value(position, "14").await;
    let kept = "SELECT (max(length(raw)) <= 65536)::text FROM laneway_control.quarantine";
    assert_eq!(world.value(kept).await, "true", "a bomb is not kept");
    assert_eq!(world.requests().len(), 3, "each valid record once");
    assert!(world.requests().iter().all(|entry| entry.attempt == Some(1)));
    world.check_order(&valid);
    deliver.stop().await;
}
