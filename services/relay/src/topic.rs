//! The topic that is written to now, and the watch over it: its generation, its marks, whether the log still has what
//! was acknowledged (design section 4, "Loss of the log").

use crate::Error;
use crate::config::Relay;
use crate::metrics::Metrics;
use laneway_bus::{Admin, BusError, Connection, FORGOTTEN, Producer, ProducerSettings};
use laneway_lane::relay::losses;
use laneway_platform::admin::Probe;
use laneway_platform::service::Chain;
use laneway_store::Pool;
use laneway_store::topology::{self, BucketMap, Generation, Reason};
use laneway_wire::Bucket;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Suspicions that wait to be looked into; more of them would say the same.
const MAX_SUSPICIONS: usize = 64;
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
    marks: Mutex<Vec<i64>>,
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

    /// Whether records wait in a producer that no broker answers.
    async fn unanswered(&self) -> bool {
        for producer in [Some(&self.producer), self.alone.get()].into_iter().flatten() {
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
            Producer::new(&self.connection, &self.name, settings)
        };
        self.alone.get_or_try_init(made).await
    }

    /// The marks as known now: read them before a record is handed to the producer, and compare its acknowledgement
    /// with these and no later ones.
    pub(crate) fn marks(&self) -> Vec<i64> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over what the control database answered.
    pub(crate) fn marks_seen(&self, seen: &[(u32, i64)]) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        for (partition, mark) in seen {
            if let Some(known) = marks.get_mut(*partition as usize) {
                *known = (*known).max(*mark);
            }
        }
    }
}

/// Why the watch should look now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Suspicion {
    /// An acknowledged offset at or below the mark: that part of the log was lost.
    Lost { generation: u64, partition: u32, offset: i64 },
    /// The producer failed, perhaps because the log was lost; it needs a successor in any case.
    Producer { generation: u64 },
    /// Another process has raised the generation.
    Stale,
}

/// The present topic, for everybody who writes.
#[derive(Debug, Clone)]
pub(crate) struct Topics {
    current: watch::Receiver<Arc<Topic>>,
    suspicions: mpsc::Sender<Suspicion>,
}

impl Topics {
    pub(crate) fn current(&self) -> Arc<Topic> {
        self.current.borrow().clone()
    }

    /// Says that something is wrong; the watch looks at once.
    pub(crate) fn suspect(&self, suspicion: Suspicion) {
        // A full queue means that the watch has enough to look into.
        let _ = self.suspicions.try_send(suspicion);
    }

    /// Has the watch look now, without a suspicion of its own.
    pub(crate) fn look(&self) {
        self.suspect(Suspicion::Stale);
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
    suspicions: mpsc::Receiver<Suspicion>,
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
        let first = topic(&control, &connection, settings.linger, generation).await?;
        metrics.generation.set(i64::try_from(first.generation).unwrap_or(i64::MAX));
        let (current, receiver) = watch::channel(Arc::new(first));
        let (sender, suspicions) = mpsc::channel(MAX_SUSPICIONS);
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
            suspicions,
            unanswered: 0,
        };
        Ok((watch, Topics { current: receiver, suspicions: sender }))
    }

    /// Watches until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        // At the start too: what was lost while nobody looked must be seen before the first record is sent.
        let mut suspicions = Vec::new();
        loop {
            match self.look(&suspicions).await {
                Ok(true) => self.probe.ready_for(self.interval * MISSED_LOOKS + READY_SLACK),
                Ok(false) => self.probe.not_ready("the topic is not there as it was set up"),
                Err(error) => {
                    self.metrics.error("watch");
                    tracing::warn!(error = %Chain(&error), "the topic cannot be looked at");
                }
            }
            suspicions.clear();
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(self.interval) => {}
                Some(suspicion) = self.suspicions.recv() => {
                    suspicions.push(suspicion);
                    while let Ok(more) = self.suspicions.try_recv() {
                        suspicions.push(more);
                    }
                }
            }
        }
    }

    /// One look, and what follows from it; whether there is a topic that can be written to.
    pub(crate) async fn look(&mut self, suspicions: &[Suspicion]) -> Result<bool, Error> {
        let current = self.current.borrow().clone();
        let Some(stored) = topology::generation_current(&self.control).await? else {
            return Ok(false);
        };
        if stored.generation > current.generation
            || topology::map_version(&self.control).await? != current.map.version
        {
            self.install(&stored).await?;
            return Ok(true);
        }
        match self.loss(&stored, suspicions).await? {
            Found::Whole => {}
            Found::Raised(raised) => {
                self.install(&raised).await?;
                return Ok(true);
            }
            Found::Unusable => return Ok(false),
        }
        let dead = suspicions.iter().any(|suspicion| {
            matches!(suspicion, Suspicion::Producer { generation } if *generation == current.generation)
        });
        self.unanswered = if current.unanswered().await { self.unanswered + 1 } else { 0 };
        let forgotten = self.unanswered >= FORGOTTEN;
        if forgotten {
            tracing::warn!("the producer has lost the brokers that others reach: a new one");
        }
        if dead || forgotten || current.producer.fatal().is_some() {
            self.install(&stored).await?;
            self.unanswered = 0;
        }
        Ok(true)
    }

    /// Raises the generation if something acknowledged is gone.
    async fn loss(&self, stored: &Generation, suspicions: &[Suspicion]) -> Result<Found, Error> {
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
        let suspected = suspicions.iter().filter_map(|suspicion| match suspicion {
            Suspicion::Lost { generation, partition, offset }
                if *generation == stored.generation =>
            {
                Some((*partition, *offset))
            }
            _ => None,
        });
        let lost = losses(recreated, &marks, &ends, suspected);
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

    /// Makes `generation` the present one: with a producer of its own, so that nothing of the old queue follows.
    async fn install(&self, generation: &Generation) -> Result<(), Error> {
        let next = topic(&self.control, &self.connection, self.linger, generation).await?;
        tracing::info!(
            generation = next.generation,
            map = next.map.version,
            "writing to the topic anew"
        );
        self.metrics.generation.set(i64::try_from(next.generation).unwrap_or(i64::MAX));
        let old = self.current.send_replace(Arc::new(next));
        old.producer.purge();
        if let Some(alone) = old.alone.get() {
            alone.purge();
        }
        Ok(())
    }
}

async fn topic(
    control: &Pool,
    connection: &Connection,
    linger: Duration,
    generation: &Generation,
) -> Result<Topic, Error> {
    let marks = topology::marks(control, generation.generation, generation.partitions).await?;
    let map = topology::bucket_map(control).await?;
    let settings = ProducerSettings { linger, ..ProducerSettings::default() };
    let producer = Producer::new(connection, &generation.topic, settings)?;
    Ok(Topic {
        generation: generation.generation,
        partitions: generation.partitions,
        map,
        producer,
        marks: Mutex::new(marks),
        alone: OnceCell::new(),
        connection: connection.clone(),
        name: generation.topic.clone(),
    })
}
