//! Acknowledgements and their offsets; refusals.

use laneway_bus::{Producer, ProducerSettings, Witness};
use std::time::Duration;

use crate::support::{LIMIT, World};

#[tokio::test]
async fn acknowledgements_carry_the_offsets_in_the_order_sent() {
    let world = World::new(2).await;
    let producer = world.producer();
    let mut pending = Vec::new();
    for value in 0..2000_u32 {
        let partition = i32::from(value % 3 == 0);
        let headers: &[(&str, &[u8])] = &[("n", b"1")];
        let payload = value.to_string();
        pending
            .push((partition, producer.send(partition, b"k", payload.as_bytes(), headers).await));
    }
    let mut next = [0, 0];
    for (partition, pending) in pending {
        let acked = pending.unwrap().await.unwrap();
        assert_eq!((acked.partition, acked.offset), (partition, next[partition as usize]));
        next[partition as usize] += 1;
    }
    assert_eq!(producer.in_flight(), 0);
    assert!(producer.fatal().is_none());
    let ends = world.admin.all_offsets(&world.topic, 2).await.unwrap();
    assert_eq!(ends, [(0, next[0]), (0, next[1])]);
}

#[tokio::test]
async fn no_more_records_are_under_way_than_allowed() {
    let world = World::new(1).await;
    let settings = ProducerSettings { max_in_flight: 10, ..ProducerSettings::default() };
    let producer = Producer::new(&world.connection, &world.topic, settings).unwrap();
    let mut last = None;
    for value in 0..500_u32 {
        last = Some(producer.send(0, b"k", &value.to_be_bytes(), &[]).await.unwrap());
        assert!(producer.in_flight() <= 10);
    }
    assert_eq!(last.unwrap().await.unwrap().offset, 499);
}

#[tokio::test]
async fn a_record_that_is_too_large_is_refused_for_itself() {
    let world = World::new(1).await;
    let settings =
        ProducerSettings { max_message_bytes: 8 * 1024 * 1024, ..ProducerSettings::default() };
    // By the broker: random bytes, which compression does not make fit.
    let producer = Producer::new(&world.connection, &world.topic, settings).unwrap();
    let mut state = 1_u64;
    let large: Vec<u8> = (0..3 * 1024 * 1024)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect();
    let error = producer.send(0, b"k", &large, &[]).await.unwrap().await.unwrap_err();
    assert!(error.is_too_large() && !error.is_transient() && !error.is_fatal(), "{error:?}");
    // By the client.
    let error = world.producer().send(0, b"k", &large, &[]).await.unwrap_err();
    assert!(error.is_too_large(), "{error:?}");
    // The next one is none the worse for it.
    assert_eq!(producer.send(0, b"k", b"small", &[]).await.unwrap().await.unwrap().offset, 0);
}

#[tokio::test]
async fn a_partition_that_does_not_exist_is_an_error() {
    let world = World::new(1).await;
    let producer = world.producer();
    producer.send(0, b"k", b"v", &[]).await.unwrap().await.unwrap();
    let outcome = match producer.send(7, b"k", b"v", &[]).await {
        Ok(pending) => tokio::time::timeout(LIMIT, pending).await.unwrap(),
        Err(error) => Err(error),
    };
    let error = outcome.unwrap_err();
    assert!(error.is_topic_missing() && !error.is_transient(), "{error:?}");
}

/// Design section 4, "Loss of the log": what an acknowledgement shows must not depend on who awaits it.
#[tokio::test]
async fn the_witness_hears_of_records_that_nobody_awaits() {
    let world = World::new(1).await;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let witness: Witness = Box::new(move |acked, floor| {
        let _ = told.send((acked.offset, floor));
    });
    let settings =
        ProducerSettings { linger: Duration::from_millis(200), ..ProducerSettings::default() };
    let producer = Producer::witnessed(&world.connection, &world.topic, settings, witness).unwrap();
    let first = producer.send_above(0, b"k", b"1", 7).await.unwrap();
    drop(producer.send_above(0, b"k", b"2", 8).await.unwrap());
    assert_eq!(first.await.unwrap().offset, 0);
    let second = tokio::time::timeout(LIMIT, async { (heard.recv().await, heard.recv().await) });
    assert_eq!(second.await.unwrap(), (Some((0, 7)), Some((1, 8))));
}

/// What is on the wire is answered; what is not is thrown out.
#[tokio::test]
async fn a_purge_of_the_queue_lets_the_wire_be_answered() {
    let world = World::new(1).await;
    let settings =
        ProducerSettings { linger: Duration::from_secs(30), ..ProducerSettings::default() };
    let producer = Producer::new(&world.connection, &world.topic, settings).unwrap();
    let queued = producer.send(0, b"k", b"queued", &[]).await.unwrap();
    producer.purge_queued();
    let error = tokio::time::timeout(LIMIT, queued).await.unwrap().unwrap_err();
    assert!(error.is_purged(), "{error:?}");
    let ends = world.admin.all_offsets(&world.topic, 1).await.unwrap();
    assert_eq!(ends, [(0, 0)]);
}
