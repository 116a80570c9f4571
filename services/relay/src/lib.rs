//! Committed outbox rows become records of the deliveries topic.
//!
//! Who: every process that runs this reads a share of the 16 shards of each source database, under a lease with a
//! random token (`source`). What flows: a batch is what one snapshot sees and the one before did not; its rows are
//! routed with one version of the subscriptions, published to the partition that the bucket map names, acknowledged,
//! and only then does the shard's cursor move (`shard`).
//!
//! What happens when something fails:
//! * This process dies anywhere: another takes its shards when the lease ends and starts from the stored cursors; what
//!   was published but not saved is published again, and the inbox removes it (P4, I8).
//! * A process that is paused and comes back: its token is not the shard's any more, none of its writes counts (P13).
//! * A database or the broker is away: it is waited for; nothing is skipped, nothing is dropped. The process is not ready
//!   meanwhile, and other sources go on.
//! * The broker refuses one record for itself: it is held, visibly, and so is what comes behind it in its lane.
//! * The log is lost (topic made again, acknowledged offsets gone): the generation is raised and every shard goes back
//!   to the first batch that was touched (`topic`).
//! * A source is restored from a dump: its transactions begin anew, which is seen, and all of its outbox is published
//!   again.

mod care;
mod config;
mod error;
mod held;
mod metrics;
mod publish;
mod route;
mod shard;
mod source;
mod topic;

pub use config::{Relay, Settings};
pub use error::Error;

use laneway_bus::{Admin, TopicSpec};
use laneway_platform::admin::Probe;
use laneway_platform::clock::DbClock;
use laneway_platform::config::{Database, Kafka};
use laneway_platform::patience;
use laneway_platform::service::{Chain, Context};
use laneway_store::topology::{self, Generation};
use laneway_store::{Options, Pool, migrate};
use metrics::{BySource, Metrics};
use route::Router;
use source::Shared;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use topic::{Topics, Watch};

/// Between two looks whether a schema has been brought up to date by `laneway migrate` or `laneway source install`.
const SCHEMA_PAUSE: Duration = Duration::from_secs(1);

/// Runs the relay until `context.shutdown` is cancelled.
///
/// # Errors
/// Settings that can never work: a database that is not safe to use, a topic with another number of partitions than
/// it was set up for. A server that is away is waited for.
pub async fn run(settings: Settings, context: Context) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new(&context.registry));
    let probe = context.readiness.probe("relay");
    let start = start(&settings, &metrics, &context, probe);
    let Some((started, watch)) = stoppable(&context.shutdown, start).await.transpose()? else {
        return Ok(());
    };
    let router = Arc::new(Router::new(started.control.clone()));
    let settings = Arc::new(settings);
    let started = Arc::new(started);
    let mut parts: Vec<JoinHandle<()>> = Vec::new();
    for source in settings.sources() {
        // Each for itself: one that is away keeps no other waiting.
        let probe = context.readiness.probe(format!("source {}", source.name));
        let (settings, started, router, metrics, of) =
            (settings.clone(), started.clone(), router.clone(), metrics.clone(), context.clone());
        parts.push(context.spawn("source", async move {
            let open = open_source(&settings, source, &started, &router, &metrics, probe);
            let Some(shared) = stoppable(&of.shutdown, open).await.transpose()? else {
                return Ok(());
            };
            read_source(Arc::new(shared), &of).await
        }));
    }
    // The watch outlives the shards: they may need a new topic to finish what they have under way.
    let watching = CancellationToken::new();
    let watch = context.spawn("watch", watch.run(watching.clone()));
    context.shutdown.cancelled().await;
    for part in parts {
        // Its error has been logged and has failed the service already.
        let _ = part.await;
    }
    watching.cancel();
    let _ = watch.await;
    Ok(())
}

/// Reads a source and cares for it until the service stops.
async fn read_source(shared: Arc<Shared>, context: &Context) -> Result<(), Error> {
    let (instance, shutdown) = (context.instance.clone(), context.shutdown.clone());
    let care =
        context.spawn("care", care::care(shared.clone(), instance.clone(), shutdown.clone()));
    source::Source::run(shared, instance, shutdown, context.drain_grace).await?;
    let _ = care.await;
    Ok(())
}

struct Started {
    control: Pool,
    topics: Topics,
}

