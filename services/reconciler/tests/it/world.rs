//! A database of one test, and reconcilers that can be stopped or killed.

use laneway_platform::service::Context;
use laneway_reconciler::Settings;
use laneway_store::authorities::authority_set;
use laneway_store::idempotency::{Answer, Work};
use laneway_store::secrets::SecretsKey;
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, sql};
use laneway_wire::authority::{Authority, Method};
use laneway_wire::record::Head;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, Record, TenantId, Timestamp};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// 32 zero bytes in base64.
const SECRETS_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
/// Long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) pool: Pool,
    pub(crate) tenant: TenantId,
    pub(crate) endpoint: EndpointId,
    pub(crate) settings: Settings,
}

/// One instance, on a runtime of its own.
pub(crate) struct Instance {
    pub(crate) ctx: Context,
    runtime: Option<Runtime>,
    running: JoinHandle<Result<(), laneway_reconciler::Error>>,
}

impl Instance {
    /// Stops it in order and waits.
    pub(crate) async fn stop(mut self) {
        self.ctx.shutdown.cancel();
        tokio::time::timeout(LIMIT, &mut self.running).await.unwrap().unwrap().unwrap();
        self.kill();
    }

    /// Everything of it vanishes between two instructions, as far as a runtime allows.
    pub(crate) fn kill(mut self) {
        self.running.abort();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        laneway_platform::service::install_crypto();
        let url = Stack::shared().await.fresh_database().await;
        let pool = Pool::connect(&url.as_str().into(), Options::new("test")).await.unwrap();
        migrate::control_migrate(&pool).await.unwrap();
        migrate::source_migrate(&pool).await.unwrap();
        let relay = "INSERT INTO laneway.relay_members (instance) VALUES ('relay-1')";
        sql(&url, relay).await.unwrap();
        let tenant = TenantId::from_uuid(Uuid::now_v7());
        let endpoint = EndpointId::from_uuid(Uuid::now_v7());
        let t = tenant.as_uuid();
        sql(
            &url,
            &format!("INSERT INTO laneway_control.projects (tenant_id, name) VALUES ('{t}', 'p')"),
        )
        .await
        .unwrap();
        let mut settings = Settings::default();
        settings.database.url = url.as_str().into();
        settings.secrets.key = SECRETS_KEY.into();
        settings.courier.address.allow_http = true;
        settings.courier.address.allowed = vec!["127.0.0.0/8".parse().unwrap()];
        settings.reconciler.poll = Duration::from_millis(20);
        let mut world = Self { url, pool, tenant, endpoint, settings };
        world.another_endpoint().await;
        world
    }

    /// Makes an endpoint; records and authorities are its from now on.
    pub(crate) async fn another_endpoint(&mut self) {
        self.endpoint = EndpointId::from_uuid(Uuid::now_v7());
        let (t, e) = (self.tenant.as_uuid(), self.endpoint.as_uuid());
        sql(
            &self.url,
            &format!(
                "INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, timeout_ms, secret, since_version) \
                 VALUES ('{t}', '{e}', 'http://127.0.0.1:1/', 2000, '', 1)"
            ),
        )
        .await
        .unwrap();
    }

    /// Makes the endpoint ask at this URL, with this credential.
    pub(crate) async fn authority(&self, url: &str, credential: Option<&str>) {
        let secrets = SecretsKey::new("k1", [0; 32]);
        let authority =
            Authority { url: url.to_owned(), method: Method::Get, body: None, rules: vec![] };
        let mut work = Work::begin(&self.pool, self.tenant).await.unwrap();
        let header = credential.map(|value| ("authorization", value));
        let set = authority_set(&mut work, &secrets, self.endpoint, &authority, header, "ann");
        assert!(set.await.unwrap());
        work.commit(&Answer { status: 200, body: vec![] }, None).await.unwrap();
        sql(&self.url, "UPDATE laneway_control.endpoints SET on_unknown = 'lookup'").await.unwrap();
    }

