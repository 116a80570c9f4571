//! The scripted receiver: a destination that does what a test says and writes down what it saw.
//!
//! It shares no code with the product: its own reading of HTTP, its own journal. It outlives the processes under test
//! and can run as a process of its own (`laneway-receiver`, [`run_receiver`]).

mod http;
mod journal;
mod script;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use http::Request;
pub(crate) use journal::monotonic_ns;
pub use journal::{Entry, Journal, Kind};
pub use script::{Behaviour, Rule};

/// Buffered journal lines reach the file this often.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
const LISTEN_BACKLOG: u32 = 4096;
/// `PUT` a list of rules, `GET` the counts; not journalled.
const CONTROL_PREFIX: &str = "/-/";

type Script = Arc<dyn Fn(&Request) -> Behaviour + Send + Sync>;

/// How a receiver is set up.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiverConfig {
    /// Where to listen; port 0 is any free one.
    pub listen: SocketAddr,
    /// The NDJSON file to append to.
    pub journal: Option<PathBuf>,
    /// Keep entries in memory for [`Journal::entries`]; off for long runs.
    pub in_memory: bool,
    /// Write bodies into the journal too.
    pub bodies: bool,
    /// What to do with requests.
    pub rules: Vec<Rule>,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            journal: None,
            in_memory: true,
            bodies: false,
            rules: Vec::new(),
        }
    }
}

/// What happens to new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// They are served.
    Open,
    /// They are refused (nothing listens); open ones are reset. The port stays the same when it opens again.
    Shut,
    /// They are accepted and reset at once, before anything is read.
    Reset,
    /// They are accepted and nothing is read.
    Ignore,
}

struct Shared {
    journal: Journal,
    script: RwLock<Script>,
    connections: AtomicU64,
    bodies: bool,
}

impl Shared {
    fn decide(&self, request: &Request) -> Behaviour {
        let script = self.script.read().expect("no script panicked").clone();
        script(request)
    }

    fn set_script(&self, script: Script) {
        *self.script.write().expect("no script panicked") = script;
    }
}

/// A running receiver; stops when dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    door: watch::Sender<Door>,
    tasks: Vec<JoinHandle<()>>,
}

impl Receiver {
    /// On a free loopback port, answering `200` to everything.
    ///
    /// Panics when it cannot listen.
    pub async fn start() -> Self {
        Self::with(ReceiverConfig::default()).await.expect("the receiver can listen")
    }

    /// As configured.
    ///
    /// # Errors
    /// When it cannot listen or open its journal.
    pub async fn with(config: ReceiverConfig) -> Result<Self> {
        let journal = Journal::open(config.journal.as_deref(), config.in_memory)?;
        let listener = listen(config.listen)
            .with_context(|| format!("the receiver cannot listen on {}", config.listen))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            journal: journal.clone(),
            script: RwLock::new(by_rules(config.rules)),
            connections: AtomicU64::new(0),
            bodies: config.bodies,
        });
        let door = watch::Sender::new(Door::Open);
        let flusher = tokio::spawn(async move {
            loop {
                tokio::time::sleep(FLUSH_EVERY).await;
                journal.flush();
            }
        });
        let acceptor = tokio::spawn(accept(listener, address, shared.clone(), door.subscribe()));
        Ok(Self { address, shared, door, tasks: vec![flusher, acceptor] })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:port` + `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What it read and answered.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// From now on `script` decides.
    pub fn set_script(&self, script: impl Fn(&Request) -> Behaviour + Send + Sync + 'static) {
        self.shared.set_script(Arc::new(script));
    }

    /// From now on these rules decide; without a match `200` is answered.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        self.shared.set_script(by_rules(rules));
    }

    /// What happens to connections from now on. Open ones are reset when it shuts, and are left alone otherwise.
    pub fn set_door(&self, door: Door) {
        self.door.send_replace(door);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.shared.journal.flush();
    }
}

/// Runs a receiver until `stop` is done; `ready` is told where it listens.
///
/// # Errors
/// As [`Receiver::with`].
pub async fn run_receiver(
    config: ReceiverConfig,
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let receiver = Receiver::with(config).await?;
    ready(receiver.address());
    stop.await;
    Ok(())
}

fn by_rules(rules: Vec<Rule>) -> Script {
    Arc::new(move |request| {
        rules
            .iter()
            .find(|rule| rule.takes(request))
            .map_or_else(Behaviour::ok, |rule| rule.behaviour.clone())
    })
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket.listen(LISTEN_BACKLOG)?)
}

async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    mut door: watch::Receiver<Door>,
) {
    let mut listener = Some(listener);
    loop {
        let state = *door.borrow_and_update();
        if state == Door::Shut {
            listener = None;
            if door.changed().await.is_err() {
                return;
            }
            continue;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => listen(address).expect("the receiver's port is free again"),
        };
        tokio::select! {
            accepted = open.accept() => if let Ok((stream, _)) = accepted {
                let conn = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
                match state {
                    Door::Open => {
                        tokio::spawn(serve(stream, conn, shared.clone(), door.clone()));
                    }
                    Door::Ignore => {
                        let mut door = door.clone();
                        tokio::spawn(async move {
                            let _ = door.wait_for(|state| *state != Door::Ignore).await;
                            reset(stream);
                        });
                    }
                    Door::Reset | Door::Shut => reset(stream),
                }
            },
            changed = door.changed() => if changed.is_err() { return },
        }
        listener = Some(open);
    }
}

