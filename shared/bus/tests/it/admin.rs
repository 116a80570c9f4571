//! Topics: made, described, deleted, and told apart from their next life.

use laneway_bus::{Admin, Connection, TopicSpec};
use laneway_testkit::{free_port, fresh_topic_name, wait_for};

use crate::support::{LIMIT, World};

#[tokio::test]
async fn a_topic_made_again_has_another_incarnation() {
    let world = World::new(3).await;
    let first = world.admin.describe_topic(&world.topic).await.unwrap().unwrap();
    assert_eq!(first.partitions, 3);
    assert!(first.incarnation.is_some());
    assert!(!world.admin.create_topic(&TopicSpec::new(&world.topic, 5)).await.unwrap());
    assert_eq!(world.admin.describe_topic(&world.topic).await.unwrap(), Some(first));

    assert!(world.admin.delete_topic(&world.topic).await.unwrap());
    wait_for("the topic is gone", LIMIT, || async {
        world.admin.describe_topic(&world.topic).await.unwrap().is_none()
    })
    .await;
    assert!(!world.admin.delete_topic(&world.topic).await.unwrap());
    world.create(4).await;
    let second = world.admin.describe_topic(&world.topic).await.unwrap().unwrap();
    assert_eq!(second.partitions, 4);
    assert!(second.incarnation.is_some() && second.incarnation != first.incarnation);
}

#[tokio::test]
async fn offsets_tell_where_partitions_begin_and_end() {
    let world = World::new(2).await;
    assert_eq!(world.write(1, 0..7).await, 6);
    assert_eq!(world.admin.offsets(&world.topic, 1).await.unwrap(), (0, 7));
    assert_eq!(world.admin.all_offsets(&world.topic, 2).await.unwrap(), [(0, 0), (0, 7)]);
    let missing = world.admin.offsets(&fresh_topic_name("none"), 0).await.unwrap_err();
    assert!(missing.is_topic_missing(), "{missing:?}");
}

#[tokio::test]
async fn a_broker_that_is_away_is_a_transient_error() {
    let connection = Connection::plaintext(&format!("127.0.0.1:{}", free_port()));
    let error = Admin::new(&connection).unwrap().describe_topic("any").await.unwrap_err();
    assert!(error.is_transient() && !error.is_topic_missing(), "{error:?}");
}
