//! Dead letters and commands over them, as a client sees them (C10, I32, I44). Working them off is the reconciler's.

use crate::support::{Api, Tenant, dead_letter};
use laneway_store::keys::Scope;
use laneway_testkit::{Stack, sql};
use laneway_wire::{DeliveryId, EventId};
use serde_json::json;
use std::time::Duration;

async fn dead(api: &Api, tenant: &Tenant, count: u32) -> (String, Vec<DeliveryId>) {
    let endpoint = api.endpoint(tenant).await;
    let mut ids = Vec::new();
    for n in 0..count {
        let event = EventId::from_uuid(uuid::Uuid::from_u128(
            0x019a_d2f0_0000_7000_8000_0000_0000_0000 + u128::from(n),
        ));
        ids.push(dead_letter(api, tenant, endpoint.parse().unwrap(), event, n % 2).await);
    }
    (endpoint, ids)
}

#[tokio::test]
async fn dead_letters_are_listed_by_filter_in_pages_and_shown() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let (endpoint, ids) = dead(&api, &tenant, 5).await;
    let page = api.get(&tenant, "dead-letters?limit=3").await.json();
    let listed = |page: &serde_json::Value| -> Vec<String> {
        let data = page["data"].as_array().unwrap();
        data.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&page), [ids[4], ids[3], ids[2]].map(|id| id.to_string()));
    let cursor = page["nextCursor"].as_str().unwrap();
    let rest = api.get(&tenant, &format!("dead-letters?limit=3&cursor={cursor}")).await.json();
    assert_eq!(listed(&rest), [ids[1], ids[0]].map(|id| id.to_string()));
    for (filter, wanted) in [
        (format!("endpointId={endpoint}"), 5),
        ("key=user-1".to_owned(), 2),
        ("eventType=order.*&state=open".to_owned(), 5),
        ("cause=expired".to_owned(), 0),
        ("state=rewound".to_owned(), 0),
        ("until=2020-01-01T00:00:00Z".to_owned(), 0),
        ("since=2020-01-01T00:00:00%2B02:00".to_owned(), 5),
    ] {
        let found = api.get(&tenant, &format!("dead-letters?{filter}")).await.json();
        assert_eq!(listed(&found).len(), wanted, "{filter}");
    }
    for bad in [
        "since=yesterday",
        "lane=xyz",
        "state=gone",
        "endpointId=evt_1",
        "colour=red",
        "key=%00",
        "cause=expird",
        "since=2020-01-02T00:00:00Z&until=2020-01-01T00:00:00Z",
    ] {
        let answer = api.get(&tenant, &format!("dead-letters?{bad}")).await;
        assert_eq!(answer.problem(), "parameter_not_valid", "{bad}");
    }
    let shown = api.get(&tenant, &format!("dead-letters/{}", ids[0])).await.json();
    assert_eq!(
        (&shown["payload"], &shown["payloadBytes"]),
        (&json!("{\"card\": 4711}"), &json!(14))
    );
    assert_eq!(
        (&shown["state"], &shown["cause"], &shown["lastStatus"]),
        (&json!("open"), &json!("rejected"), &json!(422))
    );
}

#[tokio::test]
async fn a_payload_is_shown_only_to_who_may_send_it_again() {
    let api = Api::start().await;
    let tenant = api.tenant_with(&[Scope::DeliveriesRead, Scope::EndpointsWrite]).await;
    let (_, ids) = dead(&api, &tenant, 1).await;
    let answer = api.get(&tenant, &format!("dead-letters/{}", ids[0])).await;
    assert!(!String::from_utf8_lossy(&answer.body).contains("4711"));
    assert_eq!(answer.json()["payload"], json!(null));
    let command = br#"{"action":"rewind","reason":"x"}"#;
    assert_eq!(api.post(&tenant, "rewinds", Some("k"), command).await.problem(), "scope_missing");
}

