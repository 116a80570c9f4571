//! `laneway emit` against a real outbox.

use super::{Installed, laneway, with_input};
use std::path::PathBuf;

/// `(type, key, payload)` of all rows, in their order.
async fn rows(installed: &Installed) -> Vec<(String, Option<String>, String)> {
    installed
        .sql("SELECT type, user_key, convert_from(payload, 'UTF8') FROM laneway.outbox ORDER BY id")
        .await
        .into_iter()
        .map(|mut row| {
            let payload = row.pop().flatten().unwrap();
            let key = row.pop().flatten();
            (row.pop().flatten().unwrap(), key, payload)
        })
        .collect()
}

fn file(text: &str) -> PathBuf {
    let file = laneway_testkit::temp_dir("emit").join("events.ndjson");
    std::fs::write(&file, text).unwrap();
    file
}

fn emit(installed: &Installed, from: &str, more: &[&str]) -> super::Ended {
    let mut args = vec!["emit", "--from", from, "--project", &installed.project];
    args.extend(more);
    installed.run(&args)
}

#[tokio::test]
async fn events_arrive_in_order_and_byte_for_byte() {
    let installed = Installed::new().await;
    let payloads: Vec<String> =
        (0..1_234).map(|n| format!(r#"{{ "n" : {n}, "é":"\u00e9", "x": 1.0 }}"#)).collect();
    let text: String = payloads
        .iter()
        .enumerate()
        .map(|(n, payload)| {
            format!("{{\"type\":\"order.created\",\"key\":\"u{}\",\"payload\":{payload}}}\n", n % 7)
        })
        .collect();
    let ended = emit(&installed, file(&text).to_str().unwrap(), &["--batch", "100"]);
    assert_eq!(ended.ok(), "");
    assert!(ended.err().contains("emitted 1234 events, left out 0 bad lines"), "{}", ended.err());
    let rows = rows(&installed).await;
    let written: Vec<&String> = rows.iter().map(|(_, _, payload)| payload).collect();
    assert_eq!(written, payloads.iter().collect::<Vec<_>>());
    assert_eq!(rows[8].1.as_deref(), Some("u1"));
}

#[tokio::test]
async fn bad_lines_are_told_by_number_and_stop_nothing() {
    let installed = Installed::new().await;
    let text = concat!(
        "{\"type\":\"a.b\",\"payload\":1}\n",
        "not json\n",
        "\n",
        "{\"type\":\"no good type!\",\"payload\":2}\n",
        "{\"type\":\"a.b\",\"key\":\"tab\\there\",\"payload\":3}\n",
        "{\"type\":\"a.b\",\"payload\":4,\"extra\":true}\n",
        "{\"type\":\"a.b\",\"payload\":5}",
    );
    let ended = emit(&installed, file(text).to_str().unwrap(), &["-o", "json"]);
    let told = ended.fails(1);
    for start in
        ["line 2: ", "line 4: refused: type has ", "line 5: refused: user key has ", "line 6: "]
    {
        assert!(told.lines().any(|line| line.starts_with(start)), "{start} in {told}");
    }
    let summary: serde_json::Value = serde_json::from_str(&ended.out()).unwrap();
    assert_eq!(summary, serde_json::json!({"emitted": 2, "bad": 4}));
    let written: Vec<String> = rows(&installed).await.into_iter().map(|row| row.2).collect();
    assert_eq!(written, ["1", "5"]);
}

#[tokio::test]
async fn strict_stops_at_the_first_bad_line() {
    let installed = Installed::new().await;
    for bad in ["oops", "{\"type\":\"!\",\"payload\":0}"] {
        let text =
            format!("{{\"type\":\"a\",\"payload\":1}}\n{bad}\n{{\"type\":\"a\",\"payload\":2}}\n");
        let told = emit(&installed, file(&text).to_str().unwrap(), &["--strict"]).fails(1);
        assert!(told.contains("line 2: "), "{told}");
    }
    let written: Vec<String> = rows(&installed).await.into_iter().map(|row| row.2).collect();
    assert_eq!(written, ["1", "1"]);
}

#[tokio::test]
async fn standard_input_is_read_too() {
    let installed = Installed::new().await;
    let envs = [("LANEWAY_DATABASE_URL", installed.url.as_str())];
    let args = ["emit", "--from", "-", "--project", &installed.project];
    with_input(&args, &envs, Some(b"{\"type\":\"a\",\"payload\":null}\n")).ok();
    assert_eq!(rows(&installed).await, [("a".to_owned(), None, "null".to_owned())]);
}

#[tokio::test]
async fn a_file_or_a_schema_that_is_not_there_has_its_own_code() {
    let installed = Installed::new().await;
    let told = emit(&installed, "/nowhere/events.ndjson", &[]).fails(3);
    assert!(told.contains("/nowhere/events.ndjson"), "{told}");
    let empty = laneway_testkit::Stack::shared().await.fresh_database().await;
    let from = file("{\"type\":\"a\",\"payload\":1}\n");
    let from = from.to_str().unwrap();
    let args = ["emit", "--from", from, "--project", &installed.project, "--database-url", &empty];
    let told = laneway(&args, &[]).fails(5);
    assert!(told.contains("laneway source install"), "{told}");
}
