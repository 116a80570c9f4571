//! Lists, pages, and the state of deliveries as put together from what is recorded.

use crate::support::{Api, Tenant};
use laneway_client::{Client, NewEndpoint, NewEvent, NewSubscription};
use laneway_testkit::sql;
use laneway_wire::{DeliveryId, EndpointId, EventId};
use serde_json::value::RawValue;

async fn emit(api: &Api, tenant: &Tenant, key: &str, event_type: &str) -> EventId {
    let body = format!(r#"{{"type":"{event_type}","key":"u","payload":1}}"#);
    let answer = api.post(tenant, "events", Some(key), body.as_bytes()).await;
    answer.json()["id"].as_str().unwrap().parse().unwrap()
}

async fn subscribe(api: &Api, tenant: &Tenant, event_type: &str) -> EndpointId {
    let endpoint = api.endpoint(tenant).await;
    let body = format!(
        r#"{{"endpointId":"{endpoint}","eventType":"{event_type}","orderingEnabled":false}}"#
    );
    let answer = api.post(tenant, "subscriptions", None, body.as_bytes()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    endpoint.parse().unwrap()
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let mut made = Vec::new();
    for _ in 0..7 {
        made.push(api.endpoint(&tenant).await);
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for page in 0..4 {
        let answer = api.get(&tenant, &format!("endpoints?limit=2{cursor}")).await;
        let body = answer.json();
        seen.extend(
            body["data"].as_array().unwrap().iter().map(|e| e["id"].as_str().unwrap().to_owned()),
        );
        assert_eq!(body["nextCursor"].is_null(), page == 3, "{body}");
        assert_eq!(answer.header("link").is_some(), page < 3);
        cursor = format!("&cursor={}", body["nextCursor"].as_str().unwrap_or_default());
    }
    assert_eq!(seen, made);
}

#[tokio::test]
async fn each_state_of_a_delivery_is_told() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let event_before = emit(&api, &tenant, "k0", "order.created").await;
    let mut endpoints = Vec::new();
    for pattern in ["*", "order.*", "order.created", "*", "*", "*", "*", "user.*", "orders.*"] {
        endpoints.push(subscribe(&api, &tenant, pattern).await);
    }
    let event = emit(&api, &tenant, "k1", "order.created").await;
    let (t, e) = (tenant.id.as_uuid(), event.as_uuid());
    let id = |at: usize| DeliveryId::first(event, endpoints[at]);
    let u = |at: usize| id(at).as_uuid();
    let p = |at: usize| endpoints[at].as_uuid();
    let statements = [
        // 0: nothing; 1: failed once, live; 2: delivered at the second attempt
        format!(
            "INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, status, class, took_ms, ended_at, body) VALUES ('{}', '{t}', '{}', 1, 2, 503, 'status', 7, now(), 'down'::bytea), ('{}', '{t}', '{}', 1, 3, NULL, 'timeout', 2000, now(), NULL)",
            u(1),
            p(1),
            u(2),
            p(2)
        ),
        format!(
            "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, status, attempts, took_ms) VALUES ('{}', '{t}', '{}', '{e}', 1, 204, 2, 12), ('{}', '{t}', '{}', '{e}', 2, 404, 1, 3), ('{}', '{t}', '{}', '{e}', 3, NULL, 0, 0)",
            u(2),
            p(2),
            u(3),
            p(3),
            u(4),
            p(4)
        ),
        format!(
            "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, event_type, reason, attempts, last_class, last_status, record, first_held) VALUES ('{t}', '{}', '{e}', '{}', decode(repeat('01', 16), 'hex'), 'order.created', 'rejected', 1, 'rejected', 404, '', now())",
            u(3),
            p(3)
        ),
        // 5: parked, due; 6: unknown, held
        format!(
            "INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, reason, due, head_held, unknown) VALUES (decode(repeat('05', 16), 'hex'), 5, 0, '{t}', '{}', 1, 'u', 'retry', now() + interval '1 min', now(), false), (decode(repeat('06', 16), 'hex'), 6, 0, '{t}', '{}', 1, 'u', 'unknown', now(), now(), true)",
            p(5),
            p(6)
        ),
        format!(
            "INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, tenant_id, endpoint_id, event_id, first_held, attempts, record) VALUES (5, '{}', decode(repeat('05', 16), 'hex'), 1, 0, 1, '{t}', '{}', '{e}', now(), 3, ''), (6, '{}', decode(repeat('06', 16), 'hex'), 1, 0, 1, '{t}', '{}', '{e}', now(), 1, '')",
            u(5),
            p(5),
            u(6),
            p(6)
        ),
    ];
    for statement in &statements {
        sql(&api.database, statement).await.unwrap();
    }
    let client = Client::new(&format!("http://{}", api.address), tenant.id, &tenant.key).unwrap();
    let expected =
        ["waiting", "retrying", "delivered", "dead_lettered", "discarded", "parked", "unknown"];
    let page = client.deliveries_of_event(event, None).await.unwrap();
    assert_eq!(page.data.len(), expected.len(), "{page:#?}");
    for (at, state) in expected.into_iter().enumerate() {
        let listed =
            page.data.iter().find(|delivery| delivery.endpoint_id == endpoints[at]).unwrap();
        assert_eq!((listed.state.as_str(), listed.event_id), (state, Some(event)));
        assert_eq!(&client.delivery_get(id(at)).await.unwrap(), listed);
    }
    let by = |at: usize| page.data.iter().find(|d| d.endpoint_id == endpoints[at]).unwrap();
    assert_eq!(
        (by(1).attempts, by(1).last_status, by(1).last_error.as_deref()),
        (1, Some(503), Some("status"))
    );
    assert_eq!((by(2).attempts, by(2).last_status, by(2).took_ms), (2, Some(204), Some(12)));
    assert!(by(2).settled_at.as_ref().unwrap().ends_with('Z') && by(2).last_error.is_none());
    assert_eq!(
        (by(3).reason.as_deref(), by(3).last_error.as_deref()),
        (Some("rejected"), Some("rejected"))
    );
    assert_eq!((by(5).attempts, by(5).reason.as_deref()), (3, Some("retry")));
    assert!(by(5).next_attempt_at.is_some() && by(6).next_attempt_at.is_none());
    // Pages, attempts, and the success that stands in the inbox alone.
    let first = api.get(&tenant, &format!("deliveries?eventId={event}&limit=4")).await.json();
    let cursor = first["nextCursor"].as_str().unwrap();
    let second = client.deliveries_of_event(event, Some(cursor)).await.unwrap();
    assert_eq!((first["data"].as_array().unwrap().len(), second.data.len()), (4, 3));
    let attempts = client.attempts_list(id(2), None).await.unwrap().data;
    let shown: Vec<_> = attempts.iter().map(|a| (a.number, a.result.as_str(), a.status)).collect();
    assert_eq!(shown, [(1, "unknown", None), (2, "responded", Some(204))]);
    assert_eq!(
        client.attempts_list(id(1), None).await.unwrap().data[0].body.as_deref(),
        Some("down")
    );
    assert_eq!(client.attempts_list(id(0), None).await.unwrap().data, []);
    // An event older than every subscription waits for nobody.
    assert_eq!(client.deliveries_of_event(event_before, None).await.unwrap().data, []);
    let nobody = DeliveryId::first(event_before, endpoints[0]);
    assert_eq!(client.delivery_get(nobody).await.unwrap_err().code(), Some("not_found"));
}

#[tokio::test]
async fn the_client_speaks_the_whole_api() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let client = Client::new(&format!("http://{}/", api.address), tenant.id, &tenant.key).unwrap();
    let new = NewEndpoint {
        url: "https://shop.example/hook?x=1".into(),
        on_unknown: Some("hold".into()),
        timeout_ms: Some(2_000),
        max_connections: Some(4),
        ordering: Some("none".into()),
        ..NewEndpoint::default()
    };
    let made = client.endpoint_create(&new).await.unwrap();
    let read = client.endpoint_get(made.endpoint.id).await.unwrap();
    assert_eq!(read, made.endpoint);
    assert_eq!(
        (read.url.as_str(), read.on_unknown.as_str(), read.timeout_ms),
        ("https://shop.example/hook?x=1", "hold", 2_000)
    );
    assert_eq!(
        (read.max_connections, read.ordering.as_str(), read.state.as_str()),
        (4, "none", "enabled")
    );
    let new = NewSubscription {
        endpoint_id: read.id,
        event_type: "order.*".into(),
        ordering_enabled: None,
    };
    let subscription = client.subscription_create(&new).await.unwrap();
    assert_eq!(client.subscription_get(subscription.id).await.unwrap(), subscription);
    assert_eq!(client.subscriptions_list(None).await.unwrap().data, [subscription]);
    assert_eq!(
        client.endpoints_list(None).await.unwrap().data.as_slice(),
        std::slice::from_ref(&read)
    );
    let payload = RawValue::from_string("{\"n\": 1.0}".into()).unwrap();
    let event =
        NewEvent { r#type: "order.created", key: Some("u"), payload: &payload, dedupe_key: None };
    let id = client.event_create("k", &event).await.unwrap();
    assert_eq!(client.event_create("k", &event).await.unwrap(), id);
    let delivery = &client.deliveries_of_event(id, None).await.unwrap().data[0];
    assert_eq!((delivery.state.as_str(), delivery.endpoint_id), ("waiting", read.id));
    let total = NewSubscription {
        endpoint_id: read.id,
        event_type: "*".into(),
        ordering_enabled: Some(true),
    };
    let refused = client.subscription_create(&total).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_transient()), (Some("ordering_not_available"), false));
}

