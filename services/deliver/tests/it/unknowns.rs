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
        Rule::always(Behaviour::Close).header("x-key", "hopeless").times(1),
    ]);
    let mut records = Vec::new();
    for key in ["lost", "gateway", "fine", "hopeless"] {
        records.extend((0..2).map(|_| world.record(endpoint, key)));
    }
    let deliver = world.start("one");
    world.produce(&records).await;
    world.wait_value(HELD, "3").await;
    world.wait_settled(2).await;
    world.wait_value(INTENTS, "0").await;
    let sent = world.requests().len();
    assert_eq!(sent, 5, "nothing goes out behind or instead of a held unknown");
    say(&world, &records[0], "delivered").await;
    say(&world, &records[2], "not_applied").await;
    say(&world, &records[4], "delivered").await;
    say(&world, &records[6], "given_up").await;
    world.wait_settled(8).await;
    world.wait_value(HELD, "0").await;
    let results =
        "SELECT string_agg(result, ' ' ORDER BY command_id) FROM laneway_control.commands";
    world.wait_value(results, "applied applied not_unknown applied").await;
    let dead =
        "SELECT string_agg(reason || ' ' || attempts, ',') FROM laneway_control.dead_letters";
    world.wait_value(dead, "unknown 1").await;
    assert_eq!(world.requests_of(&records[6]).len(), 1, "what was given up is not sent again");
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

#[tokio::test(flavor = "multi_thread")]
async fn d26_a_gateways_answer_is_unknown_unless_the_endpoint_takes_a_resend() {
    const STATUSES: [u16; 4] = [408, 499, 502, 504];
    let world = World::new().await;
    let hold = world.endpoint("/hold", "hold").await;
    let resend = world.endpoint("/resend", "resend").await;
    let rules = ["/hold", "/resend"].into_iter().flat_map(|path| {
        let rule = |status: u16| Rule::path(path, Behaviour::status(status)).times(1);
        STATUSES.map(|status| rule(status).header("x-key", &status.to_string()))
    });
    world.receiver.set_rules(rules.collect());
    let records = |endpoint| {
        let of = |status: u16| (0..2).map(move |_| status.to_string());
        STATUSES
            .into_iter()
            .flat_map(of)
            .map(|key| world.record(endpoint, &key))
            .collect::<Vec<_>>()
    };
    let (held, resent) = (records(hold), records(resend));
    let deliver = world.start("one");
    world.produce(&held).await;
    world.produce(&resent).await;
    world.wait_settled(8).await;
    world.wait_value(HELD, "4").await;
    let attempts = |record: &Record| {
        let requests = world.requests_of(record);
        requests.iter().map(|entry| entry.attempt.unwrap()).collect::<Vec<_>>()
    };
    for (first, second) in resent.iter().step_by(2).zip(resent.iter().skip(1).step_by(2)) {
        assert_eq!((attempts(first), attempts(second)), (vec![1, 2], vec![1]));
    }
    for (first, second) in held.iter().step_by(2).zip(held.iter().skip(1).step_by(2)) {
        assert_eq!((attempts(first), attempts(second)), (vec![1], vec![]), "it may have been done");
    }
    for first in held.iter().step_by(2) {
        say(&world, first, "delivered").await;
    }
    world.wait_settled(16).await;
    assert!(held.iter().all(|record| attempts(record) == [1]), "it was done");
    deliver.stop().await;
}

/// What no sender can see: the receiver did it and says that it failed. Only its look at the key saves it.
#[tokio::test(flavor = "multi_thread")]
async fn d30_a_failure_that_was_processed_is_sent_again_under_the_same_key() {
    let world = World::new().await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(500)).up_to_attempt(1)]);
    for on_unknown in ["resend", "hold"] {
        let record = world.record(world.endpoint(&format!("/{on_unknown}"), on_unknown).await, "k");
        let deliver = world.start("one");
        world.produce(std::slice::from_ref(&record)).await;
        let delivery = record.head.delivery;
        let settled = format!(
            "SELECT count(*)::text FROM laneway_control.inbox WHERE delivery_id = '{delivery}'"
        );
        world.wait_value(&settled, "1").await;
        let requests = world.requests_of(&record);
        let of = |entry: &laneway_testkit::Entry| (entry.attempt, entry.idempotency_key.clone());
        let key = Some(record.head.event_id().to_string());
        let said: Vec<_> = requests.iter().map(|entry| of(entry)).collect();
        assert_eq!(said, [(Some(1), key.clone()), (Some(2), key)], "{on_unknown}");
        deliver.stop().await;
    }
}
