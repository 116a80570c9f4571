//! Projects, keys, and what operators look at. Rows of delivery are written by hand: only their readers are tested.

use super::Installed;
use serde_json::Value;

const ENDPOINT: &str = "019ad2f0-1111-7000-8000-000000000002";
const DELIVERY: &str = "019ad2f0-0000-8000-8000-0000000000d1";
const LANE: &str = "00112233445566778899aabbccddeeff";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn schemas_are_installed_again_without_a_change() {
    let installed = Installed::new().await;
    installed.run(&["migrate"]).ok();
    assert_eq!(installed.run(&["source", "install", "-q"]).err(), "");
}

#[tokio::test]
async fn projects_and_keys_are_made_listed_and_revoked() {
    let installed = Installed::new().await;
    assert!(installed.project.starts_with("prj_"), "{}", installed.project);
    let listed = json(&installed.run(&["projects", "list", "-o", "json"]).ok());
    assert_eq!(listed[0]["id"], installed.project.as_str());
    assert_eq!(listed[0]["name"], "shop");

    let scopes = ["--scope", "events:write", "--scope", "deliveries:read"];
    let mut args = vec!["keys", "create", "-o", "json", "--project", &installed.project];
    args.extend(scopes);
    let made = json(&installed.run(&args).ok());
    assert!(made["key"].as_str().unwrap().starts_with("lw_live_"));
    assert_eq!(made["scopes"], serde_json::json!(["events:write", "deliveries:read"]));
    let bare = installed.run(&["keys", "create", "--project", &installed.project]).ok();
    assert_eq!(bare.trim().len(), "lw_live_".len() + 8 + 1 + 32);

    let id = made["id"].as_str().unwrap();
    installed.run(&["keys", "revoke", id, "--project", &installed.project]).ok();
    installed.run(&["keys", "revoke", id, "--project", &installed.project]).fails(3);
    let listed = installed.run(&["keys", "list", "--project", &installed.project]).ok();
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(!listed.contains(bare.trim()), "{listed}");
    let nobody = "prj_0000000000000000000001";
    let told = installed.run(&["keys", "create", "--project", nobody]).fails(3);
    assert!(told.contains(nobody), "{told}");
}

#[tokio::test]
async fn nothing_that_waits_is_an_empty_list() {
    let installed = Installed::new().await;
    for noun in ["lanes", "unknowns", "dead-letters"] {
        let table = installed.run(&[noun, "list"]).ok();
        assert_eq!(table.lines().count(), 1, "{noun}: {table}");
        assert_eq!(installed.run(&[noun, "list", "--no-headers"]).ok(), "", "{noun}");
        assert_eq!(json(&installed.run(&[noun, "list", "-o", "json"]).ok()), json("[]"), "{noun}");
    }
    installed.run(&["lanes", "show", LANE]).fails(3);
    installed.run(&["deliveries", "show", DELIVERY]).fails(3);
}

/// I24.
#[tokio::test]
async fn an_endpoint_that_answered_410_is_found_and_enabled_with_an_audit_entry() {
    let installed = Installed::new().await;
    let project = ["--project", installed.project.as_str()];
    installed
        .sql(&format!(
            "INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, timeout_ms, secret, since_version, \
               state, state_reason) \
             SELECT tenant_id, '{ENDPOINT}', 'https://shop.example/', 2000, '', 1, 'disabled', 'gone' \
             FROM laneway_control.projects"
        ))
        .await;
    let list = [&["endpoints", "list", "-o", "json"], &project[..]].concat();
    let listed = json(&installed.run(&list).ok());
    let id = listed[0]["id"].as_str().unwrap();
    assert_eq!(
        (&listed[0]["state"], &listed[0]["stateReason"]),
        (&"disabled".into(), &"gone".into())
    );
    let enable = |id, reason| {
        let args = ["endpoints", "enable", id, "--reason", reason, "--actor", "ann"];
        installed.run(&[&args, &project[..]].concat())
    };
    enable(id, "").fails(2);
    enable("ep_0000000000000000000001", "it is back").fails(3);
    let told = enable(id, "it is back").err();
    assert!(told.contains("enabled"), "{told}");
    assert!(enable(id, "it is back").err().contains("already"));
    let listed = json(&installed.run(&list).ok());
    assert_eq!((&listed[0]["state"], &listed[0]["stateReason"]), (&"enabled".into(), &Value::Null));
    let audited = "SELECT actor, detail->>'reason' FROM laneway_control.audit_log WHERE action = 'endpoint.enable'";
    let audited = installed.sql(audited).await;
    assert_eq!(audited, [[Some("ann".to_owned()), Some("it is back".to_owned())]]);
}

