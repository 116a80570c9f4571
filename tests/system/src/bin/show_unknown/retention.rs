//! A million events grow old, in the outbox and as outcomes, and are removed while others come in: what is over goes, what
//! is not final stays, nobody waits long. Then all that the project's events have said is erased.

use crate::Cases;
use anyhow::{Context, Result};
use laneway_system::{App, EndpointOptions, Options, World};
use laneway_testkit::{Behaviour, Receiver, Rule, Stack, wait_for};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Old rows of the outbox and as many outcomes, over so many days, and how many of these have a failed attempt; old
/// answers to `Idempotency-Key`s.
const EVENTS: i64 = 1_000_000;
const OUTCOMES: i64 = EVENTS;
const DAYS: i64 = 30;
const ATTEMPTS: i64 = 200_000;
const KEYS: i64 = 200_000;
/// The default of `reconciler.keep.inbox`, days; of `relay.window`.
const KEPT: i64 = 14;
const OUTBOX_KEPT: i64 = 4;
/// Another project, whose old events go to nobody: the relay passes them and that is all.
const SILENT: &str = "00000000-0000-4000-8000-00000000501d";
/// Writers of events at once, and how long they are measured without any removal.
const WRITERS: usize = 4;
const CONTROL: Duration = Duration::from_secs(15);
/// Below this a latency is the machine's own business.
const FLOOR: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(300);

/// Plays it and gives the figures.
pub(crate) async fn play(stack: &Stack, cases: &mut Cases) -> Result<Value> {
    let options = Options { log_level: "warn,laneway=info".to_owned(), ..Options::default() };
    let mut world = World::start(stack, options).await?;
    let receiver = Receiver::start().await;
    let waits = Rule::always(Behaviour::retry_after(503, "3600")).header("x-event-type", "waits");
    let refused = Rule::always(Behaviour::status(422)).header("x-event-type", "refused");
    receiver.set_rules(vec![waits, refused]);
    let endpoint = EndpointOptions { max_connections: 64, ..EndpointOptions::default() };
    world.endpoint(&receiver.url("/do"), endpoint).await?;
    // It cares for the outbox when it starts, and in this run's time no more.
    world.spawn("relay", "relay", &[("LANEWAY_RELAY__UPKEEP", "1h")])?;
    world.ready("relay").await?;
    world.up("deliver", "deliver-1").await?;
    for _ in 0..20 {
        world.app.emit("refused", Some("r"), b"{}").await?;
    }
    world.app.emit("waits", Some("w"), b"{}").await?;
    let open = "SELECT (SELECT count(*) FROM laneway_control.dead_letters) + (SELECT count(*) FROM laneway_control.parked_events)";
    wait_for("what is not final", LIMIT, || async {
        world.app.number(open).await.is_ok_and(|open| open == 21)
    })
    .await;
    age(&world).await?;
    let kept = "SELECT count(*) FROM laneway_control.attempts a WHERE a.ended_at < now() - interval '50 days' AND NOT EXISTS ( \
                  SELECT FROM laneway_control.inbox i WHERE i.delivery_id = a.delivery_id AND i.outcome = 1)";
    let before = world.app.number(kept).await?;

    let stop = Arc::new(AtomicBool::new(false));
    let control = Ingest::start(&world.app, &stop);
    tokio::time::sleep(CONTROL).await;
    let control = control.end(&stop).await?;
    stop.store(false, Ordering::Relaxed);
    let during = Ingest::start(&world.app, &stop);
    let began = Instant::now();
    world.stop("relay").await?;
    world.spawn("relay", "relay", &[("LANEWAY_RELAY__UPKEEP", "1s")])?;
    world.up("reconciler", "r").await?;
    let old = format!(
        "SELECT (SELECT count(*) FROM laneway_control.idempotency_keys WHERE created_at < now() - interval '8 days') \
           + (SELECT count(*) FROM pg_inherits WHERE inhparent = 'laneway.outbox'::regclass \
              AND inhrelid::regclass::text < 'laneway.outbox_' || to_char(now() - interval '{OUTBOX_KEPT} days', 'YYYYMMDD')) \
           + (SELECT count(*) FROM pg_inherits WHERE inhparent = 'laneway_control.inbox'::regclass \
              AND inhrelid::regclass::text < 'laneway_control.inbox_' || to_char(now() - interval '{KEPT} days', 'YYYYMMDD')) \
           AS old"
    );
    wait_for("the removal of what is old", LIMIT, || async {
        world.app.rows(&old).await.is_ok_and(|rows| rows[0]["old"] == 0)
    })
    .await;
    let took = began.elapsed();
    let during = during.end(&stop).await?;

    let left =
        world.app.number("SELECT count(*) FROM laneway_control.inbox WHERE took_ms = -1").await?;
    let rows = world.app.number("SELECT count(*) FROM laneway.outbox WHERE type = 'old'").await?;
    cases.check(
        "a million old rows of the outbox are bounded by their days",
        (EVENTS / DAYS * (OUTBOX_KEPT - 1)..=EVENTS / DAYS * (OUTBOX_KEPT + 1)).contains(&rows),
        &format!("{rows} of {EVENTS} are left"),
    );
    let (least, most) = (OUTCOMES / DAYS * KEPT, OUTCOMES / DAYS * (KEPT + 2));
    cases.check(
        "a million old outcomes are bounded by their days",
        (least..=most).contains(&left),
        &format!("{left} of {OUTCOMES} are left"),
    );
    let after = world.app.number(kept).await?;
    let still = world.app.number(open).await?;
    cases.check(
        "what is not final is kept, whatever its age",
        after == before && still == 21,
        &format!("{after} of {before} attempts, {still} of 21 events"),
    );
    let emitted = i64::try_from(world.app.committed())?;
    let fresh = "SELECT count(*) FROM laneway_control.inbox WHERE took_ms >= 0";
    wait_for("every event's outcome", LIMIT, || async {
        world.app.number(fresh).await.is_ok_and(|fresh| fresh == emitted - 1)
    })
    .await;
    let bound = 2 * control.p99().max(FLOOR);
    cases.check(
        "nobody waits for the removal",
        during.p99() <= bound,
        &format!("p99 of a commit {:?}, without it {:?}", during.p99(), control.p99()),
    );
    let erased = erase(&world, &receiver, cases).await?;
    Ok(json!({
        "erased": erased, "outbox_rows": EVENTS, "outbox_rows_left": rows, "outcomes": OUTCOMES, "attempts": ATTEMPTS, "keys": KEYS, "outcomes_left": left,
        "removed_in_seconds": took.as_secs(), "events_meanwhile": during.0.len(),
        "commit_p99_ms": ms(during.p99()), "commit_p99_ms_control": ms(control.p99()),
        "commit_max_ms": ms(during.worst()), "commit_max_ms_control": ms(control.worst()),
    }))
}