/// Each change of the routing raises its version, in the order of commits (design section 4).
#[tokio::test]
async fn every_change_of_endpoints_and_subscriptions_raises_the_routing_version() {
    use laneway_store::endpoints::{endpoint_delete, endpoint_get, endpoint_set_enabled};
    use laneway_store::idempotency::{Answer, Work};
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let version = || api.count("SELECT version FROM laneway_control.routing_version");
    let endpoint = subscribe(&api, &tenant, "*").await;
    assert_eq!(version().await, 3);
    let nothing = Answer { status: 204, body: vec![] };
    for (enabled, expected) in [(false, 4), (true, 5)] {
        let mut work = Work::begin(&api.pool, tenant.id).await.unwrap();
        assert!(
            endpoint_set_enabled(&mut work, endpoint, enabled, "test", "because").await.unwrap()
        );
        work.commit(&nothing, None).await.unwrap();
        assert_eq!(version().await, expected);
    }
    let mut work = Work::begin(&api.pool, tenant.id).await.unwrap();
    assert!(endpoint_delete(&mut work, endpoint, "test", "gone").await.unwrap());
    assert!(!endpoint_delete(&mut work, endpoint, "test", "gone").await.unwrap());
    work.commit(&nothing, None).await.unwrap();
    assert_eq!(endpoint_get(&api.pool, tenant.id, endpoint).await.unwrap(), None);
    assert_eq!(api.get(&tenant, &format!("endpoints/{endpoint}")).await.status, 404);
    assert_eq!(
        api.count("SELECT count(*) FROM laneway_control.subscriptions WHERE until_version = 6")
            .await,
        1
    );
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.audit_log").await, 3);
    let body = format!(r#"{{"endpointId":"{endpoint}","eventType":"*"}}"#);
    assert_eq!(api.post(&tenant, "subscriptions", None, body.as_bytes()).await.status, 404);
    // A dropped work has done nothing.
    let before = api.stored().await;
    let mut work = Work::begin(&api.pool, tenant.id).await.unwrap();
    laneway_store::subscriptions::subscription_create(&mut work, endpoint, "*", false)
        .await
        .unwrap();
    drop(work);
    assert_eq!(api.stored().await, before);
}
