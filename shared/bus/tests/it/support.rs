//! A topic of one's own, and ways to look at what comes out of a consumer.

use std::time::Duration;

use laneway_bus::{
    Admin, Command, Connection, Consumer, ConsumerSettings, Event, Events, Producer,
    ProducerSettings, RawRecord, TopicSpec,
};
use laneway_testkit::{Stack, fresh_topic_name};

/// A JVM that starts on a busy machine takes a while.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

pub(crate) struct World {
    pub(crate) connection: Connection,
    pub(crate) admin: Admin,
    pub(crate) topic: String,
}

impl World {
    /// A topic of its own on the shared broker.
    pub(crate) async fn new(partitions: u32) -> Self {
        Self::on(Stack::shared().await, partitions).await
    }

    pub(crate) async fn on(stack: &Stack, partitions: u32) -> Self {
        let connection = Connection::plaintext(stack.kafka());
        let admin = Admin::new(&connection).unwrap();
        let topic = fresh_topic_name("bus");
        let world = Self { connection, admin, topic };
        world.create(partitions).await;
        world
    }

    pub(crate) async fn create(&self, partitions: u32) {
        let spec = TopicSpec::new(&self.topic, partitions);
        assert!(self.admin.create_topic(&spec).await.unwrap());
        // The broker answers before it knows everywhere that the topic exists.
        laneway_testkit::wait_for("the topic is there", LIMIT, || async {
            matches!(self.admin.describe_topic(&self.topic).await, Ok(Some(_)))
        })
        .await;
    }

    pub(crate) fn producer(&self) -> Producer {
        Producer::new(&self.connection, &self.topic, ProducerSettings::default()).unwrap()
    }

    pub(crate) fn settings(&self) -> ConsumerSettings {
        ConsumerSettings {
            session_timeout: Duration::from_secs(6),
            release_limit: Duration::from_secs(20),
            watch_interval: Duration::from_millis(200),
            ..ConsumerSettings::new(&self.topic, &self.topic)
        }
    }

    pub(crate) fn consumer(&self) -> (Consumer, Events) {
        Consumer::start(&self.connection, self.settings()).unwrap()
    }

    /// Writes `values` to a partition, one after the other, and gives the last offset.
    pub(crate) async fn write(&self, partition: i32, values: std::ops::Range<u32>) -> i64 {
        let producer = self.producer();
        let mut pending = Vec::new();
        for value in values {
            let text = value.to_string();
            pending.push(producer.send(partition, b"key", text.as_bytes(), &[]).await.unwrap());
        }
        let mut last = -1;
        for pending in pending {
            last = pending.await.unwrap().offset;
        }
        last
    }
}

/// The next event; panics when none comes.
pub(crate) async fn next(events: &mut Events) -> Event {
    tokio::time::timeout(LIMIT, events.recv())
        .await
        .expect("an event comes")
        .expect("the consumer lives")
}

/// The next event that `pick` takes; others are dropped.
pub(crate) async fn until<T>(events: &mut Events, pick: impl Fn(Event) -> Option<T>) -> T {
    loop {
        if let Some(picked) = pick(next(events).await) {
            return picked;
        }
    }
}

pub(crate) async fn assigned(events: &mut Events) -> Vec<i32> {
    let mut partitions = until(events, |event| match event {
        Event::Assigned(partitions) => Some(partitions),
        _ => None,
    })
    .await;
    partitions.sort_unstable();
    partitions
}

/// Records until `count` are there; panics on anything but records.
pub(crate) async fn read(events: &mut Events, count: usize) -> Vec<RawRecord> {
    let mut records = Vec::new();
    while records.len() < count {
        match next(events).await {
            Event::Records(more) => records.extend(more),
            other => panic!("{other:?} in place of records, after {}", records.len()),
        }
    }
    records
}

pub(crate) fn values(records: &[RawRecord]) -> Vec<u32> {
    records
        .iter()
        .map(|record| std::str::from_utf8(&record.value).unwrap().parse().unwrap())
        .collect()
}

pub(crate) fn start(consumer: &Consumer, partition: i32, offset: i64) {
    consumer.command(Command::Start { partition, offset });
}

/// Leaves, taking events and answering a revocation meanwhile.
pub(crate) async fn leave(consumer: Consumer, mut events: Events) {
    consumer.command(Command::Released);
    consumer.command(Command::Leave);
    while let Some(event) = tokio::time::timeout(LIMIT, events.recv()).await.expect("it ends") {
        if matches!(event, Event::Revoked(_)) {
            consumer.command(Command::Released);
        }
    }
    consumer.leave().await;
}
