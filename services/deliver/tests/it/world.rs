//! A world for one test: its own database and topic, a receiver, and deliver instances that can be stopped or killed.

use bytes::Bytes;
use laneway_bus::{Admin, Connection, Producer, ProducerSettings, TopicSpec};
use laneway_deliver::{Deliver, Settings};
use laneway_platform::service::Context;
use laneway_store::secrets::{Place, SecretsKey};
use laneway_store::topology::topology_ensure;
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Entry, Receiver, Stack, fresh_topic_name, sql, wait_for};
use laneway_wire::record::Head;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, Record, TenantId, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) const S: Duration = Duration::from_secs(1);
/// Long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const PARTITIONS: u32 = 4;
const KEY: [u8; 32] = [7; 32];

pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) kafka: String,
    pub(crate) topic: String,
    pub(crate) pool: Pool,
    pub(crate) admin: Admin,
    pub(crate) producer: Producer,
    pub(crate) receiver: Receiver,
    pub(crate) tenant: TenantId,
    pub(crate) generation: u64,
    pub(crate) settings: Settings,
    rows: AtomicI64,
}

/// One instance, on a runtime of its own.
pub(crate) struct Instance {
    pub(crate) ctx: Context,
    runtime: Option<Runtime>,
    running: JoinHandle<Result<(), laneway_deliver::Error>>,
}

impl Instance {
    /// Stops it in order and waits.
    pub(crate) async fn stop(mut self) {
        self.ctx.shutdown.cancel();
        let ended = tokio::time::timeout(LIMIT, &mut self.running).await;
        ended.expect("it stops in time").unwrap().unwrap();
        self.kill();
    }

    /// Everything of it vanishes between two instructions, as far as a runtime allows.
    pub(crate) fn kill(mut self) {
        self.running.abort();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub(crate) fn metrics(&self) -> String {
        self.ctx.registry.encode()
    }

    /// The value of the only series that begins with this.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find(|line| line.starts_with(series));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let stack = Stack::shared().await;
        Self::on(&stack.fresh_database().await, stack.kafka()).await
    }

    /// With the lease of development.
    pub(crate) async fn with_short_lease() -> Self {
        let mut world = Self::new().await;
        world.settings.deliver.lease = 3 * S;
        world
    }

    pub(crate) async fn on(url: &str, kafka: &str) -> Self {
        laneway_platform::service::install_crypto();
        if std::env::var_os("RUST_LOG").is_some() {
            let filter = tracing_subscriber::EnvFilter::from_default_env();
            let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        }
        let pool = Pool::connect(&url.into(), Options::new("test")).await.unwrap();
        migrate::control_migrate(&pool).await.unwrap();
        let topic = fresh_topic_name("deliver");
        let connection = Connection::plaintext(kafka);
        let admin = Admin::new(&connection).unwrap();
        let producer = Producer::new(&connection, &topic, ProducerSettings::default()).unwrap();
        let tenant = TenantId::from_uuid(Uuid::now_v7());
        let project = format!(
            "INSERT INTO laneway_control.projects (tenant_id, name) VALUES ('{}', 'test')",
            tenant.as_uuid()
        );
        sql(url, &project).await.unwrap();
        let mut settings = Settings::default();
        settings.database.url = url.into();
        settings.kafka.brokers = kafka.to_owned();
        settings.kafka.deliveries_topic = topic.clone();
        settings.kafka.session_timeout = 6 * S;
        settings.secrets.key = base64(&KEY).into();
        settings.courier.address.allow_http = true;
        settings.courier.address.allowed = vec!["127.0.0.0/8".parse().unwrap()];
        settings.deliver = Deliver {
            group: topic.clone(),
            // Long, so that a busy machine costs no ownership; tests of take-overs set their own.
            lease: 10 * S,
            drain_limit: 5 * S,
            ..Deliver::default()
        };
        let world = Self {
            url: url.to_owned(),
            kafka: kafka.to_owned(),
            topic,
            pool,
            admin,
            producer,
            receiver: Receiver::start().await,
            tenant,
            generation: 1,
            settings,
            rows: AtomicI64::new(0),
        };
        world.make_topic().await;
        world
    }

    pub(crate) async fn make_topic(&self) {
        let spec = TopicSpec::new(&self.topic, PARTITIONS);
        assert!(self.admin.create_topic(&spec).await.unwrap());
        wait_for("the topic", LIMIT, || async {
            matches!(self.admin.describe_topic(&self.topic).await, Ok(Some(_)))
        })
        .await;
        let found = self.admin.describe_topic(&self.topic).await.unwrap().unwrap();
        let id = found.incarnation.unwrap().to_string();
        topology_ensure(&self.pool, &self.topic, &id, PARTITIONS).await.unwrap();
    }

    /// Starts an instance of this name.
    pub(crate) fn start(&self, name: &str) -> Instance {
        self.start_with(name, &self.settings)
    }

    pub(crate) fn start_with(&self, name: &str, settings: &Settings) -> Instance {
        let mut ctx = Context::detached("deliver");
        ctx.instance = name.into();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let running = runtime.spawn(laneway_deliver::run(settings.clone(), ctx.clone()));
        Instance { ctx, runtime: Some(runtime), running }
    }

    /// An endpoint at this path of the receiver.
    pub(crate) async fn endpoint(&self, path: &str, on_unknown: &str) -> EndpointId {
        self.endpoint_at(&self.receiver.url(path), on_unknown).await
    }

