//! The fault journal: what was done to whom and when, on the clock that the receivers' journal uses.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// `kill`, `pause`, `endpoint_down`, `key_fails`, `kafka_kill`, `postgres_crash`, …
    pub kind: String,
    /// Process, endpoint or key.
    pub target: String,
    /// Monotonic nanoseconds (`CLOCK_MONOTONIC`).
    pub start_ns: u64,
    /// The same, when it was over; equal to the start for a kill.
    pub end_ns: u64,
    /// The endpoint that it was aimed at, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The user key that it was aimed at, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Endpoint and user key of the lanes that it was about, of a lost lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<(String, String)>,
}

/// All faults of a run; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    all: Arc<Mutex<Vec<Fault>>>,
}

impl Faults {
    /// Notes a fault that has no length.
    pub fn note(&self, kind: &str, target: &str) {
        let now = monotonic_ns();
        self.push(kind, target, now, now);
    }

    /// Notes a fault that began at `start_ns` and is over now.
    pub fn note_since(&self, kind: &str, target: &str, start_ns: u64) {
        self.push(kind, target, start_ns, monotonic_ns());
    }

    /// Notes that an endpoint, or one user key of it, was treated badly since `start_ns` until now.
    pub fn note_endpoint(&self, kind: &str, endpoint: &str, key: Option<&str>, start_ns: u64) {
        self.add(Fault {
            kind: kind.to_owned(),
            target: endpoint.to_owned(),
            start_ns,
            end_ns: monotonic_ns(),
            endpoint: Some(endpoint.to_owned()),
            key: key.map(str::to_owned),
            lanes: Vec::new(),
        });
    }

    /// Notes that a process lost its lease of these lanes, which it had from `start_ns` to `end_ns`.
    pub fn note_lease(
        &self,
        target: &str,
        lanes: Vec<(String, String)>,
        start_ns: u64,
        end_ns: u64,
    ) {
        let (kind, target) = ("lease_lost".to_owned(), target.to_owned());
        self.add(Fault { kind, target, start_ns, end_ns, endpoint: None, key: None, lanes });
    }

    /// All so far, in the order in which they were noted.
    pub fn all(&self) -> Vec<Fault> {
        self.all.lock().expect("no writer panicked").clone()
    }

    fn push(&self, kind: &str, target: &str, start_ns: u64, end_ns: u64) {
        let (kind, target) = (kind.to_owned(), target.to_owned());
        let lanes = Vec::new();
        self.add(Fault { kind, target, start_ns, end_ns, endpoint: None, key: None, lanes });
    }

    fn add(&self, fault: Fault) {
        self.all.lock().expect("no writer panicked").push(fault);
    }
}

/// Now, on the clock of all journals.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