/// A lane whose head is a held unknown after two attempts, with one event behind it.
async fn held_unknown(installed: &Installed) {
    let tenant = installed.sql("SELECT tenant_id FROM laneway_control.projects").await;
    let tenant = tenant[0][0].clone().unwrap();
    installed
        .sql(&format!(
            "INSERT INTO laneway_control.parked_lanes (lane, bucket, partition, tenant_id, endpoint_id, mode, user_key, \
               reason, due, head_held, unknown, unknown_since) \
             VALUES ('\\x{LANE}', 7, 3, '{tenant}', '{ENDPOINT}', 1, 'user-1', 'unknown', now(), now(), true, now()); \
             INSERT INTO laneway_control.parked_events (bucket, delivery_id, lane, generation, moves, log_offset, \
               tenant_id, endpoint_id, event_id, first_held, attempts, record) \
             VALUES (7, '{DELIVERY}', '\\x{LANE}', 1, 0, 5, '{tenant}', '{ENDPOINT}', gen_random_uuid(), now(), 2, ''), \
               (7, gen_random_uuid(), '\\x{LANE}', 1, 0, 9, '{tenant}', '{ENDPOINT}', gen_random_uuid(), now(), 0, ''); \
             INSERT INTO laneway_control.attempts (delivery_id, tenant_id, endpoint_id, number, kind, status, class, \
               took_ms, ended_at, body) \
             VALUES ('{DELIVERY}', '{tenant}', '{ENDPOINT}', 1, 2, 503, 'status_5xx', 12, now(), 'busy'), \
               ('{DELIVERY}', '{tenant}', '{ENDPOINT}', 2, 3, NULL, 'timeout', 2000, now(), NULL)"
        ))
        .await;
}

#[tokio::test]
async fn a_lane_that_waits_is_listed_and_shown_with_its_events() {
    let installed = Installed::new().await;
    held_unknown(&installed).await;
    let listed = json(&installed.run(&["lanes", "list", "-o", "json"]).ok());
    assert_eq!(listed[0]["lane"], LANE);
    assert_eq!(listed[0]["waiting"], 2);
    assert_eq!(listed[0]["attempts"], 2);
    let table = installed.run(&["lanes", "list", "--project", &installed.project]).ok();
    assert!(table.contains("user-1") && table.contains(LANE), "{table}");
    let shown = json(&installed.run(&["lanes", "show", LANE, "-o", "json"]).ok());
    assert_eq!(shown["events"].as_array().unwrap().len(), 2);
    assert_eq!(shown["nextTry"], Value::Null);
    let other = ["lanes", "list", "--no-headers", "--project", "prj_0000000000000000000001"];
    assert_eq!(installed.run(&other).ok(), "");
}

#[tokio::test]
async fn a_delivery_is_shown_with_its_attempts() {
    let installed = Installed::new().await;
    held_unknown(&installed).await;
    let shown = json(&installed.run(&["deliveries", "show", DELIVERY, "-o", "json"]).ok());
    assert_eq!(shown["state"], "unknown");
    assert_eq!(shown["attempts"], 2);
    assert_eq!(shown["history"][0]["status"], 503);
    assert_eq!(shown["history"][0]["body"], "busy");
    assert_eq!(shown["history"][1]["class"], "timeout");
    let table = installed.run(&["deliveries", "show", DELIVERY]).ok();
    assert!(table.contains("status_5xx"), "{table}");
}

