//! Assignment, start, drain and hand-over; positions outside the log; bounds.

use std::time::Duration;

use laneway_bus::{Command, Consumer, ConsumerSettings, Event};
use laneway_testkit::wait_for;

use crate::support::{LIMIT, World, assigned, leave, next, read, start, until, values};

#[tokio::test]
async fn nothing_is_read_before_the_start_and_everything_from_it_on() {
    let world = World::new(1).await;
    world.write(0, 0..1000).await;
    let (consumer, mut events) = world.consumer();
    assert_eq!(assigned(&mut events).await, [0]);
    let early = tokio::time::timeout(Duration::from_millis(500), events.recv()).await;
    assert!(early.is_err(), "{early:?}");
    start(&consumer, 0, 700);
    let records = read(&mut events, 300).await;
    assert_eq!(values(&records), (700..1000).collect::<Vec<_>>());
    assert_eq!((records[0].offset, &records[0].key[..]), (700, &b"key"[..]));
    assert!(records[0].timestamp.is_some());
    // Started anew, backwards and forwards.
    for offset in [0, 999, 10] {
        start(&consumer, 0, offset);
        let records = read(&mut events, 1000 - offset as usize).await;
        assert_eq!(values(&records), (offset as u32..1000).collect::<Vec<_>>());
    }
    // What comes later follows.
    world.write(0, 1000..1010).await;
    assert_eq!(values(&read(&mut events, 10).await), (1000..1010).collect::<Vec<_>>());
    leave(consumer, events).await;
}

/// P2, P13: the old owner drains before the new one is assigned anything.
#[tokio::test]
async fn a_second_member_gets_its_partitions_only_after_the_first_released_them() {
    let world = World::new(4).await;
    for partition in 0..4 {
        world.write(partition, 0..100).await;
    }
    let (one, mut one_events) = world.consumer();
    assert_eq!(assigned(&mut one_events).await, [0, 1, 2, 3]);
    for partition in 0..4 {
        start(&one, partition, 0);
    }
    assert_eq!(read(&mut one_events, 400).await.len(), 400);

    let (two, mut two_events) = world.consumer();
    let revoked = until(&mut one_events, |event| match event {
        Event::Revoked(partitions) => Some(partitions),
        _ => None,
    })
    .await;
    assert_eq!(revoked, [0, 1, 2, 3]);
    // Records written during the drain are nobody's yet.
    world.write(0, 100..110).await;
    let early = tokio::time::timeout(Duration::from_secs(1), async {
        tokio::select! {
            event = one_events.recv() => event,
            event = two_events.recv() => event,
        }
    })
    .await;
    assert!(early.is_err(), "{early:?}");
    one.command(Command::CommitAdvisory { partition: 0, offset: 100 });
    one.command(Command::Released);
    let (first, second) = tokio::join!(assigned(&mut one_events), assigned(&mut two_events));
    assert_eq!([first.as_slice(), second.as_slice()].concat().len(), 4, "{first:?} {second:?}");
    assert_eq!((first.len(), second.len()), (2, 2));

    let (owner, events) =
        if first.contains(&0) { (&one, &mut one_events) } else { (&two, &mut two_events) };
    start(owner, 0, 100);
    assert_eq!(values(&read(events, 10).await), (100..110).collect::<Vec<_>>());

    // The second leaves: the first gets everything back.
    tokio::spawn(leave(two, two_events));
    until(&mut one_events, |event| matches!(event, Event::Revoked(_)).then_some(())).await;
    one.command(Command::Released);
    assert_eq!(assigned(&mut one_events).await, [0, 1, 2, 3]);
    leave(one, one_events).await;
}

/// librdkafka revokes nothing from a client without a partition that it reads.
#[tokio::test]
async fn a_second_assignment_before_the_first_start_takes_the_first_back() {
    let world = World::new(4).await;
    for partition in 0..4 {
        world.write(partition, 0..10).await;
    }
    let (one, mut one_events) = world.consumer();
    assert_eq!(assigned(&mut one_events).await, [0, 1, 2, 3]);
    let (two, mut two_events) = world.consumer();
    let back = until(&mut one_events, |event| match event {
        Event::Revoked(partitions) => {
            one.command(Command::Released);
            Some(partitions)
        }
        Event::Lost(partitions) => Some(partitions),
        Event::Assigned(partitions) => panic!("{partitions:?} while it has others"),
        _ => None,
    })
    .await;
    assert_eq!(back, [0, 1, 2, 3]);
    let (first, second) = tokio::join!(assigned(&mut one_events), assigned(&mut two_events));
    for (owner, events, partitions) in
        [(&one, &mut one_events, first), (&two, &mut two_events, second)]
    {
        assert_eq!(partitions.len(), 2);
        for partition in partitions {
            start(owner, partition, 0);
        }
        assert_eq!(read(events, 20).await.len(), 20);
    }
    tokio::spawn(leave(two, two_events));
    leave(one, one_events).await;
}

#[tokio::test]
async fn a_drain_that_takes_too_long_is_ended() {
    let world = World::new(1).await;
    let limit = Duration::from_millis(500);
    let settings = ConsumerSettings { release_limit: limit, ..world.settings() };
    let (one, mut one_events) = Consumer::start(&world.connection, settings).unwrap();
    assigned(&mut one_events).await;
    let (two, two_events) = world.consumer();
    until(&mut one_events, |event| matches!(event, Event::Revoked(_)).then_some(())).await;
    // No Released; the group goes on without it.
    tokio::spawn(leave(two, two_events));
    assigned(&mut one_events).await;
    leave(one, one_events).await;
}