/// Serves one connection until it ends, the script ends it, or the door shuts or goes away.
async fn serve(
    mut stream: TcpStream,
    conn: u64,
    shared: Arc<Shared>,
    mut door: watch::Receiver<Door>,
) {
    let _ = stream.set_nodelay(true);
    let ended = tokio::select! {
        ended = requests(&mut stream, conn, &shared) => ended,
        _ = door.wait_for(|state| *state == Door::Shut) => Ok(End::Reset),
    };
    if matches!(ended, Ok(End::Reset)) {
        reset(stream);
    }
}

enum End {
    Closed,
    Reset,
}

async fn requests(stream: &mut TcpStream, conn: u64, shared: &Shared) -> Result<End> {
    let mut buffer = BytesMut::with_capacity(8 * 1024);
    while let Some(request) = http::read_request(stream, &mut buffer).await? {
        if request.path.starts_with(CONTROL_PREFIX) {
            control(stream, &request, shared).await?;
            continue;
        }
        let behaviour = shared.decide(&request);
        let mut entry = entry(&request, conn, &behaviour, shared.bodies);
        entry.request = shared.journal.append(entry.clone());
        let close = request.wants_close();
        match &behaviour {
            Behaviour::Answer { status, headers, body, delay_ms, close: announced } => {
                if *delay_ms > 0 {
                    tokio::time::sleep(Duration::from_millis(*delay_ms)).await;
                }
                let close = close || *announced;
                stream.write_all(&answer(*status, headers, body, body.len(), close)).await?;
                shared.journal.append(response(entry));
                if close {
                    return Ok(End::Closed);
                }
            }
            Behaviour::Reset => return Ok(End::Reset),
            Behaviour::Close => return Ok(End::Closed),
            Behaviour::Hang => {
                until_closed(stream, &mut buffer).await;
                return Ok(End::Closed);
            }
            Behaviour::SlowLoris { status, every_ms } => {
                for byte in answer(*status, &[], "", 0, false) {
                    stream.write_all(&[byte]).await?;
                    tokio::time::sleep(Duration::from_millis(*every_ms)).await;
                }
                shared.journal.append(response(entry));
            }
            Behaviour::Raw { bytes } => {
                stream.write_all(bytes.as_bytes()).await?;
                stream.shutdown().await?;
                until_closed(stream, &mut buffer).await;
                return Ok(End::Closed);
            }
            Behaviour::ResetMidBody { status } => {
                stream.write_all(&answer(*status, &[], "half", 1000, false)).await?;
                // The peer has to read the head before the reset throws it away.
                tokio::time::sleep(Duration::from_millis(50)).await;
                return Ok(End::Reset);
            }
            Behaviour::StallMidBody { status } => {
                stream.write_all(&answer(*status, &[], "half", 1000, false)).await?;
                until_closed(stream, &mut buffer).await;
                return Ok(End::Closed);
            }
        }
    }
    Ok(End::Closed)
}

async fn control(stream: &mut TcpStream, request: &Request, shared: &Shared) -> Result<()> {
    let (status, body) = match (request.method.as_str(), request.path.as_str()) {
        ("PUT", "/-/rules") => match serde_json::from_slice(&request.body) {
            Ok(rules) => {
                shared.set_script(by_rules(rules));
                (200, String::new())
            }
            Err(error) => (400, error.to_string()),
        },
        ("GET", "/-/counts") => {
            shared.journal.flush();
            let (requests, responses) = shared.journal.counts();
            (200, serde_json::json!({"requests": requests, "responses": responses}).to_string())
        }
        _ => (404, String::new()),
    };
    stream.write_all(&answer(status, &[], &body, body.len(), false)).await?;
    Ok(())
}

/// Reads and drops until the peer closes.
async fn until_closed(stream: &mut TcpStream, buffer: &mut BytesMut) {
    use tokio::io::AsyncReadExt;
    loop {
        buffer.clear();
        match stream.read_buf(buffer).await {
            Ok(read) if read > 0 => {}
            _ => return,
        }
    }
}

/// Closes with RST in place of FIN.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

fn answer(
    status: u16,
    headers: &[(String, String)],
    body: &str,
    announced: usize,
    close: bool,
) -> Vec<u8> {
    if status == 200 && headers.is_empty() && body.is_empty() && announced == 0 && !close {
        return b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec();
    }
    let mut text = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if close {
        text.push_str("connection: close\r\n");
    }
    // A 204 or 304 has no body and announces none.
    if !matches!(status, 100..200 | 204 | 304) {
        text.push_str(&format!("content-length: {announced}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        404 => "Not Found",
        410 => "Gone",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Scripted",
    }
}

fn entry(request: &Request, conn: u64, behaviour: &Behaviour, bodies: bool) -> Entry {
    let header = |name| request.header(name).map(str::to_owned);
    Entry {
        kind: Kind::Request,
        request: 0,
        conn,
        ns: 0,
        unix_ms: 0,
        path: request.path.clone(),
        webhook_id: header("webhook-id"),
        delivery_id: header("x-delivery-id"),
        attempt: request.header("x-attempt").and_then(|value| value.parse().ok()),
        idempotency_key: header("idempotency-key"),
        sequence: request.header("x-sequence-number").and_then(|value| value.parse().ok()),
        event_type: header("x-event-type"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
        body_sha256: Some(hex::encode(Sha256::digest(&request.body))),
        body: bodies.then(|| String::from_utf8_lossy(&request.body).into_owned()),
        behaviour: behaviour.name().to_owned(),
        status: behaviour.answered_status(),
    }
}

fn response(request: Entry) -> Entry {
    Entry {
        kind: Kind::Response,
        timestamp: None,
        signature: None,
        body_sha256: None,
        body: None,
        ..request
    }
}
