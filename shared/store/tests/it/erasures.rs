//! Erasure of one user key's or one project's payloads against a real PostgreSQL (C17).

use crate::delivery::{NOW, World, attempt, lane, parked};
use laneway_lane::{FinalOutcome, SettleItem, Verdict};
use laneway_store::audit::{Scope, audit};
use laneway_store::dead_letters::{Selection, State as Dead, Unreadable, dead_letter_get};
use laneway_store::delivery::{commands_open, parked_page_load};
use laneway_store::erasures::{
    Erasure, erasure_create, erasure_get, erasure_preview, erasure_step,
};
use laneway_store::idempotency::{Answer, Work};
use laneway_store::migrate;
use laneway_store::relay::{OutboxRow, Shard, rows_by_id};
use laneway_store::retention::{Kind, retention_step};
use laneway_store::rewinds::{Action, NewRewind, rewind_create, rewind_preview, rewind_step};
use laneway_testkit::{sql, wait_for};
use laneway_wire::{LaneMode, Record, TenantId, Timestamp};
use std::sync::Arc;
use std::time::Duration;

async fn world() -> World {
    let world = World::new().await;
    migrate::source_migrate(&world.pool).await.unwrap();
    run(&world, "UPDATE laneway.relay_cursors SET generation = 1").await;
    run(&world, "INSERT INTO laneway.relay_members (instance) VALUES ('relay-1')").await;
    world
}

async fn run(world: &World, statement: &str) {
    sql(&world.url, statement).await.unwrap();
}

fn tenant(world: &World) -> TenantId {
    TenantId::from_uuid(world.tenant)
}

/// A record of a row that was written long ago.
fn record(world: &World, number: u32, key: &str) -> Arc<Record> {
    let mut record = (*world.record(number, key)).clone();
    record.head.created_at = Timestamp(1_600_000_000_000);
    record.head.headers = vec![("x-name".into(), "Ann".into())];
    Arc::new(record)
}

fn last(record: &Arc<Record>, reason: &'static str, command: Option<i64>) -> SettleItem {
    SettleItem::Final {
        lane: lane(record),
        record: Arc::clone(record),
        outcome: FinalOutcome::DeadLettered { reason },
        attempts: 1,
        first_held: NOW,
        attempt: Some(attempt(1)),
        status: Some(422),
        took: Duration::ZERO,
        parked: command.is_some(),
        may_unpark: command.is_some(),
        command,
    }
}

async fn erase(world: &World, key: Option<&str>) -> Erasure {
    let mut work = Work::begin(&world.pool, tenant(world)).await.unwrap();
    let made = erasure_create(&mut work, key, "they asked for it", "ann").await.unwrap();
    work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();
    made
}

/// Works until nothing is to be had at the moment, and gives how far it is.
async fn work(world: &World, erasure: &Erasure) -> Erasure {
    run(world, "UPDATE laneway_control.erasures SET retry_at = now()").await;
    while erasure_step(&world.pool).await.unwrap().is_some() {}
    erasure_get(&world.pool, erasure.id).await.unwrap().unwrap()
}

/// Works until it waits for this: other tests' transactions are writers too.
async fn waits(world: &World, erasure: &Erasure, what: &str) {
    wait_for(what, Duration::from_secs(60), || async {
        work(world, erasure).await.waits.as_deref() == Some(what)
    })
    .await;
}

async fn work_off(world: &World, erasure: &Erasure) -> Erasure {
    wait_for("the end of the erasure", Duration::from_secs(60), || async {
        work(world, erasure).await.finished_at.is_some()
    })
    .await;
    erasure_get(&world.pool, erasure.id).await.unwrap().unwrap()
}

/// The outbox in the order of its ids, as a relay reads it.
async fn outbox(world: &World) -> Vec<OutboxRow> {
    let rows =
        sql(&world.url, "SELECT id::text, shard::text FROM laneway.outbox ORDER BY id").await;
    let rows = rows.unwrap();
    let ids: Vec<i64> = rows.iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect();
    let shard = Shard(rows[0][1].as_ref().unwrap().parse().unwrap());
    rows_by_id(&world.pool, shard, &ids).await.unwrap()
}

async fn emit(world: &World, key: &str) {
    let headers = r#"'{"x-name": "Ann"}'"#;
    run(
        world,
        &format!(
            "SELECT laneway.emit('{}', 'order.created', '{key}', '{{}}', headers => {headers})",
            world.tenant
        ),
    )
    .await;
}