#[tokio::test]
async fn a_command_is_counted_given_once_and_audited() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let (_, ids) = dead(&api, &tenant, 5).await;
    let before = api.stored().await;
    let dry = br#"{"action":"rewind","reason":"look","dryRun":true,"key":"user-1"}"#;
    let counted = api.post(&tenant, "rewinds", None, dry).await;
    assert_eq!(counted.status, 200);
    assert_eq!((&counted.json()["matched"], &counted.json()["lanes"]), (&json!(2), &json!(1)));
    assert_eq!(api.stored().await, before, "counting changes nothing");

    let body = format!(r#"{{"action":"rewind","reason":"fixed","deliveryIds":["{}"]}}"#, ids[0]);
    assert_eq!(
        api.post(&tenant, "rewinds", None, body.as_bytes()).await.problem(),
        "idempotency_key_missing"
    );
    let first = api.post(&tenant, "rewinds", Some("k1"), body.as_bytes()).await;
    assert_eq!((first.status, &first.json()["matched"]), (202, &json!(1)));
    let again = api.post(&tenant, "rewinds", Some("k1"), body.as_bytes()).await;
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let id = first.json()["id"].as_str().unwrap().to_owned();
    assert!(first.header("location").unwrap().ends_with(&format!("/rewinds/{id}")));
    let actor = format!("key {}", &tenant.key[8..16]);
    assert_eq!(api.get(&tenant, &format!("rewinds/{id}")).await.json()["actor"], json!(actor));
    let audit = format!(
        "SELECT count(*) FROM laneway_control.audit_log WHERE object = '{id}' AND actor = '{actor}' \
         AND action = 'dead_letters.rewind' AND detail->>'reason' = 'fixed'"
    );
    assert_eq!(api.count(&audit).await, 1);

    let reason = br#"{"reason":"wait"}"#;
    for (verb, state) in
        [("pause", "paused"), ("resume", "running"), ("resume", "running"), ("cancel", "cancelled")]
    {
        let answer = api.post(&tenant, &format!("rewinds/{id}/{verb}"), None, reason).await;
        assert_eq!((answer.status, &answer.json()["state"]), (200, &json!(state)), "{verb}");
    }
    let answer = api.post(&tenant, &format!("rewinds/{id}/resume"), None, reason).await;
    assert_eq!((answer.status, answer.problem().as_str()), (409, "rewind_ended"));
    let audit = format!("SELECT count(*) FROM laneway_control.audit_log WHERE object = '{id}'");
    assert_eq!(api.count(&audit).await, 4, "one entry for each thing that was done");
}

#[tokio::test]
async fn a_command_that_is_not_understood_is_refused_with_every_error() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    for (body, errors) in [
        ("{}", vec![("/reason", "field_missing"), ("/action", "field_missing")]),
        (
            r#"{"action":"resend","reason":""}"#,
            vec![("/action", "unknown_value"), ("/reason", "out_of_range")],
        ),
        (
            r#"{"action":"replay","reason":"x"}"#,
            vec![("/endpointId", "field_missing"), ("/since", "field_missing")],
        ),
        (
            r#"{"action":"rewind","reason":"x","deliveryIds":[]}"#,
            vec![("/deliveryIds", "out_of_range")],
        ),
        (
            r#"{"action":"rewind","reason":"x","deliveryIds":["x"]}"#,
            vec![("/deliveryIds", "wrong_type")],
        ),
        (r#"{"action":"rewind","reason":"  "}"#, vec![("/reason", "out_of_range")]),
        (r#"{"action":"rewind","reason":"x","all":true}"#, vec![("/all", "field_unknown")]),
    ] {
        let answer = api.post(&tenant, "rewinds", Some("k"), body.as_bytes()).await;
        assert_eq!((answer.status, answer.problem().as_str()), (422, "body_not_valid"), "{body}");
        let found = answer.field_errors();
        let found: Vec<_> = found.iter().map(|(p, c)| (p.as_str(), c.as_str())).collect();
        assert_eq!(found, errors, "{body}");
    }
}

#[tokio::test]
async fn a_replay_that_can_mean_nothing_is_no_success() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let other = api.tenant().await;
    let (endpoint, foreign) = (api.endpoint(&tenant).await, api.endpoint(&other).await);
    let nobodys = "ep_0000000000000000000001".to_owned();
    for (endpoint, since, wanted) in [
        (&foreign, "2020-01-01T00:00:00Z", (404, "not_found")),
        (&nobodys, "2020-01-01T00:00:00Z", (404, "not_found")),
        (&endpoint, "2120-01-01T00:00:00+02:00", (422, "body_not_valid")),
    ] {
        for dry in [true, false] {
            let body = format!(
                r#"{{"action":"replay","reason":"x","endpointId":"{endpoint}","since":"{since}","dryRun":{dry}}}"#
            );
            let answer = api.post(&tenant, "rewinds", Some("k"), body.as_bytes()).await;
            assert_eq!((answer.status, answer.problem().as_str()), wanted, "{body}");
        }
    }
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.rewinds").await, 0);
}

