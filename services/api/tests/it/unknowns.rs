//! Unknown outcomes as a client sees them, and what is said of them. Applying it is deliver's.

use crate::support::{Api, Tenant};
use laneway_store::keys::Scope;
use laneway_testkit::{sql, wait_for};
use laneway_wire::{DeliveryId, EndpointId, EventId};
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

/// Parks a lane behind an unknown outcome of its first event, `age` seconds old; one event waits behind it.
async fn held(api: &Api, tenant: &Tenant, endpoint: &str, n: u8, age: u32) -> DeliveryId {
    let event = EventId::from_uuid(Uuid::from_u128(
        0x019a_d2f0_0000_7000_8000_0000_0000_0000 + u128::from(n),
    ));
    let endpoint: EndpointId = endpoint.parse().unwrap();
    let delivery = DeliveryId::first(event, endpoint);
    let (tenant, endpoint) = (tenant.id.as_uuid(), endpoint.as_uuid());
    let lane = format!("{n:032x}");
    let statement = format!(
        "INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, \
           reason, due, head_held, unknown, unknown_since) \
         VALUES ('\\x{lane}', 7, 3, '{tenant}', '{endpoint}', 1, 'user-{n}', 'unknown', now(), now(), true, \
           now() - make_interval(secs => {age})); \
         INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, \
           tenant_id, endpoint_id, event_id, first_held, attempts, record) \
         VALUES (7, '{}', '\\x{lane}', 1, 0, 5, '{tenant}', '{endpoint}', '{}', now(), 2, ''), \
           (7, gen_random_uuid(), '\\x{lane}', 1, 0, 9, '{tenant}', '{endpoint}', gen_random_uuid(), now(), 0, '')",
        delivery.as_uuid(),
        event.as_uuid(),
    );
    sql(&api.database, &statement).await.unwrap();
    delivery
}

fn ids(page: &Value) -> Vec<String> {
    let data = page["data"].as_array().unwrap();
    data.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn unknown_outcomes_are_listed_in_pages_the_oldest_first() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let endpoint = api.endpoint(&tenant).await;
    let mut made = Vec::new();
    for (n, age) in [(1, 300), (2, 200), (3, 200), (4, 100)] {
        made.push(held(&api, &tenant, &endpoint, n, age).await.to_string());
    }
    // Two of the same age: a page ends between them.
    let same = "UPDATE laneway_control.parked_lanes SET unknown_since = '2026-01-01T00:00:00.123Z' \
                WHERE user_key IN ('user-2', 'user-3')";
    sql(&api.database, same).await.unwrap();
    let wanted = [&made[1], &made[2], &made[0], &made[3]];
    let mut found = Vec::new();
    let mut path = "unknowns?limit=1".to_owned();
    for _ in 0..4 {
        let page = api.get(&tenant, &path).await.json();
        found.extend(ids(&page));
        path = format!("unknowns?limit=1&cursor={}", page["nextCursor"].as_str().unwrap_or("-"));
    }
    assert_eq!(found.iter().collect::<Vec<_>>(), wanted);
    assert!(path.ends_with("cursor=-"), "the last page has no next");
    let row = &api.get(&tenant, "unknowns").await.json()["data"][0];
    assert_eq!(
        (&row["waitingBehind"], &row["attempts"], &row["decided"], &row["asked"], &row["key"]),
        (&json!(1), &json!(2), &json!(false), &json!(null), &json!("user-2"))
    );
    let other = format!("unknowns?endpointId={}", api.endpoint(&tenant).await);
    assert!(ids(&api.get(&tenant, &other).await.json()).is_empty());
    for bad in ["endpointId=x", "limit=0", "colour=red"] {
        let answer = api.get(&tenant, &format!("unknowns?{bad}")).await;
        assert_eq!(answer.problem(), "parameter_not_valid", "{bad}");
    }
}

