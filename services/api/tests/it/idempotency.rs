//! One operation for one key (P12, I34–I37), and nothing acknowledged that is not committed (I52).

use crate::support::{Api, raw};
use laneway_store::idempotency::{Claim, ClaimTimes, Claimed, idempotency_claim};
use laneway_store::secrets::SecretsKey;
use laneway_testkit::{Stack, sql, wait_for};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const BODY: &[u8] = br#"{"type":"order.created","key":"u1","payload":{"n":1}}"#;

/// I34.
#[tokio::test]
async fn concurrent_claims_of_one_key_make_one_event_and_all_get_its_id() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let posts = (0..24).map(|_| async {
        // In progress is an answer too: the client repeats.
        loop {
            let answer = api.post(&tenant, "events", Some("one"), BODY).await;
            if answer.status != 409 {
                return answer;
            }
            assert_eq!(answer.problem(), "idempotency_key_in_use");
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
    });
    let answers = futures_util::future::join_all(posts).await;
    let first = answers[0].json();
    for answer in &answers {
        assert_eq!((answer.status, answer.json()), (202, first.clone()), "{answer:?}");
    }
    let fresh = answers.iter().filter(|answer| answer.header("idempotency-replayed").is_none());
    assert_eq!(fresh.count(), 1);
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 1);
}

/// I35.
#[tokio::test]
async fn the_same_key_with_another_content_is_refused_and_changes_nothing() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let first = api.post(&tenant, "events", Some("k"), BODY).await;
    let before = api.stored().await;
    let other = br#"{"type":"order.created","key":"u1","payload":{"n":2}}"#;
    let answer = api.post(&tenant, "events", Some("k"), other).await;
    assert_eq!((answer.status, answer.problem().as_str()), (422, "idempotency_key_reused"));
    assert_eq!(api.stored().await, before);
    // Another order of fields and other white space are the same content; quotes are no part of the key.
    let same = b"{ \"payload\": {\"n\":1}, \"key\":\"u1\", \"type\":\"order.cre\\u0061ted\"}";
    let answer = api.post(&tenant, "events", Some("\"k\""), same).await;
    assert_eq!((answer.status, answer.json()), (202, first.json()));
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    assert_eq!(answer.body, first.body);
    assert_eq!(api.stored().await, before);
}

#[tokio::test]
async fn a_key_is_of_its_tenant_and_operation() {
    let api = Api::start().await;
    let (a, b) = (api.tenant().await, api.tenant().await);
    let first = api.post(&a, "events", Some("k"), BODY).await.json();
    let second = api.post(&b, "events", Some("k"), BODY).await.json();
    assert_ne!(first["id"], second["id"]);
    let endpoint =
        api.post(&a, "endpoints", Some("k"), br#"{"url":"https://shop.example/"}"#).await;
    assert_eq!(endpoint.status, 201, "{endpoint:?}");
}

#[tokio::test]
async fn a_missing_or_malformed_key_is_refused() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let before = api.stored().await;
    let answer = api.post(&tenant, "events", None, BODY).await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "idempotency_key_missing"));
    assert!(answer.header("link").unwrap().contains("describedby"));
    for key in ["", "\"\"", "a\u{1}b", "a\tb", "é", &"k".repeat(256)] {
        let answer = api.post(&tenant, "events", Some(key), BODY).await;
        assert_eq!(answer.status, 400, "{key:?}");
        if answer.header("content-type").is_some() {
            assert_eq!(answer.problem(), "idempotency_key_not_valid", "{key:?}");
        }
    }
    assert_eq!(api.stored().await, before);
}

/// I37.
#[tokio::test]
async fn a_restart_remembers() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let first = api.post(&tenant, "events", Some("k"), BODY).await;
    let api = api.restart().await;
    let again = api.post(&tenant, "events", Some("k"), BODY).await;
    assert_eq!((again.status, again.body.as_slice()), (202, first.body.as_slice()));
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 1);
}

/// I36: the client is gone before it can read the answer.
#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_by_the_same_key() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let headers = [
        ("x-api-key", tenant.key.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    let mut connection = TcpStream::connect(api.address).await.unwrap();
    connection.write_all(&raw("POST", &path, &headers, BODY)).await.unwrap();
    wait_for("the commit", Duration::from_secs(10), || async {
        api.count("SELECT count(*) FROM laneway.outbox").await == 1
    })
    .await;
    drop(connection);
    let stored = sql(&api.database, "SELECT event_id::text FROM laneway.outbox").await.unwrap();
    let again = api.post(&tenant, "events", Some("k"), BODY).await;
    assert_eq!(again.status, 202);
    let id: laneway_wire::EventId = again.json()["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(Some(id.as_uuid().to_string()), stored[0][0]);
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 1);
}

