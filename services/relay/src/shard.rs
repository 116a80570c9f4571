//! The life of one shard under one lease: read a page, route it, publish it, move the cursor (`read` → `route` →
//! `publish` → `advance`), batch after batch; go back when the log was lost; let held rows follow.
//!
//! Memory never decides: after any error or change of the topic the shard starts again from its stored cursor.

use crate::held::RoundError;
use crate::publish::{PublishError, publish};
use crate::route::Delivery;
use crate::source::Shared;
use crate::topic::Topic;
use laneway_lane::relay::{Back, Plan, Published, Step, look_back, plan};
use laneway_platform::patience::Backoff;
use laneway_platform::service::Chain;
use laneway_platform::{clock, failpoint, trace};
use laneway_store::relay::{
    self, Advance, Bounds, Cursor, EntryAcks, Hold, Lease, OutboxRow, Page, Snapshot,
};
use laneway_store::{Error, routing, topology};
use laneway_wire::LaneId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Batches younger than this with the same versions share one entry of the history.
const ENTRY_AGE: Duration = Duration::from_secs(60);
/// An idle shard whose last batch had rows opens an empty one after this, so that its snapshots stay short and old
/// partitions can go.
pub(crate) const REFRESH: Duration = Duration::from_secs(10);
/// How long a shard that cannot go on waits for the topic to be replaced before it tries again.
const TOPIC_WAIT: Duration = Duration::from_secs(2);
/// Between two rounds over held rows while a long batch is read: a hot lane moves on and delays the others little.
const HELD_WITHIN_BATCH: Duration = Duration::from_millis(200);
/// Links of a page's span, as many as exporters keep.
const MAX_LINKS: usize = 128;
/// Between two looks at held rows of which none could go.
const HELD_PAUSE: Duration = Duration::from_secs(5);

/// What a shard asks of the poller: the snapshot that its next batch ends with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idle {
    pub(crate) lease: Lease,
    /// A snapshot is wanted after this even if there are no rows.
    pub(crate) refresh: Option<Duration>,
}

