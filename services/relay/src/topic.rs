//! The topic that is written to now, and the watch over it: its generation, its marks, whether the log still has what
//! was acknowledged (design section 4, "Loss of the log").

use crate::Error;
use crate::config::Relay;
use crate::metrics::Metrics;
use laneway_bus::{Admin, BusError, Connection, FORGOTTEN, Producer, ProducerSettings, Witness};
use laneway_lane::relay::{Suspicions, is_lost, losses};
use laneway_platform::admin::Probe;
use laneway_platform::clock;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::topology::{self, BucketMap, Generation, Reason};
use laneway_wire::Bucket;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OnceCell, watch};
use tokio_util::sync::CancellationToken;

/// Topics that were replaced and whose records on the wire are not all answered: so many are kept, and so long.
const MAX_LEAVING: usize = 4;
const LEAVING_LIMIT: Duration = Duration::from_secs(60);
/// Looks that may fail or be late before the process counts as not ready, and what one may take.
const MISSED_LOOKS: u32 = 3;
const READY_SLACK: Duration = Duration::from_secs(3);

/// One generation of the topic, with a producer of its own and the marks as this process knows them.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) generation: u64,
    pub(crate) partitions: u32,
    pub(crate) map: BucketMap,
    pub(crate) producer: Producer,
    marks: Arc<Marks>,
    desk: Arc<Desk>,
    /// For records whose batch was refused for its size, each in a batch of its own; made when the first comes.
    alone: OnceCell<Producer>,
    connection: Connection,
    name: String,
}

impl Topic {
    /// The partition that a bucket is in.
    pub(crate) fn partition(&self, bucket: Bucket) -> u32 {
        self.map.partitions.get(usize::from(bucket.number())).copied().unwrap_or(0)
    }

    /// Its producers.
    fn producers(&self) -> impl Iterator<Item = &Producer> {
        [Some(&self.producer), self.alone.get()].into_iter().flatten()
    }

    /// Whether records wait in a producer that no broker answers.
    async fn unanswered(&self) -> bool {
        for producer in self.producers() {
            if producer.in_flight() > 0 && !producer.is_answered().await {
                return true;
            }
        }
        false
    }

    /// The producer that puts every record in a batch of its own.
    pub(crate) async fn alone(&self) -> Result<&Producer, BusError> {
        let made = || async {
            let settings = ProducerSettings { batch_records: 1, ..ProducerSettings::default() };
            let witness = witness(self.generation, &self.marks, &self.desk);
            Producer::witnessed(&self.connection, &self.name, settings, witness)
        };
        self.alone.get_or_try_init(made).await
    }

    /// The mark as known now: read it before a record is handed to the producer, and compare its acknowledgement with this
    /// and no later one.
    pub(crate) fn mark(&self, partition: u32) -> i64 {
        self.marks.get(partition)
    }

    /// Takes over what the control database answered.
    pub(crate) fn marks_seen(&self, seen: &[(u32, i64)]) {
        self.marks.raise(seen.iter().copied());
    }

    /// Reads the marks: others raise them too, and what they have had acknowledged can be lost as well. Before the first
    /// record of a page.
    pub(crate) async fn marks_refresh(&self, control: &Pool) -> Result<(), laneway_store::Error> {
        let marks = topology::marks(control, self.generation, self.partitions).await?;
        self.marks.raise((0u32..).zip(marks));
        Ok(())
    }
}

/// By partition the highest offset that is known to be acknowledged: the marks as they were read, and what this process has
/// had acknowledged since.
#[derive(Debug)]
struct Marks(Mutex<Vec<i64>>);

impl Marks {
    fn get(&self, partition: u32) -> i64 {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.get(partition as usize).copied().unwrap_or(-1)
    }

    fn raise(&self, seen: impl IntoIterator<Item = (u32, i64)>) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (partition, mark) in seen {
            if let Some(known) = marks.get_mut(partition as usize) {
                *known = (*known).max(mark);
            }
        }
    }
}

/// What the watch is told, by shards and by the producers' threads. Nothing of it is forgotten before it is dealt with.
#[derive(Debug, Default)]
struct Desk {
    told: Mutex<Told>,
    look: Notify,
}

#[derive(Debug, Default)]
struct Told {
    lost: Suspicions,
    /// The latest generation whose producer failed.
    failed: Option<u64>,
}

