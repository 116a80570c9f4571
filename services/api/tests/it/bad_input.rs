//! Bad input of every kind: a problem document with a stable code, and nothing stored.

use crate::support::Api;
use laneway_store::keys::Scope;

#[tokio::test]
async fn bodies_that_are_wrong_are_refused_with_pointers_and_nothing_is_stored() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let endpoint = api.endpoint(&tenant).await;
    let before = api.stored().await;
    let deep = format!(r#"{{"type":"a","payload":{}{}}}"#, "[".repeat(2_000), "]".repeat(2_000));
    let pattern = |body: &str| body.replace("EP", &endpoint);
    let long = "x".repeat(300);
    let cases: Vec<(&str, String, u16, &str, Vec<(&str, &str)>)> = vec![
        ("events", String::new(), 400, "body_not_json", vec![]),
        ("events", "{".into(), 400, "body_not_json", vec![]),
        ("events", "{\"type\":\"a\",\"payload\":1}}".into(), 400, "body_not_json", vec![]),
        ("events", "{\"type\":\"a\",\"payload\":NaN}".into(), 400, "body_not_json", vec![]),
        ("events", "{\"type\":\"a\u{1}\",\"payload\":1}".into(), 400, "body_not_json", vec![]),
        ("events", deep, 400, "body_not_json", vec![]),
        ("events", "[]".into(), 422, "body_not_valid", vec![("/", "wrong_type")]),
        ("events", "\"a\"".into(), 422, "body_not_valid", vec![("/", "wrong_type")]),
        ("events", "{}".into(), 422, "body_not_valid", vec![("/type", "field_missing"), ("/payload", "field_missing")]),
        ("events", r#"{"type":1,"key":2,"dedupeKey":[],"payload":1}"#.into(), 422, "body_not_valid",
            vec![("/type", "wrong_type"), ("/key", "wrong_type"), ("/dedupeKey", "wrong_type")]),
        ("events", r#"{"type":"a","payload":1,"tenant":"x","a/b~":1}"#.into(), 422, "body_not_valid",
            vec![("/tenant", "field_unknown"), ("/a~1b~0", "field_unknown")]),
        ("events", r#"{"type":"a","payload":1,"payload":2}"#.into(), 422, "body_not_valid", vec![("/payload", "field_repeated")]),
        ("events", r#"{"type":null,"payload":1}"#.into(), 422, "body_not_valid", vec![("/type", "wrong_type")]),
        ("events", r#"{"type":"a\r\nx-evil: 1","payload":1}"#.into(), 422, "body_not_valid", vec![("/type", "event_type_not_valid")]),
        ("events", r#"{"type":"a\u0000","payload":1}"#.into(), 422, "body_not_valid", vec![("/type", "event_type_not_valid")]),
        ("events", r#"{"type":"","payload":1}"#.into(), 422, "body_not_valid", vec![("/type", "event_type_not_valid")]),
        ("events", format!(r#"{{"type":"{long}","payload":1}}"#), 422, "body_not_valid", vec![("/type", "event_type_not_valid")]),
        ("events", r#"{"type":"a","key":"a\u0000b","payload":1}"#.into(), 422, "body_not_valid", vec![("/key", "key_not_valid")]),
        ("events", r#"{"type":"a","key":"","payload":1}"#.into(), 422, "body_not_valid", vec![("/key", "key_not_valid")]),
        ("events", r#"{"type":"a","key":"\ud800","payload":1}"#.into(), 422, "body_not_valid", vec![("/key", "wrong_type")]),
        ("events", format!(r#"{{"type":"a","key":"{long}","payload":1}}"#), 422, "body_not_valid", vec![("/key", "key_not_valid")]),
        ("events", r#"{"type":"a","dedupeKey":"\n","payload":1}"#.into(), 422, "body_not_valid", vec![("/dedupeKey", "key_not_valid")]),
        ("endpoints", "{}".into(), 422, "body_not_valid", vec![("/url", "field_missing")]),
        ("endpoints", r#"{"url":"https://user:secret@shop.example/"}"#.into(), 422, "body_not_valid", vec![("/url", "url_has_credentials")]),
        ("endpoints", r#"{"url":"ftp://shop.example/"}"#.into(), 422, "body_not_valid", vec![("/url", "url_scheme_not_allowed")]),
        ("endpoints", r#"{"url":"file:///etc/passwd"}"#.into(), 422, "body_not_valid", vec![("/url", "url_scheme_not_allowed")]),
        ("endpoints", r#"{"url":"http://shop.example/"}"#.into(), 422, "body_not_valid", vec![("/url", "url_scheme_not_allowed")]),
        ("endpoints", r#"{"url":"https://127.0.0.1/"}"#.into(), 422, "body_not_valid", vec![("/url", "target_not_allowed")]),
        ("endpoints", r#"{"url":"https://localhost/"}"#.into(), 422, "body_not_valid", vec![("/url", "target_not_allowed")]),
        ("endpoints", r#"{"url":"https://[::1]/"}"#.into(), 422, "body_not_valid", vec![("/url", "target_not_allowed")]),
        ("endpoints", r#"{"url":"https://169.254.169.254/"}"#.into(), 422, "body_not_valid", vec![("/url", "target_not_allowed")]),
        ("endpoints", r#"{"url":"https://shop.example:22/"}"#.into(), 422, "body_not_valid", vec![("/url", "target_not_allowed")]),
        ("endpoints", r#"{"url":"https://0x7f.1/"}"#.into(), 422, "body_not_valid", vec![("/url", "url_not_valid")]),
        ("endpoints", r#"{"url":"https://shop.example/\r\nhost: x"}"#.into(), 422, "body_not_valid", vec![("/url", "url_not_valid")]),
        ("endpoints", r#"{"url":"https://shop.example/#x"}"#.into(), 422, "body_not_valid", vec![("/url", "url_has_fragment")]),
        ("endpoints", r#"{"url":"not a url"}"#.into(), 422, "body_not_valid", vec![("/url", "url_not_valid")]),
        ("endpoints", r#"{"url":"https://shop.example/","timeoutMs":999,"maxConnections":1025,"ordering":"total","onUnknown":1}"#.into(),
            422, "body_not_valid",
            vec![("/onUnknown", "wrong_type"), ("/timeoutMs", "out_of_range"), ("/maxConnections", "out_of_range"), ("/ordering", "unknown_value")]),
        ("endpoints", r#"{"url":"https://shop.example/","timeoutMs":1500.5}"#.into(), 422, "body_not_valid", vec![("/timeoutMs", "wrong_type")]),
        ("endpoints", r#"{"url":"https://shop.example/","timeoutMs":-1}"#.into(), 422, "body_not_valid", vec![("/timeoutMs", "out_of_range")]),
        ("endpoints", r#"{"url":"https://shop.example/","secret":"whsec_short"}"#.into(), 422, "body_not_valid", vec![("/secret", "secret_not_valid")]),
        ("endpoints", r#"{"url":"https://shop.example/","state":"deleted","tenantId":"x"}"#.into(), 422, "body_not_valid",
            vec![("/state", "field_unknown"), ("/tenantId", "field_unknown")]),
        ("subscriptions", "{}".into(), 422, "body_not_valid", vec![("/endpointId", "field_missing"), ("/eventType", "field_missing")]),
        ("subscriptions", pattern(r#"{"endpointId":"EP","eventType":"order.**"}"#), 422, "body_not_valid", vec![("/eventType", "event_type_not_valid")]),
        ("subscriptions", r#"{"endpointId":"evt_0000000000000000000001","eventType":"*"}"#.into(), 422, "body_not_valid", vec![("/endpointId", "id_not_valid")]),
        ("subscriptions", pattern(r#"{"endpointId":"EP","eventType":"*","orderingEnabled":"yes"}"#), 422, "body_not_valid", vec![("/orderingEnabled", "wrong_type")]),
        ("subscriptions", pattern(r#"{"endpointId":"EP","eventType":"order.*","orderingEnabled":true}"#), 422, "ordering_not_available",
            vec![("/orderingEnabled", "not_available")]),
        ("subscriptions", r#"{"endpointId":"ep_0000000000000000000001","eventType":"*"}"#.into(), 404, "not_found", vec![]),
    ];
    for (number, (path, body, status, code, errors)) in cases.into_iter().enumerate() {
        let answer = api.post(&tenant, path, Some(&format!("k{number}")), body.as_bytes()).await;
        let shown: String = body.chars().take(100).collect();
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (status, code),
            "{path} {shown}: {answer:?}"
        );
        let found = answer.field_errors();
        let found: Vec<(&str, &str)> =
            found.iter().map(|(p, c)| (if p.is_empty() { "/" } else { p }, c.as_str())).collect();
        assert_eq!(found, errors, "{path} {shown}");
    }
    let invalid_utf8 =
        api.post(&tenant, "events", Some("u"), b"{\"type\":\"a\",\"payload\":\"\xff\"}").await;
    assert_eq!(invalid_utf8.problem(), "body_not_json");
    assert_eq!(api.stored().await, before);
    // A message about credentials does not repeat them.
    let answer = api
        .post(&tenant, "endpoints", None, br#"{"url":"https://user:secret@shop.example/"}"#)
        .await;
    assert!(!String::from_utf8_lossy(&answer.body).contains("secret@"));
}

#[tokio::test]
async fn what_is_sent_around_the_body_is_checked_before_it() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let before = api.stored().await;
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let body = br#"{"type":"a","payload":1}"#;
    let key = ("x-api-key", tenant.key.as_str());
    let json = ("content-type", "application/json");
    let idempotency = ("idempotency-key", "k");
    for headers in [
        vec![key, idempotency],
        vec![key, idempotency, ("content-type", "text/plain")],
        vec![key, idempotency, ("content-type", "application/json; charset=utf-16")],
        vec![key, idempotency, json, ("content-encoding", "gzip")],
    ] {
        let answer = api.request("POST", &path, &headers, body).await;
        assert_eq!((answer.status, answer.problem().as_str()), (415, "content_type_not_supported"));
    }
    let large = vec![b' '; 300 * 1024];
    let answer = api.request("POST", &path, &[key, json, idempotency], &large).await;
    assert_eq!((answer.status, answer.problem().as_str()), (413, "body_too_large"));
    let chunked = [
        format!("POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-api-key: {}\r\nidempotency-key: k\r\n", tenant.key).as_bytes(),
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        &b"10000\r\n".iter().copied().chain(vec![b' '; 0x1_0000]).chain(*b"\r\n").collect::<Vec<u8>>().repeat(5),
        b"0\r\n\r\n",
    ]
    .concat();
    let answer = api.send(&chunked).await;
    assert_eq!((answer.status, answer.problem().as_str()), (413, "body_too_large"));
    // Control characters in a header are no HTTP; nobody gets as far as a handler.
    let control = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nidempotency-key: a\u{0}b\r\ncontent-length: 0\r\n\r\n"
    );
    assert_eq!(api.send(control.as_bytes()).await.status, 400);
    assert_eq!(api.stored().await, before);
}

#[tokio::test]
async fn keys_scopes_and_projects_are_checked_first() {
    let api = Api::start().await;
    let (tenant, other) = (api.tenant().await, api.tenant().await);
    let reader = api.tenant_with(&[Scope::DeliveriesRead]).await;
    let before = api.stored().await;
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let swapped = tenant.key.replace(&tenant.key[17..], &other.key[17..]);
    for headers in [
        vec![],
        vec![("x-api-key", "lw_live_x")],
        vec![("x-api-key", swapped.as_str())],
        vec![("authorization", "Basic YTpi")],
        vec![("x-api-key", tenant.key.as_str()), ("x-api-key", tenant.key.as_str())],
    ] {
        let answer = api.request("POST", &path, &headers, b"not even json").await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (401, "unauthenticated"),
            "{headers:?}"
        );
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    let answer = api.request("POST", &path, &[("x-api-key", &other.key)], b"").await;
    assert_eq!((answer.status, answer.problem().as_str()), (404, "not_found"));
    let answer = api.post(&reader, "events", Some("k"), br#"{"type":"a","payload":1}"#).await;
    assert_eq!((answer.status, answer.problem().as_str()), (403, "scope_missing"));
    assert!(
        laneway_store::keys::key_revoke(&api.pool, tenant.id, &tenant.key[8..16]).await.unwrap()
    );
    assert_eq!(api.get(&tenant, "endpoints").await.status, 401);
    assert_eq!(api.stored().await, before);
}

#[tokio::test]
async fn unknown_routes_methods_and_parameters_are_told() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    for path in [
        "/",
        "/api/v1",
        "/api/v1/projects",
        "/healthz",
        "/problems/no-such",
        "/api/v1/projects/%ff/events",
    ] {
        let answer = api.request("GET", path, &[("x-api-key", &tenant.key)], b"").await;
        assert!(answer.status == 404 || answer.status == 405, "{path} {answer:?}");
        answer.problem();
    }
    let path = format!("/api/v1/projects/{}/events", tenant.id);
    let answer = api.request("DELETE", &path, &[("x-api-key", &tenant.key)], b"").await;
    assert_eq!((answer.status, answer.problem().as_str()), (405, "method_not_allowed"));
    assert_eq!(answer.header("allow"), Some("POST"));
    for (query, code) in [
        ("?limit=0", "parameter_not_valid"),
        ("?limit=251", "parameter_not_valid"),
        ("?limit=x", "parameter_not_valid"),
        ("?limit=1&limit=2", "parameter_not_valid"),
        ("?colour=red", "parameter_not_valid"),
        ("?cursor=abc", "cursor_not_valid"),
        ("?cursor=", "cursor_not_valid"),
    ] {
        let answer = api.get(&tenant, &format!("endpoints{query}")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (400, code), "{query}");
    }
    for query in ["", "?eventId=ep_0000000000000000000001", "?eventId=x"] {
        let answer = api.get(&tenant, &format!("deliveries{query}")).await;
        assert_eq!(answer.problem(), "parameter_not_valid", "{query}");
    }
}

#[tokio::test]
async fn every_problem_has_a_page_and_every_answer_an_id() {
    let api = Api::start().await;
    let index = api.request("GET", "/problems/", &[], b"").await;
    let index = String::from_utf8(index.body).unwrap();
    assert!(index.lines().count() > 15, "{index}");
    for line in index.lines() {
        let page = api.request("GET", line.split(' ').nth(2).unwrap(), &[], b"").await;
        assert_eq!(page.status, 200, "{line}");
        assert!(page.header("x-request-id").is_some());
    }
    let kept = api.request("GET", "/nowhere", &[("x-request-id", "client-7")], b"").await;
    assert_eq!(kept.header("x-request-id"), Some("client-7"));
    let replaced = api.request("GET", "/nowhere", &[("x-request-id", "a b\"c")], b"").await;
    assert_ne!(replaced.header("x-request-id"), Some("a b\"c"));
    assert_eq!(replaced.header("cache-control"), Some("no-store"));
}
