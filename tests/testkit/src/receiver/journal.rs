//! What the receiver read and answered, in order: in memory for tests, as NDJSON lines for the checker.
//!
//! One line per request *fully read* and one per response *written to its last byte*. A line's fields are those of
//! [`Entry`]; absent ones are left out. `ns` is `CLOCK_MONOTONIC`, the same clock for all processes of the machine.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// What a journal line records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A request was read to its last byte.
    Request,
    /// A response was written to its last byte (to the kernel; the sender may still not have it).
    Response,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Request read or response written.
    pub kind: Kind,
    /// Number of the request, from 1, in the order they were read; a response carries its request's number.
    pub request: u64,
    /// Number of the connection, from 1.
    pub conn: u64,
    /// Monotonic nanoseconds (`CLOCK_MONOTONIC`).
    pub ns: u64,
    /// Wall clock, Unix milliseconds.
    pub unix_ms: u64,
    /// Path with query.
    pub path: String,
    /// `webhook-id`: the event id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_id: Option<String>,
    /// `x-delivery-id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<String>,
    /// `x-attempt`, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// `idempotency-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// `x-sequence-number`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// `x-event-type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// `webhook-timestamp`, requests only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// `webhook-signature`, requests only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// SHA-256 of the body in hex, requests only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_sha256: Option<String>,
    /// The body as text (lossy), requests only, when bodies are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Name of the behaviour chosen.
    pub behaviour: String,
    /// Status of the response; on a request line the one that will be answered, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// The journal of one receiver; clones share it.
#[derive(Debug, Clone)]
pub struct Journal {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    file: Option<BufWriter<File>>,
    in_memory: bool,
    entries: Vec<Arc<Entry>>,
    requests: u64,
    responses: u64,
}

impl Journal {
    /// `file` is opened for appending; without `in_memory` the entries are only in the file.
    pub(super) fn open(file: Option<&Path>, in_memory: bool) -> Result<Self> {
        let file = file
            .map(|path| OpenOptions::new().create(true).append(true).open(path).map(BufWriter::new))
            .transpose()?;
        let inner = Inner { file, in_memory, entries: Vec::new(), requests: 0, responses: 0 };
        Ok(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    /// Appends `entry` after stamping it: a request gets the next number, and both get the time *under the lock*, so
    /// that the order of lines is the order of times. Gives the request's number.
    pub(super) fn append(&self, mut entry: Entry) -> u64 {
        let mut inner = self.lock();
        (entry.ns, entry.unix_ms) = (monotonic_ns(), unix_ms());
        match entry.kind {
            Kind::Request => {
                inner.requests += 1;
                entry.request = inner.requests;
            }
            Kind::Response => inner.responses += 1,
        }
        let number = entry.request;
        if let Some(file) = &mut inner.file {
            serde_json::to_writer(&mut *file, &entry).expect("the journal can be written");
            file.write_all(b"\n").expect("the journal can be written");
        }
        if inner.in_memory {
            inner.entries.push(Arc::new(entry));
        }
        number
    }

    /// Everything so far, oldest first.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.lock().entries.clone()
    }

    /// The entries from index `from` on: for a reader that follows.
    pub fn entries_from(&self, from: usize) -> Vec<Arc<Entry>> {
        self.lock().entries.get(from..).map(<[_]>::to_vec).unwrap_or_default()
    }

    /// The requests read so far, oldest first.
    pub fn requests(&self) -> Vec<Arc<Entry>> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.kind == Kind::Request);
        entries
    }

    /// Requests read and responses written so far.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.requests, inner.responses)
    }

    /// How many different deliveries (by `x-delivery-id`) were answered with 2xx.
    pub fn delivered(&self) -> usize {
        let inner = self.lock();
        let answered = inner.entries.iter().filter(|entry| {
            entry.kind == Kind::Response
                && entry.status.is_some_and(|status| (200..300).contains(&status))
        });
        answered
            .filter_map(|entry| entry.delivery_id.as_deref())
            .collect::<std::collections::HashSet<_>>()
            .len()
    }

    /// Hands what is buffered to the kernel; also done every 100 ms and on drop.
    pub fn flush(&self) {
        if let Some(file) = &mut self.lock().file {
            let _ = file.flush();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no writer of the journal panicked")
    }
}

pub(crate) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
