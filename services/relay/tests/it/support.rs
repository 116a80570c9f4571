//! A database, a topic, a relay on them, and an independent reading of the topic.

use laneway_bus::{Command, Connection, Consumer, ConsumerSettings, Event};
use laneway_platform::service::Context;
use laneway_relay::Settings;
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, fresh_topic_name, sql, wait_for};
use laneway_wire::{EndpointId, LaneId, Record, TenantId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// One database that is control and source in one, and one topic.
pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) kafka: String,
    pub(crate) topic: String,
    pub(crate) pool: Pool,
}

/// A relay in this process.
pub(crate) struct Running {
    pub(crate) context: Context,
    body: JoinHandle<Result<(), laneway_relay::Error>>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.context.shutdown.cancel();
        self.body.await.unwrap().unwrap();
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        metric(&self.context, name)
    }
}

/// The sum of a metric's samples.
pub(crate) fn metric(context: &Context, name: &str) -> f64 {
    let text = context.registry.encode();
    text.lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_kafka(Stack::shared().await.kafka()).await
    }

    pub(crate) async fn with_kafka(kafka: &str) -> Self {
        let url = Stack::shared().await.fresh_database().await;
        let pool = Pool::connect(&url.clone().into(), Options::new("test")).await.unwrap();
        migrate::control_migrate(&pool).await.unwrap();
        migrate::source_migrate(&pool).await.unwrap();
        Self { url, kafka: kafka.to_owned(), topic: fresh_topic_name("deliveries"), pool }
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.database.url = self.url.clone().into();
        settings.kafka.brokers = self.kafka.clone();
        settings.kafka.deliveries_topic = self.topic.clone();
        settings.kafka.partitions = 6;
        settings.relay.lease = Duration::from_secs(3);
        settings.relay.watch = Duration::from_millis(300);
        settings
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(self.settings())
    }

    pub(crate) fn start_with(&self, settings: Settings) -> Running {
        let context = Context::detached("relay");
        let body = tokio::spawn(laneway_relay::run(settings, context.clone()));
        Running { context, body }
    }

    pub(crate) async fn sql(&self, statement: &str) -> Vec<Vec<Option<String>>> {
        sql(&self.url, statement).await.unwrap()
    }

    pub(crate) async fn number(&self, statement: &str) -> i64 {
        self.sql(statement).await[0][0].as_deref().unwrap().parse().unwrap()
    }

    /// A tenant with one endpoint and one subscription to everything.
    pub(crate) async fn tenant(&self) -> (TenantId, EndpointId) {
        let tenant = TenantId::from_uuid(Uuid::now_v7());
        let id = tenant.as_uuid();
        self.sql(&format!(
            "INSERT INTO laneway_control.projects (tenant_id, name) VALUES ('{id}', 'test')"
        ))
        .await;
        (tenant, self.endpoint(tenant, "*", "user").await)
    }

    /// An endpoint of a tenant with one subscription, as the API makes them: raising the routing version.
    pub(crate) async fn endpoint(
        &self,
        tenant: TenantId,
        pattern: &str,
        ordering: &str,
    ) -> EndpointId {
        let (tenant, endpoint) = (tenant.as_uuid(), Uuid::now_v7());
        self.sql(&format!(
            "BEGIN; UPDATE laneway_control.routing_version SET version = version + 1; \
             INSERT INTO laneway_control.endpoints \
                (tenant_id, endpoint_id, url, ordering, timeout_ms, secret, since_version) \
             SELECT '{tenant}', '{endpoint}', 'http://127.0.0.1:9/', '{ordering}', 2000, '', version \
             FROM laneway_control.routing_version; \
             INSERT INTO laneway_control.subscriptions \
                (tenant_id, subscription_id, endpoint_id, event_type, since_version) \
             SELECT '{tenant}', gen_random_uuid(), '{endpoint}', '{pattern}', version \
             FROM laneway_control.routing_version; COMMIT"
        ))
        .await;
        EndpointId::from_uuid(endpoint)
    }

    /// One event by `emit`.
    pub(crate) async fn emit(&self, tenant: TenantId, key: &str, payload: &str) {
        let tenant = tenant.as_uuid();
        self.sql(&format!("SELECT laneway.emit('{tenant}', 'test.made', '{key}', '{payload}')"))
            .await;
    }

    /// `rows` events by one `emit_many`, their user keys taken in turn from `keys`.
    pub(crate) async fn emit_rows(&self, tenant: TenantId, rows: u32, keys: u32) {
        let tenant = tenant.as_uuid();
        self.sql(&format!(
            "SELECT laneway.emit_many('{tenant}', array_agg('test.made'::text), array_agg('u' || n % {keys}), \
             array_agg(convert_to('{{\"n\":' || n || '}}', 'UTF8'))) FROM generate_series(1, {rows}) AS n"
        ))
        .await;
    }

    /// The number of rows that are in the outbox.
    pub(crate) async fn rows(&self) -> i64 {
        self.number("SELECT count(*) FROM laneway.outbox").await
    }

    /// Ids of all rows.
    pub(crate) async fn row_ids(&self) -> BTreeSet<i64> {
        let rows = self.sql("SELECT id FROM laneway.outbox").await;
        rows.iter().map(|row| row[0].as_deref().unwrap().parse().unwrap()).collect()
    }

    pub(crate) async fn log(&self) -> Log {
        Log::open(&self.kafka, &self.topic).await
    }
}