impl Desk {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares every acknowledgement of a generation's producers: of shards too that have begun anew meanwhile.
fn witness(generation: u64, marks: &Arc<Marks>, desk: &Arc<Desk>) -> Witness {
    let (marks, desk) = (marks.clone(), desk.clone());
    Box::new(move |acked, floor| {
        let Ok(partition) = u32::try_from(acked.partition) else { return };
        if is_lost(floor, acked.offset) {
            desk.told().lost.add(generation, partition, acked.offset);
            desk.look.notify_one();
        }
        marks.raise([(partition, acked.offset)]);
    })
}

/// The present topic, for everybody who writes.
#[derive(Debug, Clone)]
pub(crate) struct Topics {
    current: watch::Receiver<Arc<Topic>>,
    desk: Arc<Desk>,
}

impl Topics {
    pub(crate) fn current(&self) -> Arc<Topic> {
        self.current.borrow().clone()
    }

    /// Says that a producer failed, perhaps because the log was lost; it needs a successor in any case.
    pub(crate) fn failed(&self, generation: u64) {
        let mut told = self.desk.told();
        told.failed = told.failed.max(Some(generation));
        drop(told);
        self.look();
    }

    /// Has the watch look now.
    pub(crate) fn look(&self) {
        self.desk.look.notify_one();
    }

    /// Waits until a later generation than `known`'s is present, at most for `limit`.
    pub(crate) async fn changed_within(&self, known: &Topic, limit: Duration) {
        let mut current = self.current.clone();
        let later = current.wait_for(|topic| topic.generation > known.generation);
        // Late or not: the caller looks at the present topic again.
        let _ = tokio::time::timeout(limit, later).await;
    }

    /// Resolves when `known` is not the present topic any more.
    pub(crate) async fn changed(&self, known: &Arc<Topic>) {
        let mut current = self.current.clone();
        if current.wait_for(|topic| !Arc::ptr_eq(topic, known)).await.is_err() {
            // The watch has ended, the service is stopping.
            std::future::pending::<()>().await;
        }
    }
}

/// What a look found of the log.
enum Found {
    /// All that was acknowledged.
    Whole,
    /// A loss; this is the generation that follows.
    Raised(Generation),
    /// No topic, or another than it was set up for: somebody has to make it.
    Unusable,
}

/// Looks at the topic and its generation, and raises the generation when the log was lost.
#[derive(Debug)]
pub(crate) struct Watch {
    control: Pool,
    connection: Connection,
    admin: Admin,
    topic: String,
    interval: Duration,
    linger: Duration,
    metrics: Arc<Metrics>,
    /// Ready as long as looks find the topic and the control database.
    probe: Probe,
    current: watch::Sender<Arc<Topic>>,
    desk: Arc<Desk>,
    /// Replaced topics and since when: what they have on the wire is still compared.
    leaving: VecDeque<(Duration, Arc<Topic>)>,
    /// Looks in a row that were answered while the producer was not.
    unanswered: u32,
}

impl Watch {
    /// Reads the topology, which exists, and makes the first producer.
    pub(crate) async fn start(
        control: Pool,
        connection: Connection,
        admin: Admin,
        generation: &Generation,
        settings: &Relay,
        metrics: Arc<Metrics>,
        probe: Probe,
    ) -> Result<(Self, Topics), Error> {
        let desk = Arc::new(Desk::default());
        let first = topic(&control, &connection, settings.linger, generation, &desk).await?;
        metrics.generation.set(i64::try_from(first.generation).unwrap_or(i64::MAX));
        let (current, receiver) = watch::channel(Arc::new(first));
        let watch = Self {
            control,
            connection,
            admin,
            topic: generation.topic.clone(),
            interval: settings.watch,
            linger: settings.linger,
            metrics,
            probe,
            current,
            desk: desk.clone(),
            leaving: VecDeque::new(),
            unanswered: 0,
        };
        Ok((watch, Topics { current: receiver, desk }))
    }

    /// Watches until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        // At the start too: what was lost while nobody looked must be seen before the first record is sent.
        loop {
            match self.look().await {
                Ok(true) => self.probe.ready_for(self.interval * MISSED_LOOKS + READY_SLACK),
                Ok(false) => self.probe.not_ready("the topic is not there as it was set up"),
                Err(error) => {
                    self.metrics.error("watch");
                    tracing::warn!(error = %Chain(&error), "the topic cannot be looked at");
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(self.interval) => {}
                () = self.desk.look.notified() => {}
            }
        }
    }

