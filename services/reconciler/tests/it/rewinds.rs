//! Commands over many deliveries go on wherever a reconciler died.

use crate::world::{LIMIT, World};
use laneway_store::dead_letters::Selection;
use laneway_store::idempotency::{Answer, Work};
use laneway_store::rewinds::{Action, NewRewind, State, rewind_create, rewind_get, rewind_preview};
use laneway_testkit::{sql, wait_for};
use std::time::Duration;

const ROWS: &str = "SELECT count(*)::text FROM laneway.outbox";

async fn command(world: &World, action: Action) -> laneway_wire::RewindId {
    let selection = Selection::default();
    let preview =
        rewind_preview(&world.pool, world.tenant, action, &selection, LIMIT).await.unwrap();
    let mut work = Work::begin(&world.pool, world.tenant).await.unwrap();
    let new = NewRewind { action, selection: &selection, reason: "fixed", actor: "ann" };
    let made = rewind_create(&mut work, new, &preview).await.unwrap().unwrap();
    work.commit(&Answer { status: 202, body: vec![] }, None).await.unwrap();
    made.id
}

/// As the owners of the lanes would: everything that was sent again has its outcome.
async fn settle(world: &World) {
    let all = "INSERT INTO laneway_control.inbox \
                 (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
               SELECT w.delivery_id, w.tenant_id, w.endpoint_id, w.event_id, 1, 1, 1 \
               FROM laneway_control.rewound w WHERE NOT w.settled ON CONFLICT DO NOTHING";
    sql(&world.url, all).await.unwrap();
}

async fn done(world: &World, id: laneway_wire::RewindId) -> u64 {
    wait_for("the end of the command", LIMIT, || async {
        settle(world).await;
        rewind_get(&world.pool, None, id).await.unwrap().unwrap().state == State::Done
    })
    .await;
    rewind_get(&world.pool, None, id).await.unwrap().unwrap().done
}

/// I31, I32: under kills at any point and with two at work, every dead letter is sent once more, in its lane's order.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_under_kills_makes_one_series_in_order() {
    let world = World::new().await;
    world.dead_letters(20_000, 500).await;
    let id = command(&world, Action::Rewind).await;
    let twin = command(&world, Action::Rewind).await;
    let mut kills = 0;
    let mut seen = 0;
    while rewind_get(&world.pool, None, id).await.unwrap().unwrap().state != State::Done {
        let (one, two) = (world.start(), world.start());
        // They die as soon as they have done something more.
        wait_for("a page", LIMIT, || async {
            settle(&world).await;
            let now = rewind_get(&world.pool, None, id).await.unwrap().unwrap();
            now.done > seen || now.state == State::Done
        })
        .await;
        seen = rewind_get(&world.pool, None, id).await.unwrap().unwrap().done;
        one.kill();
        two.kill();
        kills += 2;
    }
    let last = world.start();
    assert_eq!(done(&world, id).await + done(&world, twin).await, 20_000);
    last.stop().await;
    assert!(kills >= 4, "{kills} kills");
    assert_eq!(world.value(ROWS).await, "20000");
    let repeated = "SELECT count(*)::text FROM (SELECT event_id FROM laneway.outbox GROUP BY 1 HAVING count(*) > 1) r";
    assert_eq!(world.value(repeated).await, "0");
    let disorder = "SELECT count(*)::text FROM (SELECT event_id < lag(event_id) OVER (PARTITION BY user_key ORDER BY id) \
                    AS back FROM laneway.outbox) o WHERE back";
    assert_eq!(world.value(disorder).await, "0");
    let open = "SELECT count(*)::text FROM laneway_control.dead_letters WHERE state <> 'rewound' OR rewound_to IS NULL";
    assert_eq!(world.value(open).await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciler_that_is_stopped_ends_its_page_first() {
    let world = World::new().await;
    world.dead_letters(3_000, 10).await;
    let id = command(&world, Action::Discard).await;
    let one = world.start();
    assert_eq!(done(&world, id).await, 3_000);
    let started = std::time::Instant::now();
    one.stop().await;
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(world.value(ROWS).await, "0");
}
