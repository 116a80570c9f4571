//! A system with effects, as a payment provider is one: it applies a request once for each idempotency key, may fail to
//! say so, and can be asked afterwards. Its ledger is what a test judges by; nothing of the product has a hand in it.
//!
//! Requests come to a [`Receiver`] with its journal, questions to another one.

use crate::receiver::{Behaviour, Receiver, Request, monotonic_ns};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Where requests go, unless a test says otherwise.
const PATH: &str = "/do";

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
    /// `applied` or `not_applied`, as its ledger says.
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
}

/// A line of the ledger, for the judge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerLine {
    /// `effect`: it was done; `worked`: it would have been, had it not been done before under the same key; `answer`:
    /// somebody asked, and this was said.
    pub kind: &'static str,
    /// Monotonic nanoseconds (`CLOCK_MONOTONIC`).
    pub ns: u64,
    /// Where requests of the provider go: which endpoint it is.
    pub path: String,
    /// The idempotency key.
    pub key: String,
    /// Of an effect, or of work: the request's event (`webhook-id`), if the key is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// And the request itself (`X-Attempt`).
    pub attempt: u32,
    /// `applied`, `not_applied`, or what is neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<&'static str>,
}

/// A request to do something.
#[derive(Clone)]
struct Asked {
    key: String,
    event: Option<String>,
    attempt: u32,
}

type Plan = Box<dyn Fn(&str) -> First + Send>;
type Script = Box<dyn Fn(&str, u32) -> Says + Send>;

struct Inner {
    path: String,
    effects: u64,
    accounts: HashMap<String, Account>,
    /// The key of each delivery that was asked for.
    keys: HashMap<String, String>,
    ledger: Vec<LedgerLine>,
    first: Plan,
    says: Script,
}

impl Inner {
    fn account(&mut self, key: &str) -> &mut Account {
        self.accounts.entry(key.to_owned()).or_default()
    }

    fn note(&mut self, kind: &'static str, asked: &Asked, said: Option<&'static str>) {
        let (path, key, attempt) = (self.path.clone(), asked.key.clone(), asked.attempt);
        let event = asked.event.clone().filter(|event| *event != key);
        self.ledger.push(LedgerLine { kind, ns: monotonic_ns(), path, key, event, attempt, said });
    }

    fn note_answer(&mut self, key: &str, said: &'static str) {
        let asked = Asked { key: key.to_owned(), event: None, attempt: 0 };
        self.note("answer", &asked, Some(said));
    }

    /// Does it, if it is not done. That it came to this stands in the ledger in any case: the provider's own idempotency
    /// is no merit of the sender's.
    fn apply(&mut self, asked: &Asked) {
        let place = self.effects + 1;
        let account = self.account(&asked.key);
        let kind = if account.effects == 0 {
            account.effects = 1;
            account.applied = Some(place);
            self.effects = place;
            "effect"
        } else {
            "worked"
        };
        self.note(kind, asked, None);
    }
}

/// A running provider; it ends when dropped.
pub struct Provider {
    doing: Receiver,
    asked: Receiver,
    inner: Arc<Mutex<Inner>>,
}

impl Provider {
    /// Starts one that answers everything and says the truth.
    ///
    /// Panics when no port can be had.
    pub async fn start() -> Self {
        Self::at(PATH).await
    }

    /// As [`Provider::start`] where requests go to `path`: the judge tells endpoints apart by it.
    ///
    /// Panics when no port can be had.
    pub async fn at(path: &str) -> Self {
        let (doing, asked) = (Receiver::start().await, Receiver::start().await);
        let inner = Arc::new(Mutex::new(Inner {
            path: path.to_owned(),
            effects: 0,
            accounts: HashMap::new(),
            keys: HashMap::new(),
            ledger: Vec::new(),
            first: Box::new(|_| First::Answer),
            says: Box::new(|_, _| Says::Truth),
        }));
        let shared = Arc::clone(&inner);
        doing.set_script(move |request| act(&shared, request));
        let shared = Arc::clone(&inner);
        asked.set_script(move |request| answer(&shared, request));
        Self { doing, asked, inner }
    }

    /// Where requests to do something go.
    pub fn url(&self) -> String {
        self.doing.url(&self.locked().path)
    }

    /// Where to ask, as an authority's URL.
    pub fn authority(&self) -> String {
        self.asked.url("/ask/{idempotencyKey}")
    }

