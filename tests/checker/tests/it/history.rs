//! Histories by hand: a world of two endpoints, and lines as a receiver would have written them.

use laneway_checker::{Inputs, Options, Source, Verdict, check};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const TENANT: &str = "prj_000000000000000000000A";
const START_NS: i64 = 5_000_000_000;
const START_MS: i64 = 1_796_000_000_000;

/// Times are ms since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) rows: Vec<Value>,
    pub(crate) journal: Vec<Value>,
    pub(crate) finals: Vec<Value>,
    pub(crate) faults: Vec<Value>,
    pub(crate) subscriptions: Vec<Value>,
    pub(crate) ledger: Vec<Value>,
    pub(crate) options: Options,
    requests: u64,
}

pub(crate) fn event(row: i64) -> String {
    format!("evt_{row:022}")
}

pub(crate) fn delivery(row: i64, path: &str) -> String {
    format!("dlv_{row:020}{}", if path == "/a" { "AA" } else { "BB" })
}

pub(crate) fn body(row: i64) -> String {
    format!("{row:064x}")
}

impl History {
    /// Endpoint `/a` takes everything, `/b` only `order.*`.
    pub(crate) fn new() -> Self {
        let subscription = |endpoint: u128, path: &str, pattern: &str| json!({"endpoint": format!("{endpoint:032x}"), "tenant": TENANT, "path": path, "patterns": [pattern]});
        let mut new = Self::default();
        new.subscriptions.push(subscription(1, "/a", "*"));
        new.subscriptions.push(subscription(2, "/b", "order.*"));
        new
    }

    pub(crate) fn row(&mut self, id: i64, event_type: &str, key: Option<&str>, at: i64) {
        self.rows.push(json!({
            "id": id, "event": event(id), "tenant": TENANT, "type": event_type, "key": key,
            "created_ms": START_MS + at, "sha256": body(id),
        }));
    }

    /// Rows of one user, committed at once.
    pub(crate) fn rows(&mut self, ids: &[i64], key: &str) {
        for &id in ids {
            self.row(id, "user.changed", Some(key), 0);
        }
    }

    fn entry(&self, kind: &str, row: i64, path: &str, attempt: u32, conn: u64, at: i64) -> Value {
        json!({
            "kind": kind, "request": self.requests, "conn": conn, "ns": START_NS + at * 1_000_000,
            "unix_ms": START_MS + at, "path": path, "webhook_id": event(row),
            "delivery_id": delivery(row, path), "attempt": attempt, "idempotency_key": event(row),
            "sequence": 0, "event_type": "user.changed", "behaviour": "answer",
        })
    }

    /// A request read whole.
    pub(crate) fn request(&mut self, row: i64, attempt: u32, conn: u64, at: i64) -> &mut Value {
        self.request_to("/a", row, attempt, conn, at)
    }

    pub(crate) fn request_to(
        &mut self,
        path: &str,
        row: i64,
        attempt: u32,
        conn: u64,
        at: i64,
    ) -> &mut Value {
        self.requests += 1;
        let mut line = self.entry("request", row, path, attempt, conn, at);
        line["body_sha256"] = body(row).into();
        if let Some(of) = self.rows.iter().find(|of| of["id"] == row) {
            line["event_type"] = of["type"].clone();
        }
        self.push(line)
    }

    /// A response written.
    pub(crate) fn response(&mut self, row: i64, status: u16, conn: u64, at: i64) -> &mut Value {
        self.response_to("/a", row, status, conn, at)
    }

    pub(crate) fn response_to(
        &mut self,
        path: &str,
        row: i64,
        status: u16,
        conn: u64,
        at: i64,
    ) -> &mut Value {
        let mut line = self.entry("response", row, path, 1, conn, at);
        line["status"] = status.into();
        self.push(line)
    }

    fn push(&mut self, line: Value) -> &mut Value {
        self.journal.push(line);
        self.journal.last_mut().unwrap()
    }

