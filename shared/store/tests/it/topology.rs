//! Generations, fences, marks: set up once, raised once for one loss, with the owners carried over.

use laneway_store::topology::{self, Acked, Fence, Reason};
use laneway_store::{Error, Options, Pool, migrate};
use laneway_testkit::{Stack, sql};

async fn pool() -> (String, Pool) {
    let url = Stack::shared().await.fresh_database().await;
    let pool = Pool::connect(&url.as_str().into(), Options::new("test")).await.unwrap();
    migrate::control_migrate(&pool).await.unwrap();
    (url, pool)
}

fn acked(partition: u32, low: i64, high: i64) -> Acked {
    Acked { partition, low, high }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topology_is_set_up_once_and_another_number_of_partitions_is_refused() {
    let (_, pool) = pool().await;
    assert_eq!(topology::generation_current(&pool).await.unwrap(), None);
    let (a, b) = tokio::join!(
        topology::topology_ensure(&pool, "t", "id", 3),
        topology::topology_ensure(&pool, "t", "id", 3)
    );
    assert_eq!(a.unwrap(), b.unwrap());
    let map = topology::bucket_map(&pool).await.unwrap();
    assert_eq!(map.version, topology::map_version(&pool).await.unwrap());
    assert!(map.partitions.iter().zip(0u32..).all(|(partition, bucket)| *partition == bucket % 3));
    assert_eq!(topology::next_offsets(&pool, 1, 3).await.unwrap(), [0, 0, 0]);
    let refused = topology::topology_ensure(&pool, "t", "id", 4).await.unwrap_err();
    assert!(matches!(refused, Error::PartitionCount { stored: 3, found: 4, .. }), "{refused}");
    let again = topology::topology_ensure(&pool, "t", "another", 3).await.unwrap();
    assert_eq!(again.topic_id, "id", "the caller sees that the topic was made again");
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_only_rise_and_are_closed_with_their_generation() {
    let (_, pool) = pool().await;
    topology::topology_ensure(&pool, "t", "id", 2).await.unwrap();
    let raised = topology::marks_raise(&pool, 1, &[acked(0, 3, 9), acked(1, 0, 0)]).await.unwrap();
    assert_eq!(raised.unwrap(), [(0, 9), (1, 0)]);
    let raised = topology::marks_raise(&pool, 1, &[acked(0, 5, 6)]).await.unwrap();
    assert_eq!(raised.unwrap(), [(0, 9)]);
    topology::generation_raise(&pool, 1, Reason::LogLost, "id", &[(1, 0)]).await.unwrap();
    assert_eq!(topology::marks_raise(&pool, 1, &[acked(0, 10, 12)]).await.unwrap(), None);
    assert_eq!(topology::marks_raise(&pool, 1, &[acked(1, 10, 12)]).await.unwrap(), None);
    assert_eq!(topology::marks(&pool, 2, 2).await.unwrap(), [9, -1]);
}

/// Two processes see one loss: the generation is raised once. One that sees it begin earlier raises it again.
#[tokio::test(flavor = "multi_thread")]
async fn one_loss_raises_one_generation_and_carries_the_owners_over() {
    let (url, pool) = pool().await;
    topology::topology_ensure(&pool, "t", "id", 2).await.unwrap();
    sql(
        &url,
        "UPDATE laneway_control.partition_owners SET epoch = 7, renewal = 3, owner = 'me', state = 'owned', \
         max_timeout_ms = 2000, next_offset = 50",
    )
    .await
    .unwrap();
    let lost = [(0, 40)];
    let (a, b) = tokio::join!(
        topology::generation_raise(&pool, 1, Reason::LogLost, "id", &lost),
        topology::generation_raise(&pool, 1, Reason::LogLost, "id", &lost)
    );
    assert_eq!((a.unwrap().generation, b.unwrap().generation), (2, 2));
    let owners = sql(
        &url,
        "SELECT generation, partition, epoch, renewal, owner, state, max_timeout_ms, next_offset \
         FROM laneway_control.partition_owners ORDER BY 1, 2",
    )
    .await
    .unwrap();
    let owners: Vec<String> = owners
        .into_iter()
        .map(|row| row.into_iter().map(Option::unwrap).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        owners,
        [
            "1 0 7 3 me closed 2000 50",
            "1 1 7 3 me closed 2000 50",
            "2 0 7 3 me owned 2000 40",
            "2 1 7 3 me owned 2000 50"
        ]
    );
    let fence = |generation, first_lost| Fence { generation, partition: 0, first_lost };
    assert_eq!(topology::fences(&pool, 2).await.unwrap(), [fence(2, 40)]);
    let later =
        topology::generation_raise(&pool, 1, Reason::LogLost, "id", &[(0, 45)]).await.unwrap();
    assert_eq!(later.generation, 2, "covered by what is fenced already");
    let earlier =
        topology::generation_raise(&pool, 1, Reason::LogLost, "id", &[(0, 30)]).await.unwrap();
    assert_eq!(earlier.generation, 3);
    assert_eq!(topology::fences_after(&pool, 1).await.unwrap(), [fence(2, 40), fence(3, 30)]);
    let again = topology::generation_raise(&pool, 3, Reason::Recreated, "new", &[(0, 0), (1, 0)])
        .await
        .unwrap();
    assert_eq!((again.generation, again.topic_id.as_str()), (4, "new"));
}

/// Where relays interleave, the first lost offset may have been taken by another's record before anyone noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_begins_no_later_than_the_lowest_offset_acknowledged_below_the_mark() {
    let (_, pool) = pool().await;
    topology::topology_ensure(&pool, "t", "id", 1).await.unwrap();
    topology::marks_raise(&pool, 1, &[acked(0, 0, 200)]).await.unwrap();
    topology::marks_raise(&pool, 1, &[acked(0, 150, 160)]).await.unwrap();
    topology::generation_raise(&pool, 1, Reason::LogLost, "id", &[(0, 161)]).await.unwrap();
    let fences = topology::fences(&pool, 2).await.unwrap();
    assert_eq!(fences, [Fence { generation: 2, partition: 0, first_lost: 150 }]);
}
