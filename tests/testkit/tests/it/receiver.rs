//! The scripted receiver: what the sender sees, and what the journal says.

use std::time::Duration;

use laneway_testkit::{
    Behaviour, Door, Entry, Kind, Receiver, ReceiverConfig, Rule, temp_dir, wait_for,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(20);

fn post(path: &str, delivery: &str, attempt: u32, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nwebhook-id: evt_1\r\nx-delivery-id: {delivery}\r\n\
         x-attempt: {attempt}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends one request on a connection of its own and reads until the end or the first error.
async fn send(receiver: &Receiver, request: &[u8]) -> (String, Option<std::io::ErrorKind>) {
    let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut text = Vec::new();
    let mut part = [0; 1024];
    loop {
        match tokio::time::timeout(Duration::from_millis(500), stream.read(&mut part)).await {
            Ok(Ok(0)) => return (String::from_utf8(text).unwrap(), None),
            Ok(Ok(read)) => text.extend_from_slice(&part[..read]),
            Ok(Err(error)) => return (String::from_utf8(text).unwrap(), Some(error.kind())),
            Err(_) => {
                let kind = std::io::ErrorKind::TimedOut;
                return (String::from_utf8(text).unwrap(), Some(kind));
            }
        }
    }
}

#[tokio::test]
async fn rules_decide_by_path_header_body_and_attempt() {
    let receiver = Receiver::start().await;
    receiver.set_rules(vec![
        Rule::path("/a", Behaviour::status(503)).up_to_attempt(1),
        Rule::path("/b", Behaviour::status(429)).times(1),
        Rule::always(Behaviour::status(404)).header("X-Delivery-Id", "d9"),
        Rule::always(Behaviour::status(410)).body_contains("user_7"),
    ]);
    for (request, status) in [
        (post("/a", "d1", 1, "{}"), 503),
        (post("/a", "d1", 2, "{}"), 200),
        (post("/b", "d2", 1, "{}"), 429),
        (post("/b", "d2", 1, "{}"), 200),
        (post("/c", "d9", 1, "{}"), 404),
        (post("/c", "d3", 1, "{\"user\":\"user_7\"}"), 410),
    ] {
        let (text, _) = send(&receiver, &request).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
    }
    assert_eq!(receiver.journal().delivered(), 2);
}

#[tokio::test]
async fn it_misbehaves_as_told() {
    use std::io::ErrorKind::{ConnectionReset, TimedOut};
    let receiver = Receiver::start().await;
    let raw = Behaviour::Raw { bytes: "HTTP/9.9 yes\r\n\r\n".to_owned() };
    for (behaviour, text, error) in [
        (Behaviour::Reset, "", Some(ConnectionReset)),
        (Behaviour::Close, "", None),
        (Behaviour::Hang, "", Some(TimedOut)),
        (raw, "HTTP/9.9 yes", None),
        (Behaviour::ResetMidBody { status: 200 }, "HTTP/1.1 200 ", Some(ConnectionReset)),
        (Behaviour::StallMidBody { status: 200 }, "HTTP/1.1 200 ", Some(TimedOut)),
        (Behaviour::SlowLoris { status: 200, every_ms: 2 }, "HTTP/1.1 200 OK", Some(TimedOut)),
    ] {
        receiver.set_rules(vec![Rule::always(behaviour.clone())]);
        let (seen, failure) = send(&receiver, &post("/x", "d1", 1, "{}")).await;
        assert!(seen.starts_with(text), "{behaviour:?}: {seen}");
        assert_eq!(failure, error, "{behaviour:?}");
    }
    let entries = receiver.journal().entries();
    assert_eq!(entries.iter().filter(|entry| entry.kind == Kind::Request).count(), 7);
    // Only the slow answer was written to its end.
    assert_eq!(entries.iter().filter(|entry| entry.kind == Kind::Response).count(), 1);
}

#[tokio::test]
async fn a_shut_door_refuses_and_opens_again_on_the_same_port() {
    let receiver = Receiver::start().await;
    let mut kept = TcpStream::connect(receiver.address()).await.unwrap();
    kept.write_all(&post("/x", "d1", 1, "{}")).await.unwrap();
    kept.read_exact(&mut [0; 12]).await.unwrap();
    receiver.set_door(Door::Shut);
    wait_for("connections are refused", LIMIT, || async {
        TcpStream::connect(receiver.address()).await.is_err()
    })
    .await;
    assert!(kept.read_to_end(&mut Vec::new()).await.is_err(), "an open connection is reset");
    receiver.set_door(Door::Open);
    wait_for("connections are served", LIMIT, || async {
        TcpStream::connect(receiver.address()).await.is_ok()
    })
    .await;
    let (text, _) = send(&receiver, &post("/x", "d1", 2, "{}")).await;
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[tokio::test]
async fn the_journal_file_holds_every_line_in_order() {
    let folder = temp_dir("journal");
    let file = folder.join("journal.ndjson");
    let config = ReceiverConfig { journal: Some(file.clone()), bodies: true, ..Default::default() };
    let receiver = Receiver::with(config).await.unwrap();
    send(&receiver, &[post("/x", "d1", 1, "one"), post("/y", "d2", 3, "two")].concat()).await;
    receiver.journal().flush();
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Entry> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.kind, line.request, line.path.as_str(), line.status))
        .collect();
    assert_eq!(
        seen,
        [
            (Kind::Request, 1, "/x", Some(200)),
            (Kind::Response, 1, "/x", Some(200)),
            (Kind::Request, 2, "/y", Some(200)),
            (Kind::Response, 2, "/y", Some(200)),
        ]
    );
    assert!(lines.is_sorted_by_key(|line| line.ns));
    assert_eq!((lines[2].attempt, lines[2].body.as_deref()), (Some(3), Some("two")));
    let digest = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    assert_eq!(lines[0].body_sha256.as_deref(), Some(digest));
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn rules_are_replaced_over_http() {
    let receiver = Receiver::start().await;
    let rules = r#"[{"path": "/a", "behaviour": {"do": "answer", "status": 503}}]"#;
    let put = format!("PUT /-/rules HTTP/1.1\r\ncontent-length: {}\r\n\r\n{rules}", rules.len());
    assert!(send(&receiver, put.as_bytes()).await.0.starts_with("HTTP/1.1 200 "));
    let (text, _) = send(&receiver, &post("/a", "d1", 1, "{}")).await;
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    assert_eq!(receiver.journal().counts(), (1, 1), "control requests are not journalled");
}