    pub(crate) async fn endpoint_at(&self, url: &str, on_unknown: &str) -> EndpointId {
        let id = Uuid::now_v7();
        let key = SecretsKey::new("k1", KEY);
        let place = Place::endpoint(self.tenant, &id.to_string()).seal_with(&key);
        sql(
            &self.url,
            &format!(
                "INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, timeout_ms, secret, on_unknown, \
                 since_version) VALUES ('{}', '{id}', '{url}', 2000, '\\x{place}', '{on_unknown}', 1)",
                self.tenant.as_uuid()
            ),
        )
        .await
        .unwrap();
        EndpointId::from_uuid(id)
    }

    /// A record for this endpoint and user key; the payload tells its number.
    pub(crate) fn record(&self, endpoint: EndpointId, key: &str) -> Record {
        let event = EventId::from_uuid(Uuid::now_v7());
        let row = self.rows.fetch_add(1, Ordering::Relaxed) + 1;
        Record {
            head: Head {
                generation: self.generation,
                delivery: DeliveryId::first(event, endpoint).as_uuid(),
                event: event.as_uuid(),
                endpoint: endpoint.as_uuid(),
                tenant: self.tenant.as_uuid(),
                mode: LaneMode::User,
                user_key: Some(key.to_owned()),
                event_type: "order.created".into(),
                content_type: "application/json".into(),
                headers: vec![("x-key".into(), key.into())],
                traceparent: None,
                source: "test".into(),
                row,
                created_at: Timestamp(chrono_now()),
                replay: 0,
                replay_of: None,
                erased: false,
            },
            payload: Bytes::from(format!(r#"{{"row":{row}}}"#)),
        }
    }

    pub(crate) fn partition(record: &Record) -> u32 {
        u32::from(record.head.lane().bucket().number()) % PARTITIONS
    }

    /// Produces records in order and waits for the acknowledgements.
    pub(crate) async fn produce(&self, records: &[Record]) {
        let mut pending = Vec::new();
        for record in records {
            let key = Bytes::copy_from_slice(record.head.lane().as_bytes());
            pending.push(self.send(Self::partition(record), key, record.encode()).await);
        }
        for pending in pending {
            pending.await.unwrap();
        }
    }

    pub(crate) async fn send(
        &self,
        partition: u32,
        key: Bytes,
        value: Bytes,
    ) -> laneway_bus::Pending {
        self.producer.send(partition.cast_signed(), &key, &value, &[]).await.unwrap()
    }

    /// The only value of a query's only row.
    pub(crate) async fn value(&self, query: &str) -> String {
        let rows = sql(&self.url, query).await.unwrap();
        rows[0][0].clone().unwrap_or_default()
    }

    /// Waits until the query gives this.
    pub(crate) async fn wait_value(&self, query: &str, want: &str) {
        let mut last = String::new();
        let start = std::time::Instant::now();
        while start.elapsed() < LIMIT {
            last = self.value(query).await;
            if last == want {
                return;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        panic!("{query}: still {last}, not {want}; {}", self.state().await);
    }

    /// Waits until so many different deliveries have their final outcome.
    pub(crate) async fn wait_settled(&self, count: usize) {
        let query = "SELECT count(*)::text FROM laneway_control.inbox";
        self.wait_value(query, &count.to_string()).await;
    }

    async fn state(&self) -> String {
        let owners = sql(
            &self.url,
            "SELECT generation::text, partition::text, epoch::text, renewal::text, state, next_offset::text \
             FROM laneway_control.partition_owners ORDER BY 1, 2",
        )
        .await;
        let parked = sql(
            &self.url,
            "SELECT reason, count(*)::text, min(due)::text FROM laneway_control.parked_lanes GROUP BY 1",
        )
        .await;
        format!(
            "owners {owners:?}, parked {parked:?}, receiver {:?}",
            self.receiver.journal().counts()
        )
    }

    /// Requests read so far.
    pub(crate) fn requests(&self) -> Vec<Arc<Entry>> {
        self.receiver.journal().requests()
    }

    /// Requests of one delivery, oldest first.
    pub(crate) fn requests_of(&self, record: &Record) -> Vec<Arc<Entry>> {
        let id = record.head.delivery_id().to_string();
        let mut requests = self.requests();
        requests.retain(|entry| entry.delivery_id.as_deref() == Some(id.as_str()));
        requests
    }

    /// Checks that first requests of every lane came in the order of its records (P2, I1).
    pub(crate) fn check_order(&self, records: &[Record]) {
        let requests = self.requests();
        let mut lanes: std::collections::HashMap<_, (usize, &Record)> = Default::default();
        for record in records {
            let id = record.head.delivery_id().to_string();
            let first = requests.iter().position(|entry| entry.delivery_id.as_ref() == Some(&id));
            let first = first.unwrap_or_else(|| panic!("row {} was never sent", record.head.row));
            if let Some((before, earlier)) = lanes.insert(record.head.lane(), (first, record)) {
                assert!(
                    before < first,
                    "row {} came before row {}",
                    record.head.row,
                    earlier.head.row
                );
            }
        }
    }
}

/// Seconds between two journal entries.
pub(crate) fn gap(earlier: &Entry, later: &Entry) -> f64 {
    Duration::from_nanos(later.ns - earlier.ns).as_secs_f64()
}

fn chrono_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let mut word = [0; 3];
            word[..chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
            (0..4).map(move |n| {
                let digit = char::from(DIGITS[(bits >> (18 - 6 * n)) as usize & 63]);
                if n <= chunk.len() { digit } else { '=' }
            })
        })
        .collect()
}

trait SealWith {
    fn seal_with(self, key: &SecretsKey) -> String;
}

impl SealWith for Place<'_> {
    /// The sealed secret in hex.
    fn seal_with(self, key: &SecretsKey) -> String {
        let secret = format!("whsec_{}", base64(&[9; 32]));
        key.seal(self, secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