#[tokio::test]
async fn a_position_outside_the_log_is_an_event_and_never_a_jump() {
    let world = World::new(2).await;
    world.write(0, 0..10).await;
    world.write(1, 0..10).await;
    let (consumer, mut events) = world.consumer();
    assigned(&mut events).await;
    start(&consumer, 0, 500);
    match next(&mut events).await {
        Event::OffsetOutOfRange { partition: 0, wanted: 500 } => {}
        other => panic!("{other:?}"),
    }
    // The partition stands still; the other one goes on.
    world.write(0, 10..20).await;
    start(&consumer, 1, 5);
    assert_eq!(values(&read(&mut events, 5).await), [5, 6, 7, 8, 9]);
    let silent = tokio::time::timeout(Duration::from_secs(1), events.recv()).await;
    assert!(silent.is_err(), "{silent:?}");
    start(&consumer, 0, 8);
    assert_eq!(values(&read(&mut events, 12).await), (8..20).collect::<Vec<_>>());
    // The end of the log is inside it.
    start(&consumer, 0, 20);
    world.write(0, 20..22).await;
    assert_eq!(values(&read(&mut events, 2).await), [20, 21]);
    leave(consumer, events).await;
}

/// P10: what the caller does not take is not read, and the membership goes on.
#[tokio::test]
async fn a_caller_that_takes_nothing_keeps_its_partitions() {
    let world = World::new(1).await;
    world.write(0, 0..20_000).await;
    let settings = ConsumerSettings { batches: 2, batch_records: 10, ..world.settings() };
    let (consumer, mut events) = Consumer::start(&world.connection, settings).unwrap();
    assigned(&mut events).await;
    start(&consumer, 0, 0);
    // Longer than the session.
    let control = tokio::time::timeout(Duration::from_secs(8), events.recv_control()).await;
    assert!(control.is_err(), "{control:?}");
    assert_eq!(values(&read(&mut events, 20_000).await), (0..20_000).collect::<Vec<_>>());
    leave(consumer, events).await;
}

#[tokio::test]
async fn a_paused_partition_gives_nothing_until_it_is_resumed() {
    let world = World::new(2).await;
    let (consumer, mut events) = world.consumer();
    assigned(&mut events).await;
    start(&consumer, 0, 0);
    start(&consumer, 1, 0);
    consumer.command(Command::Pause { partition: 0 });
    world.write(0, 0..5).await;
    world.write(1, 0..5).await;
    assert!(read(&mut events, 5).await.iter().all(|record| record.partition == 1));
    let silent = tokio::time::timeout(Duration::from_millis(500), events.recv()).await;
    assert!(silent.is_err(), "{silent:?}");
    consumer.command(Command::Resume { partition: 0 });
    assert!(read(&mut events, 5).await.iter().all(|record| record.partition == 0));
    leave(consumer, events).await;
}

/// P4, found by `make chaos`: an owner that lost its lease while its partition was paused takes it over again and knows
/// nothing of the pause.
#[tokio::test]
async fn a_paused_partition_that_is_started_anew_is_read() {
    let world = World::new(1).await;
    let (consumer, mut events) = world.consumer();
    assigned(&mut events).await;
    start(&consumer, 0, 0);
    consumer.command(Command::Pause { partition: 0 });
    world.write(0, 0..5).await;
    start(&consumer, 0, 2);
    assert_eq!(values(&read(&mut events, 3).await), [2, 3, 4]);
    leave(consumer, events).await;
}

#[tokio::test]
async fn a_static_member_that_comes_back_gets_its_partitions_without_a_rebalance() {
    let world = World::new(2).await;
    let named = |name: &str| ConsumerSettings {
        instance: Some(name.to_owned()),
        session_timeout: Duration::from_secs(20),
        ..world.settings()
    };
    let (one, mut one_events) = Consumer::start(&world.connection, named("one")).unwrap();
    assert_eq!(assigned(&mut one_events).await, [0, 1]);
    let (two, mut two_events) = Consumer::start(&world.connection, named("two")).unwrap();
    until(&mut one_events, |event| matches!(event, Event::Revoked(_)).then_some(())).await;
    one.command(Command::Released);
    let (first, second) = tokio::join!(assigned(&mut one_events), assigned(&mut two_events));
    assert_eq!((first.len(), second.len()), (1, 1));
    leave(two, two_events).await;
    let (two, mut two_events) = Consumer::start(&world.connection, named("two")).unwrap();
    assert_eq!(assigned(&mut two_events).await, second);
    let quiet = tokio::time::timeout(Duration::from_millis(500), one_events.recv()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    // Two members of one name: the older one is told that it is over.
    let (three, mut three_events) = Consumer::start(&world.connection, named("two")).unwrap();
    let fatal = until(&mut two_events, |event| match event {
        Event::Fatal(error) => Some(error),
        _ => None,
    })
    .await;
    assert!(fatal.is_fatal());
    wait_for("its events end", LIMIT, || async { true }).await;
    assert!(tokio::time::timeout(LIMIT, two_events.recv()).await.unwrap().is_none());
    assert_eq!(assigned(&mut three_events).await, second);
    drop(two);
    leave(one, one_events).await;
    leave(three, three_events).await;
}
