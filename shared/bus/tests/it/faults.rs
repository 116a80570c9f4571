//! The log is lost, the topic is made again, the broker goes away and comes back.

use std::time::Duration;

use laneway_bus::{Command, Consumer, ConsumerSettings, Event, Producer};
use laneway_testkit::{Stack, wait_for};

use crate::support::{LIMIT, World, assigned, leave, next, read, start, until, values};

impl World {
    async fn make_again(&self, partitions: u32) {
        assert!(self.admin.delete_topic(&self.topic).await.unwrap());
        wait_for("the topic is gone", LIMIT, || async {
            matches!(self.admin.describe_topic(&self.topic).await, Ok(None))
        })
        .await;
        self.create(partitions).await;
    }
}

/// P4, design section 4, "Loss of the log": an acknowledgement at or below the mark, or a refusal.
#[tokio::test]
async fn a_topic_made_again_is_noticed_by_acknowledgements() {
    let world = World::new(1).await;
    let producer = world.producer();
    let mut mark = -1;
    for value in 0..50_u32 {
        let pending = producer.send(0, b"k", &value.to_be_bytes(), &[]).await.unwrap();
        mark = pending.await.unwrap().offset;
    }
    assert_eq!(mark, 49);
    world.make_again(1).await;
    let outcome = match producer.send(0, b"k", b"after", &[]).await {
        Ok(pending) => tokio::time::timeout(LIMIT, pending).await.unwrap(),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(acked) => assert!(acked.offset <= mark, "{acked:?}"),
        Err(error) => assert!(error.is_sequence_error() || error.is_topic_missing(), "{error:?}"),
    }
}