#[tokio::test]
async fn an_unknown_is_resolved_once_by_a_command_with_an_audit_row() {
    let installed = Installed::new().await;
    held_unknown(&installed).await;
    let listed = json(&installed.run(&["unknowns", "list", "-o", "json"]).ok());
    assert_eq!(listed[0]["waitingBehind"], 1);
    assert_eq!(listed[0]["decided"], false);
    let delivery = listed[0]["deliveryId"].as_str().unwrap().to_owned();
    let resolve = [
        "unknowns",
        "resolve",
        &delivery,
        "--as",
        "not-applied",
        "--reason",
        "asked them",
        "--actor",
        "ada",
        "--no-wait",
    ];
    installed.run(&resolve).ok();
    let command = installed
        .sql("SELECT verdict, reason, actor, bucket, encode(lane, 'hex') FROM laneway_control.commands")
        .await;
    let texts: Vec<&str> = command[0].iter().flatten().map(String::as_str).collect();
    assert_eq!(texts, ["not_applied", "asked them", "ada", "7", LANE]);
    let audit = installed.sql("SELECT actor, action, object FROM laneway_control.audit_log").await;
    let texts: Vec<&str> = audit[0].iter().flatten().map(String::as_str).collect();
    assert_eq!(texts, ["ada", "unknown.resolve", &delivery]);
    installed.run(&resolve).fails(5);
    let listed = json(&installed.run(&["unknowns", "list", "-o", "json"]).ok());
    assert_eq!(listed[0]["decided"], true);
}

#[tokio::test]
async fn an_audit_of_nothing_is_refused() {
    let installed = Installed::new().await;
    for more in [
        &["--window", "0s"][..],
        &["--window", "5m"],
        &["--window", "91d"],
        &["--settled", "0s"],
        &["--settled", "24h"],
    ] {
        installed.run(&[&["audit"], more].concat()).fails(2);
    }
    installed.run(&["audit", "--window", "11m"]).ok();
    let nobody = ["erase", "--project", &installed.project, "--user-key", "", "--dry-run"];
    let told = installed.run(&nobody).fails(2);
    assert!(told.contains("--user-key is empty"), "{told}");
}

#[tokio::test]
async fn what_is_settled_and_what_nobody_knows_of_are_two_things() {
    let installed = Installed::new().await;
    let ids = three_dead_letters(&installed).await;
    installed
        .sql(
            "INSERT INTO laneway_control.inbox (delivery_id, tenant_id, endpoint_id, event_id, outcome, attempts, took_ms) \
             SELECT delivery_id, tenant_id, endpoint_id, event_id, 2, 1, 1 FROM laneway_control.dead_letters",
        )
        .await;
    let resolve = |id: &str, reason: &str| {
        let args = ["unknowns", "resolve", id, "--as", "delivered", "--reason", reason];
        installed.run(&args)
    };
    resolve(&ids[0], "seen").fails(5);
    resolve("dlv_0000000000000000000001", "seen").fails(3);
    resolve(&ids[0], "  ").fails(2);
}

#[tokio::test]
async fn only_a_held_unknown_can_be_resolved_and_the_answer_of_the_owner_is_told() {
    let installed = Installed::new().await;
    held_unknown(&installed).await;
    let nothing = "dlv_0000000000000000000001";
    let args = ["unknowns", "resolve", nothing, "--as", "delivered", "--reason", "seen"];
    installed.run(&args).fails(3);
    // The owner is played by a statement that waits for the command.
    let url = installed.url.clone();
    let owner = tokio::spawn(async move {
        laneway_testkit::wait_for("the command", std::time::Duration::from_secs(20), || async {
            let applied = laneway_testkit::sql(
                &url,
                "UPDATE laneway_control.commands SET applied_at = now(), result = 'applied' RETURNING 1",
            );
            !applied.await.unwrap().is_empty()
        })
        .await;
    });
    let args = ["unknowns", "resolve", DELIVERY, "--as", "delivered", "--reason", "seen"];
    let ended = tokio::task::spawn_blocking(move || installed.run(&args)).await.unwrap();
    assert!(ended.err().contains("applied"), "{}", ended.err());
    ended.ok();
    owner.await.unwrap();
}