#[tokio::test]
async fn an_unknown_is_resolved_once_with_a_reason_and_its_answer_is_shown() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let endpoint = api.endpoint(&tenant).await;
    let delivery = held(&api, &tenant, &endpoint, 1, 60).await;
    let path = format!("unknowns/{delivery}/resolutions");
    for (bad, code) in [
        ("{}", "body_not_valid"),
        (r#"{"verdict":"maybe","reason":"x"}"#, "body_not_valid"),
        (r#"{"verdict":"erase","reason":"x"}"#, "body_not_valid"),
        (r#"{"verdict":"delivered","reason":""}"#, "body_not_valid"),
        (r#"{"verdict":"delivered","reason":"x","force":true}"#, "body_not_valid"),
        ("[", "body_not_json"),
    ] {
        assert_eq!(api.post(&tenant, &path, None, bad.as_bytes()).await.problem(), code, "{bad}");
    }
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.commands").await, 0);

    let body = br#"{"verdict":"given_up","reason":"they have no records"}"#;
    let written = api.post(&tenant, &path, None, body).await;
    assert_eq!(written.status, 202, "{written:?}");
    let shown = written.json();
    assert_eq!(
        (&shown["verdict"], &shown["reason"], &shown["result"]),
        (&json!("given_up"), &json!("they have no records"), &json!(null))
    );
    let actor = shown["actor"].as_str().unwrap();
    assert!(actor.starts_with("key "), "{actor}");
    assert_eq!(api.post(&tenant, &path, None, body).await.problem(), "resolution_waits");
    assert_eq!(api.get(&tenant, "unknowns").await.json()["data"][0]["decided"], json!(true));
    let audit = format!(
        "SELECT count(*) FROM laneway_control.audit_log WHERE actor = '{actor}' AND action = 'unknown.resolve' \
         AND object = '{delivery}' AND detail ->> 'verdict' = 'given_up'"
    );
    assert_eq!(api.count(&audit).await, 1);

    // The lane's owner answers.
    let answered = "UPDATE laneway_control.commands SET applied_at = now(), result = 'applied'; \
                    INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, class, \
                      took_ms, ended_at) \
                    SELECT delivery_id, tenant_id, endpoint_id, 1, 3, 'timeout', 1, now() \
                    FROM laneway_control.parked_events; \
                    DELETE FROM laneway_control.parked_events; DELETE FROM laneway_control.parked_lanes";
    sql(&api.database, answered).await.unwrap();
    let list = api.get(&tenant, &path).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&list["data"][0]["number"], &list["data"][0]["result"]),
        (&shown["number"], &json!("applied"))
    );
    assert!(list["data"][0]["appliedAt"].is_string());
    assert_eq!(api.post(&tenant, &path, None, body).await.problem(), "not_unknown");
}

/// Both are behind the same lock when neither has written anything.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_say_something_at_once_one_is_heard() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let endpoint = api.endpoint(&tenant).await;
    let delivery = held(&api, &tenant, &endpoint, 1, 60).await;
    let url = api.database.clone();
    let holder = tokio::spawn(async move {
        let hold = "BEGIN; SELECT FROM laneway_control.parked_lanes FOR NO KEY UPDATE; SELECT pg_sleep(600)";
        let _ = sql(&url, hold).await;
    });
    let sessions = |condition: &str| {
        format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
        )
    };
    let wait = async |condition: &str, wanted: i64| {
        wait_for(condition, Duration::from_secs(20), || async {
            api.count(&sessions(condition)).await == wanted
        })
        .await;
    };
    wait("wait_event = 'PgSleep'", 1).await;
    let path = format!("unknowns/{delivery}/resolutions");
    let say = |verdict: &str| {
        let body = format!(r#"{{"verdict":"{verdict}","reason":"so it was"}}"#);
        let (api, tenant, path) = (&api, &tenant, &path);
        async move { api.post(tenant, path, None, body.as_bytes()).await.status }
    };
    let release = async {
        wait("wait_event_type = 'Lock'", 2).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event = 'PgSleep'";
        sql(&api.database, end).await.unwrap();
    };
    let (one, other, ()) = tokio::join!(say("delivered"), say("not_applied"), release);
    let mut answers = [one, other];
    answers.sort_unstable();
    assert_eq!(answers, [202, 409]);
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.commands").await, 1);
    holder.await.unwrap();
}

#[tokio::test]
async fn only_a_key_of_the_project_with_the_scope_says_anything() {
    let api = Api::start().await;
    let tenant = api.tenant_with(&[Scope::DeliveriesRead, Scope::EndpointsWrite]).await;
    let endpoint = api.endpoint(&tenant).await;
    let delivery = held(&api, &tenant, &endpoint, 1, 60).await;
    let path = format!("unknowns/{delivery}/resolutions");
    let body = br#"{"verdict":"delivered","reason":"x"}"#;
    assert_eq!(api.post(&tenant, &path, None, body).await.problem(), "scope_missing");
    let other = api.tenant().await;
    assert_eq!(api.post(&other, &path, None, body).await.problem(), "not_found");
    assert!(ids(&api.get(&other, "unknowns").await.json()).is_empty());
    assert_eq!(api.get(&other, &path).await.problem(), "not_found");
    let none = api.get(&tenant, &path).await.json();
    assert!(none["data"].as_array().unwrap().is_empty(), "nothing was said yet");
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.commands").await, 0);
}
