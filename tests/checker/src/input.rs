//! The inputs and their lines; the README describes them for those who write them.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor};
use std::path::PathBuf;

const BUFFER: usize = 1 << 20;

/// Where lines come from. Read twice if there is a witness to show.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file.
    Path(PathBuf),
    /// The lines themselves.
    Text(String),
}

impl Source {
    /// No lines.
    pub const fn empty() -> Self {
        Self::Text(String::new())
    }

    pub(crate) fn open(&self) -> Result<Box<dyn BufRead + '_>> {
        Ok(match self {
            Self::Text(text) => Box::new(Cursor::new(text.as_bytes())),
            Self::Path(path) => {
                let file =
                    File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
                Box::new(BufReader::with_capacity(BUFFER, file))
            }
        })
    }

    pub(crate) fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Path(path) => path.to_string_lossy(),
            Self::Text(_) => Cow::Borrowed("text"),
        }
    }
}

/// Everything that a verdict rests on.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// What each receiver wrote down. Merged by their monotonic clock, which is one per machine.
    pub journals: Vec<Source>,
    /// The committed source rows.
    pub rows: Source,
    /// Endpoints and what they are subscribed to, in force during the whole run.
    pub subscriptions: Source,
    /// Final states, and what waits visibly, from the database.
    pub finals: Source,
    /// What the test did to the system.
    pub faults: Source,
    /// What receivers with effects really did, and what was said to those who asked them.
    pub ledger: Source,
}

impl Inputs {
    pub(crate) fn file(&self, number: usize) -> &Source {
        self.journals.get(number).unwrap_or_else(|| match number - self.journals.len() {
            0 => &self.rows,
            1 => &self.finals,
            2 => &self.faults,
            _ => &self.ledger,
        })
    }

    pub(crate) fn rows_file(&self) -> usize {
        self.journals.len()
    }

    pub(crate) fn finals_file(&self) -> usize {
        self.journals.len() + 1
    }

    pub(crate) fn ledger_file(&self) -> usize {
        self.journals.len() + 3
    }
}

/// A line of one of the inputs, to be shown as a witness. 0 is none: lines count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Line(u64);

const LINE_BITS: u32 = 48;

impl Line {
    pub(crate) fn new(file: usize, line: u64) -> Self {
        Self((file as u64) << LINE_BITS | line)
    }

    pub(crate) fn file(self) -> usize {
        (self.0 >> LINE_BITS) as usize
    }

    pub(crate) fn number(self) -> u64 {
        self.0 & ((1 << LINE_BITS) - 1)
    }

    pub(crate) fn is_some(self) -> bool {
        self.0 != 0
    }
}

/// Calls `each` with every line of `source` and its number, from 1.
pub(crate) fn each<T: DeserializeOwned>(
    source: &Source,
    mut each: impl FnMut(u64, T) -> Result<()>,
) -> Result<()> {
    let mut reader = source.open()?;
    let (mut text, mut number) = (String::new(), 0);
    loop {
        text.clear();
        let at = || format!("{} line {}", source.name(), number + 1);
        if reader.read_line(&mut text).with_context(at)? == 0 {
            return Ok(());
        }
        if !text.trim().is_empty() {
            let line = serde_json::from_str(&text).with_context(at)?;
            each(number + 1, line).with_context(at)?;
        }
        number += 1;
    }
}

/// A committed outbox row.
#[derive(Debug, Deserialize)]
pub(crate) struct RowLine {
    pub(crate) id: i64,
    pub(crate) event: String,
    pub(crate) tenant: String,
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    #[serde(default)]
    pub(crate) key: Option<String>,
    pub(crate) created_ms: i64,
    pub(crate) sha256: String,
    /// False for a row whose writer took no lock: it has no place in its lane's order.
    #[serde(default = "yes")]
    pub(crate) ordered: bool,
    /// It sends an event again, to one endpoint.
    #[serde(default)]
    pub(crate) rewind: Option<RewindLine>,
}

/// What makes a row a rewind.
#[derive(Debug, Deserialize)]
pub(crate) struct RewindLine {
    /// The new delivery.
    pub(crate) delivery: String,
    /// Where it goes.
    pub(crate) endpoint: String,
    /// The delivery that it repeats.
    pub(crate) of: String,
    /// The command that made it.
    pub(crate) command: String,
}

fn yes() -> bool {
    true
}

/// An endpoint and patterns that it is subscribed to.
#[derive(Debug, Deserialize)]
pub(crate) struct SubscriptionLine {
    pub(crate) endpoint: String,
    pub(crate) tenant: String,
    pub(crate) path: String,
    pub(crate) patterns: Vec<String>,
    #[serde(default)]
    pub(crate) order: Order,
}

/// What a receiver with effects did, or said.
#[derive(Debug, Deserialize)]
pub(crate) struct LedgerLine {
    pub(crate) kind: LedgerKind,
    pub(crate) ns: i64,
    /// Which endpoint it is.
    pub(crate) path: String,
    /// The idempotency key: the event's id.
    pub(crate) key: String,
    /// The event that a request named, if it was another one.
    #[serde(default)]
    pub(crate) event: Option<String>,
    /// Of an effect: the request that had it.
    #[serde(default)]
    pub(crate) attempt: u32,
    #[serde(default)]
    pub(crate) said: Option<Said>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LedgerKind {
    /// It was done.
    Effect,
    /// It would have been done, had it not been done before under the same key.
    Worked,
    /// Somebody asked, and this was said.
    Answer,
}

/// What was said; whatever is not a definite word is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Applied,
    NotApplied,
    #[serde(other)]
    Nothing,
}

/// What a lane of an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    #[default]
    User,
    Total,
    None,
}

/// The final state of a delivery, or that it waits where a person can see it.
#[derive(Debug, Deserialize)]
pub(crate) struct FinalLine {
    pub(crate) event: String,
    pub(crate) endpoint: String,
    /// Which delivery, where some are rewinds.
    #[serde(default)]
    pub(crate) delivery: Option<String>,
    pub(crate) outcome: Outcome,
    #[serde(default)]
    pub(crate) at_ms: Option<i64>,
    /// A person or an authority said so: no 2xx is needed.
    #[serde(default)]
    pub(crate) resolved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Delivered,
    DeadLettered,
    Discarded,
    Held,
}

/// Something that was done to the system.
#[derive(Debug, Deserialize)]
pub(crate) struct FaultLine {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) target: String,
    pub(crate) start_ms: Option<i64>,
    pub(crate) end_ms: Option<i64>,
    pub(crate) start_ns: Option<i64>,
    pub(crate) end_ns: Option<i64>,
    #[serde(default)]
    pub(crate) endpoint: Option<String>,
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// Endpoint and key of each lane that a lost lease was about.
    #[serde(default)]
    pub(crate) lanes: Vec<(String, String)>,
}

/// Text that points into its line where it can.
#[derive(Debug, Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A request fully read, or a response written.
#[derive(Debug, Deserialize)]
pub(crate) struct JournalLine<'a> {
    pub(crate) kind: Kind,
    pub(crate) conn: u64,
    pub(crate) ns: i64,
    pub(crate) unix_ms: i64,
    #[serde(borrow)]
    pub(crate) path: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) webhook_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) delivery_id: Option<Text<'a>>,
    pub(crate) attempt: Option<u32>,
    #[serde(borrow)]
    pub(crate) idempotency_key: Option<Text<'a>>,
    pub(crate) sequence: Option<u64>,
    #[serde(borrow)]
    pub(crate) event_type: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) body_sha256: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) behaviour: Option<Text<'a>>,
    pub(crate) status: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Request,
    Response,
}
