//! A system with effects, as a payment provider is one: it applies a request once for each idempotency key, may fail to
//! say so, and can be asked afterwards. Its ledger is what a test judges by; nothing of the product has a hand in it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request's head and body are not longer.
const MAX_REQUEST: usize = 1024 * 1024;

/// What the provider does with the first request of a key; every later one is applied and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// Applies it and answers 200.
    Answer,
    /// Applies it, then cuts the connection.
    ApplyThenCut,
    /// Cuts the connection and applies nothing.
    CutBefore,
    /// Applies it after this long and never answers.
    ApplyLate(Duration),
    /// Never answers and applies nothing.
    Silent,
}

/// What it says when it is asked about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// What its ledger says.
    Truth,
    /// `in_progress`, whatever the ledger says.
    InProgress,
    /// 503.
    Down,
    /// 200 with something that is no answer.
    Nonsense,
    /// Nothing: the connection is cut.
    Cut,
}

/// What is known of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Requests to do it.
    pub requests: u32,
    /// How often it was really done: never more than once, by the provider's own idempotency.
    pub effects: u32,
    /// Its place among all effects, from 1, once it is done.
    pub applied: Option<u64>,
    /// Requests to do it that came when it was done already: a sender that was told so does not send them.
    pub repeats_after_effect: u32,
    /// Questions about it.
    pub questions: u32,
    /// Questions that came while a request for it was still being worked on.
    pub questions_too_early: u32,
    /// The last value of the `authorization` header of a question.
    pub credential: Option<String>,
    working: u32,
    said: u32,
}

type Plan = Box<dyn Fn(&str) -> First + Send>;
type Script = Box<dyn Fn(&str, u32) -> Says + Send>;

struct Inner {
    effects: u64,
    accounts: HashMap<String, Account>,
    first: Plan,
    says: Script,
}

impl Inner {
    /// Does it, if it is not done.
    fn apply(&mut self, key: &str) {
        let account = self.accounts.entry(key.to_owned()).or_default();
        if account.effects == 0 {
            self.effects += 1;
            account.effects = 1;
            account.applied = Some(self.effects);
        }
    }
}

/// A running provider; it ends when dropped.
pub struct Provider {
    address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    serving: JoinHandle<()>,
}

impl Provider {
    /// Starts one that answers everything and says the truth.
    ///
    /// Panics when no port can be had.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its own address");
        let inner = Arc::new(Mutex::new(Inner {
            effects: 0,
            accounts: HashMap::new(),
            first: Box::new(|_| First::Answer),
            says: Box::new(|_, _| Says::Truth),
        }));
        let shared = Arc::clone(&inner);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = Arc::clone(&shared);
                tokio::spawn(async move {
                    let _ = serve(stream, &inner).await;
                });
            }
        });
        Self { address, inner, serving }
    }

    /// Where requests to do something go.
    pub fn url(&self) -> String {
        format!("http://{}/do", self.address)
    }

    /// Where to ask, as an authority's URL.
    pub fn authority(&self) -> String {
        format!("http://{}/ask/{{idempotencyKey}}", self.address)
    }

    /// What becomes of the first request of each key.
    pub fn set_first(&self, first: impl Fn(&str) -> First + Send + 'static) {
        self.locked().first = Box::new(first);
    }

    /// What is said of a key at the n-th question about it, from 0.
    pub fn set_says(&self, says: impl Fn(&str, u32) -> Says + Send + 'static) {
        self.locked().says = Box::new(says);
    }

    /// The ledger.
    pub fn accounts(&self) -> HashMap<String, Account> {
        self.locked().accounts.clone()
    }

    /// One key of it.
    pub fn account(&self, key: &str) -> Account {
        self.locked().accounts.get(key).cloned().unwrap_or_default()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("address", &self.address).finish_non_exhaustive()
    }
}

async fn serve(mut stream: TcpStream, inner: &Mutex<Inner>) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let Some(request) = next_request(&mut stream, &mut bytes).await? else { return Ok(()) };
        let done = match request.path.strip_prefix("/ask/") {
            Some(key) => answer(&mut stream, inner, key, &request).await?,
            None => act(&mut stream, inner, &request).await?,
        };
        if !done {
            // With something unread or lingering 0 this is a reset, not an end.
            let _ = stream.set_zero_linger();
            return Ok(());
        }
    }
}

struct Request {
    path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

async fn next_request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if bytes.len() > MAX_REQUEST || stream.read_buf(bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or("/").to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let request = Request { path, headers };
    let length: usize =
        request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while bytes.len() < end + length {
        if bytes.len() > MAX_REQUEST || stream.read_buf(bytes).await? == 0 {
            return Ok(None);
        }
    }
    bytes.drain(..end + length);
    Ok(Some(request))
}

/// False: cut the connection.
async fn act(stream: &mut TcpStream, inner: &Mutex<Inner>, request: &Request) -> io::Result<bool> {
    let Some(key) = request.header("idempotency-key").map(str::to_owned) else {
        return reply(stream, 400, "{}").await;
    };
    let first = {
        let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = (inner.first)(&key);
        let account = inner.accounts.entry(key.clone()).or_default();
        account.requests += 1;
        if account.effects > 0 {
            account.repeats_after_effect += 1;
        }
        let first = if account.requests == 1 { plan } else { First::Answer };
        match first {
            First::Answer | First::ApplyThenCut => inner.apply(&key),
            First::ApplyLate(_) => account.working += 1,
            First::CutBefore | First::Silent => {}
        }
        first
    };
    match first {
        First::Answer => reply(stream, 200, "{}").await,
        First::ApplyThenCut | First::CutBefore => Ok(false),
        First::ApplyLate(after) => {
            tokio::time::sleep(after).await;
            {
                let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
                let account = inner.accounts.entry(key.clone()).or_default();
                account.working -= 1;
                inner.apply(&key);
            }
            wait_for_end(stream).await
        }
        First::Silent => wait_for_end(stream).await,
    }
}

async fn wait_for_end(stream: &mut TcpStream) -> io::Result<bool> {
    let mut nothing = [0; 1];
    while stream.read(&mut nothing).await? > 0 {}
    Ok(false)
}

async fn answer(
    stream: &mut TcpStream,
    inner: &Mutex<Inner>,
    key: &str,
    request: &Request,
) -> io::Result<bool> {
    let (says, applied) = {
        let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
        let said = inner.accounts.get(key).map_or(0, |account| account.said);
        let says = (inner.says)(key, said);
        let account = inner.accounts.entry(key.to_owned()).or_default();
        account.said += 1;
        account.questions += 1;
        account.credential = request.header("authorization").map(str::to_owned);
        if account.working > 0 {
            account.questions_too_early += 1;
        }
        (says, account.effects > 0)
    };
    match says {
        Says::Truth if applied => {
            reply(stream, 200, r#"{"outcome":"applied","result":{"id":"ch_1"}}"#).await
        }
        Says::Truth => reply(stream, 200, r#"{"outcome":"not_applied"}"#).await,
        Says::InProgress => reply(stream, 200, r#"{"outcome":"in_progress"}"#).await,
        Says::Down => reply(stream, 503, r#"{"outcome":"not_applied"}"#).await,
        Says::Nonsense => reply(stream, 200, "<html>hello</html>").await,
        Says::Cut => Ok(false),
    }
}

async fn reply(stream: &mut TcpStream, status: u16, body: &str) -> io::Result<bool> {
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    Ok(true)
}