    /// Parks the lane of each record with it as its head: an unknown after one attempt that ended long ago.
    pub(crate) async fn unknowns(&self, records: &[Record]) {
        for record in records {
            self.insert_unknown(record, 1, "now() - interval '1 hour'").await;
        }
    }

    /// The same with so many attempts, the last of which may travel until `ends` from now.
    pub(crate) async fn unknown(&self, record: &Record, attempts: u32, ends: Duration) {
        let end = format!("now() + {} * interval '1 ms'", ends.as_millis());
        self.insert_unknown(record, attempts, &end).await;
    }

    async fn insert_unknown(&self, record: &Record, attempts: u32, end: &str) {
        let head = &record.head;
        let lane = head.lane();
        let bytes: String = record.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        sql(
            &self.url,
            &format!(
                "INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, \
                   user_key, reason, due, head_held, unknown, unknown_since) \
                 VALUES ('\\x{lane}', {bucket}, 0, '{t}', '{e}', 1, 'k', 'unknown', {end}, now(), true, now()); \
                 INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, \
                   tenant_id, endpoint_id, event_id, first_held, attempts, record) \
                 VALUES ({bucket}, '{d}', '\\x{lane}', 1, 0, 5, '{t}', '{e}', '{v}', now(), {attempts}, '\\x{bytes}'); \
                 INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, class, \
                   took_ms, ended_at) VALUES ('{d}', '{t}', '{e}', {attempts}, 3, 'reset', 5, {end})",
                bucket = lane.bucket().number(),
                t = head.tenant,
                e = head.endpoint,
                d = head.delivery,
                v = head.event,
            ),
        )
        .await
        .unwrap();
    }

    pub(crate) fn start(&self) -> Instance {
        let ctx = Context::detached("reconciler");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let running = runtime.spawn(laneway_reconciler::run(self.settings.clone(), ctx.clone()));
        Instance { ctx, runtime: Some(runtime), running }
    }

    /// The only value of a query's only row.
    pub(crate) async fn value(&self, query: &str) -> String {
        let rows = sql(&self.url, query).await.unwrap();
        rows[0][0].clone().unwrap_or_default()
    }

    pub(crate) fn record(&self, number: u32, key: &str) -> Record {
        let event = EventId::from_uuid(Uuid::from_u128(
            0x019a_d2f0_0000_7000_8000_0000_0000_0000 + u128::from(number),
        ));
        Record {
            head: Head {
                generation: 1,
                delivery: DeliveryId::first(event, self.endpoint).as_uuid(),
                event: event.as_uuid(),
                endpoint: self.endpoint.as_uuid(),
                tenant: self.tenant.as_uuid(),
                mode: LaneMode::User,
                user_key: Some(key.to_owned()),
                event_type: "order.created".into(),
                content_type: "application/json".into(),
                headers: vec![],
                traceparent: None,
                source: "app".into(),
                row: i64::from(number),
                created_at: Timestamp(1_796_000_000_000),
                replay: 0,
                replay_of: None,
                erased: false,
            },
            payload: format!("{{\"n\":{number}}}").into(),
        }
    }

    /// Dead letters 1 to `count` over `lanes` lanes, in the order of their places.
    pub(crate) async fn dead_letters(&self, count: u32, lanes: u32) {
        for first in (1..=count).step_by(500) {
            let values: Vec<String> = (first..=count.min(first + 499))
                .map(|n| {
                    let record = self.record(n, &format!("k{}", n % lanes));
                    let bytes: String =
                        record.encode().iter().map(|byte| format!("{byte:02x}")).collect();
                    format!(
                        "('{}', '{}', '{}', '{}', '\\x{}', 'k{}', 'order.created', 'rejected', 1, '\\x{bytes}', now())",
                        record.head.tenant,
                        record.head.delivery,
                        record.head.event,
                        record.head.endpoint,
                        record.head.lane(),
                        n % lanes
                    )
                })
                .collect();
            sql(
                &self.url,
                &format!(
                    "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, \
                     user_key, event_type, reason, attempts, record, first_held) VALUES {}",
                    values.join(", ")
                ),
            )
            .await
            .unwrap();
        }
    }
}
