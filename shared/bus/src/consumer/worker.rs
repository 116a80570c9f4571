//! The consumer's thread: polls, assigns, reads, drains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::client::{self, Client, Rebalance, Rebalances};
use super::{Batch, ConsumerSettings, Event, RawRecord, Shared};
use crate::{BusError, Connection, FORGOTTEN, REACH_LIMIT};

/// The thread looks around at least so often, bell or not.
const IDLE: Duration = Duration::from_millis(100);
/// Client events (rebalances, errors, log lines) served per turn.
const CLIENT_EVENTS: usize = 16;
/// Between two changes of the client's assignment, for its partitions to stop: librdkafka before 2.15 ends the process
/// when it is told to stop one that is stopping (its issue 5573).
const STOPPING: Duration = Duration::from_millis(100);
/// Between two questions of a client without partitions whether it still knows a broker.
const REACH_INTERVAL: Duration = Duration::from_secs(5);

/// One assigned partition.
struct Partition {
    reading: Reading,
    /// The client has only partitions that are read: one that stood anywhere else would ask the broker where that is,
    /// and an answer that comes after the start moves it there (librdkafka 2.12: an outdated answer to an offset query
    /// begins the query anew, also behind a seek).
    queue: Option<PartitionQueue<Rebalances>>,
}

/// Where a partition is read; `start` is the number of the caller's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Not started, or stands still.
    No,
    /// The offset wanted next.
    From { start: u64, next: i64 },
    /// The log has nothing at `wanted`; the caller has not been told yet.
    OutOfRange { start: u64, wanted: i64 },
}

/// What happens when the partitions are drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Unassign,
    Close,
}

pub(super) struct Worker {
    connection: Connection,
    client: Arc<Client>,
    settings: ConsumerSettings,
    shared: Arc<Shared>,
    control: mpsc::Sender<Event>,
    records: mpsc::Sender<Batch>,
    ended: Option<oneshot::Sender<()>>,
    partitions: BTreeMap<i32, Partition>,
    draining: Option<(Instant, After)>,
    /// The assignment is not changed before this.
    change_at: Instant,
    ask_at: Instant,
    /// Questions in a row that this client got no answer to while another one did.
    unanswered: u32,
    /// The client before this one, ending.
    former: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The queues hold the client: first they, then it. Its end leaves the group.
        self.partitions.clear();
        self.await_stops();
        self.client.context().close();
    }
}

impl Worker {
    pub(super) fn new(
        connection: Connection,
        client: Arc<Client>,
        settings: ConsumerSettings,
        shared: Arc<Shared>,
        control: mpsc::Sender<Event>,
        records: mpsc::Sender<Batch>,
        ended: oneshot::Sender<()>,
    ) -> Self {
        let ended = Some(ended);
        Self {
            connection,
            client,
            settings,
            shared,
            control,
            records,
            ended,
            partitions: BTreeMap::new(),
            draining: None,
            change_at: Instant::now(),
            ask_at: Instant::now() + REACH_INTERVAL,
            unanswered: 0,
            former: None,
        }
    }

    pub(super) fn run(mut self) {
        while self.turn() {}
        let ended = self.ended.take();
        drop(self);
        if let Some(ended) = ended {
            let _ = ended.send(());
        }
    }

    /// One look at everything; `false` at the end.
    fn turn(&mut self) -> bool {
        // Always so many: a poll does not tell whether it served something, and the bell rings only once for all.
        for _ in 0..CLIENT_EVENTS {
            match self.client.poll(Duration::ZERO) {
                Some(Err(error)) if !self.client_error(&error) => return false,
                // A record beside the partition queues would be of an assignment that is over.
                Some(_) | None => {}
            }
            if let Some(rebalance) = self.client.context().take() {
                self.rebalance(rebalance);
            }
        }
        if !self.orders() || !self.drained() {
            return false;
        }
        self.reach();
        match self.read() {
            Read::Something => {}
            Read::Nothing => self.shared.wait(self.patience()),
        }
        true
    }

