//! An API with its database, and HTTP by hand: a test decides about every byte that is sent.

use laneway_api::Settings;
use laneway_platform::config::SecretString;
use laneway_platform::service::Context;
use laneway_store::keys::{Scope, key_create};
use laneway_store::projects::project_create;
use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, sql};
use laneway_wire::record::Head;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, Record, TenantId, Timestamp};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// 32 bytes in base64.
pub(crate) const SECRETS_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const LIMIT: Duration = Duration::from_secs(30);

/// A running API.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    pub(crate) database: String,
    pub(crate) pool: Pool,
    pub(crate) context: Context,
    pub(crate) settings: Settings,
    running: JoinHandle<Result<(), laneway_api::Error>>,
}

/// A project and a key of it with every scope.
#[derive(Clone)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) key: String,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Api {
    pub(crate) async fn start() -> Self {
        Self::with(&Stack::shared().await.fresh_database().await, |_| {}).await
    }

    pub(crate) async fn with(database: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let url = SecretString::from(database.to_owned());
        let pool = Pool::connect(&url, Options::new("api-tests").max_connections(4)).await.unwrap();
        migrate::control_migrate(&pool).await.unwrap();
        migrate::source_migrate(&pool).await.unwrap();
        // A relay that is always there; who tests its absence removes it.
        let relay = "INSERT INTO laneway.relay_members (instance, seen_at) VALUES ('relay', 'infinity') \
                     ON CONFLICT DO NOTHING";
        sql(database, relay).await.unwrap();
        let mut settings = Settings::default();
        settings.database.url = url;
        settings.secrets.key = SecretString::from(SECRETS_KEY.to_owned());
        settings.api.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        change(&mut settings);
        Self::run(settings, database.to_owned(), pool).await
    }

    async fn run(settings: Settings, database: String, pool: Pool) -> Self {
        let context = Context::detached("api");
        let (tell, told) = tokio::sync::oneshot::channel();
        let (run_settings, run_context) = (settings.clone(), context.clone());
        let running = tokio::spawn(async move {
            laneway_api::run_on(run_settings, run_context, |address| {
                let _ = tell.send(address);
            })
            .await
        });
        let address = tokio::time::timeout(LIMIT, told).await.unwrap().unwrap();
        Self { address, database, pool, context, settings, running }
    }

    /// Stops it in order and starts another process's worth of it on the same database.
    pub(crate) async fn restart(self) -> Self {
        self.context.shutdown.cancel();
        tokio::time::timeout(LIMIT, self.running).await.unwrap().unwrap().unwrap();
        Self::run(self.settings, self.database, self.pool).await
    }

    /// Stops it and waits for its end.
    pub(crate) async fn stop(self) {
        self.context.shutdown.cancel();
        tokio::time::timeout(LIMIT, self.running).await.unwrap().unwrap().unwrap();
    }

    pub(crate) async fn tenant(&self) -> Tenant {
        self.tenant_with(&Scope::ALL).await
    }

    pub(crate) async fn tenant_with(&self, scopes: &[Scope]) -> Tenant {
        let id = project_create(&self.pool, "a shop").await.unwrap().id;
        let key = key_create(&self.pool, id, scopes, None).await.unwrap().unwrap();
        Tenant { id, key: key.text.to_string() }
    }

    pub(crate) async fn send(&self, request: &[u8]) -> Answer {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        // A server that refuses early closes before it has read all: then the rest cannot be written.
        let _ = connection.write_all(request).await;
        read(&mut connection).await
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.send(&raw(method, path, headers, body)).await
    }

    pub(crate) async fn get(&self, tenant: &Tenant, path: &str) -> Answer {
        let path = format!("/api/v1/projects/{}/{path}", tenant.id);
        self.request("GET", &path, &[("x-api-key", &tenant.key)], b"").await
    }

    pub(crate) async fn post(
        &self,
        tenant: &Tenant,
        path: &str,
        key: Option<&str>,
        body: &[u8],
    ) -> Answer {
        let path = format!("/api/v1/projects/{}/{path}", tenant.id);
        let mut headers =
            vec![("x-api-key", tenant.key.as_str()), ("content-type", "application/json")];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        self.request("POST", &path, &headers, body).await
    }

    /// Any method; a body only where there is one.
    pub(crate) async fn call(
        &self,
        method: &str,
        tenant: &Tenant,
        path: &str,
        body: &str,
    ) -> Answer {
        let path = format!("/api/v1/projects/{}/{path}", tenant.id);
        let headers = [
            ("x-api-key", tenant.key.as_str()),
            ("content-type", "application/json"),
            ("idempotency-key", "x"),
        ];
        self.request(&method.to_uppercase(), &path, &headers, body.as_bytes()).await
    }

    /// Makes an endpoint and gives its id.
    pub(crate) async fn endpoint(&self, tenant: &Tenant) -> String {
        let answer =
            self.post(tenant, "endpoints", None, br#"{"url":"https://shop.example/"}"#).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// One number of the database.
    pub(crate) async fn count(&self, query: &str) -> i64 {
        sql(&self.database, query).await.unwrap()[0][0].as_ref().unwrap().parse().unwrap()
    }

    /// Rows that requests can make.
    pub(crate) async fn stored(&self) -> i64 {
        self.count(
            "SELECT (SELECT count(*) FROM laneway_control.endpoints) \
             + (SELECT count(*) FROM laneway_control.subscriptions) \
             + (SELECT count(*) FROM laneway_control.idempotency_keys) \
             + (SELECT count(*) FROM laneway_control.audit_log) + (SELECT count(*) FROM laneway_control.rewinds) \
             + (SELECT count(*) FROM laneway.outbox) + (SELECT count(*) FROM laneway.outbox_dedupe) \
             + (SELECT version FROM laneway_control.routing_version)",
        )
        .await
    }
}

/// Makes the first delivery of `event` to `endpoint` a dead letter, in the lane of the key `user-{n}`.
pub(crate) async fn dead_letter(
    api: &Api,
    tenant: &Tenant,
    endpoint: EndpointId,
    event: EventId,
    n: u32,
) -> DeliveryId {
    let delivery = DeliveryId::first(event, endpoint);
    let record = Record {
        head: Head {
            generation: 1,
            delivery: delivery.as_uuid(),
            event: event.as_uuid(),
            endpoint: endpoint.as_uuid(),
            tenant: tenant.id.as_uuid(),
            mode: LaneMode::User,
            user_key: Some(format!("user-{n}")),
            event_type: "order.created".into(),
            content_type: "application/json".into(),
            headers: vec![("x-shop".into(), "7".into())],
            traceparent: None,
            source: "control".into(),
            row: 1,
            created_at: Timestamp(1),
            replay: 0,
            replay_of: None,
            erased: false,
        },
        payload: br#"{"card": 4711}"#.as_slice().into(),
    };
    let bytes: String = record.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    let statement = format!(
        "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, user_key, \
           event_type, reason, attempts, last_status, record, first_held) \
         VALUES ('{}', '{}', '{}', '{}', '\\x{}', 'user-{n}', 'order.created', 'rejected', 1, 422, '\\x{bytes}', now())",
        tenant.id.as_uuid(),
        delivery.as_uuid(),
        event.as_uuid(),
        endpoint.as_uuid(),
        record.head.lane()
    );
    sql(&api.database, &statement).await.unwrap();
    delivery
}

pub(crate) fn raw(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: api\r\nconnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() || method == "POST" {
        request += &format!("content-length: {}\r\n", body.len());
    }
    let mut request = (request + "\r\n").into_bytes();
    request.extend_from_slice(body);
    request
}

/// Reads an answer up to the end of the connection.
pub(crate) async fn read(connection: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = tokio::time::timeout(LIMIT, connection.read_to_end(&mut bytes))
        .await
        .expect("an answer in time");
    let end = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no HTTP answer: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        })
        .collect();
    Answer { status, headers, body: bytes[end + 4..].to_vec() }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Asserts that it is a whole problem document and gives its code.
    #[track_caller]
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status, "{document}");
        assert_eq!(document["requestId"].as_str(), self.header("x-request-id"), "{document}");
        let code = document["code"].as_str().unwrap().to_owned();
        assert_eq!(document["type"], format!("/problems/{}", code.replace('_', "-")));
        assert!(document["title"].is_string() && document["instance"].is_string());
        code
    }

    /// Pairs of pointer and code of the fields that a problem names.
    #[track_caller]
    pub(crate) fn field_errors(&self) -> Vec<(String, String)> {
        self.json()["errors"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|e| {
                (e["pointer"].as_str().unwrap().to_owned(), e["code"].as_str().unwrap().to_owned())
            })
            .collect()
    }
}
