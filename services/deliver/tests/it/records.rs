//! Records that are no deliveries, or not new ones: the partition goes on (I46, I8, P5).

use crate::world::World;
use bytes::Bytes;
use laneway_wire::{EndpointId, Record};
use uuid::Uuid;

fn key(record: &Record) -> Bytes {
    Bytes::copy_from_slice(record.head.lane().as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_delivered_goes_to_quarantine_with_a_reason() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let good = world.record(endpoint, "k");
    let home = World::partition(&good);
    let mut stranger = world.record(endpoint, "k");
    stranger.head.tenant = Uuid::from_u128(1);
    let mut oversize = world.record(endpoint, "k");
    oversize.payload = vec![b'x'; 300 * 1024].into();
    let mut version = good.encode().to_vec();
    version[0] = 9;
    let mut head = good.encode().to_vec();
    head[5] = b'[';
    let misplaced = world.record(endpoint, "k");
    let none = Bytes::new();
    for (partition, key, value) in [
        (home, none.clone(), none.clone()),
        (home, none.clone(), Bytes::from_static(b"x")),
        (home, none.clone(), Bytes::from_static(b"\x01\xff\xff\xff\xff{}")),
        (home, key(&good), version.into()),
        (home, key(&good), head.into()),
        (home, key(&oversize), oversize.encode()),
        (home, none, good.encode()),
        (home, key(&stranger), stranger.encode()),
        ((home + 1) % 4, key(&misplaced), misplaced.encode()),
    ] {
        world.send(partition, key, value).await.await.unwrap();
    }
    let _deliver = world.start("one");
    world.produce(std::slice::from_ref(&good)).await;
    world.wait_settled(1).await;
    let reasons = "SELECT string_agg(reason, ' ' ORDER BY partition = {home} DESC, log_offset) \
                   FROM laneway_control.quarantine"
        .replace("{home}", &home.to_string());
    let want = "empty unknown_version bad_length unknown_version bad_head bad_length foreign_key foreign_tenant \
                foreign_partition";
    world.wait_value(&reasons, want).await;
    let position = "SELECT sum(next_offset)::text FROM laneway_control.partition_owners";
    world.wait_value(position, "10").await;
    assert_eq!(world.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_and_records_of_endpoints_that_do_not_exist_complete_unsent() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    let records: Vec<_> = (0..20).map(|n| world.record(endpoint, &format!("k{}", n % 5))).collect();
    let nowhere = EndpointId::from_uuid(Uuid::now_v7());
    let lost: Vec<_> = (0..3).map(|_| world.record(nowhere, "k")).collect();
    let deliver = world.start("one");
    world.produce(&records).await;
    world.produce(&records).await;
    world.produce(&lost).await;
    world.wait_settled(23).await;
    world.produce(&records[..5]).await;
    let position = "SELECT sum(next_offset)::text FROM laneway_control.partition_owners";
    world.wait_value(position, "48").await;
    assert_eq!(world.requests().len(), 20);
    let discarded = "SELECT count(*)::text FROM laneway_control.inbox WHERE outcome = 3";
    assert_eq!(world.value(discarded).await, "3");
    deliver.stop().await;
}
