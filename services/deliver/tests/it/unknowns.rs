//! Unknown outcomes of endpoints that do not take a resend (P6, I12, I16): intent, hold, a person's word.

use crate::world::{LIMIT, World};
use laneway_testkit::{Behaviour, Rule, sql, wait_for};
use laneway_wire::Record;

const HELD: &str = "SELECT count(*)::text FROM laneway_control.parked_lanes WHERE unknown";
const INTENTS: &str = "SELECT count(*)::text FROM laneway_control.intents";

async fn say(world: &World, record: &Record, verdict: &str) {
    let lane = record.head.lane();
    sql(
        &world.url,
        &format!(
            "INSERT INTO laneway_control.commands (tenant_id, delivery_id, lane, bucket, verdict, reason, actor) \
             VALUES ('{}', '{}', '\\x{lane}', {}, '{verdict}', 'asked them', 'ann')",
            record.head.tenant,
            record.head.delivery,
            lane.bucket().number()
        ),
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_is_held_until_a_person_says_what_happened() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "hold").await;
    world.receiver.set_rules(vec![
        Rule::always(Behaviour::Close).header("x-key", "lost").times(1),
        Rule::always(Behaviour::status(504)).header("x-key", "gateway").times(1),
    ]);
    let mut records = Vec::new();
    for key in ["lost", "gateway", "fine"] {
        records.extend((0..2).map(|_| world.record(endpoint, key)));
    }
    let deliver = world.start("one");
    world.produce(&records).await;
    world.wait_value(HELD, "2").await;
    world.wait_settled(2).await;
    world.wait_value(INTENTS, "0").await;
    let sent = world.requests().len();
    assert_eq!(sent, 4, "nothing goes out behind or instead of a held unknown");
    say(&world, &records[0], "delivered").await;
    say(&world, &records[2], "not_applied").await;
    say(&world, &records[4], "delivered").await;
    world.wait_settled(6).await;
    world.wait_value(HELD, "0").await;
    let results =
        "SELECT string_agg(result, ' ' ORDER BY command_id) FROM laneway_control.commands";
    world.wait_value(results, "applied applied not_unknown").await;
    assert_eq!(world.requests_of(&records[0]).len(), 1, "a person said that it was applied");
    let again = world.requests_of(&records[2]);
    assert_eq!(again.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(again[0].idempotency_key, again[1].idempotency_key);
    world.check_order(&records);
    deliver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_without_outcome_is_an_unknown_for_the_next_owner() {
    let world = World::with_short_lease().await;
    let endpoint = world.endpoint("/a", "hold").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::Hang)]);
    let records = [world.record(endpoint, "k"), world.record(endpoint, "k")];
    let first = world.start("one");
    world.produce(&records).await;
    wait_for("the request", LIMIT, || async { !world.requests().is_empty() }).await;
    assert_eq!(world.value(INTENTS).await, "1", "the intent is durable before the first byte");
    first.kill();
    world.receiver.set_rules(vec![]);
    let _second = world.start("two");
    world.wait_value(HELD, "1").await;
    assert_eq!(world.requests().len(), 1, "nothing is sent again before anyone has said a word");
    say(&world, &records[0], "not_applied").await;
    world.wait_settled(2).await;
    world.check_order(&records);
}
