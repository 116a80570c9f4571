//! Putting the service together, and the little that runs beside the engine.

use crate::endpoints::Endpoints;
use crate::engine::{BACK_QUEUE, Engine, Round};
use crate::load::Loader;
use crate::log::{Log, Trouble};
use crate::metrics::Metrics;
use crate::ownership::Owning;
use crate::rebalance::RECORD_CUT;
use crate::send::Sender;
use crate::settle::{Settler, Slot};
use crate::{Error, Settings};
use laneway_bus::{Admin, Connection, Consumer, ConsumerSettings, TopicSpec};
use laneway_courier::Courier;
use laneway_lane::Core;
use laneway_platform::admin::Probe;
use laneway_platform::clock::DbClock;
use laneway_platform::config::{Database, Kafka};
use laneway_platform::patience;
use laneway_platform::service::{Chain, Context};
use laneway_platform::task;
use laneway_store::delivery::inbox_partitions_make;
use laneway_store::migrate::control_is_current;
use laneway_store::secrets::SecretsKey;
use laneway_store::topology::{bucket_map, topology_ensure};
use laneway_store::windows::{Window, window_tell};
use laneway_store::{Options, Pool};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Between two looks whether the inbox needs partitions.
const PARTITIONS_EVERY: Duration = Duration::from_secs(3600);
/// After a failed one.
const PARTITIONS_AGAIN: Duration = Duration::from_secs(30);
/// Between two times that the horizon is told.
const HORIZON_EVERY: Duration = Duration::from_secs(1800);
/// Between two tries to find the topic.
const TOPIC_AGAIN: Duration = Duration::from_millis(500);
/// Between two looks whether `laneway migrate` has been run.
const SCHEMA_AGAIN: Duration = Duration::from_secs(1);

/// Runs the service until `ctx.shutdown` is cancelled and everything is given back.
///
/// # Errors
/// What cannot be helped by trying again: settings, a Kafka client that is out for good, a database that must not be
/// used. A database or a broker that is away, and a schema that is not there yet, are waited for.
pub async fn run(settings: Settings, ctx: Context) -> Result<(), Error> {
    let ready = ctx.readiness.probe("kafka");
    ready.not_ready("no assignment yet");
    let deliver = settings.deliver.clone();
    let database = ctx.readiness.probe("database");
    let connect = connect(&settings.database, &database);
    let Some(pool) = unless_stopped(&ctx.shutdown, connect).await.transpose()? else {
        return Ok(());
    };
    let connection = connection(&settings.kafka);
    let admin = Admin::new(&connection)?;
    let topic: Arc<str> = settings.kafka.deliveries_topic.as_str().into();
    let metrics = Arc::new(Metrics::new(&ctx.registry, deliver.max_endpoint_series));
    let generations = metrics.generations.clone();
    let log = Log { admin, topic: Arc::clone(&topic), generations };
    let Some(incarnation) = ensure_topology(&pool, &log, &settings.kafka, &ctx.shutdown).await?
    else {
        return Ok(());
    };
    // First of all: a day whose ids got into the DEFAULT partition keeps them there.
    let again = partitions_made(&pool).await;
    task::spawn("inbox", keep_inbox_partitions(pool.clone(), again, ctx.shutdown.clone()));
    task::spawn("horizon", tell_horizon(pool.clone(), deliver.horizon, ctx.clone()));

    let key = settings.secrets.key_bytes().ok_or(Error::Setting("secrets.key"))?;
    let key = Arc::new(SecretsKey::new(&settings.secrets.key_id, key));
    let read = patiently("the control database", &database, || async {
        Ok((pool.now().await?, bucket_map(&pool).await?.partitions))
    });
    let Some((now, buckets)) = unless_stopped(&ctx.shutdown, read).await.transpose()? else {
        return Ok(());
    };
    let clock = Arc::new(DbClock::new(now));
    let courier = Arc::new(Courier::new(settings.courier.clone())?);
    let (back, backs) = mpsc::channel(BACK_QUEUE);
    let (ended, endeds) = mpsc::channel(deliver.max_in_flight as usize);
    let consumer_settings = ConsumerSettings {
        instance: Some(ctx.instance.to_string()),
        session_timeout: settings.kafka.session_timeout,
        release_limit: deliver.drain_limit + RECORD_CUT,
        incarnation,
        ..ConsumerSettings::new(&deliver.group, &topic)
    };
    let (consumer, events) = Consumer::start(&connection, consumer_settings)?;
    let endpoints_seen = clock.now();
    let engine = Engine {
        core: Core::new(deliver.limits()),
        effects: Vec::new(),
        sender: Sender {
            courier,
            clock: Arc::clone(&clock),
            pool: pool.clone(),
            metrics: Arc::clone(&metrics),
        },
        settler: Settler {
            pool: pool.clone(),
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&metrics),
            limit: deliver.lease,
        },
        loader: Loader {
            pool: pool.clone(),
            permits: Arc::new(Semaphore::new(deliver.load_workers)),
        },
        owning: Owning {
            pool: pool.clone(),
            log,
            name: Arc::clone(&ctx.instance),
            lease: deliver.lease,
        },
        endpoints: Endpoints::new(key, deliver.max_endpoints),
        slots: (0..deliver.settle_workers).map(|_| Slot::default()).collect(),
        settings: deliver,
        clock,
        pool,
        metrics,
        instance: Arc::clone(&ctx.instance),
        consumer,
        buckets: Arc::new(buckets),
        assigned: BTreeSet::new(),
        joined: false,
        takings: BTreeMap::new(),
        next_taking: 0,
        parts: BTreeMap::new(),
        revoking: false,
        leaving: false,
        probes: HashMap::new(),
        commands: HashMap::new(),
        health_round: Round::default(),
        endpoints_round: Round::default(),
        commands_round: Round::default(),
        position_round: Round::default(),
        gauges_round: Round::default(),
        waiting_round: Round::default(),
        kept_round: Round::default(),
        lag_round: Round::default(),
        server: None,
        endpoints_seen,
        back,
        ended,
        ready,
        database,
    };
    engine.run(events, backs, endeds, ctx.shutdown.clone()).await
}