/// Clients that leave in the middle of everything: whatever was committed, each key has one event in the end.
#[tokio::test]
async fn clients_that_leave_at_any_moment_leave_one_event_for_each_key() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    for number in 0..40u64 {
        let key = format!("k{number}");
        let headers = [
            ("x-api-key", tenant.key.as_str()),
            ("content-type", "application/json"),
            ("idempotency-key", &key),
        ];
        let mut connection = TcpStream::connect(api.address).await.unwrap();
        connection.write_all(&raw("POST", &path, &headers, BODY)).await.unwrap();
        // Not a wait for something: the moment of leaving is what varies.
        tokio::time::sleep(Duration::from_micros(number * 400)).await;
        drop(connection);
    }
    for number in 0..40 {
        let key = format!("k{number}");
        wait_for("the answer", Duration::from_secs(10), || async {
            api.post(&tenant, "events", Some(&key), BODY).await.status == 202
        })
        .await;
    }
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 40);
}

/// I35, in progress: the first request is held in its transaction.
#[tokio::test]
async fn a_running_request_makes_the_second_one_wait_and_then_tells_that_it_is_in_progress() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let secrets = SecretsKey::new("k1", [0; 32]);
    let body = br#"{"type":"order.created","payload":1}"#;
    let project = tenant.id.to_string();
    let fingerprint = laneway_wire::fingerprint::fingerprint(&laneway_wire::fingerprint::Request {
        method: "POST",
        route: "/api/v1/projects/{project}/events",
        params: &[&project],
        content_type: "application/json",
        body,
    })
    .unwrap();
    let claim = Claim { tenant: tenant.id, operation: "events.create", key: "k", fingerprint };
    let times = ClaimTimes { wait: Duration::from_secs(5), retention: Duration::from_secs(3_600) };
    let Ok(Claimed::Fresh(first)) = idempotency_claim(&api.pool, &secrets, claim, times).await
    else {
        panic!("a new key is fresh");
    };
    let second = api.post(&tenant, "events", Some("k"), body).await;
    assert_eq!((second.status, second.problem().as_str()), (409, "idempotency_key_in_use"));
    assert_eq!(second.header("retry-after"), Some("1"));
    // The first one fails: nothing of it is left, and the key is free.
    drop(first);
    wait_for("the key to be free", Duration::from_secs(10), || async {
        api.post(&tenant, "events", Some("k"), body).await.status == 202
    })
    .await;
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 1);
}

#[tokio::test]
async fn a_key_whose_time_is_over_is_a_new_one() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let first = api.post(&tenant, "events", Some("k"), BODY).await.json();
    sql(
        &api.database,
        "UPDATE laneway_control.idempotency_keys SET created_at = now() - interval '169 h'",
    )
    .await
    .unwrap();
    let second = api.post(&tenant, "events", Some("k"), br#"{"type":"a","payload":2}"#).await;
    assert_eq!(second.status, 202);
    assert_ne!(second.json()["id"], first["id"]);
    let third = api.post(&tenant, "events", Some("k"), br#"{"type":"a","payload":2}"#).await;
    assert_eq!(third.json(), second.json());
}

#[tokio::test]
async fn a_refused_request_does_not_use_its_key_up() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let refused = api.post(&tenant, "events", Some("k"), br#"{"type":"a b","payload":1}"#).await;
    assert_eq!(refused.status, 422);
    assert_eq!(
        api.post(&tenant, "events", Some("k"), br#"{"type":"ab","payload":1}"#).await.status,
        202
    );
}

/// I52: PostgreSQL stops and comes back.
#[tokio::test]
async fn without_a_database_nothing_is_acknowledged_and_nothing_is_lost_afterwards() {
    let stack = Stack::private_postgres().await.unwrap();
    let api = Api::with(&stack.fresh_database().await, |settings| {
        settings.database.acquire_timeout = Duration::from_millis(500);
    })
    .await;
    let tenant = api.tenant().await;
    assert_eq!(api.post(&tenant, "events", Some("before"), BODY).await.status, 202);
    let readiness = api.context.readiness.clone();
    wait_for("ready", Duration::from_secs(10), || async { readiness.report().ready }).await;
    stack.crash_postgres().await.unwrap();
    let answer = api.post(&tenant, "events", Some("during"), BODY).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "unavailable"));
    assert!(answer.header("retry-after").is_some());
    wait_for("not ready", Duration::from_secs(20), || async { !readiness.report().ready }).await;
    stack.start_postgres().await.unwrap();
    wait_for("the answer", Duration::from_secs(20), || async {
        api.post(&tenant, "events", Some("during"), BODY).await.status == 202
    })
    .await;
    let again = api.post(&tenant, "events", Some("before"), BODY).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(api.count("SELECT count(*) FROM laneway.outbox").await, 2);
    wait_for("ready again", Duration::from_secs(20), || async { readiness.report().ready }).await;
}
