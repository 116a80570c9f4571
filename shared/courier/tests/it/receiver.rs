//! A receiver whose behaviour is a function of the connection: everything that a broken server can do, byte by byte.

use bytes::Bytes;
use laneway_courier::{AddressPolicy, Courier, Outgoing, SendResult, Sent, Settings, Target};
use laneway_wire::signature::Secret;
use laneway_wire::{DeliveryId, EndpointId, EventId, Record, TenantId, Timestamp};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// The deadline of nearly all sends here.
pub(crate) const DEADLINE: Duration = Duration::from_millis(600);
/// A machine that is busy with other things may be this late.
pub(crate) const SLACK: Duration = Duration::from_millis(900);

/// Accepts connections until dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// Runs `behaviour` for each connection.
    pub(crate) async fn start<F, Fut>(behaviour: F) -> Self
    where
        F: Fn(Connection) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), behaviour)
    }

    pub(crate) fn on<F, Fut>(listener: TcpListener, behaviour: F) -> Self
    where
        F: Fn(Connection) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let (accepted, requests) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (accepted_by_task, requests_by_task) = (Arc::clone(&accepted), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepted_by_task.fetch_add(1, Ordering::SeqCst);
                let requests = Arc::clone(&requests_by_task);
                connections.spawn(behaviour(Connection { stream, buffer: Vec::new(), requests }));
            }
        });
        Self { address, accepted, requests, task }
    }

    /// Answers each request of each connection with these bytes.
    pub(crate) async fn answering(answer: &'static [u8]) -> Self {
        Self::start(move |mut connection| async move {
            while connection.request().await.is_some() {
                connection.write(answer).await;
            }
        })
        .await
    }

    /// Answers the first request of each connection with these bytes and then leaves the connection open.
    pub(crate) async fn answering_once(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |mut connection| {
            let answer = Arc::clone(&answer);
            async move {
                connection.request().await;
                connection.write(&answer).await;
                connection.hold().await;
            }
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?x=1", self.address)
    }

    /// Connections accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Requests read to their end so far.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// One accepted connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
    requests: Arc<AtomicUsize>,
}

/// A request as it came over the wire.
#[derive(Debug, Clone)]
pub(crate) struct Raw {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Raw {
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let same = |header: &&(String, String)| header.0.eq_ignore_ascii_case(name);
        self.headers.iter().filter(same).map(|header| header.1.as_str()).collect()
    }

    pub(crate) fn one(&self, name: &str) -> &str {
        let all = self.all(name);
        assert_eq!(all.len(), 1, "header {name} of {self:?}");
        all[0]
    }
}

impl Connection {
    /// The next request, whole; none at the end of the connection.
    pub(crate) async fn request(&mut self) -> Option<Raw> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            self.fill().await?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap().to_owned();
        let headers: Vec<(String, String)> = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                (name.to_owned(), value.trim().to_owned())
            })
            .collect();
        let mut raw = Raw { line, headers, body: Vec::new() };
        let length: usize = raw.one("content-length").parse().unwrap();
        while self.buffer.len() < end + 4 + length {
            self.fill().await?;
        }
        raw.body = self.buffer.drain(..end + 4 + length).skip(end + 4).collect();
        self.requests.fetch_add(1, Ordering::SeqCst);
        Some(raw)
    }

    async fn fill(&mut self) -> Option<()> {
        let mut chunk = [0; 65_536];
        let read = self.stream.read(&mut chunk).await.ok().filter(|read| *read > 0)?;
        self.buffer.extend_from_slice(&chunk[..read]);
        Some(())
    }

    /// Writes, and does not mind if nobody listens.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Ends the connection with RST instead of FIN.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Keeps the connection open until the peer closes it.
    pub(crate) async fn hold(mut self) {
        while self.fill().await.is_some() {
            self.buffer.clear();
        }
    }
}

/// Settings under which loopback is a destination like any other.
pub(crate) fn settings() -> Settings {
    Settings {
        address: AddressPolicy {
            allow_http: true,
            allowed: vec!["127.0.0.0/8".parse().unwrap()],
            ..AddressPolicy::default()
        },
        ..Settings::default()
    }
}

pub(crate) fn courier() -> Courier {
    Courier::new(settings()).unwrap()
}

pub(crate) fn secret() -> Secret {
    Secret::from_bytes(&[7; 32]).unwrap()
}

pub(crate) fn target(url: impl Into<String>) -> Target {
    Target {
        tenant: TenantId::from_uuid(Uuid::from_u128(3)),
        endpoint: EndpointId::from_uuid(Uuid::from_u128(2)),
        version: 1,
        url: url.into(),
        secrets: vec![secret()],
        max_connections: 16,
        headers: Vec::new(),
    }
}

pub(crate) fn record(payload: impl Into<Bytes>) -> Record {
    let event = EventId::from_uuid(Uuid::from_u128(0x019a_d2f0_0000_7000_8000_0000_0000_0001));
    let endpoint = EndpointId::from_uuid(Uuid::from_u128(2));
    let head = serde_json::json!({
        "g": 1, "d": DeliveryId::first(event, endpoint).as_uuid().simple().to_string(),
        "e": event.as_uuid().simple().to_string(), "p": endpoint.as_uuid().simple().to_string(),
        "t": Uuid::from_u128(3).simple().to_string(), "m": laneway_wire::LaneMode::User, "k": "user_1",
        "y": "order.created", "c": "application/json", "s": "app", "r": 42,
        "a": Timestamp(1_796_000_000_000),
    });
    Record { head: serde_json::from_value(head).unwrap(), payload: payload.into() }
}

pub(crate) fn outgoing(record: &Record) -> Outgoing<'_> {
    Outgoing { record, attempt: 1, sequence: 0, signed_at: SystemTime::now() }
}

/// One send of a small body with a fresh courier.
pub(crate) async fn send(url: &str) -> Sent {
    courier().send(&target(url), outgoing(&record("{}")), DEADLINE).await
}

pub(crate) fn not_sent(class: &'static str) -> SendResult {
    SendResult::NotSent { class }
}

pub(crate) fn unknown(class: &'static str) -> SendResult {
    SendResult::Unknown { class }
}

/// The status and whether the body is whole.
pub(crate) fn status(sent: &Sent) -> (u16, bool) {
    match &sent.result {
        SendResult::Responded { status, truncated, .. } => (*status, !truncated),
        other => panic!("no response: {other:?}"),
    }
}

/// Waits until `condition` holds, 10 s at most.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
