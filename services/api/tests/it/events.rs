//! Events come in whole or not at all.

use crate::support::Api;
use laneway_testkit::sql;

/// The payload of the only event, as PostgreSQL has it.
async fn stored_payload(api: &Api) -> Vec<u8> {
    let rows = sql(
        &api.database,
        "SELECT encode(payload, 'hex') FROM laneway.outbox ORDER BY id DESC LIMIT 1",
    )
    .await
    .unwrap();
    let hex = rows[0][0].as_ref().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn payloads_are_stored_byte_for_byte() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let payloads = [
        "null",
        "true",
        "0",
        "-0.0e+00",
        "1e400",
        "12345678901234567890123456789",
        r#""""#,
        r#""\ud800 \u0000 \/ é 😀""#,
        "[ ]",
        "{\"b\" : 1,\t\"a\":\n[1.00, {\"b\":2, \"b\":3}]}",
        r#"{"":{"":""}}"#,
    ];
    for (number, payload) in payloads.iter().enumerate() {
        let body = format!("{{\"type\":\"a\",\"payload\" :  {payload}  }}");
        let answer =
            api.post(&tenant, "events", Some(&format!("k{number}")), body.as_bytes()).await;
        assert_eq!(answer.status, 202, "{payload}: {answer:?}");
        assert!(answer.json()["id"].as_str().unwrap().starts_with("evt_"));
        assert_eq!(String::from_utf8(stored_payload(&api).await).unwrap(), *payload);
    }
}

#[tokio::test]
async fn an_event_has_its_type_key_tenant_and_trace() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        ("authorization", format!("Bearer {}", tenant.key)),
        ("content-type", "application/json; charset=utf-8".to_owned()),
        ("idempotency-key", "\"quoted\"".to_owned()),
        ("traceparent", parent.to_owned()),
    ];
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = r#"{"type":"order.created","key":"Zürich 7","payload":{}}"#;
    let answer = api.request("POST", &path, &headers, body.as_bytes()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let query =
        "SELECT tenant::text, type, user_key, content_type, traceparent FROM laneway.outbox";
    let row = &sql(&api.database, query).await.unwrap()[0];
    let row: Vec<&str> = row.iter().map(|value| value.as_deref().unwrap_or_default()).collect();
    let tenant = tenant.id.as_uuid().to_string();
    assert_eq!(row[..4], [tenant.as_str(), "order.created", "Zürich 7", "application/json"]);
    assert!(row[4].is_empty() || row[4].contains("4bf92f3577b34da6a3ce929d0e0e4736"), "{}", row[4]);
}

#[tokio::test]
async fn the_largest_payload_is_taken_and_one_byte_more_is_not() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let body = |length: usize| {
        format!(r#"{{"type":"a","payload":"{}"}}"#, "x".repeat(length - 2)).into_bytes()
    };
    let answer = api.post(&tenant, "events", Some("1"), &body(262_144)).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let answer = api.post(&tenant, "events", Some("2"), &body(262_145)).await;
    assert_eq!((answer.status, answer.problem().as_str()), (413, "body_too_large"));
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 1);
}

#[tokio::test]
async fn a_dedupe_key_makes_one_event_whatever_the_idempotency_keys() {
    let api = Api::start().await;
    let (tenant, other) = (api.tenant().await, api.tenant().await);
    let body = br#"{"type":"order.created","payload":1,"dedupeKey":"order-1"}"#;
    let first = api.post(&tenant, "events", Some("a"), body).await;
    assert_eq!(first.status, 202, "{first:?}");
    for _ in 0..2 {
        let second = api.post(&tenant, "events", Some("b"), body).await;
        assert_eq!((second.status, second.problem().as_str()), (409, "duplicate_event"));
        assert_eq!(second.json()["eventId"], first.json()["id"]);
    }
    // The first key still gives the first answer, and another project has its own names.
    let again = api.post(&tenant, "events", Some("a"), body).await;
    assert_eq!((again.status, again.json()), (202, first.json()));
    assert_eq!(api.post(&other, "events", Some("a"), body).await.status, 202);
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 2);
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.idempotency_keys").await, 2);
}

#[tokio::test]
async fn concurrent_events_of_one_dedupe_key_are_one_event() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let body = br#"{"type":"order.created","key":"u","payload":1,"dedupeKey":"order-1"}"#;
    let keys: Vec<String> = (0..12).map(|number| format!("key-{number}")).collect();
    let posts = keys.iter().map(|key| api.post(&tenant, "events", Some(key), body));
    let answers = futures_util::future::join_all(posts).await;
    let accepted: Vec<_> = answers.iter().filter(|answer| answer.status == 202).collect();
    assert_eq!(accepted.len(), 1, "{answers:?}");
    for answer in answers.iter().filter(|answer| answer.status != 202) {
        assert_eq!(answer.problem(), "duplicate_event");
        assert_eq!(answer.json()["eventId"], accepted[0].json()["id"]);
    }
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 1);
}
