//! Start, limits, drain, and the description that is checked in.

use crate::support::{Api, raw, read};
use laneway_platform::config::{Origins, load};
use laneway_testkit::wait_for;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const OPENAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

/// `LANEWAY_TEST_WRITE=1 cargo test -p laneway-api openapi` writes the file anew.
#[tokio::test]
async fn the_openapi_document_is_the_one_that_is_checked_in_and_served() {
    let json = laneway_api::openapi_json();
    if std::env::var_os("LANEWAY_TEST_WRITE").is_some() {
        std::fs::write(OPENAPI, &json).unwrap();
    }
    assert_eq!(std::fs::read_to_string(OPENAPI).unwrap(), json, "run with LANEWAY_TEST_WRITE=1");
    let api = Api::start().await;
    let served = api.request("GET", "/openapi.json", &[], b"").await;
    assert_eq!(served.header("content-type"), Some("application/json"));
    assert_eq!(String::from_utf8(served.body.clone()).unwrap(), json);
    assert_eq!(served.json()["openapi"], "3.1.0");
}

#[tokio::test]
async fn a_drain_lets_the_request_under_way_end_and_takes_no_other() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let body = br#"{"type":"a","payload":1}"#;
    let headers = [
        ("x-api-key", tenant.key.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    let request = raw("POST", &path, &headers, body);
    let mut connection = TcpStream::connect(api.address).await.unwrap();
    connection.write_all(&request[..request.len() - 5]).await.unwrap();
    // The head has been read when the key's use is noted: the request is under way.
    wait_for("the request to begin", Duration::from_secs(10), || async {
        api.count("SELECT count(*) FROM laneway_control.api_keys WHERE last_used_at IS NOT NULL")
            .await
            == 1
    })
    .await;
    let (address, database) = (api.address, api.database.clone());
    let stopping = tokio::spawn(api.stop());
    wait_for("the port to close", Duration::from_secs(10), || async {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    assert!(!stopping.is_finished());
    connection.write_all(&request[request.len() - 5..]).await.unwrap();
    assert_eq!(read(&mut connection).await.status, 202);
    stopping.await.unwrap();
    let rows =
        laneway_testkit::sql(&database, "SELECT count(*) FROM laneway.outbox").await.unwrap();
    assert_eq!(rows[0][0].as_deref(), Some("1"));
}

#[tokio::test]
async fn slow_clients_and_slow_requests_are_cut() {
    let api =
        Api::with(&laneway_testkit::Stack::shared().await.fresh_database().await, |settings| {
            settings.api.header_timeout = Duration::from_secs(1);
            settings.api.request_timeout = Duration::from_secs(1);
        })
        .await;
    let tenant = api.tenant().await;
    // Never the end of the head.
    let mut connection = TcpStream::connect(api.address).await.unwrap();
    connection.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), connection.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    // Never the end of the body.
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let headers = [
        ("x-api-key", tenant.key.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    let request = raw("POST", &path, &headers, br#"{"type":"a","payload":1}"#);
    let mut connection = TcpStream::connect(api.address).await.unwrap();
    connection.write_all(&request[..request.len() - 5]).await.unwrap();
    let answer = read(&mut connection).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "timed_out"));
}

#[tokio::test]
async fn too_many_requests_at_once_are_refused_at_once() {
    let api =
        Api::with(&laneway_testkit::Stack::shared().await.fresh_database().await, |settings| {
            settings.api.max_in_flight = 1;
        })
        .await;
    let tenant = api.tenant().await;
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let headers = [
        ("x-api-key", tenant.key.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    let request = raw("POST", &path, &headers, br#"{"type":"a","payload":1}"#);
    let mut connection = TcpStream::connect(api.address).await.unwrap();
    connection.write_all(&request[..request.len() - 5]).await.unwrap();
    wait_for("the request to begin", Duration::from_secs(10), || async {
        api.count("SELECT count(*) FROM laneway_control.api_keys WHERE last_used_at IS NOT NULL")
            .await
            == 1
    })
    .await;
    let answer = api.get(&tenant, "endpoints").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "overloaded"));
    assert!(answer.header("retry-after").is_some());
    connection.write_all(&request[request.len() - 5..]).await.unwrap();
    assert_eq!(read(&mut connection).await.status, 202);
}

#[tokio::test]
async fn what_happened_is_counted() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let body = br#"{"type":"a","payload":1}"#;
    for (key, body) in [
        (None, &body[..]),
        (Some("k"), body),
        (Some("k"), body),
        (Some("k"), br#"{"type":"b","payload":1}"#),
    ] {
        api.post(&tenant, "events", key, body).await;
    }
    let metrics = api.context.registry.encode();
    for line in [
        "laneway_events_accepted_total 1",
        r#"laneway_idempotency_requests_total{operation="events.create",result="new"} 1"#,
        r#"laneway_idempotency_requests_total{operation="events.create",result="replayed"} 1"#,
        r#"laneway_idempotency_requests_total{operation="events.create",result="mismatch_422"} 1"#,
        r#"laneway_idempotency_requests_total{operation="events.create",result="missing_400"} 1"#,
        r#"http_server_request_duration_seconds_count{http_request_method="POST",http_route="/api/v1/projects/{project}/events",http_response_status_code="202",error_type=""} 2"#,
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains(&tenant.id.to_string()));
}

#[test]
fn one_file_of_all_services_is_read_and_shown_without_secrets() {
    let origins = Origins::of_pairs([
        ("LANEWAY_DATABASE__URL", "postgres://laneway:canary@127.0.0.1:5432/laneway"),
        ("LANEWAY_SECRETS__KEY", crate::support::SECRETS_KEY),
        ("LANEWAY_API__LISTEN", "127.0.0.1:0"),
        ("LANEWAY_RELAY__SHARDS", "4"),
    ]);
    let loaded = load::<laneway_api::Settings>(&origins).unwrap();
    let shown = loaded.show();
    assert!(!shown.contains("canary") && !shown.contains(crate::support::SECRETS_KEY), "{shown}");
    assert!(shown.contains("idempotency_retention"), "{shown}");
}