/// Why the shard's present course ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Somebody else owns it.
    Fenced,
    /// The service stops, or the shard is to be given away.
    Asked,
    /// Read the cursor again.
    Again,
}

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("a database operation failed")]
    Store(#[from] Error),
    #[error("a page was not published")]
    Publish(#[from] PublishError),
}

impl From<RoundError> for Broken {
    fn from(error: RoundError) -> Self {
        match error {
            RoundError::Store(error) => Self::Store(error),
            RoundError::Publish(error) => Self::Publish(error),
        }
    }
}

/// The lease's end on this process's own clock, which the source prolongs.
#[derive(Debug, Default)]
pub(crate) struct LeaseEnd(AtomicU64);

impl LeaseEnd {
    pub(crate) fn set(&self, end: Duration) {
        self.0.store(u64::try_from(end.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        u64::try_from(clock::boottime().as_millis()).unwrap_or(u64::MAX)
            >= self.0.load(Ordering::Relaxed)
    }
}

/// One shard of one source.
#[derive(Debug)]
pub(crate) struct ShardTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lease: Lease,
    pub(crate) lease_end: Arc<LeaseEnd>,
    pub(crate) idle: mpsc::Sender<Idle>,
    pub(crate) wake: mpsc::Receiver<Snapshot>,
    pub(crate) stop: CancellationToken,
}

/// What is known of the present course; nothing of it outlives an error.
struct Course {
    cursor: Cursor,
    acks: Option<EntryAcks>,
    // Whether rows of the shard are held: then every page asks which of its lanes are.
    holds: bool,
    // When held rows are looked at within a batch.
    next_round: Duration,
    // Whether the present batch had rows.
    had_rows: bool,
}

impl ShardTask {
    /// Works until it is stopped or fenced.
    pub(crate) async fn run(mut self) -> Lease {
        let mut backoff = Backoff::begin();
        failpoint::hit("relay.holding_lease");
        loop {
            let topic = self.shared.topics.current();
            match self.course(&topic).await {
                Ok(Stop::Asked) => return self.lease,
                Ok(Stop::Fenced) => {
                    self.shared.metrics.fenced.inc();
                    tracing::warn!(shard = self.lease.shard.0, "another relay owns the shard");
                    return self.lease;
                }
                Ok(Stop::Again) => {}
                Err(error) => {
                    self.shared.metrics.error("shard");
                    tracing::warn!(
                        source = %self.shared.name, shard = self.lease.shard.0, error = %Chain(&error),
                        "starting again from the stored cursor"
                    );
                    let pause = match error {
                        Broken::Publish(_) => TOPIC_WAIT,
                        Broken::Store(_) => backoff.pause(),
                    };
                    tokio::select! {
                        () = self.stop.cancelled() => return self.lease,
                        () = self.shared.topics.changed(&topic) => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }

    /// From the stored cursor on, until something ends it.
    async fn course(&mut self, topic: &Arc<Topic>) -> Result<Stop, Broken> {
        let (pool, lease) = (self.shared.pool.clone(), self.lease);
        let Some(mut cursor) = relay::cursor_load(&pool, &lease).await? else {
            return Ok(Stop::Fenced);
        };
        match cursor.step(topic.generation) {
            Step::Restore => return self.restore(topic).await,
            Step::LookBack => {
                if !self.look_back(topic, &cursor).await? {
                    return Ok(Stop::Fenced);
                }
                match relay::cursor_load(&pool, &lease).await? {
                    Some(moved) => cursor = moved,
                    None => return Ok(Stop::Fenced),
                }
            }
            Step::Read => {}
        }
        relay::held_reconsider(&pool, &lease, self.shared.tenants_listed()).await?;
        let holds = relay::held_any(&pool, lease.shard).await?;
        let mut course =
            Course { cursor, acks: None, holds, next_round: Duration::ZERO, had_rows: true };
        loop {
            if let Some(stop) = self.batch(topic, &mut course).await? {
                return Ok(stop);
            }
            if let Some(entry) = course.cursor.again() {
                if !relay::batch_reopen(&pool, &lease, entry, topic.map.version).await? {
                    return Ok(Stop::Fenced);
                }
                return Ok(Stop::Again);
            }
            if let Some(stop) = self.between(topic, &mut course).await? {
                return Ok(stop);
            }
        }
    }

    /// Publishes the rest of the present batch.
    async fn batch(&self, topic: &Arc<Topic>, course: &mut Course) -> Result<Option<Stop>, Broken> {
        let (pool, shard) = (&self.shared.pool, self.lease.shard);
        let bounds = relay::batch_bounds(pool, shard, &course.cursor).await?;
        let mut page = self.read(&course.cursor, bounds, course.cursor.last_id).await?;
        failpoint::hit("relay.after_read");
        course.had_rows |= !page.rows.is_empty();
        while let Some(last_id) = page.rows.last().map(|row| row.id) {
            if self.stop.is_cancelled() {
                return Ok(Some(Stop::Asked));
            }
            if self.lease_end.is_over() {
                return Ok(Some(Stop::Fenced));
            }
            let cursor = course.cursor.clone();
            let ahead = async {
                if page.last {
                    return Ok(Page { rows: Vec::new(), last: true });
                }
                self.read(&cursor, bounds, last_id).await
            };
            let (stop, next) = tokio::join!(self.page(topic, course, &page.rows, last_id), ahead);
            if let Some(stop) = stop? {
                return Ok(Some(stop));
            }
            page = next?;
            if !page.rows.is_empty() {
                failpoint::hit("relay.between_pages");
                if course.holds
                    && course.cursor.held_may_follow()
                    && clock::monotonic() >= course.next_round
                {
                    if self.held_round(topic, course).await?.is_none() {
                        return Ok(Some(Stop::Again));
                    }
                    course.next_round = clock::monotonic() + HELD_WITHIN_BATCH;
                }
            }
        }
        Ok(None)
    }

    async fn read(&self, cursor: &Cursor, bounds: Bounds, after: i64) -> Result<Page, Error> {
        let settings = &self.shared.settings;
        let (pool, shard) = (&self.shared.pool, self.lease.shard);
        relay::batch_page(
            pool,
            shard,
            cursor,
            bounds,
            after,
            settings.page_rows,
            settings.page_bytes,
        )
        .await
    }

    /// Routes and publishes one page and moves the cursor behind it.
    async fn page(
        &self,
        topic: &Arc<Topic>,
        course: &mut Course,
        rows: &[OutboxRow],
        last_id: i64,
    ) -> Result<Option<Stop>, Broken> {
        let shared = &self.shared;
        let version = course.cursor.subscription_version;
        let (deliveries, ()) = tokio::try_join!(
            shared.router.route(rows, version),
            topic.marks_refresh(&shared.control)
        )?;
        let held_lanes = if course.holds {
            let lanes: BTreeSet<LaneId> = deliveries.iter().map(|delivery| delivery.lane).collect();
            let lanes: Vec<LaneId> = lanes.into_iter().collect();
            relay::held_lanes(&shared.pool, self.lease.shard, &lanes).await?
        } else {
            Default::default()
        };
        let page = deliveries
            .iter()
            .map(|delivery| (delivery.lane, shared.tenants.contains(rows[delivery.row].tenant)));
        let plan = plan(page, &held_lanes, shared.settings.waves as usize);
        let span = batch_span(rows, deliveries.len());
        let sent = self.send(topic, rows, &deliveries, &plan).instrument(span);
        let Some(published) = sent.await? else {
            return Ok(Some(if self.stop.is_cancelled() { Stop::Asked } else { Stop::Again }));
        };
        failpoint::hit("relay.after_ack");
        if !self.raise_marks(topic, &published).await? {
            return Ok(Some(Stop::Again));
        }
        let mut held: Vec<Hold> = Vec::with_capacity(plan.held.len() + published.held.len());
        for (index, reason) in published.held_with(&plan) {
            let delivery = &deliveries[index];
            let row = &rows[delivery.row];
            let (lane, endpoint, mode) = (delivery.lane, delivery.endpoint, delivery.mode);
            held.push(Hold { lane, row: row.id, endpoint, tenant: row.tenant, mode, reason });
        }
        let invariants = &shared.metrics.invariants;
        invariants.hold(
            "P4",
            "the cursor passes a delivery that is neither acknowledged nor held",
            published.covers(&plan, deliveries.len()),
        );
        let forward = last_id >= course.cursor.last_id;
        invariants.hold("P4", "the cursor goes back within a batch", forward);
        let acks = self.acks(topic, course, &published).await?;
        let advance = Advance { last_id, acks, held: &held };
        if !relay::batch_advance(&shared.pool, &self.lease, &advance).await? {
            return Ok(Some(Stop::Fenced));
        }
        failpoint::hit("relay.after_advance");
        course.holds |= !held.is_empty();
        course.cursor.last_id = last_id;
        let now = shared.clock.now();
        for row in rows {
            shared.metrics.delay.observe(now.since(row.created_at).as_secs_f64());
        }
        shared.rows.inc_by(rows.len() as u64);
        shared.deliveries.inc_by(published.acked.len() as u64);
        Ok(None)
    }

    /// Publishes, unless the shard is asked to stop or the topic is replaced meanwhile: then what is under way may
    /// still be written, and only repeats. The topic's marks were read just before.
    pub(crate) async fn send(
        &self,
        topic: &Arc<Topic>,
        rows: &[OutboxRow],
        deliveries: &[Delivery],
        plan: &Plan,
    ) -> Result<Option<Published>, PublishError> {
        let shared = &self.shared;
        tokio::select! {
            biased;
            () = shared.topics.changed(topic) => Ok(None),
            () = shared.cut.cancelled() => Ok(None),
            published = publish(&shared.topics, topic, &shared.name, rows, deliveries, plan) => published.map(Some),
        }
    }

    /// Raises the marks over what was acknowledged; false if the generation is closed, so that nothing counts.
    pub(crate) async fn raise_marks(
        &self,
        topic: &Topic,
        published: &Published,
    ) -> Result<bool, Error> {
        let acked = published.by_partition();
        if acked.is_empty() {
            return Ok(true);
        }
        match topology::marks_raise(&self.shared.control, topic.generation, &acked).await? {
            Some(marks) => {
                topic.marks_seen(&marks);
                Ok(true)
            }
            None => {
                self.shared.topics.look();
                self.shared.topics.changed_within(topic, TOPIC_WAIT).await;
                Ok(false)
            }
        }
    }

    /// The entry's acknowledged offsets with those of `published`.
    async fn acks<'a>(
        &self,
        topic: &Topic,
        course: &'a mut Course,
        published: &Published,
    ) -> Result<&'a EntryAcks, Error> {
        let (entry, generation) = (course.cursor.entry, topic.generation);
        let known =
            course.acks.take_if(|acks| acks.entry == entry && acks.generation == generation);
        let mut acks = match known {
            Some(acks) => acks,
            None => {
                let (pool, shard) = (&self.shared.pool, self.lease.shard);
                relay::acks_of(pool, shard, entry, generation, topic.partitions).await?
            }
        };
        acks.add(published);
        Ok(course.acks.insert(acks))
    }

    /// Nothing is left of the batch: lets held rows follow and waits for the next one.
    async fn between(
        &mut self,
        topic: &Arc<Topic>,
        course: &mut Course,
    ) -> Result<Option<Stop>, Broken> {
        let refresh = course.had_rows.then(|| clock::boottime() + REFRESH);
        let idle = Idle { lease: self.lease, refresh };
        if self.idle.send(idle).await.is_err() {
            return Ok(Some(Stop::Asked));
        }
        let mut pause = Duration::ZERO;
        loop {
            let snapshot = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(Some(Stop::Asked)),
                () = self.shared.topics.changed(topic) => return Ok(Some(Stop::Again)),
                snapshot = self.wake.recv() => snapshot,
                () = tokio::time::sleep(pause), if course.holds => {
                    match self.held_round(topic, course).await? {
                        Some(0) => pause = HELD_PAUSE,
                        Some(_) => pause = Duration::ZERO,
                        None => return Ok(Some(Stop::Again)),
                    }
                    continue;
                }
            };
            let Some(snapshot) = snapshot else { return Ok(Some(Stop::Asked)) };
            if self.lease_end.is_over() {
                return Ok(Some(Stop::Fenced));
            }
            // After the snapshot: an event committed after a subscription's answer is routed by it.
            let version = routing::routing_version(&self.shared.control).await?;
            let (pool, map) = (&self.shared.pool, topic.map.version);
            let opened =
                relay::batch_open(pool, &self.lease, &snapshot, version, map, ENTRY_AGE).await?;
            return match opened {
                Some(cursor) => {
                    course.cursor = cursor;
                    course.had_rows = false;
                    Ok(None)
                }
                None => Ok(Some(Stop::Fenced)),
            };
        }
    }

    /// One round over held rows; how many left, none if the course has to begin again.
    async fn held_round(
        &self,
        topic: &Arc<Topic>,
        course: &mut Course,
    ) -> Result<Option<usize>, Broken> {
        let Some(round) = crate::held::round(self, topic).await? else { return Ok(None) };
        if round.left.is_empty() {
            course.holds = relay::held_any(&self.shared.pool, self.lease.shard).await?;
            return Ok(Some(0));
        }
        if !self.raise_marks(topic, &round.published).await? {
            return Ok(None);
        }
        let acks = self.acks(topic, course, &round.published).await?;
        if !relay::held_leave(&self.shared.pool, &self.lease, &round.left, acks).await? {
            return Ok(None);
        }
        self.shared.deliveries.inc_by(round.left.len() as u64);
        Ok(Some(round.left.len()))
    }

    /// Goes back to the first batch that a loss since the cursor's generation has touched. False: fenced.
    async fn look_back(&self, topic: &Topic, cursor: &Cursor) -> Result<bool, Error> {
        let fences = topology::fences_after(&self.shared.control, 0).await?;
        let acks = relay::acks_all(&self.shared.pool, self.lease.shard).await?;
        let to = match look_back(cursor, topic.generation, &acks, &fences) {
            Back::Wait => {
                self.shared.topics.look();
                self.shared.topics.changed_within(topic, TOPIC_WAIT).await;
                return Ok(true);
            }
            Back::Nowhere => None,
            Back::To(to) => {
                self.shared.went_back.inc();
                tracing::warn!(
                    source = %self.shared.name, shard = self.lease.shard.0, entry = to, from = cursor.entry,
                    generation = topic.generation, "going back to publish again what was lost"
                );
                Some(to)
            }
        };
        relay::cursor_go_back(&self.shared.pool, &self.lease, topic.generation, to).await
    }

    /// The database was restored from a dump: publishes everything that is in the outbox again.
    async fn restore(&self, topic: &Topic) -> Result<Stop, Broken> {
        let control = self.shared.control.clone();
        let version = || async move { routing::routing_version(&control).await };
        let (pool, map) = (&self.shared.pool, topic.map.version);
        if !relay::cursor_restore(pool, &self.lease, map, version).await? {
            return Ok(Stop::Fenced);
        }
        self.shared.restored.inc();
        tracing::warn!(
            source = %self.shared.name, shard = self.lease.shard.0,
            "the database was restored, publishing all of the outbox again"
        );
        Ok(Stop::Again)
    }
}

/// One span for a page, linked to the contexts that its rows were written in (telemetry.md 2.1). The rows keep their
/// own: a record carries what its writer gave.
fn batch_span(rows: &[OutboxRow], deliveries: usize) -> tracing::Span {
    let span = tracing::info_span!(
        "send laneway.deliveries",
        otel.kind = "client",
        messaging.system = "kafka",
        messaging.operation.name = "send",
        messaging.batch.message_count = deliveries,
    );
    if !span.is_disabled() {
        let written = rows.iter().filter_map(|row| row.traceparent.as_deref());
        written.take(MAX_LINKS).for_each(|context| trace::add_link(&span, context));
    }
    span
}
