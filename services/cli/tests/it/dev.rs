//! `laneway dev`: the whole road of an event on one machine, in one process.

use super::laneway;
use laneway_client::{Client, NewSubscription};
use laneway_testkit::{Child, Stack, fresh_topic_name, temp_dir, wait_for, wait_for_some};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

/// The value that `laneway dev` printed for `name`.
fn printed(output: &str, name: &str) -> Option<String> {
    let start = format!("export {name}=");
    output.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
}

#[tokio::test]
async fn an_event_that_is_emitted_reaches_the_built_in_receiver() {
    let stack = Stack::shared().await;
    let database = stack.fresh_database().await;
    let folder = temp_dir("dev");
    let topic = fresh_topic_name("dev");
    let envs = [
        ("LANEWAY_DATABASE__URL", database.as_str()),
        ("LANEWAY_KAFKA__BROKERS", stack.kafka()),
        ("LANEWAY_KAFKA__DELIVERIES_TOPIC", topic.as_str()),
        ("LANEWAY_KAFKA__PARTITIONS", "3"),
        ("LANEWAY_DELIVER__GROUP", topic.as_str()),
        ("LANEWAY_API__LISTEN", &format!("127.0.0.1:{}", laneway_testkit::free_port())),
    ];
    let args = ["dev", "--dir", folder.to_str().unwrap()];
    let mut child =
        Child::spawn("dev", env!("CARGO_BIN_EXE_laneway"), args, envs, folder.join("log")).unwrap();
    let endpoint =
        wait_for_some("the endpoint", LIMIT, || async { printed(&child.output(), "ENDPOINT_ID") })
            .await;
    let output = child.output();
    let value = |name| printed(&output, name).unwrap();
    let (url, project, key) = (value("RAILHOOK_URL"), value("PROJECT_ID"), value("API_KEY"));

    let client = Client::new(&url, project.parse().unwrap(), &key).unwrap();
    let subscription = NewSubscription {
        endpoint_id: endpoint.parse().unwrap(),
        event_type: "order.*".to_owned(),
        ordering_enabled: None,
    };
    client.subscription_create(&subscription).await.unwrap();
    let events = folder.join("events.ndjson");
    let line = "{\"type\":\"order.created\",\"key\":\"u\",\"payload\":{\"n\": 1.0}}\n";
    std::fs::write(&events, line).unwrap();
    let from = events.to_str().unwrap();
    let args = ["emit", "--from", from, "--project", &project, "--database-url", &database];
    laneway(&args, &[]).ok();
    wait_for("the request", LIMIT, || async {
        let output = child.output();
        output.lines().any(|line| {
            line.starts_with("received order.created dlv_")
                && line.ends_with(" attempt 1 {\"n\": 1.0}")
        })
    })
    .await;

    let output = child.output();
    let received = output.lines().find(|line| line.starts_with("received")).unwrap();
    let delivery = received.split_whitespace().nth(2).unwrap();
    let show = ["deliveries", "show", delivery, "--project", &project, "-o", "json"];
    let url = [("LANEWAY_DATABASE_URL", database.as_str())];
    wait_for("the outcome", LIMIT, || async {
        let shown = laneway(&show, &url);
        shown.code() == 0 && shown.out().contains("\"state\": \"delivered\"")
    })
    .await;

    child.terminate();
    let ended = child.wait(LIMIT).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", child.output());
}