    /// One look, and what follows from it; whether there is a topic that can be written to.
    pub(crate) async fn look(&mut self) -> Result<bool, Error> {
        let now = clock::boottime();
        self.leaving.retain(|(since, topic)| {
            now < *since + LEAVING_LIMIT && topic.producers().any(|of| of.in_flight() > 0)
        });
        let current = self.current.borrow().clone();
        let Some(stored) = topology::generation_current(&self.control).await? else {
            return Ok(false);
        };
        if stored.generation > current.generation
            || topology::map_version(&self.control).await? != current.map.version
        {
            self.install(&stored).await?;
        }
        match self.loss(&stored).await? {
            Found::Whole => {}
            Found::Raised(raised) => {
                self.install(&raised).await?;
                return Ok(true);
            }
            Found::Unusable => return Ok(false),
        }
        let current = self.current.borrow().clone();
        let failed = self.desk.told().failed == Some(current.generation);
        self.unanswered = if current.unanswered().await { self.unanswered + 1 } else { 0 };
        let forgotten = self.unanswered >= FORGOTTEN;
        if forgotten {
            tracing::warn!("the producer has lost the brokers that others reach: a new one");
        }
        if failed || forgotten || current.producer.fatal().is_some() {
            self.install(&stored).await?;
            self.unanswered = 0;
        }
        Ok(true)
    }

    /// Raises the generation if something acknowledged is gone.
    async fn loss(&self, stored: &Generation) -> Result<Found, Error> {
        let suspected = self.suspected().await?;
        // Marks before ends: whatever is acknowledged in between only lies beyond both.
        let marks = topology::marks(&self.control, stored.generation, stored.partitions).await?;
        let Some(found) = self.admin.describe_topic(&self.topic).await? else {
            tracing::error!(topic = %self.topic, "the topic does not exist");
            return Ok(Found::Unusable);
        };
        self.metrics.topic_changed.set(i64::from(found.partitions != stored.partitions));
        if found.partitions < stored.partitions {
            tracing::error!(
                topic = %self.topic, stored = stored.partitions, found = found.partitions,
                "the topic has fewer partitions than it was set up for"
            );
            return Ok(Found::Unusable);
        }
        let topic_id = found.id();
        let recreated = topic_id != stored.topic_id;
        let mut ends = Vec::new();
        if !recreated {
            let offsets = self.admin.all_offsets(&self.topic, stored.partitions).await?;
            ends.extend(offsets.into_iter().map(|(_, end)| end));
        }
        let lost = losses(recreated, &marks, &ends, suspected.lost());
        let reason = if recreated { Reason::Recreated } else { Reason::LogLost };
        if lost.is_empty() {
            return Ok(Found::Whole);
        }
        tracing::error!(
            topic = %self.topic, generation = stored.generation, reason = reason.as_str(), ?lost,
            "acknowledged records are gone, publishing them again"
        );
        let raised =
            topology::generation_raise(&self.control, stored.generation, reason, &topic_id, &lost)
                .await?;
        self.metrics.raised.inc();
        Ok(Found::Raised(raised))
    }

    /// What acknowledgements have shown and no fence covers yet.
    async fn suspected(&self) -> Result<Suspicions, Error> {
        let Some(first) = self.desk.told().lost.first() else { return Ok(Suspicions::default()) };
        let fences = topology::fences_after(&self.control, first).await?;
        let mut told = self.desk.told();
        told.lost.covered_by(&fences);
        Ok(told.lost.clone())
    }

    /// Makes `generation` the present one: with a producer of its own, so that nothing of the old queue follows. What is on
    /// the wire is still answered: it may lie on what was lost.
    async fn install(&mut self, generation: &Generation) -> Result<(), Error> {
        let desk = &self.desk;
        let next = topic(&self.control, &self.connection, self.linger, generation, desk).await?;
        let failed = self.desk.told().failed;
        tracing::info!(
            generation = next.generation,
            map = next.map.version,
            "writing to the topic anew"
        );
        self.metrics.generation.set(i64::try_from(next.generation).unwrap_or(i64::MAX));
        let old = self.current.send_replace(Arc::new(next));
        // The failure that was told of before is of a producer that is gone now.
        self.desk.told().failed.take_if(|of| Some(*of) == failed);
        old.producers().for_each(Producer::purge_queued);
        self.leaving.push_back((clock::boottime(), old));
        if self.leaving.len() > MAX_LEAVING {
            self.leaving.pop_front();
        }
        Ok(())
    }
}

async fn topic(
    control: &Pool,
    connection: &Connection,
    linger: Duration,
    generation: &Generation,
    desk: &Arc<Desk>,
) -> Result<Topic, Error> {
    let marks = topology::marks(control, generation.generation, generation.partitions).await?;
    let map = topology::bucket_map(control).await?;
    let settings = ProducerSettings { linger, ..ProducerSettings::default() };
    let marks = Arc::new(Marks(Mutex::new(marks)));
    let witness = witness(generation.generation, &marks, desk);
    let producer = Producer::witnessed(connection, &generation.topic, settings, witness)?;
    Ok(Topic {
        generation: generation.generation,
        partitions: generation.partitions,
        map,
        producer,
        marks,
        desk: desk.clone(),
        alone: OnceCell::new(),
        connection: connection.clone(),
        name: generation.topic.clone(),
    })
}