    /// How long nothing can happen without the bell.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let change = (self.change_at > now).then_some(self.change_at);
        let next = change.into_iter().chain(self.draining.map(|(until, _)| until)).min();
        next.map_or(IDLE, |next| next.saturating_duration_since(now)).min(IDLE)
    }

    /// A client that has no partitions, as one that has lost the brokers soon has none (its session ends), is asked now
    /// and then whether it reaches any; one that does not while another client does is replaced.
    ///
    /// librdkafka (2.10 to 2.13, its issue 5301) forgets all brokers when one answers that there are none, as in the
    /// moment in which all are fenced, and may never look for them again.
    fn reach(&mut self) {
        if !self.partitions.is_empty() || Instant::now() < self.ask_at {
            return;
        }
        // It may block: nothing is read, and the group does not need this thread so soon.
        let reached = self.client.fetch_metadata(Some(&self.settings.topic), REACH_LIMIT);
        self.ask_at = Instant::now() + REACH_INTERVAL;
        let others = std::mem::take(&mut self.shared.desk().answered);
        match reached {
            Ok(_) => self.unanswered = 0,
            Err(_) if others => self.unanswered += 1,
            // Nobody is answered.
            Err(_) => {}
        }
        // One after the other: a client that hangs at its end must not become many.
        if self.unanswered < FORGOTTEN || self.former.as_ref().is_some_and(|old| !old.is_finished())
        {
            return;
        }
        self.unanswered = 0;
        match client::subscribe(&self.connection, &self.settings, &self.shared) {
            Ok(new) => {
                tracing::warn!("kafka consumer has lost the brokers that others reach: a new one");
                let old = std::mem::replace(&mut self.client, new);
                old.context().close();
                let end = std::thread::Builder::new().name("laneway-bus-end".to_owned());
                self.former = end.spawn(move || drop(old)).ok();
            }
            Err(error) => tracing::warn!(%error, "no new kafka consumer"),
        }
    }

    fn rebalance(&mut self, rebalance: Rebalance) {
        match rebalance {
            Rebalance::Assign(partitions) => self.assign(partitions),
            Rebalance::Revoke if self.partitions.is_empty() => self.unassign(),
            Rebalance::Revoke => self.drain(After::Unassign),
            Rebalance::Lost => {
                let lost = self.stop_reading();
                self.unassign();
                if !lost.is_empty() {
                    self.tell(Event::Lost(lost));
                }
            }
        }
    }

    fn assign(&mut self, partitions: Vec<i32>) {
        // Nothing is revoked when the group changes while the client has nothing to read, as between an assignment and
        // the first start.
        let before = self.stop_reading();
        if !before.is_empty() {
            self.clear();
            self.tell(Event::Lost(before));
        }
        let waiting = |&partition| (partition, Partition { reading: Reading::No, queue: None });
        self.partitions = partitions.iter().map(waiting).collect();
        self.place();
        self.tell(Event::Assigned(partitions));
    }

    /// Gives the client the partitions that are read, each from where it is read next. What was read ahead of them is
    /// dropped: the client counts it as of an assignment that is over.
    fn place(&mut self) {
        self.await_stops();
        let mut list = TopicPartitionList::new();
        let topic = &self.settings.topic;
        for (&number, partition) in &mut self.partitions {
            // An old queue goes first: its end silences the bell of the new one.
            partition.queue = None;
            let Reading::From { next, .. } = partition.reading else { continue };
            // Split before the assignment: so no record can come by the common queue.
            partition.queue = self.client.split_partition_queue(topic, number).map(|mut queue| {
                let bell = self.shared.clone();
                queue.set_nonempty_callback(move || bell.wake());
                queue
            });
            let added = list.add_partition_offset(topic, number, Offset::Offset(next));
            added.expect("a position is an offset");
        }
        if let Err(error) = self.client.assign(&list) {
            tracing::warn!(%error, "assignment refused by the client");
        }
    }

    /// Waits until what the last change of the assignment stopped has stopped.
    fn await_stops(&mut self) {
        std::thread::sleep(self.change_at.saturating_duration_since(Instant::now()));
        self.change_at = Instant::now() + STOPPING;
    }

    /// Nothing is left of the partitions, nor of what the caller wants of them.
    fn clear(&mut self) {
        self.partitions.clear();
        let mut desk = self.shared.desk();
        desk.starts.clear();
        desk.commits.clear();
        desk.paused.clear();
    }

    fn unassign(&mut self) {
        self.clear();
        self.await_stops();
        if let Err(error) = self.client.unassign() {
            tracing::warn!(%error, "unassignment refused by the client");
        }
    }

    /// Reads no more and gives the partitions there were.
    fn stop_reading(&mut self) -> Vec<i32> {
        if matches!(self.draining.take(), Some((_, After::Close))) {
            // What ends a drain does not end the wish to leave.
            self.shared.desk().leave = true;
        }
        for partition in self.partitions.values_mut() {
            partition.reading = Reading::No;
        }
        self.partitions.keys().copied().collect()
    }

    fn drain(&mut self, after: After) {
        let partitions = self.stop_reading();
        self.shared.desk().released = false;
        self.draining = Some((Instant::now() + self.settings.release_limit, after));
        self.tell(Event::Revoked(partitions));
    }

    /// Ends a drain that is over; `false` when the client is to be closed.
    fn drained(&mut self) -> bool {
        let Some((until, after)) = self.draining else { return true };
        let released = self.shared.desk().released;
        if !released && Instant::now() < until {
            return true;
        }
        if !released {
            tracing::warn!(limit = ?self.settings.release_limit, "partitions given up unreleased");
        }
        self.draining = None;
        self.commit();
        self.unassign();
        after == After::Unassign
    }

    /// Does what the caller wants; `false` when there is nothing more to do.
    fn orders(&mut self) -> bool {
        let (leave, abandoned) = {
            let mut desk = self.shared.desk();
            (std::mem::take(&mut desk.leave), desk.abandoned && self.ended_unheard())
        };
        if abandoned {
            return false;
        }
        if leave {
            if self.partitions.is_empty() {
                return false;
            }
            match &mut self.draining {
                Some((_, after)) => *after = After::Close,
                None => self.drain(After::Close),
            }
        }
        self.commit();
        if self.draining.is_none() {
            self.start();
        }
        true
    }

    /// Whether nobody waits for the end: the caller dropped its end without leaving.
    fn ended_unheard(&self) -> bool {
        self.ended.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn start(&mut self) {
        // Those that come meanwhile go together.
        if Instant::now() < self.change_at {
            return;
        }
        let starts = std::mem::take(&mut self.shared.desk().starts);
        let mut started = false;
        for (number, (start, offset)) in starts {
            if let Some(partition) = self.partitions.get_mut(&number) {
                partition.reading = Reading::From { start, next: offset };
                started = true;
            }
        }
        if started {
            self.place();
        }
    }

    fn commit(&mut self) {
        let commits = std::mem::take(&mut self.shared.desk().commits);
        let mut list = TopicPartitionList::new();
        for (partition, offset) in commits {
            if self.partitions.contains_key(&partition) {
                let offset = Offset::Offset(offset);
                let _ = list.add_partition_offset(&self.settings.topic, partition, offset);
            }
        }
        if list.count() > 0
            && let Err(error) = self.client.commit(&list, CommitMode::Async)
        {
            tracing::debug!(%error, "advisory commit failed");
        }
    }

    /// Hands one batch of each partition to the caller, as far as there is room.
    fn read(&mut self) -> Read {
        let mut read = Read::Nothing;
        for (&number, partition) in &mut self.partitions {
            if partition.reading == Reading::No || self.shared.desk().paused.contains(&number) {
                continue;
            }
            // Room first: what is taken from the client must have a place.
            let Ok(room) = self.records.try_reserve() else { break };
            let (start, event) = match partition.reading {
                Reading::No => continue,
                Reading::OutOfRange { start, wanted } => {
                    partition.reading = Reading::No;
                    (start, Event::OffsetOutOfRange { partition: number, wanted })
                }
                Reading::From { start, next } => {
                    let Some(queue) = &partition.queue else { continue };
                    let (records, end) = take(queue, &self.settings, next);
                    let next = records.last().map_or(next, |last| last.offset + 1);
                    partition.reading = match end {
                        End::Error(
                            RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::LogTruncation,
                        ) => Reading::OutOfRange { start, wanted: next },
                        End::Error(code) => {
                            tracing::debug!(partition = number, %code, "reading failed, goes on");
                            Reading::From { start, next }
                        }
                        End::Empty | End::Full => Reading::From { start, next },
                    };
                    if !matches!(end, End::Empty) {
                        read = Read::Something;
                    }
                    if records.is_empty() {
                        continue;
                    }
                    (start, Event::Records(records))
                }
            };
            room.send(Batch { partition: number, start, event });
            read = Read::Something;
        }
        read
    }

    /// `false` when the client is dead.
    fn client_error(&self, error: &KafkaError) -> bool {
        let fatal = self.client.client().fatal_error();
        if let Some((code, reason)) = fatal {
            tracing::error!(%code, reason, "kafka consumer ended for good");
            self.tell(Event::Fatal(BusError::Fatal(KafkaError::MessageConsumptionFatal(code))));
            return false;
        }
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                self.tell(Event::TopicGone);
            }
            _ => tracing::debug!(%error, "kafka consumer reports an error, goes on"),
        }
        true
    }

    fn tell(&self, event: Event) {
        // Nobody listening: the caller has gone, the next turn ends.
        let _ = self.control.blocking_send(event);
    }
}

