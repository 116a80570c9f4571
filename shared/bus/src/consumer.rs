//! Reading partitions that the group assigns, from offsets that the caller gives (design 5.3, "Client rules").
//!
//! The client runs on a thread of its own, which always polls, whatever the caller does. It sends [`Event`]s; the
//! caller gives [`Command`]s, which never block. The protocol:
//!
//! 1. [`Event::Assigned`]: Kafka proposes these partitions. Nothing is read. The caller takes each over in PostgreSQL,
//!    in its own time, and then gives [`Command::Start`] with the position it found there.
//! 2. [`Event::Records`] follow, offsets strictly increasing from the one given (with gaps where the log has some).
//! 3. [`Event::Revoked`]: nothing more is read. The caller drains, settles, releases, and says [`Command::Released`];
//!    only then (or after `release_limit`) may others have the partitions. [`Event::Lost`]: others may have them
//!    already; there is nothing to say.
//!
//! No offset is ever chosen here: a position outside the log is [`Event::OffsetOutOfRange`] and the partition stands
//! still until it is started anew. When the caller does not take records, reading stops when the bounds are reached
//! and the membership in the group goes on. A client that has forgotten the brokers is replaced by a new one.

mod client;
mod watch;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::{Admin, BusError, Connection};

/// Events other than records that may wait for the caller; a handful in practice.
const CONTROL_EVENTS: usize = 256;

/// How a consumer behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSettings {
    /// The consumer group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// Static membership: a member that comes back under this name within the session gets its partitions back
    /// without a rebalance. Unique among the living members. `None`: each start is a new member.
    pub instance: Option<String>,
    /// Without a sign of life for so long a member is out.
    pub session_timeout: Duration,
    /// A thread that hangs for so long is out; far longer than `release_limit`.
    pub max_poll_interval: Duration,
    /// How long [`Event::Revoked`] waits for [`Command::Released`].
    pub release_limit: Duration,
    /// Records read ahead per partition, KiB.
    pub prefetch_kbytes: u32,
    /// Records in one [`Event::Records`] at most.
    pub batch_records: usize,
    /// Bytes (keys and values) in one [`Event::Records`] at most, but at least one record.
    pub batch_bytes: usize,
    /// Batches that wait for the caller at most.
    pub batches: usize,
    /// Between two looks at the topic's incarnation.
    pub watch_interval: Duration,
    /// The incarnation that the caller's positions belong to; `None`: the one found at the first look.
    pub incarnation: Option<Uuid>,
}

impl ConsumerSettings {
    /// The design's defaults (session 45 s).
    pub fn new(group: &str, topic: &str) -> Self {
        Self {
            group: group.to_owned(),
            topic: topic.to_owned(),
            instance: None,
            session_timeout: Duration::from_secs(45),
            max_poll_interval: Duration::from_secs(300),
            release_limit: Duration::from_secs(75),
            prefetch_kbytes: 1024,
            batch_records: 500,
            batch_bytes: 1024 * 1024,
            batches: 16,
            watch_interval: Duration::from_secs(2),
            incarnation: None,
        }
    }
}

/// A record as it is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecord {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its key; empty when it has none.
    pub key: Bytes,
    /// Its value; empty when it has none.
    pub value: Bytes,
    /// When it was written, by the broker's clock (the producer's in topics of earlier versions), Unix milliseconds.
    pub timestamp: Option<i64>,
}

/// What the consumer tells its caller.
#[derive(Debug)]
pub enum Event {
    /// Kafka proposes these partitions: all that this member has from now on.
    Assigned(Vec<i32>),
    /// These partitions are to be given up: drain, then [`Command::Released`].
    Revoked(Vec<i32>),
    /// These partitions were taken away (session lost): others may have them already.
    Lost(Vec<i32>),
    /// Records of one partition, in order.
    Records(Vec<RawRecord>),
    /// The log has no record at the position: it begins later, ends earlier, or was cut. The partition stands still
    /// until it is started anew.
    OffsetOutOfRange {
        /// The partition.
        partition: i32,
        /// The position that was wanted next.
        wanted: i64,
    },
    /// There is no such topic (any more): wait, or make it. Told at least once each time; also while the client has
    /// not heard yet of a topic that was just made.
    TopicGone,
    /// The topic was deleted and made again: positions of before mean nothing in it. Also after [`Event::TopicGone`].
    TopicChanged {
        /// Its incarnation now; `None` when it was made without [`Admin::create_topic`].
        incarnation: Option<Uuid>,
    },
    /// The client cannot go on (another member has this instance name, authorisation): the last event.
    Fatal(BusError),
}

/// What the caller tells the consumer. Commands about partitions that are not assigned are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read this partition from this offset on. Given again, it starts anew: no record of before comes after it, and a
    /// pause is over.
    Start {
        /// The partition.
        partition: i32,
        /// Offset of the first record wanted.
        offset: i64,
    },
    /// Give no records of this partition (what was read ahead is kept).
    Pause {
        /// The partition.
        partition: i32,
    },
    /// End of [`Command::Pause`].
    Resume {
        /// The partition.
        partition: i32,
    },
    /// The answer to [`Event::Revoked`]: the partitions are released.
    Released,
    /// Tell Kafka how far this partition is, for people who look at the lag there; nothing depends on it.
    CommitAdvisory {
        /// The partition.
        partition: i32,
        /// Offset of the next record wanted.
        offset: i64,
    },
    /// Give up everything ([`Event::Revoked`] comes first) and end. With a static membership Kafka keeps the
    /// partitions for this name until the session ends.
    Leave,
}

