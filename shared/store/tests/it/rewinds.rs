//! Commands over dead letters, and replays, against a real PostgreSQL (I31, I32, I33, I44).

use crate::delivery::{NOW, World, attempt, lane};
use laneway_lane::{FinalOutcome, SettleItem};
use laneway_store::dead_letters::{Selection, State as Dead, dead_letter_get, dead_letters_list};
use laneway_store::deliveries::{deliveries_of_event, delivery_get};
use laneway_store::idempotency::{Answer, Work};
use laneway_store::migrate;
use laneway_store::relay::{OutboxRow, Shard, rows_by_id};
use laneway_store::rewinds::{
    Action, NewRewind, Rewind, State, outbox_is_read, rewind_change, rewind_create, rewind_get,
    rewind_preview, rewind_step, rewinds_list,
};
use laneway_testkit::{sql, wait_for};
use laneway_wire::{DeliveryId, Record, TenantId};
use std::sync::Arc;
use std::time::Duration;

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

async fn command(world: &World, action: Action, selection: &Selection) -> Rewind {
    let preview = rewind_preview(&world.pool, tenant(world), action, selection).await.unwrap();
    let mut work = Work::begin(&world.pool, tenant(world)).await.unwrap();
    let new = NewRewind { action, selection, reason: "they fixed it", actor: "ann" };
    let made = rewind_create(&mut work, new, &preview).await.unwrap();
    work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();
    made
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
    let preview =
        rewind_preview(&world.pool, tenant(&world), Action::Rewind, &all()).await.unwrap();
    assert_eq!((preview.matched, preview.lanes, preview.endpoints), (9, 3, 1));
    assert_eq!(preview.ordered, 9);
    let made = command(&world, Action::Rewind, &all()).await;
    assert_eq!((made.matched, made.state), (9, State::Running));
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
    assert_eq!((again.matched, again.state), (0, State::Done));
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
        assert_eq!(command(&world, Action::Rewind, &all()).await.matched, 30);
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
    assert_eq!(command(&world, Action::Discard, &selection).await.matched, 2);
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
        let tenant = tenant(&world);
        for action in [Action::Rewind, Action::Discard] {
            let counted = rewind_preview(&world.pool, tenant, action, &selection).await.unwrap();
            assert_eq!(counted.matched, wanted as u64, "{selection:?}");
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
    assert_eq!(command(&world, Action::Rewind, &all()).await.matched, 1);
    work_off(&world).await;
    let third = outbox(&world).await[1].rewind.unwrap();
    assert_eq!((third.number, third.of), (2, rewind.delivery));
}

#[tokio::test]
async fn dead_letters_of_a_deleted_endpoint_are_left_and_can_be_discarded() {
    let world = world().await;
    dead(&world, 3).await;
    sql(&world.url, "UPDATE laneway_control.endpoints SET state = 'deleted'").await.unwrap();
    assert_eq!(command(&world, Action::Rewind, &all()).await.matched, 0);
    assert_eq!(command(&world, Action::Discard, &all()).await.matched, 3);
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
             SELECT '{tenant}', gen_random_uuid(), event_id, '{endpoint}', lane, event_type, reason, 1, record, now() \
             FROM laneway_control.dead_letters LIMIT 1; \
             UPDATE laneway_control.dead_letters SET record = 'x'::bytea || record WHERE tenant_id <> '{tenant}'"
        ),
    )
    .await
    .unwrap();
    let (owner, action, selection) = (TenantId::from_uuid(tenant), Action::Rewind, &all());
    let preview = rewind_preview(&world.pool, owner, action, selection).await.unwrap();
    let mut work = Work::begin(&world.pool, owner).await.unwrap();
    let new = NewRewind { action, selection, reason: "theirs", actor: "eve" };
    let theirs = rewind_create(&mut work, new, &preview).await.unwrap();
    work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();

    rewind_step(&world.pool).await.unwrap_err();
    let step = rewind_step(&world.pool).await.unwrap().unwrap();
    assert_eq!((step.rewind.id, step.rewind.state, step.done), (theirs.id, State::Done, 1));
    let now = rewind_get(&world.pool, None, broken.id).await.unwrap().unwrap();
    assert_eq!((now.state, now.done), (State::Running, 0));
    assert_eq!(now.error.as_deref(), Some("stored dead record is not valid: unknown_version"));
    assert!(rewind_step(&world.pool).await.unwrap().is_none(), "it is left for a while");
    // Mended, it goes on when its time has come.
    let mend = format!(
        "UPDATE laneway_control.rewinds SET retry_at = now(); \
         UPDATE laneway_control.dead_letters SET record = substring(record FROM 2) WHERE tenant_id <> '{tenant}'"
    );
    sql(&world.url, &mend).await.unwrap();
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
    assert_eq!(made.matched, 1);
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
        let tenant = tenant(&world);
        let counted = rewind_preview(&world.pool, tenant, Action::Replay, selection).await.unwrap();
        (counted.matched, counted.unavailable)
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
}

#[tokio::test]
async fn a_relay_at_the_control_database_is_known_by_its_word() {
    let world = world().await;
    assert!(!outbox_is_read(&world.pool).await.unwrap());
    let word = "INSERT INTO laneway.relay_members (instance) VALUES ('relay-1')";
    sql(&world.url, word).await.unwrap();
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