enum Read {
    Something,
    Nothing,
}

/// Why a batch ended.
enum End {
    Empty,
    Full,
    Error(RDKafkaErrorCode),
}

/// Takes records from offset `next` on, up to a batch.
fn take(
    queue: &PartitionQueue<Rebalances>,
    settings: &ConsumerSettings,
    next: i64,
) -> (Vec<RawRecord>, End) {
    let mut records = Vec::new();
    let (mut bytes, mut next) = (0, next);
    while records.len() < settings.batch_records && bytes < settings.batch_bytes {
        match queue.poll(Duration::ZERO) {
            None => return (records, End::Empty),
            Some(Err(error)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                return (records, End::Error(code));
            }
            // Of a compressed batch in which the start lies.
            Some(Ok(message)) if message.offset() < next => {}
            Some(Ok(message)) => {
                let key = Bytes::copy_from_slice(message.key().unwrap_or_default());
                let value = Bytes::copy_from_slice(message.payload().unwrap_or_default());
                bytes += key.len() + value.len();
                next = message.offset() + 1;
                records.push(RawRecord {
                    partition: message.partition(),
                    offset: message.offset(),
                    key,
                    value,
                    timestamp: message.timestamp().to_millis(),
                });
            }
        }
    }
    (records, End::Full)
}