/// As if the relay had published every row that is there.
async fn publish(world: &World) {
    run(
        world,
        "UPDATE laneway.relay_cursors SET s1 = s2, s2 = pg_current_snapshot(), \
           last_id = (SELECT coalesce(max(id), 0) FROM laneway.outbox)",
    )
    .await;
}

async fn found(world: &World, check: &str) -> u64 {
    let scope = Scope { window: Duration::from_secs(3_600), settled: Duration::ZERO };
    let findings = audit(&world.pool, scope).await.unwrap().expect("no other audit");
    findings.into_iter().find(|finding| finding.check == check).unwrap().count
}

const BODIES: &str = "SELECT count(*)::text FROM laneway_control.attempts WHERE body IS NOT NULL";

#[tokio::test]
async fn what_was_said_goes_and_who_it_was_for_stays() {
    let world = world().await;
    let [a, b, other] = [(1, "k1"), (2, "k1"), (3, "k2")].map(|(n, key)| record(&world, n, key));
    for record in [&a, &b, &other] {
        world.settle(&[last(record, "rejected", None)]).await;
    }
    let rewound = "UPDATE laneway_control.dead_letters SET state = 'rewound', closed_at = now() WHERE delivery_id = ";
    run(&world, &format!("{rewound}'{}'", b.head.delivery)).await;
    let preview = erasure_preview(&world.pool, tenant(&world), Some("k1")).await.unwrap();
    assert_eq!((preview.rows, preview.parked, preview.dead_letters), (0, 0, 2));

    let made = erase(&world, Some("k1")).await;
    assert_eq!(erase(&world, Some("k1")).await.id, made.id, "the second joins the first");
    let done = work_off(&world, &made).await;
    assert_eq!((done.dead_letters, done.attempts, done.results), (2, 2, 0));
    for (record, state) in [(&a, Dead::Erased), (&b, Dead::Rewound)] {
        let id = record.head.delivery_id();
        let (dead, kept) = dead_letter_get(&world.pool, None, id).await.unwrap().unwrap();
        assert_eq!((dead.state, dead.user_key.as_deref(), dead.attempts), (state, Some("k1"), 1));
        assert!(dead.closed_at.is_some());
        assert_eq!(kept.unwrap(), record.erased());
    }
    let (dead, kept) =
        dead_letter_get(&world.pool, None, other.head.delivery_id()).await.unwrap().unwrap();
    assert_eq!((dead.state, kept), (Dead::Open, Ok((*other).clone())));
    assert_eq!(world.value(BODIES).await, "1", "another's open dead letter keeps its history");
    let all = Selection::default();
    let minute = Duration::from_secs(60);
    let left = rewind_preview(&world.pool, tenant(&world), Action::Rewind, &all, minute).await;
    assert_eq!(left.unwrap().matched(), Some(1), "nobody sends what is erased");
    let told = "SELECT string_agg(action || ' ' || actor || ' ' || (detail->>'userKey'), ', ' ORDER BY id) \
                FROM laneway_control.audit_log";
    assert_eq!(world.value(told).await, "erasure.begin ann k1, erasure.done ann k1");

    // The whole project, with what it was answered.
    run(
        &world,
        &format!(
            "INSERT INTO laneway_control.idempotency_keys (tenant_id, operation, key, fingerprint, status, body, created_at) \
             VALUES ('{}', 'events.create', 'a', decode(repeat('00', 32), 'hex'), 202, 'said', now() - interval '1 s')",
            world.tenant
        ),
    )
    .await;
    let done = work_off(&world, &erase(&world, None).await).await;
    assert_eq!((done.dead_letters, done.attempts, done.results), (1, 1, 1));
    assert_eq!(world.value(BODIES).await, "0");
    let key = "SELECT status::text FROM laneway_control.idempotency_keys WHERE convert_from(body, 'UTF8') !~ 'said'";
    assert_eq!(world.value(key).await, "410", "the key stays used");
    let done = work_off(&world, &erase(&world, None).await).await;
    let nothing = (done.rows, done.dead_letters, done.attempts, done.results);
    assert_eq!(nothing, (0, 0, 0, 0), "again is nothing");
}

