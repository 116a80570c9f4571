//! The contract for writers: emit, emit_many, dedupe keys, rights, refusals.

use super::{LIMIT, World};
use laneway_store::source::source_grant;
use laneway_testkit::{sql, wait_for};
use std::collections::BTreeSet;

const TENANT: &str = "00000000-0000-7000-8000-000000000001";

#[tokio::test(flavor = "multi_thread")]
async fn emit_writes_one_row_and_gives_its_id() {
    let world = World::new().await;
    let id = world
        .text(&format!("SELECT laneway.emit('{TENANT}', 'order.created', 'u1', '{{}}')"))
        .await;
    let row = world.sql("SELECT event_id, user_key, content_type, headers, xid > '0', shard FROM laneway.outbox").await;
    let row: Vec<_> = row[0].iter().map(|value| value.as_deref()).collect();
    assert_eq!(
        row[..5],
        [Some(id.as_str()), Some("u1"), Some("application/json"), None, Some("t")]
    );
    let id = uuid::Uuid::parse_str(&id).unwrap();
    assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
    let (seconds, _) = id.get_timestamp().unwrap().to_unix();
    let now: f64 = world.text("SELECT extract(epoch FROM now())").await.parse().unwrap();
    assert!((now - seconds as f64).abs() < 60.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_never_be_published_is_refused_with_a_clear_error() {
    let world = World::new().await;
    for (arguments, constraint) in [
        ("'a b', 'u', ''", "type_has_1_to_255_of_letters_digits_dot_underscore_hyphen"),
        ("'', 'u', ''", "type_has_1_to_255"),
        ("'a..b', 'u', ''", "type_has_1_to_255"),
        ("'a', '', ''", "user_key_has_1_to_255_bytes_and_no_control_characters"),
        ("'a', E'x\\ny', ''", "user_key_has_1_to_255"),
        ("'a', repeat('ä', 128), ''", "user_key_has_1_to_255"),
        ("'a', 'u', convert_to(repeat('x', 262145), 'UTF8')", "payload_has_at_most_262144_bytes"),
        ("'a', 'u', '', content_type => E'a\\r\\nb'", "content_type_has_1_to_255"),
        ("'a', 'u', '', headers => '[]'", "headers_are_at_most_32"),
        ("'a', 'u', '', headers => '{\"a\": 1}'", "headers_are_at_most_32"),
        ("'a', 'u', '', headers => '{\"a b\": \"1\"}'", "headers_are_at_most_32"),
        ("'a', 'u', '', headers => '{\"a\": \"1\\r\\n2\"}'", "headers_are_at_most_32"),
        ("'a', 'u', '', headers => '{\"Webhook-Id\": \"1\"}'", "headers_are_at_most_32"),
        (
            "'a', 'u', '', headers => (SELECT jsonb_object_agg('h' || n, 'x') FROM generate_series(1, 33) n)",
            "headers_are",
        ),
        (
            "'a', 'u', '', headers => jsonb_build_object('h', repeat('x', 8192))",
            "headers_are_at_most_32",
        ),
        ("'a', 'u', '', traceparent => 'x'", "traceparent_is_a_w3c_trace_context"),
        ("'a', 'u', '', dedupe_key => ''", "dedupe_key_has_1_to_255_bytes"),
    ] {
        let refusal = world.refusal(&format!("SELECT laneway.emit('{TENANT}', {arguments})")).await;
        assert!(
            refusal.contains(constraint) && refusal.contains("23514"),
            "{arguments}: {refusal}"
        );
    }
    assert_eq!(world.text("SELECT count(*) FROM laneway.outbox").await, "0");
    world.sql(&format!("SELECT laneway.emit('{TENANT}', 'a', repeat('ä', 127), convert_to(repeat('x', 262144), 'UTF8'))")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emit_many_writes_in_order_and_gives_the_ids_in_order() {
    let world = World::new().await;
    let ids = world
        .sql(&format!(
            "SELECT unnest(laneway.emit_many('{TENANT}', '{{a,b,c}}', '{{u2,NULL,u1}}', \
             ARRAY['1','2','3']::bytea[], headers => ARRAY[NULL, '{{\"h\":\"v\"}}', NULL]::jsonb[]))"
        ))
        .await;
    let rows = world.sql("SELECT event_id FROM laneway.outbox ORDER BY id").await;
    assert_eq!(ids, rows);
    assert_eq!(world.text("SELECT string_agg(type || coalesce(user_key, '-'), ' ' ORDER BY id) FROM laneway.outbox").await, "au2 b- cu1");
    let refusal = world
        .refusal(&format!(
            "SELECT laneway.emit_many('{TENANT}', '{{a,b}}', '{{u}}', ARRAY['1','2']::bytea[])"
        ))
        .await;
    assert!(refusal.contains("different lengths"), "{refusal}");
    assert_eq!(
        world.text(&format!("SELECT laneway.emit_many('{TENANT}', '{{}}', '{{}}', '{{}}')")).await,
        "{}"
    );
}

/// C2: one event per dedupe key, whoever comes second, also at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_dedupe_key_names_one_event_of_its_tenant() {
    let world = World::new().await;
    let mut writers = Vec::new();
    for writer in 0..8 {
        let url = world.url.clone();
        writers.push(tokio::spawn(async move {
            let statement = format!(
                "SELECT laneway.emit('{TENANT}', 'a', 'u{writer}', 'x', dedupe_key => 'same')"
            );
            sql(&url, &statement).await.unwrap()[0][0].clone().unwrap()
        }));
    }
    let mut ids = BTreeSet::new();
    for writer in writers {
        ids.insert(writer.await.unwrap());
    }
    assert_eq!(ids.len(), 1, "all got the first event's id");
    assert_eq!(world.text("SELECT count(*) FROM laneway.outbox").await, "1");
    let many = world
        .sql(&format!(
            "SELECT unnest(laneway.emit_many('{TENANT}', '{{a,b,c,d}}', '{{u,u,u,u}}', \
             ARRAY['1','2','3','4']::bytea[], dedupe_keys => '{{new,same,new,NULL}}'))"
        ))
        .await;
    let many: Vec<_> = many.into_iter().map(|row| row[0].clone().unwrap()).collect();
    assert_eq!(Some(&many[1]), ids.first());
    assert_eq!(many[0], many[2]);
    assert_eq!(world.text("SELECT count(*) FROM laneway.outbox").await, "3");
    // Another tenant's key is another key; a rolled back one is free again.
    let other = TENANT.replace("01", "02");
    world
        .sql(&format!("SELECT laneway.emit('{other}', 'a', 'u', 'x', dedupe_key => 'same')"))
        .await;
    world.sql(&format!("BEGIN; SELECT laneway.emit('{TENANT}', 'a', 'u', 'x', dedupe_key => 'undone'); ROLLBACK")).await;
    world
        .sql(&format!("SELECT laneway.emit('{TENANT}', 'a', 'u', 'x', dedupe_key => 'undone')"))
        .await;
    assert_eq!(world.text("SELECT count(*) FROM laneway.outbox").await, "5");
}

/// Section 3, contract for writers: ids of one user key follow commits; another key does not wait.
#[tokio::test(flavor = "multi_thread")]
async fn emit_orders_the_writers_of_one_user_key_and_no_others() {
    let world = World::new().await;
    world.sql("CREATE TABLE gate (open boolean)").await;
    let held = |statement: String| {
        let url = world.url.clone();
        tokio::spawn(async move {
            let gate = "DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.02); END LOOP; END $$";
            sql(&url, &format!("BEGIN; {statement}; {gate}; COMMIT")).await.unwrap();
        })
    };
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let granted = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let first = held(format!("SELECT laneway.emit('{TENANT}', 'first', 'u1', 'x')"));
    wait_for("the first to hold its locks", LIMIT, || async { world.text(granted).await == "2" })
        .await;
    let second = held(format!(
        "SELECT laneway.emit_many('{TENANT}', '{{second,second}}', '{{u2,u1}}', ARRAY['1','2']::bytea[])"
    ));
    wait_for("the second to wait", LIMIT, || async { world.text(waiting).await == "1" }).await;
    // Another user key goes through at once.
    world.sql(&format!("SELECT laneway.emit('{TENANT}', 'other', 'u3', 'x')")).await;
    // More than 256 keys take the tenant's lock alone, and wait for everybody of the tenant.
    let many = held(format!(
        "SELECT laneway.emit_many('{TENANT}', array_agg('many'::text), array_agg('k' || n), array_agg('x'::bytea)) \
         FROM generate_series(1, 300) AS n"
    ));
    wait_for("the many to wait", LIMIT, || async { world.text(waiting).await == "2" }).await;
    let elsewhere = TENANT.replace("01", "02");
    world.sql(&format!("SELECT laneway.emit('{elsewhere}', 'elsewhere', 'u1', 'x')")).await;
    assert_eq!(world.text("SELECT count(*) FROM laneway.outbox").await, "2");
    world.sql("INSERT INTO gate VALUES (true)").await;
    for one in [first, second, many] {
        one.await.unwrap();
    }
    let order = "SELECT string_agg(type, ' ' ORDER BY id) FROM laneway.outbox WHERE user_key = 'u1' AND tenant = ";
    assert_eq!(world.text(&format!("{order}'{TENANT}'")).await, "first second");
    assert_eq!(world.text("SELECT count(*) FROM laneway.outbox WHERE type = 'many'").await, "300");
}

/// I39: a writer's role can write events by any of the three ways, and nothing that the promises rest on.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_the_granted_rights_writes_events_and_nothing_more() {
    let world = World::new().await;
    let role = format!("writer_{}", uuid::Uuid::now_v7().simple());
    world.sql(&format!("CREATE ROLE {role} LOGIN")).await;
    let refused = |statement: &str| {
        let statement = format!("SET ROLE {role}; {statement}");
        let url = world.url.clone();
        async move { sql(&url, &statement).await.unwrap_err().root_cause().to_string() }
    };
    let emit = format!("SELECT laneway.emit('{TENANT}', 'a', 'u', 'x', dedupe_key => 'd')");
    assert!(refused(&emit).await.contains("permission denied"));
    source_grant(&world.pool, &role).await.unwrap();
    source_grant(&world.pool, &role).await.unwrap();
    let many = format!(
        "SELECT laneway.emit_many('{TENANT}', '{{a}}', '{{u}}', ARRAY['1']::bytea[], dedupe_keys => '{{e}}')"
    );
    let plain = format!(
        "INSERT INTO laneway.outbox (tenant, type, user_key, payload) VALUES ('{TENANT}', 'a', 'u', 'x')"
    );
    world.sql(&format!("SET ROLE {role}; {emit}; {emit}; {many}; {plain}")).await;
    assert_eq!(world.text("SELECT count(*) FROM laneway.outbox").await, "3");
    for statement in [
        format!(
            "INSERT INTO laneway.outbox (tenant, type, payload, xid) VALUES ('{TENANT}', 'a', 'x', '3')"
        ),
        format!(
            "INSERT INTO laneway.outbox (tenant, type, payload, created_at) VALUES ('{TENANT}', 'a', 'x', now())"
        ),
        format!(
            "INSERT INTO laneway.outbox (id, tenant, type, payload) OVERRIDING SYSTEM VALUE VALUES (1, '{TENANT}', 'a', 'x')"
        ),
        "SELECT payload FROM laneway.outbox".to_owned(),
        "UPDATE laneway.outbox SET payload = ''".to_owned(),
        "DELETE FROM laneway.outbox".to_owned(),
        "UPDATE laneway.outbox_dedupe SET event_id = gen_random_uuid()".to_owned(),
        "SELECT token FROM laneway.relay_cursors".to_owned(),
        "SELECT laneway.grant_writer('postgres')".to_owned(),
    ] {
        let refusal = refused(&statement).await;
        assert!(refusal.contains("permission denied"), "{statement}: {refusal}");
    }
    world.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