    /// What requests come to, with its journal.
    pub fn receiver(&self) -> &Receiver {
        &self.doing
    }

    /// What becomes of the first request of each key.
    pub fn set_first(&self, first: impl Fn(&str) -> First + Send + 'static) {
        self.locked().first = Box::new(first);
    }

    /// What is said of a key at the n-th question about it, from 0.
    pub fn set_says(&self, says: impl Fn(&str, u32) -> Says + Send + 'static) {
        self.locked().says = Box::new(says);
    }

    /// A person looks into the ledger: whether a delivery was applied, by its id. It stands in the ledger that somebody
    /// asked, if there was a request of it.
    pub fn look_up(&self, delivery: &str) -> bool {
        let mut inner = self.locked();
        let Some(key) = inner.keys.get(delivery).cloned() else { return false };
        let applied = inner.account(&key).effects > 0;
        inner.note_answer(&key, truth(applied));
        applied
    }

    /// All accounts by their keys.
    pub fn accounts(&self) -> HashMap<String, Account> {
        self.locked().accounts.clone()
    }

    /// One of them.
    pub fn account(&self, key: &str) -> Account {
        self.locked().accounts.get(key).cloned().unwrap_or_default()
    }

    /// What was done and what was said, in order.
    pub fn ledger(&self) -> Vec<LedgerLine> {
        self.locked().ledger.clone()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("url", &self.url()).finish_non_exhaustive()
    }
}

fn lock(inner: &Mutex<Inner>) -> std::sync::MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn truth(applied: bool) -> &'static str {
    if applied { "applied" } else { "not_applied" }
}

/// What becomes of a request.
fn act(shared: &Arc<Mutex<Inner>>, request: &Request) -> Behaviour {
    let Some(key) = request.header("idempotency-key").map(str::to_owned) else {
        return Behaviour::status(400);
    };
    let event = request.header("webhook-id").map(str::to_owned);
    let asked = Asked { key: key.clone(), event, attempt: request.attempt() };
    let mut inner = lock(shared);
    inner.keys.insert(request.delivery_id().to_owned(), key.clone());
    let plan = (inner.first)(&key);
    let account = inner.account(&key);
    account.requests += 1;
    account.repeats_after_effect += u32::from(account.effects > 0);
    let first = if account.requests == 1 { plan } else { First::Answer };
    match first {
        First::Answer => {
            inner.apply(&asked);
            Behaviour::ok()
        }
        First::ApplyThenCut => {
            inner.apply(&asked);
            Behaviour::Reset
        }
        First::CutBefore => Behaviour::Reset,
        First::ApplyLate(after) => {
            account.working += 1;
            let shared = Arc::clone(shared);
            // Also when the sender has gone.
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let mut inner = lock(&shared);
                inner.account(&key).working -= 1;
                inner.apply(&asked);
            });
            Behaviour::Hang
        }
        First::Silent => Behaviour::Hang,
    }
}

/// What is said about a key.
fn answer(shared: &Mutex<Inner>, request: &Request) -> Behaviour {
    let Some(key) = request.path.strip_prefix("/ask/") else { return Behaviour::status(404) };
    let mut inner = lock(shared);
    let asked = inner.accounts.get(key).map_or(0, |account| account.questions);
    let says = (inner.says)(key, asked);
    let account = inner.account(key);
    account.questions += 1;
    account.credential = request.header("authorization").map(str::to_owned);
    account.questions_too_early += u32::from(account.working > 0);
    let outcome = truth(account.effects > 0);
    let (said, behaviour) = match says {
        Says::Truth => (outcome, json(200, &said(outcome))),
        Says::InProgress => ("in_progress", json(200, &said("in_progress"))),
        Says::Down => ("down", json(503, &said("not_applied"))),
        Says::Nonsense => ("nonsense", json(200, "<html>hello</html>")),
        Says::Cut => ("cut", Behaviour::Reset),
    };
    inner.note_answer(key, said);
    behaviour
}

fn said(outcome: &str) -> String {
    match outcome {
        "applied" => r#"{"outcome":"applied","result":{"id":"ch_1"}}"#.to_owned(),
        other => format!(r#"{{"outcome":"{other}"}}"#),
    }
}

fn json(status: u16, body: &str) -> Behaviour {
    Behaviour::Answer {
        status,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: body.to_owned(),
        delay_ms: 0,
        close: false,
    }
}