#[tokio::test]
async fn dead_letters_are_listed_newest_first() {
    let installed = Installed::new().await;
    installed
        .sql(&format!(
            "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, user_key, \
               event_type, reason, attempts, first_class, last_class, last_status, record, first_held, dead_at) \
             SELECT tenant_id, gen_random_uuid(), gen_random_uuid(), '{ENDPOINT}', '\\x{LANE}', 'user-' || n, \
               'order.created', 'rejected', 1, 'rejected', 'rejected', 422, '', now(), now() + n * interval '1 s' \
             FROM laneway_control.projects, generate_series(1, 3) n"
        ))
        .await;
    let listed = json(&installed.run(&["dead-letters", "list", "--limit", "2", "-o", "json"]).ok());
    let keys: Vec<&str> =
        listed.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["user-3", "user-2"]);
    assert_eq!(listed[0]["lastStatus"], 422);
    let id = listed[0]["deliveryId"].as_str().unwrap();
    let shown = json(&installed.run(&["dead-letters", "show", id, "--payload", "-o", "json"]).ok());
    assert_eq!((&shown["unreadable"], &shown["recordBytes"]), (&"empty".into(), &0.into()));
}

/// Dead letters with records that can be read; gives their ids, oldest first.
async fn three_dead_letters(installed: &Installed) -> Vec<String> {
    let tenant = installed.sql("SELECT tenant_id FROM laneway_control.projects").await;
    let tenant: laneway_wire::TenantId = tenant[0][0].clone().unwrap().parse().unwrap();
    let endpoint: laneway_wire::EndpointId = ENDPOINT.parse().unwrap();
    installed
        .sql(&format!(
            "INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, timeout_ms, secret, since_version) \
             VALUES ('{}', '{ENDPOINT}', 'http://127.0.0.1:1/', 2000, '', 1)",
            tenant.as_uuid()
        ))
        .await;
    let mut ids = Vec::new();
    for n in 1..=3u8 {
        let event = laneway_wire::EventId::from_uuid(uuid_of(n));
        let delivery = laneway_wire::DeliveryId::first(event, endpoint);
        let record = laneway_wire::Record {
            head: laneway_wire::record::Head {
                generation: 1,
                delivery: delivery.as_uuid(),
                event: event.as_uuid(),
                endpoint: endpoint.as_uuid(),
                tenant: tenant.as_uuid(),
                mode: laneway_wire::LaneMode::User,
                user_key: Some(format!("user-{n}")),
                event_type: "order.created".into(),
                content_type: "application/json".into(),
                headers: vec![],
                traceparent: None,
                source: "app".into(),
                row: 1,
                created_at: laneway_wire::Timestamp(1),
                replay: 0,
                replay_of: None,
                erased: false,
            },
            payload: b"{\"card\": 4711}".as_slice().into(),
        };
        let bytes: String = record.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        installed
            .sql(&format!(
                "INSERT INTO laneway_control.dead_letters (tenant_id, delivery_id, event_id, endpoint_id, lane, \
                   user_key, event_type, reason, attempts, last_status, record, first_held) \
                 VALUES ('{}', '{}', '{}', '{ENDPOINT}', '\\x{}', 'user-{n}', 'order.created', 'rejected', 1, 422, \
                   '\\x{bytes}', now())",
                tenant.as_uuid(),
                delivery.as_uuid(),
                event.as_uuid(),
                record.head.lane()
            ))
            .await;
        ids.push(delivery.to_string());
    }
    ids
}

fn uuid_of(n: u8) -> uuid::Uuid {
    uuid::Uuid::from_u128(0x019a_d2f0_0000_7000_8000_0000_0000_0000 + u128::from(n))
}

#[tokio::test]
async fn a_dead_letter_shows_its_payload_only_when_it_is_asked_for() {
    let installed = Installed::new().await;
    let ids = three_dead_letters(&installed).await;
    let shown = installed.run(&["dead-letters", "show", &ids[0], "-o", "json"]).ok();
    assert!(!shown.contains("4711"), "{shown}");
    assert_eq!(json(&shown)["payloadBytes"], 14);
    assert_eq!(json(&shown)["state"], "open");
    let shown = installed.run(&["dead-letters", "show", &ids[0], "--payload"]).ok();
    assert!(shown.contains("4711"), "{shown}");
    installed.run(&["dead-letters", "show", DELIVERY]).fails(3);
}