#[tokio::test]
async fn a_topic_made_again_is_noticed_by_its_consumer() {
    let world = World::new(1).await;
    let incarnation = world.admin.describe_topic(&world.topic).await.unwrap().unwrap().incarnation;
    world.write(0, 0..100).await;
    let settings = ConsumerSettings { incarnation, ..world.settings() };
    let (consumer, mut events) = Consumer::start(&world.connection, settings).unwrap();
    assigned(&mut events).await;
    start(&consumer, 0, 0);
    read(&mut events, 100).await;

    world.make_again(1).await;
    let changed = loop {
        match next(&mut events).await {
            Event::TopicChanged { incarnation } => break incarnation,
            Event::Revoked(_) => consumer.command(Command::Released),
            Event::TopicGone
            | Event::Assigned(_)
            | Event::Lost(_)
            | Event::OffsetOutOfRange { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(changed.is_some() && changed != incarnation);

    // With positions of the new life the same consumer goes on.
    world.write(0, 1000..1010).await;
    start(&consumer, 0, 0);
    let mut seen = Vec::new();
    while seen.len() < 10 {
        match next(&mut events).await {
            Event::Records(records) => seen.extend(values(&records)),
            Event::Assigned(_) | Event::OffsetOutOfRange { .. } => start(&consumer, 0, 0),
            Event::Revoked(_) => consumer.command(Command::Released),
            Event::TopicGone | Event::Lost(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, (1000..1010).collect::<Vec<_>>());
    leave(consumer, events).await;
}

#[tokio::test]
async fn a_deleted_topic_is_noticed() {
    let world = World::new(1).await;
    let (consumer, mut events) = world.consumer();
    assigned(&mut events).await;
    start(&consumer, 0, 0);
    // The first look has to have seen it.
    tokio::time::timeout(Duration::from_secs(1), events.recv()).await.unwrap_err();
    world.admin.delete_topic(&world.topic).await.unwrap();
    until(&mut events, |event| matches!(event, Event::TopicGone).then_some(())).await;
    leave(consumer, events).await;
}

/// P2, P4: nothing lost, nothing out of order, across a stop and a kill -9 of the broker under load.
#[tokio::test]
async fn a_broker_that_comes_back_has_everything_in_order() {
    let stack = Stack::private_kafka().await.unwrap();
    let world = World::on(&stack, 2).await;
    let (consumer, mut events) = world.consumer();
    for partition in assigned(&mut events).await {
        start(&consumer, partition, 0);
    }
    let producer = world.producer();
    let writing = tokio::spawn(async move {
        let mut pending = Vec::new();
        for value in 0..6000_u32 {
            let partition = (value % 2) as i32;
            let text = value.to_string();
            pending.push(producer.send(partition, b"k", text.as_bytes(), &[]).await.unwrap());
            if value % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        }
        let mut offsets = [Vec::new(), Vec::new()];
        for pending in pending {
            let acked = pending.await.unwrap();
            offsets[acked.partition as usize].push(acked.offset);
        }
        offsets
    });
    let breaking = async {
        stack.kill_kafka().await.unwrap();
        stack.start_kafka().await.unwrap();
        stack.restart_kafka().await.unwrap();
    };
    // Where each partition is; the caller's own position, given again after each assignment.
    let mut seen = [Vec::new(), Vec::new()];
    let reading = async {
        while seen.iter().map(Vec::len).sum::<usize>() < 6000 {
            match next(&mut events).await {
                Event::Records(records) => {
                    for record in &records {
                        let here = &mut seen[record.partition as usize];
                        assert_eq!(record.offset, here.len() as i64, "no gap, no repeat");
                        here.extend(values(std::slice::from_ref(record)));
                    }
                }
                Event::Assigned(partitions) => {
                    for partition in partitions {
                        start(&consumer, partition, seen[partition as usize].len() as i64);
                    }
                }
                Event::Revoked(_) => consumer.command(Command::Released),
                Event::Lost(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::join!(breaking, reading);
    let acked = writing.await.unwrap();
    for (partition, seen) in seen.iter().enumerate() {
        let expected: Vec<u32> = (0..6000).filter(|value| value % 2 == partition as u32).collect();
        assert_eq!(seen, &expected);
        assert_eq!(acked[partition], (0..3000).collect::<Vec<i64>>());
    }
    leave(consumer, events).await;
}

/// A broker that is fenced now and then tells that there are no brokers, and clients forget them for good (librdkafka
/// issue 5301): the consumer goes on all the same, and a producer says that it does not.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_told_of_no_broker_does_not_wait_for_ever() {
    let stack = Stack::private_kafka().await.unwrap();
    let world = World::on(&stack, 1).await;
    let producers: Vec<Producer> = (0..2).map(|_| world.producer()).collect();
    for producer in &producers {
        producer.send(0, b"k", b"1", &[]).await.unwrap().await.unwrap();
    }
    let (consumer, mut events) = world.consumer();
    assigned(&mut events).await;
    start(&consumer, 0, 0);
    read(&mut events, producers.len()).await;

    // Fenced for two seconds of three.
    let fenced = "broker.session.timeout.ms=1000\nbroker.heartbeat.interval.ms=3000\n";
    stack.kafka_extra(fenced).unwrap();
    stack.restart_kafka().await.unwrap();
    for producer in &producers {
        wait_for("it has forgotten the broker", LIMIT, || async { !producer.is_answered().await })
            .await;
    }
    until(&mut events, |event| matches!(event, Event::Lost(_)).then_some(())).await;
    stack.kafka_extra("").unwrap();
    stack.restart_kafka().await.unwrap();
    wait_for("the broker is there for others", LIMIT, || async {
        matches!(world.admin.describe_topic(&world.topic).await, Ok(Some(_)))
    })
    .await;

    let last = world.write(0, 7..8).await;
    assigned(&mut events).await;
    start(&consumer, 0, last);
    assert_eq!(values(&read(&mut events, 1).await), [7]);
    leave(consumer, events).await;
    for producer in &producers {
        assert!(!producer.is_answered().await, "as long as this fails it has to be replaced");
    }
}
