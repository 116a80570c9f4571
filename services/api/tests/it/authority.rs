//! Authorities of endpoints: set, shown without their credential, replaced, removed; what could not be asked is refused.

use crate::support::Api;
use laneway_testkit::sql;
use serde_json::json;

#[tokio::test]
async fn an_authority_is_set_shown_without_its_credential_and_removed() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let path = format!("endpoints/{}/authority", api.endpoint(&tenant).await);
    assert_eq!(api.get(&tenant, &path).await.problem(), "not_found");
    let body = r#"{"url":"https://pay.example/v1/charges?key={idempotencyKey}","headerName":"Authorization",
        "headerValue":"Bearer sk_canary","rules":[
          {"status":"200","pointer":"/data/0/status","equals":"succeeded","answer":"applied"},
          {"status":"200","pointer":"/data","equals":[],"answer":"not_applied"}]}"#;
    for _ in 0..2 {
        assert_eq!(api.call("put", &tenant, &path, body).await.status, 200);
    }
    let shown = api.get(&tenant, &path).await;
    assert!(!String::from_utf8_lossy(&shown.body).contains("canary"));
    let shown = shown.json();
    assert_eq!((&shown["method"], &shown["headerName"]), (&json!("GET"), &json!("Authorization")));
    assert_eq!(shown["rules"][1]["equals"], json!([]));
    let stored = sql(
        &api.database,
        "SELECT header_value::text, rules::text FROM laneway_control.authorities",
    );
    let stored = format!("{:?}", stored.await.unwrap());
    assert!(!stored.contains("canary") && !stored.contains("63616e617279"), "{stored}");
    // Without a credential in the request, the old one is gone.
    let plain = r#"{"url":"https://pay.example/asked/{deliveryId}"}"#;
    assert_eq!(api.call("put", &tenant, &path, plain).await.json()["headerName"], json!(null));
    assert_eq!(api.call("delete", &tenant, &path, "").await.status, 204);
    assert_eq!(api.call("delete", &tenant, &path, "").await.problem(), "not_found");
    let audit = "SELECT count(*) FROM laneway_control.audit_log WHERE action LIKE 'authority.%'";
    assert_eq!(api.count(audit).await, 4);
}

#[tokio::test]
async fn an_authority_that_could_not_be_asked_is_refused() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let path = format!("endpoints/{}/authority", api.endpoint(&tenant).await);
    for (body, pointer, code) in [
        (r"{}", "/url", "field_missing"),
        (r#"{"url":"https://pay.example/last"}"#, "/url", "authority_not_valid"),
        (r#"{"url":"https://10.0.0.1/{idempotencyKey}"}"#, "/url", "target_not_allowed"),
        (r#"{"url":"https://a:b@pay.example/{idempotencyKey}"}"#, "/url", "url_has_credentials"),
        (
            r#"{"url":"https://pay.example/{idempotencyKey}","body":"{}"}"#,
            "/body",
            "authority_not_valid",
        ),
        (
            r#"{"url":"https://pay.example/{idempotencyKey}","headerName":"Host","headerValue":"x"}"#,
            "/headerName",
            "header_not_valid",
        ),
        (
            r#"{"url":"https://pay.example/{idempotencyKey}","headerName":"A"}"#,
            "/headerValue",
            "field_missing",
        ),
        (
            r#"{"url":"https://pay.example/{idempotencyKey}","rules":[{"status":"ok","answer":"applied"}]}"#,
            "/rules",
            "authority_not_valid",
        ),
        (
            r#"{"url":"https://pay.example/{idempotencyKey}","rules":[{"status":"any","answer":"not_applied"}]}"#,
            "/rules",
            "authority_not_valid",
        ),
        (
            r#"{"url":"https://pay.example/","method":"POST","body":"{idempotencyKey}"}"#,
            "/body",
            "authority_not_valid",
        ),
        (
            r#"{"url":"https://pay.example/{idempotencyKey}","rules":[{"status":"200","answer":"done"}]}"#,
            "/rules",
            "rules_not_valid",
        ),
    ] {
        let answer = api.call("put", &tenant, &path, body).await;
        assert_eq!((answer.status, answer.problem().as_str()), (422, "body_not_valid"), "{body}");
        let errors = answer.field_errors();
        assert_eq!(errors, [(pointer.to_owned(), code.to_owned())], "{body}");
    }
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.authorities").await, 0);
}
