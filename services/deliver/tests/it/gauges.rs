//! What an operator sees of what waits: lag and dead letters.

use crate::world::{Instance, LIMIT, World};
use laneway_testkit::{Behaviour, Door, Rule, wait_for};

fn lag(deliver: &Instance) -> f64 {
    let text = deliver.metrics();
    let values = text.lines().filter(|line| line.starts_with("laneway_kafka_consumer_lag{"));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_is_what_is_not_complete_yet() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::Hang)]);
    let records: Vec<_> = (0..30).map(|_| world.record(endpoint, "k")).collect();
    let deliver = world.start("one");
    world.produce(&records).await;
    wait_for("the lag", LIMIT, || async { lag(&deliver) == 30.0 }).await;
    world.receiver.set_rules(vec![]);
    world.receiver.set_door(Door::Open);
    world.wait_settled(30).await;
    wait_for("no lag", LIMIT, || async { lag(&deliver) == 0.0 }).await;
    assert!(deliver.metrics().contains("partition=\"0\""), "owned partitions tell theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_are_kept_are_told() {
    let world = World::new().await;
    let endpoint = world.endpoint("/a", "resend").await;
    world.receiver.set_rules(vec![Rule::always(Behaviour::status(422))]);
    let records: Vec<_> = (0..3).map(|_| world.record(endpoint, "k")).collect();
    let deliver = world.start("one");
    world.produce(&records).await;
    world.wait_settled(3).await;
    let series =
        format!("laneway_dead_letters_kept{{endpoint=\"{endpoint}\",reason=\"rejected\"}}");
    wait_for("the gauge", LIMIT, || async { deliver.metric(&series) == 3.0 }).await;
}