/// What the caller wants and the thread has not done yet: one value per partition, so that it is bounded.
#[derive(Debug, Default)]
struct Desk {
    // The caller's view, changed when it takes an event.
    assigned: BTreeSet<i32>,
    // The last start of each partition; records of another one are old news.
    started: BTreeMap<i32, u64>,
    next_start: u64,
    // Orders to the thread.
    starts: BTreeMap<i32, (u64, i64)>,
    commits: BTreeMap<i32, i64>,
    paused: BTreeSet<i32>,
    released: bool,
    leave: bool,
    abandoned: bool,
    // Another client of this process has been answered by a broker since the thread last asked.
    answered: bool,
    // Something happened since the thread last looked.
    woken: bool,
}

/// The desk and the bell on it.
#[derive(Debug, Default)]
struct Shared {
    desk: Mutex<Desk>,
    bell: Condvar,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect("no holder of the desk panicked")
    }

    fn wake(&self) {
        self.desk().woken = true;
        self.bell.notify_one();
    }

    /// Waits for the bell, at most `limit`.
    fn wait(&self, limit: Duration) {
        let desk = self.desk();
        let (mut desk, _) = self
            .bell
            .wait_timeout_while(desk, limit, |desk| !desk.woken)
            .expect("no holder of the desk panicked");
        desk.woken = false;
    }
}

/// Records of one start of one partition.
#[derive(Debug)]
struct Batch {
    partition: i32,
    start: u64,
    event: Event,
}

/// The caller's end of a consumer: commands. Dropped without [`Consumer::leave`] it ends without draining.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    ended: Option<oneshot::Receiver<()>>,
    _watch: watch::Watch,
}

/// The caller's end of a consumer: events.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
    control: mpsc::Receiver<Event>,
    records: mpsc::Receiver<Batch>,
}

impl Consumer {
    /// Starts the thread and joins the group. Has to be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BusError::Client`] when the settings do not go together.
    pub fn start(
        connection: &Connection,
        settings: ConsumerSettings,
    ) -> Result<(Self, Events), BusError> {
        let shared = Arc::new(Shared::default());
        let (control_sender, control) = mpsc::channel(CONTROL_EVENTS);
        let (records_sender, records) = mpsc::channel(settings.batches.max(1));
        let (ended_sender, ended) = oneshot::channel();
        let client = client::subscribe(connection, &settings, &shared)?;
        let watch = watch::Watch::start(
            Admin::new(connection)?,
            &settings,
            shared.clone(),
            control_sender.clone().downgrade(),
        );
        let worker = worker::Worker::new(
            connection.clone(),
            client,
            settings,
            shared.clone(),
            control_sender,
            records_sender,
            ended_sender,
        );
        std::thread::Builder::new()
            .name("laneway-bus".to_owned())
            .spawn(move || worker.run())
            .map_err(|_| BusError::Gone)?;
        let consumer = Self { shared: shared.clone(), ended: Some(ended), _watch: watch };
        Ok((consumer, Events { shared, control, records }))
    }

    /// Gives a command; never blocks. It is acted on within milliseconds.
    pub fn command(&self, command: Command) {
        let mut desk = self.shared.desk();
        match command {
            Command::Start { partition, offset } => {
                if desk.assigned.contains(&partition) {
                    desk.next_start += 1;
                    let start = desk.next_start;
                    desk.started.insert(partition, start);
                    desk.starts.insert(partition, (start, offset));
                    // Who starts anew may know nothing of a pause: nobody would end it.
                    desk.paused.remove(&partition);
                }
            }
            Command::Pause { partition } => {
                if desk.assigned.contains(&partition) {
                    desk.paused.insert(partition);
                }
            }
            Command::Resume { partition } => {
                desk.paused.remove(&partition);
            }
            Command::Released => desk.released = true,
            Command::CommitAdvisory { partition, offset } => {
                desk.commits.insert(partition, offset);
            }
            Command::Leave => desk.leave = true,
        }
        drop(desk);
        self.shared.wake();
    }

    /// [`Command::Leave`], then waits until the client has left the group. Events have to be taken meanwhile.
    pub async fn leave(mut self) {
        self.command(Command::Leave);
        if let Some(ended) = self.ended.take() {
            let _ = ended.await;
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.desk().abandoned = true;
        self.shared.wake();
    }
}

impl Events {
    /// The next event; assignments and the like come before records that wait. `None` when the client has ended.
    ///
    /// Cancelling it loses nothing.
    pub async fn recv(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                biased;
                event = self.control.recv() => return self.took_control(event?),
                batch = self.records.recv() => {
                    // The thread may be waiting for room.
                    self.shared.wake();
                    match batch {
                        Some(batch) => if let Some(event) = self.took_batch(batch) {
                            return Some(event);
                        },
                        None => {
                            let event = self.control.recv().await?;
                            return self.took_control(event);
                        }
                    }
                }
            }
        }
    }

    /// The next event that is not [`Event::Records`] or [`Event::OffsetOutOfRange`]: for a caller that cannot take
    /// records now. Reading stops when the bounds are reached, and goes on with [`Events::recv`].
    ///
    /// Cancelling it loses nothing.
    pub async fn recv_control(&mut self) -> Option<Event> {
        let event = self.control.recv().await?;
        self.took_control(event)
    }

    fn took_control(&self, event: Event) -> Option<Event> {
        let mut desk = self.shared.desk();
        match &event {
            Event::Assigned(partitions) => {
                desk.assigned = partitions.iter().copied().collect();
                desk.started.clear();
            }
            Event::Revoked(_) | Event::Lost(_) | Event::Fatal(_) => {
                desk.assigned.clear();
                desk.started.clear();
            }
            _ => {}
        }
        Some(event)
    }

    fn took_batch(&self, batch: Batch) -> Option<Event> {
        let current = self.shared.desk().started.get(&batch.partition).copied();
        (current == Some(batch.start)).then_some(batch.event)
    }
}