#[tokio::test]
async fn rows_are_erased_when_they_are_published_and_passed_and_nothing_is_copied_meanwhile() {
    let world = world().await;
    for key in ["k1", "k2", "k1"] {
        emit(&world, key).await;
    }
    world.settle(&[last(&record(&world, 1, "k2"), "rejected", None)]).await;
    let made = erase(&world, Some("k1")).await;
    let selection = Selection::default();
    let (action, minute) = (Action::Rewind, Duration::from_secs(60));
    let preview = rewind_preview(&world.pool, tenant(&world), action, &selection, minute).await;
    let preview = preview.unwrap();
    let mut rewinding = Work::begin(&world.pool, tenant(&world)).await.unwrap();
    let new =
        NewRewind { action: Action::Rewind, selection: &selection, reason: "r", actor: "bob" };
    rewind_create(&mut rewinding, new, &preview).await.unwrap().unwrap();
    rewinding.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();

    let erased = async || {
        outbox(&world)
            .await
            .iter()
            .map(|row| row.erased && row.payload.is_empty())
            .collect::<Vec<_>>()
    };
    waits(&world, &made, "relay").await;
    assert_eq!(erased().await, [false; 3], "what is not published stays whole");
    assert!(rewind_step(&world.pool).await.unwrap().is_none(), "nothing is sent again meanwhile");

    // Published, but for the last, which the relay holds.
    publish(&world).await;
    run(
        &world,
        "INSERT INTO laneway.relay_held (shard, lane, row_id, endpoint, tenant, mode, reason) \
         SELECT shard, decode(repeat('00', 16), 'hex'), id, gen_random_uuid(), tenant, 1, 'hot' \
         FROM laneway.outbox ORDER BY id DESC LIMIT 1",
    )
    .await;
    waits(&world, &made, "relay").await;
    assert_eq!(erased().await, [true, false, false]);
    run(&world, "UPDATE laneway.relay_held SET left_entry = 1").await;
    // What was published until now is not passed by its owner.
    run(
        &world,
        "INSERT INTO laneway_control.topic_marks (generation, partition, acked) VALUES (1, 0, 5), (1, 1, -1)",
    )
    .await;
    waits(&world, &made, "deliver").await;
    assert_eq!(erased().await, [true, false, true]);
    run(&world, "UPDATE laneway_control.topic_marks SET acked = 99").await;
    run(&world, "UPDATE laneway_control.partition_owners SET next_offset = 6").await;
    let done = work_off(&world, &made).await;
    assert_eq!(done.rows, 2, "what is published later is nothing to it");
    let rows = outbox(&world).await;
    assert!(rows[0].headers.is_empty() && !rows[1].headers.is_empty());
    assert!(rewind_step(&world.pool).await.unwrap().is_some(), "then what waited goes on");

    // A loss of the log after that: the shard looks at it first, and other marks count.
    let again = erase(&world, None).await;
    run(
        &world,
        "INSERT INTO laneway_control.topic_generations (generation, topic, topic_id, partitions, reason) \
         VALUES (2, 't', 'b', 2, 'log_lost')",
    )
    .await;
    publish(&world).await;
    waits(&world, &again, "relay").await;
    run(&world, "UPDATE laneway.relay_cursors SET generation = 2").await;
    assert_eq!(work_off(&world, &again).await.rows, 2, "the other key's and its rewind's");
    assert_eq!(found(&world, "payload_not_erased").await, 0);
    run(&world, "UPDATE laneway.outbox SET erased = false").await;
    assert!(found(&world, "payload_not_erased").await > 0, "the audit looks at it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_began_before_is_waited_for() {
    let world = world().await;
    emit(&world, "k1").await;
    let (url, tenant) = (world.url.clone(), world.tenant);
    let late = tokio::spawn(async move {
        let statement = format!(
            "BEGIN; SELECT laneway.emit('{tenant}', 'order.created', 'k1', '{{}}'); SELECT pg_sleep(3); COMMIT"
        );
        sql(&url, &statement).await.unwrap();
    });
    wait_for("the late writer", Duration::from_secs(60), || async {
        let writers = "SELECT count(*)::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL \
                       AND datname = current_database() AND query ~ 'pg_sleep'";
        world.value(writers).await == "1"
    })
    .await;
    let made = erase(&world, Some("k1")).await;
    waits(&world, &made, "writers").await;
    late.await.unwrap();
    publish(&world).await;
    assert_eq!(work_off(&world, &made).await.rows, 2);
}

#[tokio::test]
async fn waiting_events_are_ended_by_their_owner_and_by_nobody_else() {
    let world = world().await;
    let [head, next, other] =
        [(1, "k1"), (2, "k1"), (3, "k2")].map(|(n, key)| record(&world, n, key));
    let mut first = parked(&head, 7, 1);
    first.unknown = true;
    let attempt = Some(attempt(1));
    let held = SettleItem::Park { lane: lane(&head), head: first, reason: "unknown", attempt };
    world.settle(&[held]).await;
    world.settle(&[crate::delivery::append(&next, 8), crate::delivery::park(&other, 9)]).await;
    let page = parked_page_load(&world.pool, lane(&head), None, 10).await.unwrap();
    let unknown: Vec<bool> = page.events.iter().map(|event| event.unknown).collect();
    assert_eq!(unknown, [true, false], "a lane that is read from its head tells what that is");

    let made = erase(&world, Some("k1")).await;
    waits(&world, &made, "lanes").await;
    work(&world, &made).await;
    let commands = commands_open(&world.pool, &[0, 1], &[], 10).await.unwrap();
    assert_eq!(commands.len(), 1, "one for the lane, however often it is looked at");
    let command = &commands[0];
    assert_eq!(command.verdict, Verdict::Erase { before: made.before });
    assert_eq!(world.value("SELECT count(*)::text FROM laneway_control.parked_events").await, "3");
    world.settle(&[last(&head, "erased", Some(command.command))]).await;
    world.settle(&[last(&next, "erased", Some(command.command))]).await;
    let done = work_off(&world, &made).await;
    for record in [&head, &next] {
        let id = record.head.delivery_id();
        let (dead, kept) = dead_letter_get(&world.pool, None, id).await.unwrap().unwrap();
        assert_eq!((dead.cause.as_str(), dead.state), ("erased", Dead::Erased));
        assert_eq!(kept.unwrap(), record.erased());
    }
    assert_eq!((done.dead_letters, done.attempts), (0, 2), "written without a payload");
    assert_eq!(world.value(BODIES).await, "1", "who waits keeps his history");
    assert_eq!(found(&world, "payload_not_erased").await, 0);
    assert_eq!(found(&world, "erasure_not_done").await, 0);
}

#[tokio::test]
async fn a_later_erasure_tells_owners_what_an_earlier_one_did_not() {
    let world = world().await;
    let first = record(&world, 1, "k1");
    world.settle(&[crate::delivery::park(&first, 7)]).await;
    let one = erase(&world, Some("k1")).await;
    waits(&world, &one, "lanes").await;
    let all = erase(&world, None).await;
    waits(&world, &all, "lanes").await;
    let commands = commands_open(&world.pool, &[0, 1], &[], 10).await.unwrap();
    let told: Vec<_> = commands.iter().map(|command| command.verdict).collect();
    let befores = [one.before, all.before].map(|before| Verdict::Erase { before });
    assert_eq!(told, befores, "each once");
}

#[tokio::test]
async fn what_cannot_be_read_is_erased_unread_and_holds_up_nothing() {
    let world = world().await;
    let records: Vec<_> = (1..=6).map(|n| record(&world, n, "k1")).collect();
    for record in &records {
        world.settle(&[last(record, "rejected", None)]).await;
    }
    // Cut, of a later version, no text, no JSON, and nothing that any writer has made.
    for (record, bytes) in records.iter().zip([
        "substring(record FROM 1 FOR 20)",
        "set_byte(record, 0, 2)",
        "set_byte(record, 9, 255)",
        "decode('0100000002', 'hex') || '[]'",
        "decode('ff', 'hex')",
    ]) {
        run(
            &world,
            &format!(
                "UPDATE laneway_control.dead_letters SET record = {bytes} WHERE delivery_id = '{}'",
                record.head.delivery
            ),
        )
        .await;
    }
    let preview = erasure_preview(&world.pool, tenant(&world), Some("k1")).await.unwrap();
    assert_eq!(preview.dead_letters, 6);
    let done = work_off(&world, &erase(&world, Some("k1")).await).await;
    assert_eq!((done.dead_letters, done.unreadable), (6, 5));
    for record in &records[..5] {
        let id = record.head.delivery_id();
        let (dead, kept) = dead_letter_get(&world.pool, None, id).await.unwrap().unwrap();
        assert_eq!(dead.state, Dead::Erased);
        assert_eq!(kept, Err(Unreadable { code: "empty", bytes: 0 }));
    }
    let told =
        "SELECT detail->>'unreadable' FROM laneway_control.audit_log WHERE action = 'erasure.done'";
    assert_eq!(world.value(told).await, "5");
    assert_eq!(found(&world, "payload_not_erased").await, 0);
}

#[tokio::test]
async fn a_waiting_event_that_cannot_be_read_is_ended_by_its_owner() {
    let world = world().await;
    let [head, next] = [(1, "k1"), (2, "k1")].map(|(n, key)| record(&world, n, key));
    world.settle(&[crate::delivery::park(&head, 7)]).await;
    world.settle(&[crate::delivery::append(&next, 8)]).await;
    run(
        &world,
        &format!(
            "UPDATE laneway_control.parked_events SET record = '\\xff' WHERE delivery_id = '{}'",
            head.head.delivery
        ),
    )
    .await;
    let page = async || parked_page_load(&world.pool, lane(&head), None, 10).await.unwrap();
    let waiting = page().await;
    assert!(waiting.events.is_empty() && waiting.more, "nothing is made up of one that waits");
    let made = erase(&world, Some("k1")).await;
    waits(&world, &made, "lanes").await;
    let told = commands_open(&world.pool, &[0, 1], &[], 10).await.unwrap();
    assert_eq!(told[0].lane, lane(&head));
    let ended = page().await;
    assert!(ended.more);
    let [event] = &ended.events[..] else { panic!("the head alone: {:?}", ended.events) };
    assert!(event.record.head.erased && event.record.payload.is_empty());
    assert_eq!(event.record.head.delivery, head.head.delivery);
    assert_eq!(event.record.head.lane(), lane(&head));
    world.settle(&[last(&event.record, "erased", Some(told[0].command))]).await;
    assert_eq!(*page().await.events[0].record, *next);
    world.settle(&[last(&next, "erased", Some(told[0].command))]).await;
    work_off(&world, &made).await;
    assert_eq!(found(&world, "payload_not_erased").await, 0);
}

/// Lanes and dead letters of endpoints that order nothing do not say whose they are.
#[tokio::test]
async fn what_names_nobody_is_found_by_the_keys_events_and_the_outbox_is_gone_through_once() {
    let world = world().await;
    for key in ["k1", "k2", "k1", "k2"] {
        emit(&world, key).await;
    }
    publish(&world).await;
    let rows = outbox(&world).await;
    let nobodys: Vec<_> = rows
        .iter()
        .map(|row| {
            let mut record = (*record(&world, 1, "")).clone();
            record.head.event = row.event.as_uuid();
            record.head.delivery =
                laneway_wire::DeliveryId::first(row.event, world.endpoint).as_uuid();
            (record.head.mode, record.head.user_key) = (LaneMode::None, None);
            Arc::new(record)
        })
        .collect();
    // Two were given up, two wait.
    for record in &nobodys[..2] {
        world.settle(&[last(record, "rejected", None)]).await;
    }
    world.settle(&[crate::delivery::park(&nobodys[2], 7)]).await;
    world.settle(&[crate::delivery::park(&nobodys[3], 8)]).await;
    let preview = erasure_preview(&world.pool, tenant(&world), Some("k1")).await.unwrap();
    assert_eq!((preview.rows, preview.parked, preview.dead_letters), (2, 1, 1));

    // What is erased at once looks at no row of the outbox, however many there are.
    let made = erase(&world, Some("k1")).await;
    let url = world.url.clone();
    let other = tokio::spawn(async move {
        let lock = "BEGIN; LOCK TABLE laneway.outbox IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
        let _ = sql(&url, lock).await;
    });
    let locked = "SELECT (count(*) > 0)::text FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                  AND relation = 'laneway.outbox'::regclass";
    wait_for("the lock", Duration::from_secs(20), || async { world.value(locked).await == "true" })
        .await;
    let swept = tokio::time::timeout(Duration::from_secs(20), erasure_step(&world.pool)).await;
    assert!(swept.expect("it does not wait for the outbox").unwrap().is_some());
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ 'pg_sleep' \
               AND datname = current_database() AND pid <> pg_backend_pid()";
    run(&world, end).await;
    other.await.unwrap();

    waits(&world, &made, "lanes").await;
    let told = commands_open(&world.pool, &[0, 1], &[], 10).await.unwrap();
    assert_eq!(told.iter().map(|it| it.lane).collect::<Vec<_>>(), [lane(&nobodys[2])]);
    world.settle(&[last(&nobodys[2], "erased", Some(told[0].command))]).await;
    let done = work_off(&world, &made).await;
    assert_eq!((done.rows, done.dead_letters), (2, 1));
    for (record, state) in nobodys.iter().zip([Dead::Erased, Dead::Open]) {
        let id = record.head.delivery_id();
        let (dead, _) = dead_letter_get(&world.pool, None, id).await.unwrap().unwrap();
        assert_eq!(dead.state, state);
    }
    let noted = "SELECT count(*)::text FROM laneway_control.erasure_events";
    assert_eq!(world.value(noted).await, "2", "its own");
    let window = Duration::from_secs(3_600);
    retention_step(&world.pool, Kind::Commands, window).await.unwrap();
    assert_eq!(world.value(noted).await, "0", "with the erasure their use has ended");
}
