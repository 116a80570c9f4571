//! An endpoint that answered 410 and is enabled again (I24).

use crate::support::Api;
use laneway_store::delivery::endpoint_disable;

#[tokio::test]
async fn a_disabled_endpoint_is_enabled_once_with_an_audit_entry() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let [id, other] = [api.endpoint(&tenant).await, api.endpoint(&tenant).await];
    assert!(endpoint_disable(&api.pool, id.parse().unwrap(), "gone", "deliver").await.unwrap());
    let path = format!("endpoints/{id}");
    let shown = api.get(&tenant, &path).await.json();
    assert_eq!(
        (shown["state"].as_str(), shown["stateReason"].as_str()),
        (Some("disabled"), Some("gone"))
    );
    let enable = format!("{path}/enable");
    let body = br#"{"reason":"it is back"}"#;
    let answer = api.post(&tenant, &enable, Some("k"), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json(), api.get(&tenant, &path).await.json());
    assert_eq!(answer.json()["state"], "enabled");
    assert!(answer.json()["stateReason"].is_null());

    let again = api.post(&tenant, &enable, Some("k"), body).await;
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")));
    let elsewhere = api.post(&tenant, &format!("endpoints/{other}/enable"), Some("k"), body).await;
    assert_eq!(elsewhere.problem(), "idempotency_key_reused", "a key is for one endpoint");
    let enabled = api.post(&tenant, &enable, None, body).await;
    assert_eq!(enabled.json()["state"], "enabled", "and it stays so");
    let audited = format!(
        "SELECT count(*) FROM laneway_control.audit_log WHERE action = 'endpoint.enable' AND object = '{id}' \
         AND detail->>'reason' = 'it is back' AND actor = 'key {}'",
        tenant.key.split('_').nth(2).unwrap()
    );
    assert_eq!(api.count(&audited).await, 1);
}

#[tokio::test]
async fn what_cannot_be_enabled_is_refused_and_nothing_is_stored() {
    use laneway_store::keys::Scope;
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let id = api.endpoint(&tenant).await;
    endpoint_disable(&api.pool, id.parse().unwrap(), "gone", "deliver").await.unwrap();
    let before = api.stored().await;
    let enable = format!("endpoints/{id}/enable");
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(1_001));
    for (body, code) in [
        ("{}", "field_missing"),
        (r#"{"reason":""}"#, "reason_not_valid"),
        (r#"{"reason":"a\u0000b"}"#, "reason_not_valid"),
        (&long, "reason_not_valid"),
        (r#"{"reason":1}"#, "wrong_type"),
        (r#"{"reason":null}"#, "wrong_type"),
    ] {
        let answer = api.post(&tenant, &enable, Some("k"), body.as_bytes()).await;
        assert_eq!(answer.problem(), "body_not_valid", "{body}");
        assert_eq!(answer.field_errors(), [("/reason".to_owned(), code.to_owned())], "{body}");
    }
    let body = br#"{"reason":"r"}"#;
    for nothing in ["endpoints/ep_0000000000000000000001/enable", "endpoints/evt_1/enable"] {
        assert_eq!(api.post(&tenant, nothing, Some("k"), body).await.problem(), "not_found");
    }
    assert_eq!(api.stored().await, before);
    let reader = api.tenant_with(&[Scope::EndpointsRead]).await;
    assert_eq!(api.post(&reader, &enable, None, body).await.problem(), "scope_missing");
}
