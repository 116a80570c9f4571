//! P4: the loss of the log is seen and everything that was in it is published again, stamped with a new generation.

use crate::support::{Log, World, wait_until_passed};
use laneway_bus::{Admin, Connection, TopicSpec};
use laneway_store::topology;
use laneway_testkit::{Stack, wait_for};

async fn make_again(world: &World) {
    let admin = Admin::new(&Connection::plaintext(&world.kafka)).unwrap();
    assert!(admin.delete_topic(&world.topic).await.unwrap());
    wait_for("the topic to be gone", crate::support::LIMIT, || async {
        matches!(admin.describe_topic(&world.topic).await, Ok(None))
    })
    .await;
    assert!(admin.create_topic(&TopicSpec::new(&world.topic, 6)).await.unwrap());
}

/// K6: deleted and made again under load.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_again_gets_everything_again() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, endpoint) = world.tenant().await;
    world.emit_rows(tenant, 500, 20).await;
    wait_until_passed(&world).await;
    let writer = {
        let url = world.url.clone();
        let id = tenant.as_uuid();
        tokio::spawn(async move {
            for n in 0..200 {
                let statement =
                    format!("SELECT laneway.emit('{id}', 'test.made', 'u{}', 'w{n}')", n % 20);
                laneway_testkit::sql(&url, &statement).await.unwrap();
            }
        })
    };
    make_again(&world).await;
    writer.await.unwrap();
    wait_for("the new generation", crate::support::LIMIT, || async {
        topology::generation_current(&world.pool).await.unwrap().unwrap().generation > 1
    })
    .await;
    let rows = world.row_ids().await;
    assert_eq!(rows.len(), 700);
    let mut log = world.log().await;
    let wanted = rows.clone();
    log.read_until("every row in a new generation", |log| {
        let new = log.records.iter().filter(|(_, _, record)| record.head.generation > 1);
        new.map(|(_, _, record)| record.head.row).collect::<std::collections::BTreeSet<_>>()
            == wanted
    })
    .await;
    // What counts from now on is what is stamped with the new generation; older records complete unsent.
    log.records.retain(|(_, _, record)| record.head.generation > 1);
    log.assert_lanes_in_order();
    assert!(log.pairs().iter().all(|(_, to)| *to == endpoint));
    assert!(relay.metric("laneway_relay_went_back_total") >= 1.0);
    let fences = topology::fences(&world.pool, 2).await.unwrap();
    assert_eq!(fences.len(), 6);
    assert!(fences.iter().all(|fence| fence.first_lost == 0));
    relay.stop().await;
}

/// The same while no relay runs: the next one sees it at its start.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_again_while_no_relay_runs_is_seen_at_the_start() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, endpoint) = world.tenant().await;
    world.emit_rows(tenant, 100, 10).await;
    wait_until_passed(&world).await;
    relay.stop().await;
    make_again(&world).await;
    world.emit_rows(tenant, 50, 10).await;
    let relay = world.start();
    let mut log = Log::open(&world.kafka, &world.topic).await;
    log.read_all(&world.row_ids().await, &[endpoint]).await;
    log.assert_lanes_in_order();
    assert!(log.records.iter().all(|(_, _, record)| record.head.generation == 2));
    relay.stop().await;
}

/// K1: a broker that is killed and comes back loses nothing and repeats in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_delays_and_loses_nothing() {
    let stack = Stack::private_kafka().await.unwrap();
    let world = World::with_kafka(stack.kafka()).await;
    let relay = world.start();
    let (tenant, endpoint) = world.tenant().await;
    world.emit_rows(tenant, 300, 20).await;
    wait_until_passed(&world).await;
    stack.kill_kafka().await.unwrap();
    world.emit_rows(tenant, 300, 20).await;
    stack.start_kafka().await.unwrap();
    world.emit_rows(tenant, 300, 20).await;
    let rows = world.row_ids().await;
    let mut log = world.log().await;
    log.read_all(&rows, &[endpoint]).await;
    log.assert_lanes_in_order();
    relay.stop().await;
}

/// What another relay had acknowledged is lost and written over before anybody looks: the offsets of what was written show
/// it, and looks that fail forget nothing of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_is_written_over_is_seen_by_the_offsets_and_not_forgotten() {
    let world = World::new().await;
    let relay = world.start();
    let (tenant, _) = world.tenant().await;
    world.emit_rows(tenant, 600, 100).await;
    wait_until_passed(&world).await;
    let before = world.row_ids().await;
    let marks = topology::marks(&world.pool, 1, 6).await.unwrap();
    // The generation cannot be raised for now.
    world
        .sql(
            "CREATE FUNCTION laneway_control.refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'not now'; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON laneway_control.topic_generations \
             FOR EACH STATEMENT EXECUTE FUNCTION laneway_control.refuse()",
        )
        .await;
    // As if three more had been acknowledged in each partition.
    world.sql("UPDATE laneway_control.topic_marks SET acked = acked + 3").await;
    world.emit_rows(tenant, 600, 100).await;
    wait_until_passed(&world).await;
    let admin = Admin::new(&Connection::plaintext(&world.kafka)).unwrap();
    let ends = admin.all_offsets(&world.topic, 6).await.unwrap();
    assert!(ends.iter().zip(&marks).all(|((_, end), mark)| *end > mark + 4), "{ends:?} {marks:?}");
    let failed = "laneway_relay_errors_total{part=\"watch\"}";
    let so_far = relay.metric(failed);
    wait_for("a look to fail", crate::support::LIMIT, || async { relay.metric(failed) > so_far })
        .await;
    world.sql("DROP TRIGGER refuse ON laneway_control.topic_generations").await;
    wait_for("the new generation", crate::support::LIMIT, || async {
        topology::generation_current(&world.pool).await.unwrap().unwrap().generation > 1
    })
    .await;
    let fences = topology::fences(&world.pool, 2).await.unwrap();
    let firsts: Vec<i64> = fences.iter().map(|fence| fence.first_lost).collect();
    assert_eq!(firsts, marks.iter().map(|mark| mark + 1).collect::<Vec<_>>());
    let lost: std::collections::BTreeSet<i64> =
        world.row_ids().await.difference(&before).copied().collect();
    let mut log = world.log().await;
    log.read_until("what lay behind the loss in the new generation", |log| {
        let new = log.records.iter().filter(|(_, _, record)| record.head.generation > 1);
        let rows: std::collections::BTreeSet<i64> =
            new.map(|(_, _, record)| record.head.row).collect();
        lost.is_subset(&rows)
    })
    .await;
    log.records.retain(|(_, _, record)| record.head.generation > 1);
    log.assert_lanes_in_order();
    relay.stop().await;
}
