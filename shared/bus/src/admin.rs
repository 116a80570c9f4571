//! Topics: make them, describe them, and tell one life of a topic from the next.
//!
//! Kafka gives each topic an id, and a topic that was deleted and made again has another one; but neither rdkafka nor
//! the safe part of librdkafka hands it out. So [`Admin::create_topic`] stamps each topic that it makes with a random
//! number, the topic's *incarnation*, in a setting of the topic that means nothing to it (`min.compaction.lag.ms` of a
//! topic that is never compacted). A topic made again, by us or by hand, has another stamp or none. One made again
//! from an exact copy of its settings keeps the stamp: that is noticed by its offsets only, as is a log that was lost
//! below a topic that stayed.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication, TopicResult,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use uuid::Uuid;

use crate::{BusError, Connection};

/// Carries the incarnation; without effect where `cleanup.policy` is `delete`.
const STAMP: &str = "min.compaction.lag.ms";
/// What a topic without a stamp of its own is called.
const NO_INCARNATION: &str = "none";
/// Kafka reads the stamp as a signed number that must not be negative.
const STAMP_MASK: u64 = i64::MAX as u64;
/// Looks until two in a row agree.
const STEADY_TRIES: usize = 5;
/// A question to the broker takes no longer.
const LIMIT: Duration = Duration::from_secs(10);

/// What a topic is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// Its name.
    pub name: String,
    /// How many partitions; never changed afterwards (design section 3, buckets).
    pub partitions: u32,
    /// Copies of each partition.
    pub replication: u16,
    /// How long records stay, whoever read them.
    pub retention: Duration,
    /// The largest record batch, bytes.
    pub max_message_bytes: u32,
}

impl TopicSpec {
    /// One copy, seven days (longer than any cursor's window, design section 4), batches up to 1 MiB.
    pub fn new(name: &str, partitions: u32) -> Self {
        Self {
            name: name.to_owned(),
            partitions,
            replication: 1,
            retention: Duration::from_secs(7 * 24 * 3600),
            max_message_bytes: 1024 * 1024,
        }
    }
}

/// A topic as the broker has it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicDescription {
    /// Numbered from 0.
    pub partitions: u32,
    /// Which life of the topic this is; `None` when the topic was made without [`Admin::create_topic`].
    pub incarnation: Option<Uuid>,
}

impl TopicDescription {
    /// How the control database calls this life of the topic. Relay and deliver compare it: one rule for both, or each
    /// takes the other's word for a new topic.
    pub fn id(&self) -> String {
        self.incarnation.map_or_else(|| NO_INCARNATION.to_owned(), |id| id.to_string())
    }
}

/// What a topic carries where the stamp belongs; none when it was made without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(Option<u64>);

type Client = AdminClient<DefaultClientContext>;

/// Asks and changes topics. Cheap to clone; every call may take up to 10 s when the broker is away.
#[derive(Clone)]
pub struct Admin {
    config: ClientConfig,
    /// Replaced when a question got no answer: librdkafka (2.10 to 2.13, its issue 5301) forgets all brokers when one
    /// answers that there are none, as in the moment in which all are fenced, and never looks for them again.
    client: Arc<Mutex<Arc<Client>>>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admin")
    }
}

impl Admin {
    /// Makes the client; nothing is connected yet.
    ///
    /// # Errors
    /// [`BusError::Client`].
    pub fn new(connection: &Connection) -> Result<Self, BusError> {
        let config = connection.client_config();
        let client = config.create().map_err(BusError::Client)?;
        Ok(Self { config, client: Arc::new(Mutex::new(Arc::new(client))) })
    }

    fn client(&self) -> Arc<Client> {
        self.client.lock().expect("no holder panicked").clone()
    }

    /// The error of a question that went through `asked`; the next one goes through a new client if this one was not
    /// refused by the broker but got no answer.
    fn failed(
        &self,
        asked: &Arc<Client>,
        operation: &'static str,
        topic: &str,
        source: KafkaError,
    ) -> BusError {
        let code = match &source {
            KafkaError::AdminOp(code) => Some(*code),
            other => other.rdkafka_error_code(),
        };
        // The client's own errors are negative, the broker's are not.
        let unanswered = code.is_some_and(|code| (code as i32) < 0);
        let mut client = self.client.lock().expect("no holder panicked");
        // Of several questions that failed together the first replaces it.
        if unanswered
            && Arc::ptr_eq(&client, asked)
            && let Ok(new) = self.config.create()
        {
            *client = Arc::new(new);
        }
        topic_error(operation, topic, source)
    }

    /// Makes a topic with a new incarnation; `false` when one of that name exists (whatever it looks like).
    ///
    /// # Errors
    /// [`BusError::Topic`].
    pub async fn create_topic(&self, spec: &TopicSpec) -> Result<bool, BusError> {
        let client = self.client();
        let failed = |source| self.failed(&client, "create", &spec.name, source);
        let stamp = (new_stamp()).to_string();
        let retention = spec.retention.as_millis().to_string();
        let max_bytes = spec.max_message_bytes.to_string();
        let partitions = i32::try_from(spec.partitions)
            .map_err(|_| BusError::Answer("that so many partitions are impossible"))?;
        let topic = NewTopic::new(
            &spec.name,
            partitions,
            TopicReplication::Fixed(i32::from(spec.replication)),
        )
        .set("cleanup.policy", "delete")
        .set("retention.ms", &retention)
        .set("max.message.bytes", &max_bytes)
        // The broker's time, not the relay's: it refuses a producer whose clock is an hour ahead of its own, and by the
        // time of one that is days behind it would drop records before their retention is over.
        .set("message.timestamp.type", "LogAppendTime")
        .set(STAMP, &stamp);
        let results = client.create_topics([&topic], &options()).await.map_err(failed)?;
        match first(results)? {
            Ok(_) => Ok(true),
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(false),
            Err((_, code)) => Err(failed(KafkaError::AdminOp(code))),
        }
    }

