//! A service as a process: it gets ready, stops on a signal, and says by its exit code how it ended.

use super::Installed;
use laneway_testkit::{Child, temp_dir, wait_for, wait_for_some};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn start(url: &str) -> Child {
    let envs = [
        ("LANEWAY_DATABASE__URL", url),
        ("LANEWAY_SECRETS__KEY", KEY),
        ("LANEWAY_API__LISTEN", "127.0.0.1:0"),
        ("LANEWAY_TELEMETRY__LOG_FORMAT", "json"),
    ];
    let log = temp_dir("service").join("log");
    Child::spawn("api", env!("CARGO_BIN_EXE_laneway"), ["api"], envs, log).unwrap()
}

/// The admin port, as the log tells it.
async fn admin(child: &Child) -> String {
    wait_for_some("the admin port", LIMIT, || async {
        child.output().lines().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            (line["message"] == "started").then(|| line["admin"].as_str().map(str::to_owned))?
        })
    })
    .await
}

fn status(address: &str, path: &str) -> Option<String> {
    let mut connection = TcpStream::connect(address).ok()?;
    write!(connection, "GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[tokio::test]
async fn a_service_gets_ready_and_ends_with_0_after_a_signal() {
    let installed = Installed::new().await;
    let mut child = start(&installed.url);
    let admin = admin(&child).await;
    wait_for("readiness", LIMIT, || async {
        status(&admin, "/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    })
    .await;
    let metrics = status(&admin, "/metrics").unwrap();
    assert!(metrics.contains("laneway_build_info{service=\"api\""), "{metrics}");
    child.terminate();
    let ended = child.wait(LIMIT).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", child.output());
    assert!(!child.output().contains(KEY), "{}", child.output());
}

#[tokio::test]
async fn a_signal_ends_a_service_that_waits_for_its_schema_too() {
    let url = laneway_testkit::Stack::shared().await.fresh_database().await;
    let mut child = start(&url);
    let admin = admin(&child).await;
    assert!(status(&admin, "/readyz").unwrap().starts_with("HTTP/1.1 503"));
    child.terminate();
    assert_eq!(child.wait(LIMIT).await.unwrap().code(), Some(0), "{}", child.output());
}
