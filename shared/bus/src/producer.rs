//! Writing to explicit partitions, with the offset of every acknowledgement (design section 4, "Producing").
//!
//! Idempotent and `acks=all`: within a partition the log has what was sent, in the order it was sent, once, as long as
//! no record fails. There is no time limit for a record, which could leave a gap: a broker that is away is waited for.
//! Whoever sees a failure takes a new producer, purges the old one's queue and starts again from the stored cursor; then a
//! gap is impossible with several records under way too.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, NoCustomPartitioner, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{BusError, Connection, REACH_LIMIT};

/// How a producer behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerSettings {
    /// How long a record may wait for others to share its batch; 0 to a few milliseconds.
    pub linger: Duration,
    /// Records in one batch at most. The broker's limit on sizes is on batches: only a record alone in its batch is
    /// refused for itself.
    pub batch_records: u32,
    /// Records under way (queued or on the wire) at most; more wait in [`Producer::send`].
    pub max_in_flight: u32,
    /// Bytes queued at most, KiB; more wait in [`Producer::send`].
    pub max_queued_kbytes: u32,
    /// The largest record that is tried, bytes; as the topic's `max.message.bytes`.
    pub max_message_bytes: u32,
}

impl Default for ProducerSettings {
    fn default() -> Self {
        Self {
            linger: Duration::ZERO,
            batch_records: 10_000,
            max_in_flight: 10_000,
            max_queued_kbytes: 64 * 1024,
            max_message_bytes: 1024 * 1024,
        }
    }
}

/// Between two tries to enqueue when the byte bound is reached.
const FULL_PAUSE: Duration = Duration::from_millis(5);
const CONFIG: [(&str, &str); 6] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    ("compression.type", "zstd"),
    // No time limit for a record.
    ("message.timeout.ms", "0"),
    // A topic that was deleted is noticed by the records for it.
    ("topic.metadata.refresh.interval.ms", "5000"),
    ("topic.metadata.propagation.max.ms", "5000"),
];

/// Where an acknowledged record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// As it was sent to.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
}

/// Who is told of every acknowledged record, with the floor that it was sent with ([`Producer::send_above`]), whether or
/// not anybody awaits it. It is called on the client's thread and must not block.
pub type Witness = Box<dyn Fn(Acked, i64) + Send + Sync>;

struct UnderWay {
    answer: oneshot::Sender<Result<Acked, KafkaError>>,
    permit: OwnedSemaphorePermit,
    floor: i64,
}

struct Acknowledgements(Option<Witness>);

impl ClientContext for Acknowledgements {}

impl ProducerContext<NoCustomPartitioner> for Acknowledgements {
    type DeliveryOpaque = Box<UnderWay>;

    fn delivery(&self, result: &DeliveryResult<'_>, under_way: Box<UnderWay>) {
        let answer = match result {
            Ok(message) => Ok(Acked { partition: message.partition(), offset: message.offset() }),
            Err((error, _)) => Err(error.clone()),
        };
        let UnderWay { answer: told, permit, floor } = *under_way;
        if let (Ok(acked), Some(witness)) = (&answer, &self.0) {
            witness(*acked, floor);
        }
        // Nobody listening means that nobody else needs to know: the cursor has not moved.
        drop(permit);
        let _ = told.send(answer);
    }
}

/// A record's acknowledgement to come: awaits to the offset, or to why there is none.
///
/// Dropping it changes nothing for the record.
#[derive(Debug)]
#[must_use = "a record counts only once it is acknowledged"]
pub struct Pending {
    partition: i32,
    answer: oneshot::Receiver<Result<Acked, KafkaError>>,
}

impl Future for Pending {
    type Output = Result<Acked, BusError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let partition = self.partition;
        Pin::new(&mut self.answer).poll(context).map(|answer| match answer {
            Ok(Ok(acked)) => Ok(acked),
            Ok(Err(source)) => Err(BusError::Produce { partition, source }),
            Err(_) => Err(BusError::Gone),
        })
    }
}

