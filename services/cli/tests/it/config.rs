//! Configuration as a user meets it: all problems at once, exit code 64, no secret anywhere.

use super::laneway;

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn good() -> Vec<(&'static str, &'static str)> {
    vec![
        ("LANEWAY_DATABASE__URL", "postgres://laneway:hunter2@127.0.0.1:1/control"),
        ("LANEWAY_KAFKA__BROKERS", "127.0.0.1:1"),
        ("LANEWAY_SOURCES__0__NAME", "shop"),
        ("LANEWAY_SOURCES__0__URL", "postgres://laneway:hunter2@127.0.0.1:1/shop"),
        ("LANEWAY_SECRETS__KEY", KEY),
    ]
}

#[test]
fn all_problems_of_all_services_are_told_at_once() {
    let envs = [
        ("LANEWAY_DATABASE__MAX_CONNECTIONS", "0"),
        ("LANEWAY_API__LISTEN", "everywhere"),
        ("LANEWAY_KAFKA__BROKERS", "localhost"),
        ("LANEWAY_SECRETS__KEY", "aHVudGVyMg=="),
        ("LANEWAY_RELAI__BATCH", "1"),
    ];
    let told = laneway(&["config", "check"], &envs).fails(64);
    for line in [
        "database.url: is required",
        "database.max_connections: 0 is out of range: 1 to 1000 (environment LANEWAY_DATABASE__MAX_CONNECTIONS)",
        "api.listen: ",
        "kafka.brokers: expected host:port, found `localhost` (environment LANEWAY_KAFKA__BROKERS)",
        "secrets.key: expected 32 bytes in base64",
        "unknown variable; ",
    ] {
        assert_eq!(told.matches(line).count(), 1, "{line} in {told}");
    }
    assert!(!told.contains("aHVudGVyMg"), "{told}");
}

#[test]
fn windows_of_different_services_that_contradict_one_another_are_told() {
    let mut envs = good();
    laneway(&["config", "check"], &envs).ok();
    envs.extend([
        ("LANEWAY_RELAY__WINDOW", "20d"),
        ("LANEWAY_DELIVER__HORIZON", "25d"),
        ("LANEWAY_API__IDEMPOTENCY_RETENTION", "30d"),
    ]);
    let told = laneway(&["config", "check"], &envs).fails(64);
    for line in [
        "relay.window: 20days is shorter than deliver.horizon, 25days (environment LANEWAY_RELAY__WINDOW)",
        "reconciler.keep.inbox: 14days is not longer than relay.window, 20days",
        "reconciler.keep.inbox: 14days is not longer than deliver.horizon, 25days",
        "reconciler.keep.idempotency_keys: 8days is shorter than api.idempotency_retention, 30days",
    ] {
        assert_eq!(told.matches(line).count(), 1, "{line} in {told}");
    }
}

#[test]
fn every_service_refuses_to_start_with_64() {
    for service in ["relay", "deliver", "reconciler", "api"] {
        let told = laneway(&[service], &[]).fails(64);
        assert!(told.contains("database.url: is required"), "{service}: {told}");
    }
}

#[test]
fn an_operators_command_without_a_database_ends_with_64() {
    let told = laneway(&["projects", "list"], &[]).fails(64);
    assert!(
        told.contains("database.url: is required") && told.contains("--database-url"),
        "{told}"
    );
    let told = laneway(&["projects", "list", "--config", "/nowhere/laneway.toml"], &[]).fails(64);
    assert!(told.contains("/nowhere/laneway.toml"), "{told}");
}

#[test]
fn a_valid_configuration_is_shown_without_its_secrets() {
    assert_eq!(laneway(&["config", "check"], &good()).ok(), "");
    for args in
        [&["config", "show"][..], &["config", "show", "-o", "json"], &["config", "show", "api"]]
    {
        let shown = laneway(args, &good()).ok();
        assert!(shown.contains("127.0.0.1:1/control"), "{shown}");
        assert!(!shown.contains("hunter2") && !shown.contains(KEY), "{shown}");
    }
    let shown = laneway(&["config", "show", "relay"], &good()).ok();
    assert!(shown.contains("# environment LANEWAY_SOURCES__0__NAME"), "{shown}");
}