#[tokio::test]
async fn a_command_over_dead_letters_is_counted_confirmed_written_and_audited() {
    let installed = Installed::new().await;
    let ids = three_dead_letters(&installed).await;
    let project = installed.project.clone();
    let dry = ["dead-letters", "rewind", "--project", &project, "--dry-run", "-o", "json"];
    let counted = json(&installed.run(&dry).ok());
    assert_eq!((&counted["matched"], &counted["lanes"]), (&3.into(), &3.into()));
    let one = ["dead-letters", "rewind", &ids[0], "--project", &project, "--dry-run", "-o", "json"];
    assert_eq!(json(&installed.run(&one).ok())["matched"], 1);

    let unconfirmed = ["dead-letters", "rewind", "--project", &project, "--reason", "fixed"];
    let told = installed.run(&unconfirmed).fails(4);
    assert!(told.contains("outbox_not_read"), "nobody would send them: {told}");
    installed.sql("INSERT INTO laneway.relay_members (instance) VALUES ('relay-1')").await;
    let told = installed.run(&unconfirmed).fails(4);
    assert!(told.contains("matched 3 dead letters in 3 lanes") && told.contains("--yes"), "{told}");
    let rewinds = "SELECT count(*) FROM laneway_control.rewinds";
    assert_eq!(installed.sql(rewinds).await[0][0].as_deref(), Some("0"));

    let mut args = unconfirmed.to_vec();
    args.extend(["--yes", "--no-wait", "--actor", "ada"]);
    let id = installed.run(&args).ok().trim().to_owned();
    assert!(id.starts_with("rwd_"), "{id}");
    let shown = json(&installed.run(&["rewind", "show", &id, "-o", "json"]).ok());
    assert_eq!((&shown["state"], &shown["matched"]), (&"running".into(), &3.into()));
    for (verb, state) in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")] {
        let args = ["rewind", verb, &id, "--reason", "wait", "--actor", "ada", "-o", "json"];
        assert_eq!(json(&installed.run(&args).ok())["state"], state);
    }
    installed.run(&["rewind", "resume", &id, "--reason", "again"]).fails(5);
    let watched = json(&installed.run(&["rewind", "watch", &id, "-o", "json"]).ok());
    assert_eq!(watched["state"], "cancelled");
    let audit = "SELECT action FROM laneway_control.audit_log WHERE actor = 'ada' ORDER BY id";
    let actions: Vec<_> =
        installed.sql(audit).await.into_iter().map(|row| row[0].clone().unwrap()).collect();
    let wanted = ["dead_letters.rewind", "rewind.pause", "rewind.resume", "rewind.cancel"];
    assert_eq!(actions, wanted);
    let listed = json(&installed.run(&["rewind", "list", "-o", "json"]).ok());
    assert_eq!(listed[0]["rewindId"], id.as_str());
    let nothing = ["dead-letters", "discard", "--cause", "expired", "--project", &project];
    let mut args = nothing.to_vec();
    args.extend(["--reason", "old"]);
    assert!(installed.run(&args).err().contains("matched 0"));
    args.extend(["-o", "json"]);
    assert_eq!(json(&installed.run(&args).ok())["matched"], 0, "a script reads it");
    let blank = ["rewind", "cancel", &id, "--reason", " "];
    installed.run(&blank).fails(2);
    let replay = ["rewind", "replay", "--project", &project, "--endpoint", ENDPOINT, "--since"];
    let told = installed.run(&[&replay[..], &["2120-01-01T00:00:00Z", "--dry-run"]].concat());
    assert!(told.fails(2).contains("in the future"));
    let counted = installed.run(&[&replay[..], &["1h", "--dry-run", "-o", "json"]].concat()).ok();
    assert_eq!((&json(&counted)["matched"], &json(&counted)["lanes"]), (&0.into(), &Value::Null));
    let nobodys = "ep_0000000000000000000001";
    let replay = ["rewind", "replay", "--project", &project, "--endpoint", nobodys];
    installed.run(&[&replay[..], &["--since", "1h", "--dry-run"]].concat()).fails(3);
}