#[tokio::test]
async fn a_dead_letter_that_was_discarded_is_a_discarded_delivery() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let (_, ids) = dead(&api, &tenant, 2).await;
    let outcomes = "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, \
                    took_ms) SELECT delivery_id, tenant_id, endpoint_id, event_id, 2, 1, 1 FROM laneway_control.dead_letters";
    sql(&api.database, outcomes).await.unwrap();
    let closed = format!(
        "UPDATE laneway_control.dead_letters SET state = 'discarded', closed_at = now() \
         WHERE delivery_id = '{}'",
        ids[0].as_uuid()
    );
    sql(&api.database, &closed).await.unwrap();
    for (id, state) in [(ids[0], "discarded"), (ids[1], "dead_lettered")] {
        let shown = api.get(&tenant, &format!("deliveries/{id}")).await.json();
        assert_eq!(shown["state"], json!(state));
    }
}

#[tokio::test]
async fn what_nobody_would_send_is_refused() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let (endpoint, ids) = dead(&api, &tenant, 1).await;
    let replay = format!(
        r#"{{"action":"replay","reason":"x","endpointId":"{endpoint}","since":"2020-01-01T00:00:00Z"}}"#
    );
    // Delivered, and not in this database's outbox.
    let elsewhere = "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, \
                     took_ms) SELECT delivery_id, tenant_id, endpoint_id, event_id, 1, 1, 1 FROM laneway_control.dead_letters";
    sql(&api.database, elsewhere).await.unwrap();
    let answer = api.post(&tenant, "rewinds", Some("k1"), replay.as_bytes()).await;
    assert_eq!((answer.status, answer.problem().as_str()), (409, "nothing_to_replay"));
    sql(&api.database, "DELETE FROM laneway.relay_members").await.unwrap();
    let rewind = format!(r#"{{"action":"rewind","reason":"x","deliveryIds":["{}"]}}"#, ids[0]);
    let answer = api.post(&tenant, "rewinds", Some("k2"), rewind.as_bytes()).await;
    assert_eq!((answer.status, answer.problem().as_str()), (409, "outbox_not_read"));
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.rewinds").await, 0);
    let discard = rewind.replace("rewind", "discard");
    let answer = api.post(&tenant, "rewinds", Some("k3"), discard.as_bytes()).await;
    assert_eq!(answer.status, 202, "nothing is sent by that");
}

/// A count that would take ten minutes: the server ends a transaction that is silent for five seconds, and the claim's
/// does not wait for it.
#[tokio::test]
async fn a_command_that_cannot_be_counted_in_time_is_given_all_the_same() {
    let database = Stack::shared().await.fresh_database().await;
    let limit = Duration::from_secs(8);
    let api = Api::with(&database, |settings| settings.api.request_timeout = limit).await;
    let tenant = api.tenant().await;
    let endpoint = api.endpoint(&tenant).await;
    let id: laneway_wire::EndpointId = endpoint.parse().unwrap();
    let delivered = format!(
        "SELECT laneway.emit('{t}', 'order.created', 'k', ''); \
         INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
         SELECT laneway_control.first_delivery_id(event_id, '{e}'), '{t}', '{e}', event_id, 1, 1, 1 FROM laneway.outbox; \
         CREATE OR REPLACE FUNCTION laneway_control.first_delivery_id(event uuid, endpoint uuid) RETURNS uuid \
           LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN event; END $$",
        t = tenant.id.as_uuid(),
        e = id.as_uuid()
    );
    sql(&api.database, &delivered).await.unwrap();
    let replay = |dry: bool| {
        format!(
            r#"{{"action":"replay","reason":"x","dryRun":{dry},"endpointId":"{endpoint}","since":"2020-01-01T00:00:00Z"}}"#
        )
    };
    let dry = api.post(&tenant, "rewinds", None, replay(true).as_bytes()).await;
    assert_eq!((dry.status, &dry.json()["matched"]), (200, &json!(null)));
    assert_eq!(dry.json()["unavailable"], json!(null));
    let made = api.post(&tenant, "rewinds", Some("k1"), replay(false).as_bytes()).await;
    assert_eq!(made.status, 202, "{made:?}");
    assert_eq!(
        (&made.json()["matched"], &made.json()["state"], &made.json()["waitsFor"]),
        (&json!(null), &json!("running"), &json!(null))
    );
    let again = api.post(&tenant, "rewinds", Some("k1"), replay(false).as_bytes()).await;
    assert_eq!(again.body, made.body);
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.rewinds").await, 1);
    // While something of the project is being erased, it says so.
    let erasure = format!(
        "INSERT INTO laneway_control.erasures (tenant_id, erasure_id, reason, actor, before) \
         VALUES ('{}', gen_random_uuid(), 'r', 'ann', now())",
        tenant.id.as_uuid()
    );
    sql(&api.database, &erasure).await.unwrap();
    let path = format!("rewinds/{}", made.json()["id"].as_str().unwrap());
    assert_eq!(api.get(&tenant, &path).await.json()["waitsFor"], json!("erasure"));
}