/// Erases the project: what waits ends unsent, nothing of a payload is left, and what comes later is delivered.
async fn erase(world: &World, receiver: &Receiver, cases: &mut Cases) -> Result<Value> {
    let began = Instant::now();
    let project = world.tenant.to_string();
    let how = ["--reason", "the contract has ended", "--actor", "ann", "--yes"];
    let done = world.cli_json(&[["erase", "--project", &project].as_slice(), &how].concat())?;
    let took = began.elapsed();
    // A record without its payload says so in its head; an answer's body was a dead letter's only.
    let kept = "SELECT (SELECT count(*) FROM laneway.outbox WHERE type <> 'old' AND (NOT erased OR payload <> '')) \
        + (SELECT count(*) FROM laneway_control.parked_events) \
        + (SELECT count(*) FROM laneway_control.dead_letters WHERE erased_at IS NULL OR state = 'open' \
             OR record <> laneway_control.record_head(record)) \
        + (SELECT count(*) FROM laneway_control.attempts WHERE body IS NOT NULL)";
    let left = world.app.number(kept).await?;
    let rows = world.app.number("SELECT count(*) FROM laneway.outbox WHERE type <> 'old'").await?;
    let of_them = done["rows"].as_i64() == Some(rows);
    cases.check("one tenant is erased", left == 0 && of_them, &done.to_string());
    let waited = receiver.journal().requests().iter().any(|request| {
        request.event_type.as_deref() == Some("waits") && request.status == Some(200)
    });
    cases.check("what waited was never sent", !waited, "it ended as a dead letter");
    let before = receiver.journal().delivered();
    world.app.emit("made", Some("later"), b"{}").await?;
    wait_for("what comes later", LIMIT, || async { receiver.journal().delivered() > before }).await;
    let audit = world.cli_output(&["-o", "json", "audit", "--settled", "1s"])?;
    let checks: Value = serde_json::from_slice(&audit.stdout).context("the audit's findings")?;
    let of_erasures = ["erasure_not_done", "payload_not_erased"];
    let found = checks.as_array().into_iter().flatten().filter(|check| {
        of_erasures.iter().any(|name| check["check"] == **name) && check["count"] != 0
    });
    let found = found.count();
    cases.check("the audit finds nothing that is left", found == 0, &of_erasures.join(", "));
    Ok(json!({"rows": rows, "seconds": took.as_secs_f64().round()}))
}