#[tokio::test]
async fn an_erasure_is_counted_confirmed_written_and_joined() {
    let installed = Installed::new().await;
    let deliveries = three_dead_letters(&installed).await;
    let project = installed.project.clone();
    let erase = ["erase", "--project", &project];
    let counted = json(&installed.run(&[&erase[..], &["--dry-run", "-o", "json"]].concat()).ok());
    assert_eq!(
        (&counted["deadLetters"], &counted["parked"]),
        (&deliveries.len().into(), &0.into())
    );
    let why = ["--reason", "they asked", "--actor", "ada", "--no-wait"];
    installed.run(&[&erase[..], &why].concat()).fails(4);
    let none = "SELECT count(*) FROM laneway_control.erasures";
    assert_eq!(installed.sql(none).await[0][0].as_deref(), Some("0"));
    let made = [&erase[..], &why, &["--yes", "-o", "json"]].concat();
    let first = json(&installed.run(&made).ok());
    let second = json(&installed.run(&made).ok());
    assert_eq!(first["erasureId"], second["erasureId"], "the same is not begun twice");
    let audit = installed.sql("SELECT actor, action FROM laneway_control.audit_log").await;
    let texts: Vec<&str> = audit[0].iter().flatten().map(String::as_str).collect();
    assert_eq!((audit.len(), texts), (1, vec!["ada", "erasure.begin"]));
    let id = first["erasureId"].as_str().unwrap();
    let end = [&erase[..], &["--cancel", id, "--reason", "a mistake", "-o", "json"]].concat();
    for _ in 0..2 {
        assert_eq!(json(&installed.run(&end).ok())["state"], "cancelled");
    }
    let audit = "SELECT count(*) FROM laneway_control.audit_log WHERE action = 'erasure.cancel'";
    assert_eq!(installed.sql(audit).await[0][0].as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_tells_what_was_repaired_and_that_another_is_under_way() {
    let installed = Installed::new().await;
    let found = json(&installed.run(&["audit", "--repair", "-o", "json"]).ok());
    let found = found.as_array().unwrap();
    assert!(found.len() > 10);
    assert!(found.iter().all(|check| check["count"] == 0 && check["repaired"] == 0), "{found:?}");

    // An event that relay and owner have gone past.
    installed
        .sql(&format!(
            "INSERT INTO laneway_control.endpoints (tenant_id, endpoint_id, url, timeout_ms, secret, since_version) \
             SELECT tenant_id, '{ENDPOINT}', 'http://127.0.0.1:1/', 2000, '', 1 FROM laneway_control.projects; \
             INSERT INTO laneway_control.subscriptions (tenant_id, subscription_id, endpoint_id, event_type, \
               since_version, created_at) \
             SELECT tenant_id, gen_random_uuid(), '{ENDPOINT}', '*', 1, now() - interval '1 day' \
             FROM laneway_control.projects; \
             INSERT INTO laneway.outbox (tenant, type, user_key, payload, created_at) \
             SELECT tenant_id, 'order.created', 'user-1', '{{}}', now() - interval '1 hour' \
             FROM laneway_control.projects"
        ))
        .await;
    installed
        .sql("UPDATE laneway.relay_cursors SET s1 = pg_current_snapshot(), s2 = pg_current_snapshot()")
        .await;
    let rows = "SELECT count(*) FROM laneway.outbox";
    for (repair, repaired, written) in
        [(&[][..], 0, "1"), (&["--repair", "--actor", "ann"][..], 1, "2")]
    {
        let told = installed.run(&[&["audit", "-o", "json"][..], repair].concat());
        assert!(told.fails(8).contains("outcome_missing"));
        let found = json(&told.out());
        let missing = found.as_array().unwrap().iter().find(|it| it["check"] == "outcome_missing");
        let missing = missing.unwrap();
        assert_eq!((&missing["count"], &missing["repaired"]), (&1.into(), &repaired.into()));
        assert_eq!(installed.sql(rows).await[0][0].as_deref(), Some(written));
    }
    let audit = "SELECT actor FROM laneway_control.audit_log WHERE action = 'delivery.republish'";
    assert_eq!(installed.sql(audit).await[0][0].as_deref(), Some("ann"));
    installed.run(&["audit"]).ok();

    let url = installed.url.clone();
    let other = tokio::spawn(async move {
        let hold =
            "SELECT pg_advisory_lock(hashtext('laneway_control.audit')); SELECT pg_sleep(600)";
        let _ = laneway_testkit::sql(&url, hold).await;
    });
    let held = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    laneway_testkit::wait_for("another audit", std::time::Duration::from_secs(30), || async {
        installed.sql(held).await[0][0].as_deref() == Some("1")
    })
    .await;
    installed.run(&["audit"]).fails(5);
    other.abort();
}
