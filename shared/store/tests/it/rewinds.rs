//! Commands over dead letters, and replays, against a real PostgreSQL (I31, I32, I33, I44).

use crate::delivery::{NOW, World, attempt, lane};
use laneway_lane::{FinalOutcome, SettleItem};
use laneway_store::dead_letters::{Selection, State as Dead, dead_letter_get, dead_letters_list};
use laneway_store::deliveries::{deliveries_of_event, delivery_get};
use laneway_store::erasures::{erasure_cancel, erasure_create, erasure_step};
use laneway_store::idempotency::{Answer, Work};
use laneway_store::migrate;
use laneway_store::relay::{OutboxRow, Shard, rows_by_id};
use laneway_store::rewinds::{
    Action, MAX_UNSETTLED, NewRewind, Preview, Refusal, Rewind, State, outbox_is_read,
    rewind_change, rewind_create, rewind_get, rewind_preview, rewind_step, rewinds_list,
};
use laneway_testkit::{sql, wait_for};
use laneway_wire::{DeliveryId, Record, TenantId};
use std::sync::Arc;
use std::time::Duration;

/// A relay that reads the control database.
const RELAY: &str = "INSERT INTO laneway.relay_members (instance) VALUES ('relay-1')";

fn last(record: &Arc<Record>, outcome: FinalOutcome) -> SettleItem {
    SettleItem::Final {
        lane: lane(record),
        record: Arc::clone(record),
        outcome,
        attempts: 1,
        first_held: NOW,
        attempt: Some(attempt(1)),
        status: Some(422),
        took: Duration::ZERO,
        parked: false,
        may_unpark: false,
        command: None,
    }
}

async fn world() -> World {
    let world = World::new().await;
    migrate::source_migrate(&world.pool).await.unwrap();
    sql(&world.url, RELAY).await.unwrap();
    world
}

/// Dead letters number 1 to `count`, of the lanes `k0`, `k1`, `k2` in turn, each lane's in a group of its own as the
/// owner would write them.
async fn dead(world: &World, count: u32) -> Vec<Arc<Record>> {
    let records: Vec<_> = (1..=count).map(|n| world.record(n, &format!("k{}", n % 3))).collect();
    for group in records.chunks(3) {
        let items: Vec<_> = group
            .iter()
            .map(|record| last(record, FinalOutcome::DeadLettered { reason: "rejected" }))
            .collect();
        world.settle(&items).await;
    }
    records
}

fn tenant(world: &World) -> TenantId {
    TenantId::from_uuid(world.tenant)
}

/// Counts, with all the time that it takes.
async fn preview(world: &World, action: Action, selection: &Selection) -> Preview {
    let long = Duration::from_secs(300);
    rewind_preview(&world.pool, tenant(world), action, selection, long).await.unwrap()
}

async fn command(world: &World, action: Action, selection: &Selection) -> Rewind {
    let preview = preview(world, action, selection).await;
    create(world, action, selection, &preview).await
}

async fn create(world: &World, action: Action, selection: &Selection, preview: &Preview) -> Rewind {
    let mut work = Work::begin(&world.pool, tenant(world)).await.unwrap();
    let new = NewRewind { action, selection, reason: "they fixed it", actor: "ann" };
    let made = rewind_create(&mut work, new, preview).await.unwrap().unwrap();
    work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();
    made
}

async fn now(world: &World, rewind: &Rewind) -> Rewind {
    rewind_get(&world.pool, Some(tenant(world)), rewind.id).await.unwrap().unwrap()
}

/// Works until nothing is left and gives how many pages there were.
async fn work_off(world: &World) -> usize {
    let mut pages = 0;
    while rewind_step(&world.pool).await.unwrap().is_some() {
        pages += 1;
    }
    pages
}

/// The outbox in the order of its ids, as a relay reads it.
async fn outbox(world: &World) -> Vec<OutboxRow> {
    let rows =
        sql(&world.url, "SELECT id::text, shard::text FROM laneway.outbox ORDER BY id").await;
    let rows = rows.unwrap();
    let ids: Vec<i64> = rows.iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect();
    let Some(first) = rows.first() else { return vec![] };
    let shard = Shard(first[1].as_ref().unwrap().parse().unwrap());
    rows_by_id(&world.pool, shard, &ids).await.unwrap()
}

fn all() -> Selection {
    Selection::default()
}