/// Writes records to one topic. Cheap to clone; has a thread of its own. The end of the last clone purges and may
/// block its thread for half a second.
#[derive(Clone)]
pub struct Producer {
    topic: Arc<str>,
    client: Arc<ThreadedProducer<Acknowledgements>>,
    permits: Arc<Semaphore>,
    limit: usize,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Producer {
    /// Makes the client; nothing is connected yet.
    ///
    /// # Errors
    /// [`BusError::Client`].
    pub fn new(
        connection: &Connection,
        topic: &str,
        settings: ProducerSettings,
    ) -> Result<Self, BusError> {
        Self::make(connection, topic, settings, None)
    }

    /// The same with a witness of its acknowledgements.
    ///
    /// # Errors
    /// [`BusError::Client`].
    pub fn witnessed(
        connection: &Connection,
        topic: &str,
        settings: ProducerSettings,
        witness: Witness,
    ) -> Result<Self, BusError> {
        Self::make(connection, topic, settings, Some(witness))
    }

    fn make(
        connection: &Connection,
        topic: &str,
        settings: ProducerSettings,
        witness: Option<Witness>,
    ) -> Result<Self, BusError> {
        let mut config = connection.client_config();
        for (name, value) in CONFIG {
            config.set(name, value);
        }
        config.set("linger.ms", settings.linger.as_millis().to_string());
        config.set("batch.num.messages", settings.batch_records.max(1).to_string());
        config.set("message.max.bytes", settings.max_message_bytes.to_string());
        // Our own bound comes first; the client's must only not be below it.
        config.set("queue.buffering.max.messages", settings.max_in_flight.max(1).to_string());
        config.set("queue.buffering.max.kbytes", settings.max_queued_kbytes.max(1).to_string());
        let client =
            config.create_with_context(Acknowledgements(witness)).map_err(BusError::Client)?;
        let limit = settings.max_in_flight.max(1) as usize;
        Ok(Self {
            topic: topic.into(),
            client: Arc::new(client),
            permits: Arc::new(Semaphore::new(limit)),
            limit,
        })
    }

    /// Hands a record to the client, waiting only while the bounds are reached; the acknowledgement is awaited on what
    /// it returns. Records of one partition are written in the order in which their `send` returned.
    ///
    /// # Errors
    /// [`BusError::Produce`] when the client refuses it at once (too large, fatal).
    pub async fn send(
        &self,
        partition: i32,
        key: &[u8],
        payload: &[u8],
        headers: &[(&str, &[u8])],
    ) -> Result<Pending, BusError> {
        self.hand_over(partition, key, payload, headers, i64::MIN).await
    }

    /// The same with what the witness is told beside the offset: the highest offset that is known to have been acknowledged
    /// in the partition before now. A log that has lost nothing puts the record behind it.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_above(
        &self,
        partition: i32,
        key: &[u8],
        payload: &[u8],
        floor: i64,
    ) -> Result<Pending, BusError> {
        self.hand_over(partition, key, payload, &[], floor).await
    }

    async fn hand_over(
        &self,
        partition: i32,
        key: &[u8],
        payload: &[u8],
        headers: &[(&str, &[u8])],
        floor: i64,
    ) -> Result<Pending, BusError> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| BusError::Gone)?;
        let (answer, receiver) = oneshot::channel();
        let under_way = Box::new(UnderWay { answer, permit, floor });
        let mut record = BaseRecord::with_opaque_to(&self.topic, under_way)
            .partition(partition)
            .key(key)
            .payload(payload);
        if !headers.is_empty() {
            let mut owned = OwnedHeaders::new_with_capacity(headers.len());
            for &(key, value) in headers {
                owned = owned.insert(Header { key, value: Some(value) });
            }
            record = record.headers(owned);
        }
        loop {
            match self.client.send(record) {
                Ok(()) => return Ok(Pending { partition, answer: receiver }),
                Err((source, refused)) => {
                    if source.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                        return Err(BusError::Produce { partition, source });
                    }
                    record = refused;
                    tokio::time::sleep(FULL_PAUSE).await;
                }
            }
        }
    }

    /// Throws out what is queued and not yet on the wire, each of these records fails with [`BusError::is_purged`], and
    /// lets what is on the wire be answered.
    pub fn purge_queued(&self) {
        self.client.purge(PurgeConfig::default().queue());
    }

    /// Records queued or on the wire.
    pub fn in_flight(&self) -> usize {
        // Not the client's own count: that includes reports of acknowledged records.
        self.limit - self.permits.available_permits()
    }

    /// Whether a broker answers this client, within a second. One that is not answered [`crate::FORGOTTEN`] times in
    /// a row while [`crate::Admin`] is has to be replaced: librdkafka (2.10 to 2.13, its issue 5301) may forget all
    /// brokers for good.
    pub async fn is_answered(&self) -> bool {
        let (client, topic) = (self.client.clone(), self.topic.clone());
        let ask = move || client.client().fetch_metadata(Some(&topic), REACH_LIMIT).is_ok();
        tokio::task::spawn_blocking(ask).await.unwrap_or(false)
    }

    /// Why this client can never write again, if so: the broker does not know its sequence any more, or fenced it.
    pub fn fatal(&self) -> Option<BusError> {
        let (code, _) = self.client.client().fatal_error()?;
        Some(BusError::Fatal(KafkaError::MessageProduction(code)))
    }
}