async fn start(
    settings: &Settings,
    metrics: &Arc<Metrics>,
    context: &Context,
    probe: Probe,
) -> Result<(Started, Watch), Error> {
    let control = connect_control(&settings.database, &probe).await?;
    patiently("the control schema", &probe, || async {
        while !migrate::control_is_current(&control).await? {
            tracing::info!("waiting for the control schema to be brought up to date");
            probe.not_ready("waiting for `laneway migrate`");
            tokio::time::sleep(SCHEMA_PAUSE).await;
        }
        Ok(())
    })
    .await?;
    let connection = config::connection(&settings.kafka);
    let admin = Admin::new(&connection)?;
    let generation =
        patiently("the topic", &probe, || topology_of(&control, &admin, &settings.kafka)).await?;
    let (mut watch, topics) = patiently("the topic", &probe, || {
        let (control, connection, admin) = (control.clone(), connection.clone(), admin.clone());
        let (metrics, probe) = (metrics.clone(), probe.clone());
        Watch::start(control, connection, admin, &generation, &settings.relay, metrics, probe)
    })
    .await?;
    // Before the first record: what was lost while nobody looked.
    if let Err(error) = watch.look().await {
        tracing::warn!(error = %Chain(&error), "the topic could not be looked at before starting");
    }
    tracing::info!(
        instance = %context.instance, topic = %generation.topic, generation = generation.generation,
        partitions = generation.partitions, "connected"
    );
    Ok((Started { control, topics }, watch))
}

async fn connect_control(database: &Database, probe: &Probe) -> Result<Pool, Error> {
    patiently("the control database", probe, || async {
        let options = Options {
            acquire_timeout: database.acquire_timeout,
            ..Options::new("laneway-relay").max_connections(database.max_connections)
        };
        Ok(Pool::connect(&database.url, options).await?)
    })
    .await
}

/// Makes the topic if there is none, and the topology if this is the first start.
async fn topology_of(control: &Pool, admin: &Admin, kafka: &Kafka) -> Result<Generation, Error> {
    let name = &kafka.deliveries_topic;
    let spec = TopicSpec {
        replication: kafka.replication_factor,
        ..TopicSpec::new(name, u32::from(kafka.partitions))
    };
    let found = match admin.describe_topic(name).await? {
        Some(found) => found,
        None => {
            if admin.create_topic(&spec).await? {
                tracing::info!(topic = %name, partitions = spec.partitions, "made the topic");
            }
            admin
                .describe_topic(name)
                .await?
                .ok_or(laneway_bus::BusError::Answer("without the topic just made"))?
        }
    };
    let id = found.id();
    Ok(topology::topology_ensure(control, name, &id, found.partitions).await?)
}

async fn open_source(
    settings: &Settings,
    source: laneway_platform::config::Source,
    started: &Started,
    router: &Arc<Router>,
    metrics: &Arc<Metrics>,
    probe: Probe,
) -> Result<Shared, Error> {
    let pool = patiently("a source database", &probe, || async {
        let options =
            Options::new("laneway-relay").max_connections(settings.relay.source_connections);
        Ok(Pool::connect(&source.url, options).await?)
    })
    .await?;
    patiently("a source's schema", &probe, || async {
        while !migrate::source_is_current(&pool).await? {
            tracing::info!(source = %source.name, "waiting for `laneway source install`");
            probe.not_ready("waiting for `laneway source install`");
            tokio::time::sleep(SCHEMA_PAUSE).await;
        }
        Ok(())
    })
    .await?;
    let now = patiently("a source's clock", &probe, || async { Ok(pool.now().await?) }).await?;
    let name: Arc<str> = source.name.into();
    let label = BySource { source: name.clone() };
    Ok(Shared {
        rows: metrics.rows.get_or_create(&label).clone(),
        deliveries: metrics.deliveries.get_or_create(&label).clone(),
        went_back: metrics.went_back.get_or_create(&label).clone(),
        restored: metrics.restored.get_or_create(&label).clone(),
        name,
        pool,
        control: started.control.clone(),
        topics: started.topics.clone(),
        router: router.clone(),
        tenants: source.tenants,
        settings: settings.relay.clone(),
        metrics: metrics.clone(),
        clock: DbClock::new(now),
        cut: CancellationToken::new(),
        probe,
    })
}

/// Tries until it works or can never work.
async fn patiently<T, F, Fut>(what: &str, probe: &Probe, attempt: F) -> Result<T, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Error>>,
{
    patience::patiently(what, probe, Error::is_transient, attempt).await
}

/// `work`'s result, or none if the service is stopped first.
async fn stoppable<T>(shutdown: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => None,
        done = work => Some(done),
    }
}