/// Connects, and waits for the schema of this build.
async fn connect(settings: &Database, probe: &Probe) -> Result<Pool, Error> {
    let pool = patiently("the control database", probe, || async {
        let options = Options::new("laneway-deliver")
            .max_connections(settings.max_connections)
            .acquire_timeout(settings.acquire_timeout);
        Ok(Pool::connect(&settings.url, options).await?)
    })
    .await?;
    patiently("the control database", probe, || async {
        while !control_is_current(&pool).await? {
            tracing::warn!("waiting for the schema of this build: run `laneway migrate`");
            probe.not_ready("waiting for `laneway migrate`");
            tokio::time::sleep(SCHEMA_AGAIN).await;
        }
        Ok(())
    })
    .await?;
    Ok(pool)
}

async fn patiently<T, F, Fut>(what: &str, probe: &Probe, attempt: F) -> Result<T, Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Error>>,
{
    patience::patiently(what, probe, Error::is_transient, attempt).await
}

/// What `work` gives; none if the service is stopped first.
async fn unless_stopped<T>(
    shutdown: &CancellationToken,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => None,
        done = work => Some(done),
    }
}

/// Finds the topic, makes it if there is none, and sets the topology up; gives its incarnation. None: stopped first.
async fn ensure_topology(
    pool: &Pool,
    log: &Log,
    kafka: &Kafka,
    shutdown: &CancellationToken,
) -> Result<Option<Option<Uuid>>, Error> {
    loop {
        match log.topic_id().await {
            Ok((id, partitions)) => {
                match topology_ensure(pool, &log.topic, &id, partitions).await {
                    Ok(_) => return Ok(Some(id.parse().ok())),
                    Err(error) if error.is_transient() => {
                        tracing::warn!(error = %Chain(&error), "topology not set up yet");
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Err(Trouble::Missing(_)) => {
                let spec = TopicSpec {
                    replication: kafka.replication_factor,
                    ..TopicSpec::new(&log.topic, kafka.partitions.into())
                };
                if let Err(error) = log.admin.create_topic(&spec).await {
                    tracing::warn!(error = %Chain(&error), topic = %log.topic, "topic not made yet");
                }
            }
            Err(Trouble::Store(error)) => return Err(error.into()),
            Err(Trouble::Bus(error)) => {
                tracing::warn!(error = %Chain(&error), topic = %log.topic, "topic not found yet");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(None),
            () = tokio::time::sleep(TOPIC_AGAIN) => {}
        }
    }
}

/// Makes what partitions the inbox lacks; gives how long that is good for.
async fn partitions_made(pool: &Pool) -> Duration {
    match inbox_partitions_make(pool).await {
        Ok(0) => PARTITIONS_EVERY,
        Ok(made) => {
            tracing::info!(made, "partitions of the inbox made");
            PARTITIONS_EVERY
        }
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "partitions of the inbox not made yet");
            PARTITIONS_AGAIN
        }
    }
}

async fn keep_inbox_partitions(pool: Pool, mut pause: Duration, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => pause = partitions_made(&pool).await,
        }
    }
}

/// The reconciler compares it with how long outboxes and outcomes are kept.
async fn tell_horizon(pool: Pool, horizon: Duration, ctx: Context) {
    loop {
        let told = window_tell(&pool, Window::Horizon, &ctx.instance, horizon).await;
        let pause = match told {
            Ok(()) => HORIZON_EVERY,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the horizon was not told yet");
                PARTITIONS_AGAIN
            }
        };
        tokio::select! {
            () = ctx.shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The bus's connection of the shared section.
fn connection(kafka: &Kafka) -> Connection {
    use laneway_bus::{SaslMechanism, SecurityProtocol};
    use laneway_platform::config::SecurityProtocol as Configured;
    Connection {
        brokers: kafka.brokers.clone(),
        client_id: "laneway-deliver".to_owned(),
        security_protocol: match kafka.security_protocol {
            Configured::Plaintext => SecurityProtocol::Plaintext,
            Configured::Ssl => SecurityProtocol::Ssl,
            Configured::SaslPlaintext => SecurityProtocol::SaslPlaintext,
            Configured::SaslSsl => SecurityProtocol::SaslSsl,
        },
        sasl_mechanism: match (kafka.security_protocol.is_sasl(), kafka.sasl_mechanism.as_str()) {
            (false, _) => None,
            (true, "PLAIN") => Some(SaslMechanism::Plain),
            (true, "SCRAM-SHA-256") => Some(SaslMechanism::ScramSha256),
            (true, _) => Some(SaslMechanism::ScramSha512),
        },
        sasl_username: kafka.sasl_username.clone(),
        sasl_password: kafka.sasl_password.clone(),
        ssl_ca_location: kafka.ssl_ca_location.as_ref().map(Into::into),
    }
}