fn ms(span: Duration) -> f64 {
    (span.as_secs_f64() * 10_000.0).round() / 10.0
}

/// Rows as days of work would have left them; `took_ms` -1 marks the outcomes. What is not final becomes as old.
async fn age(world: &World) -> Result<()> {
    let tenant = world.tenant.as_uuid();
    // A day at a time, as they would have come: a row of the past belongs to no transaction of today's writers.
    let outbox = (0..DAYS).rev().flat_map(|day| {
        [
            format!("SELECT laneway.outbox_partition_create((now() AT TIME ZONE 'UTC')::date - {day}::int)"),
            format!(
                "INSERT INTO laneway.outbox (tenant, type, user_key, payload, created_at) \
                 SELECT '{SILENT}', 'old', 'u' || n % 1000, '{{}}', now() - interval '{day} days' \
                 FROM generate_series(1, {EVENTS} / {DAYS}) n"
            ),
        ]
    });
    for statement in outbox.chain([
        format!("SELECT laneway_control.inbox_make_partitions({DAYS}, 1)"),
        format!(
            "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms, \
               settled_at) \
             SELECT encode(overlay(uuid_send(gen_random_uuid()) PLACING \
                 substring(int8send((extract(epoch FROM at) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 'hex')::uuid, \
               '{tenant}', gen_random_uuid(), gen_random_uuid(), 1, 1, -1, at \
             FROM (SELECT now() - n * interval '{DAYS} days' / {OUTCOMES} AS at FROM generate_series(1, {OUTCOMES}) n) t"
        ),
        format!(
            "INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, class, took_ms, ended_at) \
             SELECT delivery_id, tenant_id, endpoint_id, 1, 2, 'http_5xx', 1, settled_at \
             FROM laneway_control.inbox WHERE took_ms = -1 ORDER BY settled_at LIMIT {ATTEMPTS}"
        ),
        format!(
            "INSERT INTO laneway_control.idempotency_keys (tenant_id, operation, key, fingerprint, status, body, created_at) \
             SELECT '{tenant}', 'old', n::text, decode(repeat('00', 32), 'hex'), 200, '', now() - interval '20 days' \
             FROM generate_series(1, {KEYS}) n"
        ),
        "UPDATE laneway_control.attempts SET ended_at = now() - interval '60 days' \
         WHERE ended_at > now() - interval '1 hour'"
            .to_owned(),
        "ANALYZE laneway.outbox, laneway_control.inbox, laneway_control.attempts, laneway_control.idempotency_keys"
            .to_owned(),
    ]) {
        sqlx::query(sqlx::AssertSqlSafe(statement.clone()))
            .execute(world.app.pool())
            .await
            .with_context(|| statement.chars().take(80).collect::<String>())?;
    }
    let unread = "SELECT count(*) FROM laneway.outbox o JOIN laneway.relay_cursors c USING (shard) \
                  WHERE o.type = 'old' AND NOT pg_visible_in_snapshot(o.xid, c.s1)";
    wait_for("the relay to pass the old rows", LIMIT, || async {
        world.app.number(unread).await.is_ok_and(|unread| unread == 0)
    })
    .await;
    Ok(())
}

/// Writers at work.
struct Ingest(Vec<tokio::task::JoinHandle<Result<Vec<Duration>>>>);

impl Ingest {
    fn start(app: &Arc<App>, stop: &Arc<AtomicBool>) -> Self {
        let writer = |writer: usize| {
            let (app, stop) = (Arc::clone(app), Arc::clone(stop));
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut beat = tokio::time::interval(Duration::from_millis(20));
                while !stop.load(Ordering::Relaxed) {
                    beat.tick().await;
                    let began = Instant::now();
                    app.emit("made", Some(&format!("u{writer}-{}", took.len() % 50)), b"{}")
                        .await?;
                    took.push(began.elapsed());
                }
                Ok(took)
            })
        };
        Self((0..WRITERS).map(writer).collect())
    }

    /// Stops them and gives how long each commit took, shortest first.
    async fn end(self, stop: &AtomicBool) -> Result<Latencies> {
        stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for writer in self.0 {
            all.extend(writer.await??);
        }
        all.sort_unstable();
        anyhow::ensure!(!all.is_empty(), "nothing was written");
        Ok(Latencies(all))
    }
}

struct Latencies(Vec<Duration>);

impl Latencies {
    fn p99(&self) -> Duration {
        self.0[(self.0.len() * 99 / 100).min(self.0.len() - 1)]
    }

    fn worst(&self) -> Duration {
        self.0[self.0.len() - 1]
    }
}