    /// A request and its answer 2 ms later.
    pub(crate) fn send(&mut self, row: i64, attempt: u32, status: u16, at: i64) {
        self.request(row, attempt, 1, at);
        self.response(row, status, 1, at + 2);
    }

    pub(crate) fn outcome(&mut self, row: i64, outcome: &str, at: i64) {
        self.finals.push(json!({
            "event": event(row), "endpoint": format!("{:032x}", 1), "outcome": outcome, "at_ms": START_MS + at,
        }));
    }

    pub(crate) fn fault(&mut self, kind: &str, target: &str, from: i64, to: i64) -> &mut Value {
        self.faults.push(json!({
            "kind": kind, "target": target, "start_ms": START_MS + from, "end_ms": START_MS + to,
        }));
        self.faults.last_mut().unwrap()
    }

    /// A row that sends `of`, an event of the user, to `/a` again, by a command.
    pub(crate) fn rewind(&mut self, row: i64, of: i64, key: &str, command: u32, at: i64) {
        self.row(row, "user.changed", Some(key), at);
        let again = self.rows.last_mut().unwrap();
        again["event"] = event(of).into();
        again["sha256"] = body(of).into();
        again["rewind"] = json!({
            "delivery": delivery(row, "/a"), "endpoint": format!("{:032x}", 1), "of": delivery(of, "/a"),
            "command": format!("{command:032x}"),
        });
    }

    /// What a rewind sends, and its answer 2 ms later.
    pub(crate) fn send_again(&mut self, row: i64, of: i64, attempt: u32, status: u16, at: i64) {
        self.request(of, attempt, 1, at)["delivery_id"] = delivery(row, "/a").into();
        self.response(of, status, 1, at + 2)["delivery_id"] = delivery(row, "/a").into();
    }

    /// A final state with the delivery that it is of.
    pub(crate) fn outcome_of(&mut self, row: i64, of: i64, outcome: &str, at: i64) {
        self.outcome(of, outcome, at);
        self.finals.last_mut().unwrap()["delivery"] = delivery(row, "/a").into();
    }

    /// The receiver at `/a` did it, for this attempt.
    pub(crate) fn effect(&mut self, row: i64, attempt: u32, at: i64) {
        self.ledger.push(json!({
            "kind": "effect", "ns": START_NS + at * 1_000_000, "path": "/a", "key": event(row), "attempt": attempt,
        }));
    }

    /// Somebody asked about it and was told this.
    pub(crate) fn answer(&mut self, row: i64, said: &str, at: i64) {
        self.ledger.push(json!({
            "kind": "answer", "ns": START_NS + at * 1_000_000, "path": "/a", "key": event(row), "said": said,
        }));
    }

    pub(crate) fn deadline(&mut self, ms: u64) {
        self.options.deadline = Some(Duration::from_millis(ms));
    }

    pub(crate) fn inputs(&self) -> Inputs {
        let text = |lines: &[Value]| {
            Source::Text(lines.iter().map(|line| format!("{line}\n")).collect::<String>())
        };
        let mut journal = self.journal.clone();
        journal.sort_by_key(|line| line["ns"].as_i64());
        Inputs {
            journals: vec![text(&journal)],
            rows: text(&self.rows),
            subscriptions: text(&self.subscriptions),
            finals: text(&self.finals),
            faults: text(&self.faults),
            ledger: text(&self.ledger),
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        check(&self.inputs(), &self.options).unwrap()
    }

    /// Fails unless the history is good.
    #[track_caller]
    pub(crate) fn assert_good(&self) -> Verdict {
        let verdict = self.verdict();
        assert!(verdict.holds(), "{verdict:#?}");
        verdict
    }

    /// Fails unless exactly this check is broken, with a witness.
    #[track_caller]
    pub(crate) fn assert_bad(&self, check: &str) -> Verdict {
        let verdict = self.verdict();
        assert_eq!(verdict.broken(), [check], "{verdict:#?}");
        let witness = &verdict.violations[0].witness;
        assert!((1..=6).contains(&witness.len()), "{witness:#?}");
        verdict
    }
}
