//! The rdkafka side of a consumer: its settings, and the rebalance callback, which only writes down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::types::RDKafkaRespErr;

use super::{ConsumerSettings, Shared};
use crate::{BusError, Connection};

/// The rest follows from the settings.
const CONFIG: [(&str, &str); 9] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // Never a silent jump: a position outside the log is an error.
    ("auto.offset.reset", "error"),
    ("partition.assignment.strategy", "range"),
    ("group.protocol", "classic"),
    ("allow.auto.create.topics", "false"),
    ("enable.partition.eof", "false"),
    ("fetch.wait.max.ms", "100"),
    // A topic that was made again is found soon.
    ("topic.metadata.refresh.interval.ms", "5000"),
];
/// Fewer heartbeats than this per session would let one lost packet end it.
const HEARTBEATS_PER_SESSION: u32 = 5;

pub(super) type Client = BaseConsumer<Rebalances>;

/// What the group wants of this member.
#[derive(Debug)]
pub(super) enum Rebalance {
    Assign(Vec<i32>),
    Revoke,
    Lost,
}

/// Keeps the rebalance that the worker has not acted on yet.
///
/// The callback acts on nothing itself: librdkafka waits for assign or unassign, which the worker calls when it is
/// ready, and the thread goes on polling meanwhile.
#[derive(Debug, Default)]
pub(super) struct Rebalances {
    pending: Mutex<Option<Rebalance>>,
    closing: AtomicBool,
}

impl Rebalances {
    pub(super) fn take(&self) -> Option<Rebalance> {
        self.pending.lock().expect("no rebalance panicked").take()
    }

    /// From now on revocations are acted on at once: the client is being closed, nobody waits for the caller.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }
}

impl ClientContext for Rebalances {}

impl ConsumerContext for Rebalances {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        what: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        if self.closing.load(Ordering::Acquire) {
            let _ = consumer.unassign();
            return;
        }
        let rebalance = match what {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                let elements = partitions.elements();
                Rebalance::Assign(elements.iter().map(|element| element.partition()).collect())
            }
            _ if consumer.assignment_lost() => Rebalance::Lost,
            _ => Rebalance::Revoke,
        };
        *self.pending.lock().expect("no rebalance panicked") = Some(rebalance);
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "advisory commit failed");
        }
    }
}

/// Makes the client and joins the group.
pub(super) fn subscribe(
    connection: &Connection,
    settings: &ConsumerSettings,
    shared: &Arc<Shared>,
) -> Result<Arc<Client>, BusError> {
    let millis = |duration: Duration| duration.as_millis().max(1).to_string();
    let mut config = connection.client_config();
    for (name, value) in CONFIG {
        config.set(name, value);
    }
    config.set("group.id", &settings.group);
    if let Some(instance) = &settings.instance {
        config.set("group.instance.id", instance);
    }
    config.set("session.timeout.ms", millis(settings.session_timeout));
    config.set("heartbeat.interval.ms", millis(settings.session_timeout / HEARTBEATS_PER_SESSION));
    config.set("max.poll.interval.ms", millis(settings.max_poll_interval));
    // Partitions have queues of their own, so this bound is per partition.
    config.set("queued.max.messages.kbytes", settings.prefetch_kbytes.max(1).to_string());
    let mut client: Client =
        config.create_with_context(Rebalances::default()).map_err(BusError::Client)?;
    let bell = shared.clone();
    client.set_nonempty_callback(move || bell.wake());
    client.subscribe(&[&settings.topic]).map_err(BusError::Client)?;
    Ok(Arc::new(client))
}