#[tokio::test]
async fn a_rewind_sends_every_dead_letter_once_more_in_the_order_of_its_lane() {
    let world = world().await;
    let records = dead(&world, 9).await;
    let counted = preview(&world, Action::Rewind, &all()).await.counted.unwrap();
    assert_eq!((counted.matched, counted.lanes, counted.endpoints), (9, 3, 1));
    assert_eq!(counted.ordered, 9);
    let made = command(&world, Action::Rewind, &all()).await;
    assert_eq!((made.matched, made.state), (Some(9), State::Running));
    assert!(outbox(&world).await.is_empty(), "a command alone sends nothing");
    assert_eq!(work_off(&world).await, 1);
    let done = rewind_get(&world.pool, Some(tenant(&world)), made.id).await.unwrap().unwrap();
    assert_eq!((done.done, done.skipped, done.state), (9, 0, State::Done));
    assert!(done.finished_at.is_some());

    let rows = outbox(&world).await;
    assert_eq!(rows.len(), 9);
    for (row, record) in rows.iter().zip(&records) {
        let rewind = row.rewind.unwrap();
        assert_eq!(row.event, record.head.event_id(), "webhook-id stays");
        assert_eq!((&row.payload, &row.user_key), (&record.payload, &record.head.user_key));
        assert_eq!((rewind.number, rewind.of), (1, record.head.delivery_id()));
        assert_ne!(rewind.delivery, record.head.delivery_id());
        let id = DeliveryId::derive(row.event, world.endpoint, 1, made.id.as_uuid());
        assert_eq!(row.delivery_id(world.endpoint), id);
        let shown = delivery_get(&world.pool, tenant(&world), id).await.unwrap().unwrap();
        assert_eq!(shown.event, Some(row.event), "it is found before anything is recorded");
        let (dead, kept) = dead_letter_get(&world.pool, None, rewind.of).await.unwrap().unwrap();
        let kept = kept.unwrap();
        assert_eq!(
            (dead.state, dead.rewound_to, dead.rewind),
            (Dead::Rewound, Some(id), Some(made.id))
        );
        assert_eq!(kept, **record, "the dead letter keeps everything (I30)");
    }
    let event = rows[0].event;
    let found = deliveries_of_event(&world.pool, tenant(&world), event, None, 10).await.unwrap();
    assert_eq!(found.unwrap().len(), 2, "the dead one and the new one");

    // A second, identical command finds nothing to do.
    let again = command(&world, Action::Rewind, &all()).await;
    assert_eq!((again.matched, again.state), (Some(0), State::Done));
    assert_eq!(work_off(&world).await, 0);
    assert_eq!(outbox(&world).await.len(), 9);
    let audit = "SELECT count(*)::text FROM laneway_control.audit_log WHERE actor = 'ann' \
                 AND action = 'dead_letters.rewind' AND detail->>'reason' = 'they fixed it'";
    assert_eq!(world.value(audit).await, "2");
    assert_eq!(rewinds_list(&world.pool, None, None, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn commands_at_once_make_one_series() {
    let world = world().await;
    dead(&world, 30).await;
    for _ in 0..4 {
        assert_eq!(command(&world, Action::Rewind, &all()).await.matched, Some(30));
    }
    let workers = (0..4).map(|_| work_off(&world));
    futures_util::future::join_all(workers).await;
    // A worker that found the others' command locked has gone; what is left is done now.
    work_off(&world).await;
    assert_eq!(outbox(&world).await.len(), 30);
    let commands = rewinds_list(&world.pool, None, None, 10).await.unwrap();
    assert!(commands.iter().all(|command| command.state == State::Done));
    assert_eq!(commands.iter().map(|command| command.done).sum::<u64>(), 30);
    assert_eq!(
        world.value("SELECT count(DISTINCT number)::text FROM laneway_control.rewound").await,
        "1"
    );
}

#[tokio::test]
async fn a_page_that_is_cut_did_not_happen_and_the_command_goes_on() {
    let world = world().await;
    dead(&world, 2_200).await;
    let made = command(&world, Action::Rewind, &all()).await;
    assert_eq!(rewind_step(&world.pool).await.unwrap().unwrap().done, 1_000);
    // The step waits for this lock in its middle; its caller goes away.
    let url = world.url.clone();
    let lock =
        "BEGIN; LOCK TABLE laneway_control.rewound IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(3)";
    let blocker = tokio::spawn(async move { sql(&url, lock).await });
    let locked = "SELECT count(*)::text FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                  AND relation = 'laneway_control.rewound'::regclass";
    wait_for("the lock", Duration::from_secs(20), || async { world.value(locked).await == "1" })
        .await;
    let cut = tokio::time::timeout(Duration::from_millis(500), rewind_step(&world.pool)).await;
    assert!(cut.is_err(), "it waits for the lock");
    blocker.await.unwrap().unwrap();
    let now = rewind_get(&world.pool, None, made.id).await.unwrap().unwrap();
    assert_eq!((now.done, outbox(&world).await.len()), (1_000, 1_000));
    work_off(&world).await;
    let done = rewind_get(&world.pool, None, made.id).await.unwrap().unwrap();
    assert_eq!((done.done, done.state), (2_200, State::Done));
    let rows = outbox(&world).await;
    assert_eq!(rows.len(), 2_200);
    assert!(rows.is_sorted_by_key(|row| row.event), "pages keep the order among themselves");
}

#[tokio::test]
async fn what_is_discarded_is_never_sent() {
    let world = world().await;
    let records = dead(&world, 6).await;
    let selection = Selection { user_key: Some("k1".to_owned()), ..all() };
    assert_eq!(command(&world, Action::Discard, &selection).await.matched, Some(2));
    work_off(&world).await;
    let open =
        dead_letters_list(&world.pool, None, &all(), Some(Dead::Open), None, 10).await.unwrap();
    assert_eq!(open.len(), 4);
    command(&world, Action::Rewind, &all()).await;
    work_off(&world).await;
    let rows = outbox(&world).await;
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.user_key.as_deref() != Some("k1")));
    let discarded =
        dead_letter_get(&world.pool, None, records[0].head.delivery_id()).await.unwrap();
    assert_eq!(discarded.unwrap().0.state, Dead::Discarded);
}

#[tokio::test]
async fn filters_mean_what_they_say() {
    let world = world().await;
    let records = dead(&world, 6).await;
    let one = Selection { deliveries: Some(vec![records[3].head.delivery_id()]), ..all() };
    let lane = Selection { lane: Some(lane(&records[1])), ..all() };
    let below = Selection { event_type: Some("order.*".to_owned()), ..all() };
    let exact = Selection { event_type: Some("order".to_owned()), ..all() };
    let cause = Selection { cause: Some("expired".to_owned()), ..all() };
    let later = Selection { since: Some(NOW + Duration::from_secs(1 << 31)), ..all() };
    for (selection, wanted) in [(one, 1), (lane, 2), (below, 6), (exact, 0), (cause, 0), (later, 0)]
    {
        let found = dead_letters_list(&world.pool, None, &selection, None, None, 10).await.unwrap();
        assert_eq!(found.len(), wanted, "{selection:?}");
        for action in [Action::Rewind, Action::Discard] {
            let counted = preview(&world, action, &selection).await;
            assert_eq!(counted.matched(), Some(wanted as u64), "{selection:?}");
        }
    }
    let page = dead_letters_list(&world.pool, None, &all(), None, None, 4).await.unwrap();
    assert_eq!(page[0].delivery, records[5].head.delivery_id(), "newest first");
    let next =
        dead_letters_list(&world.pool, None, &all(), None, Some(page[3].place), 4).await.unwrap();
    assert_eq!(next.len(), 2);
    let other = TenantId::from_uuid(uuid::Uuid::from_u128(99));
    let theirs = dead_letters_list(&world.pool, Some(other), &all(), None, None, 9).await.unwrap();
    assert!(theirs.is_empty());
}

#[tokio::test]
async fn a_rewind_that_dies_again_is_rewound_with_the_next_number() {
    let world = world().await;
    dead(&world, 1).await;
    command(&world, Action::Rewind, &all()).await;
    work_off(&world).await;
    let row = outbox(&world).await.remove(0);
    let rewind = row.rewind.unwrap();
    let mut second = Record::clone(&world.record(1, "k1"));
    second.head.delivery = rewind.delivery.as_uuid();
    second.head.replay = 1;
    second.head.replay_of = Some(rewind.of.as_uuid());
    let second = Arc::new(second);
    world.settle(&[last(&second, FinalOutcome::DeadLettered { reason: "rejected" })]).await;
    assert_eq!(command(&world, Action::Rewind, &all()).await.matched, Some(1));
    work_off(&world).await;
    let third = outbox(&world).await[1].rewind.unwrap();
    assert_eq!((third.number, third.of), (2, rewind.delivery));
}

#[tokio::test]
async fn dead_letters_of_a_deleted_endpoint_are_left_and_can_be_discarded() {
    let world = world().await;
    dead(&world, 3).await;
    sql(&world.url, "UPDATE laneway_control.endpoints SET state = 'deleted'").await.unwrap();
    assert_eq!(command(&world, Action::Rewind, &all()).await.matched, Some(0));
    assert_eq!(command(&world, Action::Discard, &all()).await.matched, Some(3));
    work_off(&world).await;
    assert!(outbox(&world).await.is_empty());
}

#[tokio::test]
async fn a_command_is_paused_resumed_and_ended_by_a_person() {
    let world = world().await;
    dead(&world, 1_200).await;
    let made = command(&world, Action::Rewind, &all()).await;
    let to = async |state| {
        let mut work = Work::begin(&world.pool, tenant(&world)).await.unwrap();
        let now = rewind_change(&mut work, made.id, state, "bob", "wait").await.unwrap();
        work.commit(&Answer { status: 200, body: vec![] }, None).await.unwrap();
        now.unwrap().state
    };
    rewind_step(&world.pool).await.unwrap();
    assert_eq!(to(State::Paused).await, State::Paused);
    assert_eq!(work_off(&world).await, 0);
    assert_eq!(to(State::Running).await, State::Running);
    assert_eq!(to(State::Cancelled).await, State::Cancelled);
    assert_eq!(work_off(&world).await, 0);
    assert_eq!(to(State::Running).await, State::Cancelled, "what has ended stays so");
    assert_eq!(outbox(&world).await.len(), 1_000);
    let audit = "SELECT string_agg(action, ' ' ORDER BY id) FROM laneway_control.audit_log WHERE actor = 'bob'";
    assert_eq!(world.value(audit).await, "rewind.pause rewind.resume rewind.cancel");
}

/// What is counted adds up, though another command was first while this one stood still.
#[tokio::test]
async fn what_another_command_took_meanwhile_is_skipped() {
    let world = world().await;
    dead(&world, 9).await;
    let first = command(&world, Action::Rewind, &all()).await;
    let to = async |state| {
        let mut work = Work::begin(&world.pool, tenant(&world)).await.unwrap();
        rewind_change(&mut work, first.id, state, "bob", "wait").await.unwrap();
        work.commit(&Answer { status: 200, body: vec![] }, None).await.unwrap();
    };
    to(State::Paused).await;
    let second = command(&world, Action::Discard, &all()).await;
    work_off(&world).await;
    to(State::Running).await;
    work_off(&world).await;
    let (first, second) = (now(&world, &first).await, now(&world, &second).await);
    assert_eq!((second.state, second.done, second.skipped), (State::Done, 9, 0));
    assert_eq!((first.state, first.done, first.skipped), (State::Done, 0, 9));
}

/// Settles an event of the outbox as delivered.
async fn delivered(world: &World, row: &OutboxRow) {
    let mut record = Record::clone(&world.record(1, "k"));
    record.head.event = row.event.as_uuid();
    record.head.delivery = row.delivery_id(world.endpoint).as_uuid();
    world.settle(&[last(&Arc::new(record), FinalOutcome::Delivered)]).await;
}

#[tokio::test]
async fn a_command_whose_page_always_fails_says_so_and_lets_the_others_pass() {
    let world = world().await;
    dead(&world, 3).await;
    let broken = command(&world, Action::Rewind, &all()).await;
    // Another project, whose one dead letter is as good as ever.
    let (tenant, endpoint) = (uuid::Uuid::from_u128(71), uuid::Uuid::from_u128(72));
    sql(
        &world.url,
        &format!(
            "INSERT INTO laneway_control.projects (tenant_id, name) VALUES ('{tenant}', 'other'); \
             INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, timeout_ms, secret, since_version) \
             VALUES ('{tenant}', '{endpoint}', 'http://127.0.0.1:1/', 2000, '', 1); \
             INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, event_type, \
               reason, attempts, record, first_held) \
             SELECT '{tenant}', delivery_id, event_id, '{endpoint}', lane, event_type, reason, 1, record, now() \
             FROM laneway_control.dead_letters LIMIT 1; \
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
               $$ BEGIN RAISE EXCEPTION 'not today'; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON laneway_control.rewound FOR EACH ROW \
               WHEN (NEW.tenant_id <> '{tenant}') EXECUTE FUNCTION refuse()"
        ),
    )
    .await
    .unwrap();
    let (owner, action, selection) = (TenantId::from_uuid(tenant), Action::Rewind, &all());
    let long = Duration::from_secs(60);
    let preview = rewind_preview(&world.pool, owner, action, selection, long).await.unwrap();
    let mut work = Work::begin(&world.pool, owner).await.unwrap();
    let new = NewRewind { action, selection, reason: "theirs", actor: "eve" };
    let theirs = rewind_create(&mut work, new, &preview).await.unwrap().unwrap();
    work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();

    // Nobody can read this one, and it was worked on least recently.
    sql(
        &world.url,
        &format!(
            "INSERT INTO laneway_control.projects (tenant_id, name) VALUES ('{0}', 'later'); \
             INSERT INTO laneway_control.rewinds (tenant_id, rewind_id, action, selection, reason, actor, position, \
               until, updated_at) VALUES ('{0}', '{0}', 'rewind', '[7]', 'r', 'a', 0, 9, '-infinity')",
            uuid::Uuid::now_v7()
        ),
    )
    .await
    .unwrap();

    rewind_step(&world.pool).await.unwrap_err();
    let step = rewind_step(&world.pool).await.unwrap().unwrap();
    assert_eq!((step.rewind.id, step.rewind.state, step.done), (theirs.id, State::Done, 1));
    let now = rewind_get(&world.pool, None, broken.id).await.unwrap().unwrap();
    assert_eq!((now.state, now.done), (State::Running, 0));
    assert_eq!(now.error.as_deref(), Some("noting rewinds: not today"));
    assert!(rewind_step(&world.pool).await.unwrap().is_none(), "it is left for a while");
    // Mended, it goes on when its time has come.
    let mend = "UPDATE laneway_control.rewinds SET retry_at = now(); DROP TRIGGER refuse ON laneway_control.rewound";
    sql(&world.url, mend).await.unwrap();
    let step = rewind_step(&world.pool).await.unwrap().unwrap();
    assert_eq!((step.rewind.id, step.rewind.error), (broken.id, None));
}

#[tokio::test]
async fn a_replay_sends_an_event_that_stands_twice_in_the_log_once() {
    let world = world().await;
    let (tenant, event) = (world.tenant, uuid::Uuid::now_v7());
    let again = format!(
        "INSERT INTO laneway.outbox (event_id, tenant, type, payload) VALUES ('{event}', '{tenant}', 'a', '1')"
    );
    sql(&world.url, &format!("{again}; {again}")).await.unwrap();
    let rows = outbox(&world).await;
    delivered(&world, &rows[0]).await;
    // And once more a page later.
    let filler = format!(
        "INSERT INTO laneway.outbox (tenant, type, payload) SELECT '{tenant}', 'b', '' FROM generate_series(1, 1000)"
    );
    sql(&world.url, &format!("{filler}; {again}")).await.unwrap();
    let since = Some(rows[0].created_at - Duration::from_secs(60));
    let selection = Selection { endpoint: Some(world.endpoint), since, ..all() };
    let made = command(&world, Action::Replay, &selection).await;
    assert_eq!(made.matched, Some(1));
    assert_eq!(work_off(&world).await, 2);
    let done = rewind_get(&world.pool, None, made.id).await.unwrap().unwrap();
    assert_eq!((done.state, done.done, done.skipped), (State::Done, 1, 1_002));
}

#[tokio::test]
async fn what_the_control_database_does_not_have_is_told_before_a_replay() {
    let world = world().await;
    let emit = format!("SELECT laneway.emit('{}', 'order.created', 'k', '')", world.tenant);
    for _ in 0..2 {
        sql(&world.url, &emit).await.unwrap();
    }
    let rows = outbox(&world).await;
    for row in &rows {
        delivered(&world, row).await;
    }
    let since = Some(rows[0].created_at - Duration::from_secs(60));
    let selection = Selection { endpoint: Some(world.endpoint), since, ..all() };
    let counted = async |selection: &Selection| {
        let preview = preview(&world, Action::Replay, selection).await;
        (preview.matched().unwrap(), preview.unavailable.unwrap())
    };
    assert_eq!(counted(&selection).await, (2, 0));
    command(&world, Action::Replay, &selection).await;
    work_off(&world).await;
    // One event's day of the outbox is gone, as if it had come from elsewhere; the other's type is another.
    let gone = format!("DELETE FROM laneway.outbox WHERE event_id = '{}'", rows[0].event.as_uuid());
    sql(&world.url, &gone).await.unwrap();
    assert_eq!(counted(&selection).await, (1, 1));
    let typed = Selection { event_type: Some("card.*".to_owned()), ..selection };
    assert_eq!(counted(&typed).await, (0, 1));
    // Whoever writes the command is told, and nothing is written.
    let refused = async |selection: &Selection, action| {
        let preview = preview(&world, action, selection).await;
        let mut work = Work::begin(&world.pool, tenant(&world)).await.unwrap();
        let new = NewRewind { action, selection, reason: "again", actor: "ann" };
        let made = rewind_create(&mut work, new, &preview).await.unwrap();
        work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();
        made.map_err(Refusal::code).unwrap_err()
    };
    assert_eq!(refused(&typed, Action::Replay).await, "nothing_to_replay");
    dead(&world, 3).await;
    sql(&world.url, "DELETE FROM laneway.relay_members").await.unwrap();
    assert_eq!(refused(&all(), Action::Rewind).await, "outbox_not_read");
    assert_eq!(
        refused(&typed, Action::Replay).await,
        "nothing_to_replay",
        "whatever else is wrong"
    );
    let written = "SELECT count(*)::text FROM laneway_control.rewinds WHERE reason = 'again'";
    assert_eq!(world.value(written).await, "0");
}

#[tokio::test]
async fn a_relay_at_the_control_database_is_known_by_its_word() {
    let world = World::new().await;
    migrate::source_migrate(&world.pool).await.unwrap();
    assert!(!outbox_is_read(&world.pool).await.unwrap());
    sql(&world.url, RELAY).await.unwrap();
    assert!(outbox_is_read(&world.pool).await.unwrap());
    let old = "UPDATE laneway.relay_members SET seen_at = now() - interval '6 minutes'";
    sql(&world.url, old).await.unwrap();
    assert!(!outbox_is_read(&world.pool).await.unwrap());
}

#[tokio::test]
async fn a_replay_sends_again_what_was_delivered_since_a_moment() {
    let world = world().await;
    let emit = |n: u32| {
        format!(
            "SELECT laneway.emit('{}', 'order.created', 'k{}', '{{\"n\":{n}}}')",
            world.tenant,
            n % 3
        )
    };
    for n in 0..12 {
        sql(&world.url, &emit(n)).await.unwrap();
        sql(&world.url, "SELECT pg_sleep(0.003)").await.unwrap();
    }
    let rows = outbox(&world).await;
    // The first is older than the moment, the last one waits, the one before was given up.
    // Times are read to the nearest millisecond, up or down.
    let since = rows[1].created_at - Duration::from_millis(1);
    assert!(rows[0].created_at < since);
    for (n, row) in rows[..11].iter().enumerate() {
        let mut record = Record::clone(&world.record(1, "k"));
        record.head.event = row.event.as_uuid();
        record.head.delivery = row.delivery_id(world.endpoint).as_uuid();
        let outcome = match n {
            10 => FinalOutcome::DeadLettered { reason: "rejected" },
            _ => FinalOutcome::Delivered,
        };
        world.settle(&[last(&Arc::new(record), outcome)]).await;
    }
    let selection = Selection { endpoint: Some(world.endpoint), since: Some(since), ..all() };
    let older = 1;
    for number in 1..=2 {
        let made = command(&world, Action::Replay, &selection).await;
        work_off(&world).await;
        let done = rewind_get(&world.pool, None, made.id).await.unwrap().unwrap();
        assert_eq!(done.state, State::Done);
        assert_eq!(done.done as usize, 10 - older, "{done:?}");
        let all = outbox(&world).await;
        let new: Vec<_> =
            all.iter().filter(|row| row.rewind.is_some_and(|r| r.number == number)).collect();
        let events: Vec<_> = new.iter().map(|row| row.event).collect();
        let wanted: Vec<_> = rows[older..10].iter().map(|row| row.event).collect();
        assert_eq!(events, wanted, "in the order of the log");
        assert!(new.iter().zip(&rows[older..]).all(|(new, old)| new.payload == old.payload));
    }
}

/// One event of the log, delivered; a replay's filter that means it.
async fn one_delivered(world: &World) -> Selection {
    let emit = format!("SELECT laneway.emit('{}', 'order.created', 'k', '')", world.tenant);
    sql(&world.url, &emit).await.unwrap();
    let rows = outbox(world).await;
    let row = rows.last().unwrap();
    delivered(world, row).await;
    let since = Some(row.created_at - Duration::from_secs(600));
    Selection { endpoint: Some(world.endpoint), since, ..all() }
}

#[tokio::test]
async fn what_cannot_be_counted_in_time_is_done_all_the_same() {
    let world = world().await;
    let selection = one_delivered(&world).await;
    sql(
        &world.url,
        "CREATE OR REPLACE FUNCTION laneway_control.first_delivery_id(event uuid, endpoint uuid) RETURNS uuid \
           LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN event; END $$",
    )
    .await
    .unwrap();
    let (pool, short) = (&world.pool, Duration::from_millis(200));
    let told = rewind_preview(pool, tenant(&world), Action::Replay, &selection, short).await;
    let told = told.unwrap();
    assert_eq!((told.counted, told.unavailable, told.refusal), (None, None, None));
    let made = create(&world, Action::Replay, &selection, &told).await;
    assert_eq!((made.matched, made.state), (None, State::Running));
    work_off(&world).await;
    let done = now(&world, &made).await;
    assert_eq!((done.state, done.done, done.matched), (State::Done, 1, None));
    // Nobody would send it: that is looked at whatever was counted.
    sql(&world.url, "DELETE FROM laneway.relay_members").await.unwrap();
    let told = rewind_preview(pool, tenant(&world), Action::Replay, &selection, short).await;
    assert_eq!(told.unwrap().refusal, Some(Refusal::OutboxNotRead));
}

#[tokio::test]
async fn a_replay_reaches_over_more_than_a_million_rows() {
    let world = world().await;
    let (tenant, event) = (world.tenant, uuid::Uuid::now_v7());
    let many = format!(
        "INSERT INTO laneway.outbox (event_id, tenant, type, payload) \
         SELECT '{event}', '{tenant}', 'a', '' FROM generate_series(1, 1000001)"
    );
    sql(&world.url, &many).await.unwrap();
    let emit = format!("SELECT laneway.emit('{tenant}', 'order.created', 'k', '')");
    let id = sql(&world.url, &emit).await.unwrap()[0][0].clone().unwrap();
    let delivered = format!(
        "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
         SELECT laneway_control.first_delivery_id('{id}', e), '{tenant}', e, '{id}', 1, 1, 1 FROM (SELECT '{}'::uuid) s(e)",
        world.endpoint.as_uuid()
    );
    sql(&world.url, &delivered).await.unwrap();
    let since = Some(world.pool.now().await.unwrap() - Duration::from_secs(600));
    let selection = Selection { endpoint: Some(world.endpoint), since, ..all() };
    let told = preview(&world, Action::Replay, &selection).await;
    assert_eq!((told.matched(), told.unavailable), (Some(1), Some(0)));
    // Its last page, and not all thousand before it.
    let made = create(&world, Action::Replay, &selection, &told).await;
    sql(&world.url, "UPDATE laneway_control.rewinds SET position = until - 10").await.unwrap();
    work_off(&world).await;
    let done = now(&world, &made).await;
    assert_eq!((done.state, done.done), (State::Done, 1));
}

#[tokio::test]
async fn no_more_is_sent_again_than_may_be_unsettled() {
    let world = world().await;
    let (tenant, endpoint) = (world.tenant, world.endpoint.as_uuid());
    let before = MAX_UNSETTLED - 1_500;
    let open = format!(
        "INSERT INTO laneway_control.rewound (tenant_id, event_id, endpoint_id, number, delivery_id, of_delivery, rewind_id) \
         SELECT '{tenant}', gen_random_uuid(), '{endpoint}', 1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid() \
         FROM generate_series(1, {before})"
    );
    sql(&world.url, &open).await.unwrap();
    dead(&world, 1_500).await;
    let made = command(&world, Action::Rewind, &all()).await;
    assert_eq!(rewind_step(&world.pool).await.unwrap().unwrap().done, 1_000);
    assert!(rewind_step(&world.pool).await.unwrap().is_none(), "another page could be too much");
    let waiting = now(&world, &made).await;
    assert_eq!((waiting.state, waiting.waits.as_deref()), (State::Running, Some("deliveries")));
    assert_eq!(waiting.error, None);
    let unsettled = "SELECT count(*)::text FROM laneway_control.rewound WHERE NOT settled";
    assert_eq!(world.value(unsettled).await, (before + 1_000).to_string());

    // As the owners settle them: with one too few it waits on.
    let settle = |count: i64| {
        format!(
            "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
             SELECT w.delivery_id, w.tenant_id, w.endpoint_id, w.event_id, 1, 1, 1 FROM laneway_control.rewound w \
             WHERE NOT EXISTS (SELECT FROM laneway_control.inbox i WHERE i.delivery_id = w.delivery_id) LIMIT {count}; \
             UPDATE laneway_control.rewinds SET retry_at = now()"
        )
    };
    sql(&world.url, &settle(499)).await.unwrap();
    assert!(rewind_step(&world.pool).await.unwrap().is_none());
    // One that died again is settled too, when its day of the inbox has gone before it.
    let died = "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, \
                  event_type, reason, attempts, record, first_held) \
                SELECT tenant_id, delivery_id, event_id, endpoint_id, decode(repeat('00', 16), 'hex'), 'a', 'rejected', 1, \
                  '', now() FROM laneway_control.rewound WHERE NOT settled LIMIT 1; \
                UPDATE laneway_control.rewinds SET retry_at = now()";
    sql(&world.url, died).await.unwrap();
    let step = rewind_step(&world.pool).await.unwrap().unwrap();
    assert_eq!((step.done, step.rewind.state, step.rewind.waits), (500, State::Done, None));
    assert_eq!(outbox(&world).await.len(), 1_500);
}

#[tokio::test]
async fn what_cannot_be_sent_again_is_set_aside_and_the_rest_goes_on() {
    let world = world().await;
    let mut records = dead(&world, 9).await;
    let mut refused = Record::clone(&world.record(10, "k1"));
    refused.head.event_type = "no type".into();
    let refused = Arc::new(refused);
    world.settle(&[last(&refused, FinalOutcome::DeadLettered { reason: "rejected" })]).await;
    records.push(world.record(11, "k2"));
    world.settle(&[last(&records[9], FinalOutcome::DeadLettered { reason: "rejected" })]).await;
    let broken = records.remove(4).head.delivery_id();
    let spoil = format!(
        "UPDATE laneway_control.dead_letters SET record = 'x'::bytea || record WHERE delivery_id = '{}'",
        broken.as_uuid()
    );
    sql(&world.url, &spoil).await.unwrap();

    let made = command(&world, Action::Rewind, &all()).await;
    work_off(&world).await;
    let done = now(&world, &made).await;
    assert_eq!((done.state, done.error.as_deref()), (State::Done, None));
    assert_eq!((done.matched, done.done, done.set_aside, done.skipped), (Some(11), 9, 2, 0));
    assert_eq!(done.example, Some(format!("{broken}: unknown_version")));
    let sent: Vec<_> = outbox(&world).await.iter().map(|row| row.event).collect();
    let wanted: Vec<_> = records.iter().map(|record| record.head.event_id()).collect();
    assert_eq!(sent, wanted, "each once, in order");
    let noted = "SELECT count(*)::text FROM laneway_control.rewound";
    assert_eq!(world.value(noted).await, "9", "nobody waits for what was not sent");

    // They stay dead letters: a command that means one alone says why.
    let one = Selection { deliveries: Some(vec![refused.head.delivery_id()]), ..all() };
    let made = command(&world, Action::Rewind, &one).await;
    work_off(&world).await;
    let example = now(&world, &made).await.example.unwrap();
    assert!(
        example.ends_with(": type_has_1_to_255_of_letters_digits_dot_underscore_hyphen"),
        "{example}"
    );
    assert_eq!(command(&world, Action::Discard, &all()).await.matched, Some(2));
    work_off(&world).await;
    assert_eq!(command(&world, Action::Rewind, &all()).await.matched, Some(0));
}

#[tokio::test]
async fn a_command_tells_what_it_waits_for() {
    let world = world().await;
    dead(&world, 3).await;
    let first = command(&world, Action::Rewind, &all()).await;
    let second = command(&world, Action::Rewind, &all()).await;
    assert_eq!((first.waits, second.waits.as_deref()), (None, Some("command")));
    let mut work = Work::begin(&world.pool, tenant(&world)).await.unwrap();
    let erasure = erasure_create(&mut work, Some("nobody"), "they asked", "ann").await.unwrap();
    work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();
    assert!(rewind_step(&world.pool).await.unwrap().is_none());
    for rewind in rewinds_list(&world.pool, Some(tenant(&world)), None, 10).await.unwrap() {
        assert_eq!(rewind.waits.as_deref(), Some("erasure"));
    }
    // One that does not get on can be ended.
    let mut work = Work::begin(&world.pool, tenant(&world)).await.unwrap();
    let ended = erasure_cancel(&mut work, erasure.id, "a mistake", "bob").await.unwrap().unwrap();
    work.commit(&Answer { status: 200, body: vec![] }, None).await.unwrap();
    assert!(ended.cancelled && ended.finished_at.is_some());
    assert!(erasure_step(&world.pool).await.unwrap().is_none(), "nothing more of it happens");
    work_off(&world).await;
    for rewind in rewinds_list(&world.pool, Some(tenant(&world)), None, 10).await.unwrap() {
        assert_eq!((rewind.state, rewind.waits), (State::Done, None));
    }
}

#[tokio::test]
async fn what_may_have_been_applied_is_sent_again_only_by_who_means_it() {
    let world = world().await;
    let rejected = world.record(1, "k1");
    let unknown = world.record(2, "k2");
    let by = |record, reason| last(record, FinalOutcome::DeadLettered { reason });
    world.settle(&[by(&rejected, "rejected"), by(&unknown, "unknown")]).await;
    let all = Selection::default();
    let named =
        Selection { deliveries: Some(vec![unknown.head.delivery_id()]), ..Selection::default() };
    let cause = Selection { cause: Some("unknown".into()), ..Selection::default() };
    for (action, selection, count) in [
        (Action::Rewind, &all, 1),
        (Action::Rewind, &named, 1),
        (Action::Rewind, &cause, 1),
        (Action::Discard, &all, 2),
    ] {
        let counted = preview(&world, action, selection).await;
        assert_eq!(counted.matched(), Some(count), "{action:?} {selection:?}");
    }
    let first = command(&world, Action::Rewind, &all).await;
    work_off(&world).await;
    let state = async |record: &Record| {
        let id = record.head.delivery_id();
        dead_letter_get(&world.pool, None, id).await.unwrap().unwrap().0.state
    };
    assert_eq!(now(&world, &first).await.done, 1);
    assert_eq!((state(&rejected).await, state(&unknown).await), (Dead::Rewound, Dead::Open));
    command(&world, Action::Rewind, &cause).await;
    work_off(&world).await;
    assert_eq!(state(&unknown).await, Dead::Rewound);
}