    /// What the broker knows of a topic; `None` when there is none.
    ///
    /// # Errors
    /// [`BusError::Topic`].
    pub async fn describe_topic(&self, topic: &str) -> Result<Option<TopicDescription>, BusError> {
        // The settings are asked for first: this question never makes a topic, whatever the broker is set to.
        let Some(mut before) = self.stamp(topic).await? else { return Ok(None) };
        for _ in 0..STEADY_TRIES {
            let Some(partitions) = self.partition_count(topic).await? else { return Ok(None) };
            let Some(after) = self.stamp(topic).await? else { return Ok(None) };
            // Two answers may be about two lives of the topic, and one about half of each.
            if before == after {
                let incarnation = after.0.map(|stamp| Uuid::from_u64_pair(0, stamp));
                return Ok(Some(TopicDescription { partitions, incarnation }));
            }
            before = after;
        }
        Err(BusError::Answer("differently each time: the topic is being changed"))
    }

    /// The topic's stamp, if there is such a topic.
    async fn stamp(&self, topic: &str) -> Result<Option<Stamp>, BusError> {
        let client = self.client();
        let failed = |source| self.failed(&client, "describe", topic, source);
        let resource = ResourceSpecifier::Topic(topic);
        let results = client.describe_configs([&resource], &options()).await.map_err(failed)?;
        let config = match results.into_iter().next() {
            Some(Ok(config)) => config,
            Some(Err(RDKafkaErrorCode::UnknownTopicOrPartition)) => return Ok(None),
            Some(Err(code)) => return Err(failed(KafkaError::AdminOp(code))),
            None => return Err(BusError::Answer("without a topic's settings")),
        };
        let value = config.get(STAMP).and_then(|entry| entry.value.as_deref());
        let stamp = value.and_then(|value| value.parse().ok()).filter(|stamp| *stamp != 0);
        Ok(Some(Stamp(stamp)))
    }

    async fn partition_count(&self, topic: &str) -> Result<Option<u32>, BusError> {
        let name = topic.to_owned();
        let ask = move |client: &Client| client.inner().fetch_metadata(Some(&name), LIMIT);
        let metadata = self.blocking("describe", topic, ask).await?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let Some(found) = found else {
            return Err(BusError::Answer("without the topic asked for"));
        };
        match found.error().map(RDKafkaErrorCode::from) {
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Ok(None)
            }
            Some(code) => Err(topic_error("describe", topic, KafkaError::MetadataFetch(code))),
            None => Ok(Some(u32::try_from(found.partitions().len()).unwrap_or(u32::MAX))),
        }
    }

    /// Where a partition begins and ends: the offset of its first record, and the one its next record will get.
    ///
    /// # Errors
    /// [`BusError::Topic`].
    pub async fn offsets(&self, topic: &str, partition: i32) -> Result<(i64, i64), BusError> {
        let name = topic.to_owned();
        let ask = move |client: &Client| client.inner().fetch_watermarks(&name, partition, LIMIT);
        self.blocking("offsets", topic, ask).await
    }

    /// [`Admin::offsets`] of the partitions `0..partitions`, in order.
    ///
    /// # Errors
    /// [`BusError::Topic`].
    pub async fn all_offsets(
        &self,
        topic: &str,
        partitions: u32,
    ) -> Result<Vec<(i64, i64)>, BusError> {
        let name = topic.to_owned();
        let ask = move |client: &Client| {
            (0..i32::try_from(partitions).unwrap_or(i32::MAX))
                .map(|partition| client.inner().fetch_watermarks(&name, partition, LIMIT))
                .collect()
        };
        self.blocking("offsets", topic, ask).await
    }

    /// Deletes a topic with all its records; `false` when there is none. For tests and for people.
    ///
    /// # Errors
    /// [`BusError::Topic`].
    pub async fn delete_topic(&self, topic: &str) -> Result<bool, BusError> {
        let client = self.client();
        let failed = |source| self.failed(&client, "delete", topic, source);
        let results = client.delete_topics(&[topic], &options()).await.map_err(failed)?;
        match first(results)? {
            Ok(_) => Ok(true),
            Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => Ok(false),
            Err((_, code)) => Err(failed(KafkaError::AdminOp(code))),
        }
    }

    /// librdkafka blocks its caller for these questions: they go to a thread that may be blocked.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        topic: &str,
        ask: impl FnOnce(&Client) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T, BusError> {
        let client = self.client();
        let asked = client.clone();
        let answer = tokio::task::spawn_blocking(move || ask(&client)).await;
        answer
            .map_err(|_| BusError::Gone)?
            .map_err(|source| self.failed(&asked, operation, topic, source))
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(LIMIT)).operation_timeout(Some(LIMIT))
}

fn first(results: Vec<TopicResult>) -> Result<TopicResult, BusError> {
    results.into_iter().next().ok_or(BusError::Answer("without a result"))
}

fn topic_error(operation: &'static str, topic: &str, source: KafkaError) -> BusError {
    BusError::Topic { operation, topic: topic.to_owned(), source }
}

/// 62 random bits, never 0: the random half of a version 7 UUID.
fn new_stamp() -> u64 {
    (Uuid::now_v7().as_u64_pair().1 & STAMP_MASK >> 1).max(1)
}
