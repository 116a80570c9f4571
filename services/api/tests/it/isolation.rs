//! Every route of the OpenAPI document, called with one tenant's key and another's ids: 404, and nothing changed
//! (C13, I39). A route that is not in the table fails the test.

use crate::support::{Api, Tenant, dead_letter};
use laneway_testkit::sql;
use laneway_wire::{DeliveryId, EndpointId, EventId};
use serde_json::Value;
use std::collections::BTreeSet;

const PREFIX: &str = "/api/v1/projects/{project}/";

/// What belongs to the other tenant.
struct Theirs {
    endpoint: String,
    subscription: String,
    event: String,
    delivery: String,
    rewind: String,
}

/// Method, route, and the requests that reach for the other tenant's objects: path and body.
fn table(theirs: &Theirs) -> Vec<(&'static str, &'static str, Vec<(String, String)>)> {
    let Theirs { endpoint, subscription, event, delivery, rewind } = theirs;
    let change = |verb: &str| {
        vec![(format!("rewinds/{rewind}/{verb}"), r#"{"reason":"because"}"#.to_owned())]
    };
    vec![
        // The list and the making of what needs no other object: only the project in the path is foreign.
        ("post", "endpoints", vec![]),
        ("get", "endpoints", vec![]),
        ("get", "subscriptions", vec![]),
        ("post", "events", vec![]),
        ("get", "endpoints/{id}", vec![(format!("endpoints/{endpoint}"), String::new())]),
        (
            "post",
            "endpoints/{id}/enable",
            vec![(format!("endpoints/{endpoint}/enable"), r#"{"reason":"mine"}"#.to_owned())],
        ),
        (
            "post",
            "subscriptions",
            vec![(
                "subscriptions".to_owned(),
                format!(r#"{{"endpointId":"{endpoint}","eventType":"*"}}"#),
            )],
        ),
        (
            "get",
            "subscriptions/{id}",
            vec![(format!("subscriptions/{subscription}"), String::new())],
        ),
        ("get", "deliveries", vec![(format!("deliveries?eventId={event}"), String::new())]),
        ("get", "deliveries/{id}", vec![(format!("deliveries/{delivery}"), String::new())]),
        (
            "get",
            "deliveries/{id}/attempts",
            vec![(format!("deliveries/{delivery}/attempts"), String::new())],
        ),
        (
            "get",
            "endpoints/{id}/authority",
            vec![(format!("endpoints/{endpoint}/authority"), String::new())],
        ),
        (
            "put",
            "endpoints/{id}/authority",
            vec![(
                format!("endpoints/{endpoint}/authority"),
                r#"{"url":"https://evil.example/{idempotencyKey}"}"#.to_owned(),
            )],
        ),
        (
            "delete",
            "endpoints/{id}/authority",
            vec![(format!("endpoints/{endpoint}/authority"), String::new())],
        ),
        ("get", "dead-letters", vec![]),
        ("get", "dead-letters/{id}", vec![(format!("dead-letters/{delivery}"), String::new())]),
        ("post", "rewinds", vec![]),
        ("get", "rewinds", vec![]),
        ("get", "rewinds/{id}", vec![(format!("rewinds/{rewind}"), String::new())]),
        ("post", "rewinds/{id}/pause", change("pause")),
        ("post", "rewinds/{id}/resume", change("resume")),
        ("post", "rewinds/{id}/cancel", change("cancel")),
        ("get", "unknowns", vec![]),
        (
            "post",
            "unknowns/{id}/resolutions",
            vec![(
                format!("unknowns/{delivery}/resolutions"),
                r#"{"verdict":"delivered","reason":"mine"}"#.to_owned(),
            )],
        ),
        (
            "get",
            "unknowns/{id}/resolutions",
            vec![(format!("unknowns/{delivery}/resolutions"), String::new())],
        ),
    ]
}

async fn theirs(api: &Api, tenant: &Tenant) -> Theirs {
    let endpoint = api.endpoint(tenant).await;
    let body = format!(r#"{{"endpointId":"{endpoint}","eventType":"*"}}"#);
    let subscription = api.post(tenant, "subscriptions", None, body.as_bytes()).await.json();
    let event = api.post(tenant, "events", Some("k"), br#"{"type":"a","payload":1}"#).await.json();
    let event = event["id"].as_str().unwrap().to_owned();
    let id: EventId = event.parse().unwrap();
    let endpoint_id: EndpointId = endpoint.parse().unwrap();
    let delivery = DeliveryId::first(id, endpoint_id);
    sql(
        &api.database,
        &format!(
            "INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, status, class, took_ms, ended_at) \
             VALUES ('{}', '{}', '{}', 1, 2, 500, 'status', 3, now())",
            delivery.as_uuid(),
            tenant.id.as_uuid(),
            endpoint_id.as_uuid()
        ),
    )
    .await
    .unwrap();
    let authority = r#"{"url":"https://shop.example/asked/{idempotencyKey}"}"#;
    let path = format!("endpoints/{endpoint}/authority");
    assert_eq!(api.call("put", tenant, &path, authority).await.status, 200);
    dead_letter(api, tenant, endpoint_id, id, 0).await;
    let body = br#"{"action":"rewind","reason":"fixed"}"#;
    let rewind = api.post(tenant, "rewinds", Some("r"), body).await.json();
    let rewind = rewind["id"].as_str().unwrap().to_owned();
    Theirs {
        endpoint,
        subscription: subscription["id"].as_str().unwrap().to_owned(),
        event,
        delivery: delivery.to_string(),
        rewind,
    }
}

#[tokio::test]
async fn every_route_hides_what_belongs_to_another_tenant() {
    let api = Api::start().await;
    let (mine, other) = (api.tenant().await, api.tenant().await);
    let theirs = theirs(&api, &other).await;
    let before = api.stored().await;
    let table = table(&theirs);
    let as_other = Tenant { id: other.id, key: mine.key.clone() };
    let mut tested = BTreeSet::new();
    for (method, route, reaches) in &table {
        tested.insert(((*method).to_owned(), format!("{PREFIX}{route}")));
        // The other's project with my key, objects and all.
        let path = reaches.first().map_or((*route).to_owned(), |(path, _)| path.clone());
        let body = reaches.first().map_or(String::new(), |(_, body)| body.clone());
        let bodies = [
            body,
            r#"{"url":"https://shop.example/"}"#.to_owned(),
            r#"{"type":"a","payload":1}"#.to_owned(),
        ];
        let body = bodies.iter().find(|body| !body.is_empty()).unwrap();
        let body = if ["get", "delete"].contains(method) { "" } else { body };
        let answer = api.call(method, &as_other, &path, body).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (404, "not_found"),
            "{method} {route}"
        );
        // The other's objects in my project.
        for (path, body) in reaches {
            let answer = api.call(method, &mine, path, body).await;
            assert_eq!(
                (answer.status, answer.problem().as_str()),
                (404, "not_found"),
                "{method} {path}"
            );
            assert!(!String::from_utf8_lossy(&answer.body).contains("shop.example"));
        }
    }
    assert_eq!(api.stored().await, before);
    // And their owner sees all of it.
    assert_eq!(
        api.get(&other, &format!("deliveries/{}/attempts", theirs.delivery)).await.status,
        200
    );
    assert_eq!(
        api.get(&other, &format!("deliveries?eventId={}", theirs.event)).await.json()["data"][0]["state"],
        "retrying"
    );
    for list in ["endpoints", "subscriptions", "dead-letters", "rewinds"] {
        assert_eq!(api.get(&mine, list).await.json()["data"], Value::Array(vec![]));
        assert_eq!(api.get(&other, list).await.json()["data"].as_array().unwrap().len(), 1);
    }
    let document: Value = serde_json::from_str(&laneway_api::openapi_json()).unwrap();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone()))
        })
        .collect();
    assert_eq!(tested, described, "the table has every route and no other");
}

#[tokio::test]
async fn a_cursor_of_another_tenant_leads_nowhere() {
    let api = Api::start().await;
    let (mine, other) = (api.tenant().await, api.tenant().await);
    for _ in 0..2 {
        api.endpoint(&other).await;
    }
    let page = api.get(&other, "endpoints?limit=1").await.json();
    let cursor = page["nextCursor"].as_str().unwrap().to_owned();
    assert_eq!(api.get(&other, &format!("endpoints?cursor={cursor}")).await.status, 200);
    let answer = api.get(&mine, &format!("endpoints?cursor={cursor}")).await;
    assert_eq!(answer.problem(), "cursor_not_valid");
}