/// What an independent reader has seen of the topic.
pub(crate) struct Log {
    consumer: Consumer,
    events: laneway_bus::Events,
    pub(crate) records: Vec<(i32, i64, Record)>,
    seen: BTreeSet<(i64, EndpointId)>,
}

impl Log {
    /// Opens the topic, which exists, and reads it from its beginning.
    pub(crate) async fn open(kafka: &str, topic: &str) -> Self {
        let mut settings = ConsumerSettings::new(&fresh_topic_name("reader"), topic);
        settings.session_timeout = Duration::from_secs(6);
        let (consumer, events) = Consumer::start(&Connection::plaintext(kafka), settings).unwrap();
        Self { consumer, events, records: Vec::new(), seen: BTreeSet::new() }
    }

    /// Reads until `enough` is true.
    pub(crate) async fn read_until(&mut self, what: &str, enough: impl Fn(&Self) -> bool) {
        let read = async {
            while !enough(self) {
                self.read_event().await;
            }
        };
        let done = tokio::time::timeout(LIMIT, read).await;
        assert!(done.is_ok(), "waited in vain for: {what}; {} records seen", self.records.len());
    }

    async fn read_event(&mut self) {
        match self.events.recv().await.expect("the reader lives") {
            Event::Assigned(partitions) => {
                for partition in partitions {
                    self.consumer.command(Command::Start { partition, offset: 0 });
                }
            }
            Event::Records(records) => {
                for raw in records {
                    let record = Record::decode(&raw.value).unwrap();
                    assert_eq!(raw.key.as_ref(), record.head.lane().as_bytes());
                    self.seen.insert((record.head.row, record.head.endpoint_id()));
                    self.records.push((raw.partition, raw.offset, record));
                }
            }
            Event::Revoked(_) => self.consumer.command(Command::Released),
            Event::Fatal(error) => panic!("{error}"),
            _ => {}
        }
    }

    /// The (row, endpoint) pairs seen.
    pub(crate) fn pairs(&self) -> &BTreeSet<(i64, EndpointId)> {
        &self.seen
    }

    /// Reads until every pair of `rows` and `endpoints` was seen.
    pub(crate) async fn read_all(&mut self, rows: &BTreeSet<i64>, endpoints: &[EndpointId]) {
        let wanted = rows.len() * endpoints.len();
        self.read_until("every row for every endpoint", |log| log.pairs().len() >= wanted).await;
        for row in rows {
            for endpoint in endpoints {
                assert!(self.pairs().contains(&(*row, *endpoint)), "row {row} is missing");
            }
        }
    }

    /// First occurrences of each lane, in the order of the topic.
    pub(crate) fn first_occurrences(&self) -> HashMap<LaneId, Vec<i64>> {
        let mut by_place: BTreeMap<(i32, i64), &Record> = BTreeMap::new();
        for (partition, offset, record) in &self.records {
            by_place.insert((*partition, *offset), record);
        }
        let mut seen = BTreeSet::new();
        let mut lanes: HashMap<LaneId, Vec<i64>> = HashMap::new();
        for record in by_place.values() {
            if seen.insert(record.head.delivery) {
                lanes.entry(record.head.lane()).or_default().push(record.head.row);
            }
        }
        lanes
    }

    /// Every lane is in one partition, and its first occurrences are in row order.
    pub(crate) fn assert_lanes_in_order(&self) {
        let mut partitions: HashMap<LaneId, i32> = HashMap::new();
        for (partition, _, record) in &self.records {
            let known = *partitions.entry(record.head.lane()).or_insert(*partition);
            assert_eq!(known, *partition, "a lane is in one partition");
        }
        for (lane, rows) in self.first_occurrences() {
            assert!(rows.is_sorted(), "lane {lane} is out of order: {rows:?}");
        }
    }
}

/// Waits until all shards' cursors have passed everything and nothing is held.
pub(crate) async fn wait_until_passed(world: &World) {
    wait_for("everything passed", LIMIT, || async {
        let shards: Vec<_> = (0..16).map(laneway_store::relay::Shard).collect();
        let pending = laneway_store::relay::pending(&world.pool, &shards, 10).await.unwrap();
        let held =
            world.number("SELECT count(*) FROM laneway.relay_held WHERE left_entry IS NULL").await;
        pending.rows == 0 && held == 0
    })
    .await;
}
