//! Real servers: shared and private, crashed and brought back; processes that are killed and stopped.

use std::time::Duration;

use laneway_testkit::{Child, Stack, sql, temp_dir, wait_for};

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn each_test_gets_a_database_of_its_own() {
    let stack = Stack::shared().await;
    let (one, two) = (stack.fresh_database().await, stack.fresh_database().await);
    assert_ne!(one, two);
    sql(&one, "CREATE TABLE here (n int, t text); INSERT INTO here VALUES (1, NULL)")
        .await
        .unwrap();
    let rows = sql(&one, "SELECT n, t FROM here").await.unwrap();
    assert_eq!(rows, [vec![Some("1".to_owned()), None]]);
    let error = sql(&two, "SELECT * FROM here").await.unwrap_err();
    assert!(format!("{error:#}").contains("42P01"), "{error:#}");
    let durable = sql(&one, "SHOW fsync; SHOW synchronous_commit").await.unwrap();
    assert_eq!(durable, [[Some("on".to_owned())], [Some("on".to_owned())]]);
}

#[tokio::test]
async fn a_crashed_postgres_comes_back_with_what_was_committed() {
    let stack = Stack::private_postgres().await.unwrap();
    let url = stack.fresh_database().await;
    sql(&url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)").await.unwrap();
    stack.crash_postgres().await.unwrap();
    assert!(sql(&url, "SELECT 1").await.is_err());
    stack.start_postgres().await.unwrap();
    assert_eq!(sql(&url, "SELECT n FROM kept").await.unwrap(), [[Some("7".to_owned())]]);
}

#[tokio::test]
async fn the_shared_stack_cannot_be_broken_by_a_test() {
    assert!(Stack::shared().await.crash_postgres().await.is_err());
}

#[tokio::test]
async fn a_child_is_stopped_continued_and_killed() {
    let folder = temp_dir("child");
    let script = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done";
    let none: [(&str, &str); 0] = [];
    let mut child =
        Child::spawn("counter", "sh", ["-c", script], none, folder.join("log")).unwrap();
    let lines = || child_lines(&folder.join("log"));
    wait_for("it counts", LIMIT, || async { lines() > 3 }).await;
    child.pause();
    wait_for("it stands still", LIMIT, || async {
        let before = lines();
        tokio::time::sleep(Duration::from_millis(100)).await;
        lines() == before
    })
    .await;
    let before = lines();
    child.resume();
    wait_for("it counts on", LIMIT, || async { lines() > before }).await;
    child.terminate();
    assert!(!child.wait(LIMIT).await.unwrap().success());
    child.kill9();
    std::fs::remove_dir_all(folder).unwrap();
}

fn child_lines(log: &std::path::Path) -> usize {
    std::fs::read_to_string(log).unwrap_or_default().lines().count()
}
