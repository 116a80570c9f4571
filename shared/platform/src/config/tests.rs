//! Layers, all problems at once, secrets out of sight.

use super::*;
use serde::Deserialize;
use std::time::Duration;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Everything {
    database: Database,
    sources: Vec<Source>,
    kafka: Kafka,
    telemetry: Telemetry,
    secrets: Secrets,
    relay: Relay,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Relay {
    batch: u32,
    #[serde(with = "humantime_serde")]
    lease: Duration,
}

impl Default for Relay {
    fn default() -> Self {
        Self { batch: 500, lease: Duration::from_secs(10) }
    }
}

impl Validate for Everything {
    fn validate(&self, problems: &mut Problems) {
        problems.section("database", &self.database);
        problems.list("sources", &self.sources);
        problems.section("kafka", &self.kafka);
        problems.section("telemetry", &self.telemetry);
        problems.section("secrets", &self.secrets);
        problems.at("relay", |problems| problems.range("batch", self.relay.batch, 1..=10_000));
    }
}

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const PASSWORD: &str = "0815";

fn good() -> Vec<(&'static str, &'static str)> {
    vec![
        ("LANEWAY_DATABASE__URL", "postgres://laneway:0815@localhost:5432/control"),
        ("LANEWAY_KAFKA__BROKERS", "localhost:9092"),
        ("LANEWAY_SECRETS__KEY", KEY),
    ]
}

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let file = std::env::temp_dir().join(format!("laneway-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        Self(file)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn lines(errors: &ConfigErrors) -> Vec<String> {
    errors.problems().iter().map(ToString::to_string).collect()
}

#[test]
fn the_environment_goes_before_the_file_and_the_file_before_the_defaults() {
    let file = TempFile::new(
        "layers.toml",
        "[database]\nmax_connections = 8\nacquire_timeout = \"2s\"\n[relay]\nbatch = 50\n[deliver]\nwindow = 3\n",
    );
    let mut origins = Origins::of_pairs(good());
    origins.environment.insert("LANEWAY_DATABASE__MAX_CONNECTIONS".into(), "32".into());
    origins.file = Some(file.0.clone());
    let loaded = load::<Everything>(&origins).unwrap();
    assert_eq!(loaded.settings.database.max_connections, 32);
    assert_eq!(loaded.settings.database.acquire_timeout, Duration::from_secs(2));
    assert_eq!(loaded.settings.relay.batch, 50);
    assert_eq!(loaded.settings.relay.lease, Duration::from_secs(10));
}

#[test]
fn defaults_of_the_caller_go_before_those_in_code_only() {
    let file = TempFile::new("defaults.toml", "[relay]\nbatch = 50\n");
    let mut origins = Origins { file: Some(file.0.clone()), ..Origins::of_pairs(good()) };
    let defaults = [
        ("LANEWAY_RELAY__BATCH", "1"),
        ("LANEWAY_RELAY__LEASE", "3s"),
        ("LANEWAY_KAFKA__BROKERS", "elsewhere:1"),
    ];
    origins.defaults =
        defaults.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    let loaded = load::<Everything>(&origins).unwrap();
    assert_eq!(loaded.settings.relay.batch, 50);
    assert_eq!(loaded.settings.relay.lease, Duration::from_secs(3));
    assert_eq!(loaded.settings.kafka.brokers, "localhost:9092");
    assert!(loaded.show().contains("\nlease = \"3s\"\n"), "{}", loaded.show());
}

#[test]
fn yaml_is_read_too() {
    let text = "sources:\n  - name: shop\n    url: postgres://localhost/shop\n    tenants: all\n";
    let file = TempFile::new("layers.yaml", text);
    let origins = Origins { file: Some(file.0.clone()), ..Origins::of_pairs(good()) };
    let loaded = load::<Everything>(&origins).unwrap();
    assert_eq!(loaded.settings.sources[0].name, "shop");
    assert_eq!(loaded.settings.sources[0].tenants, Tenants::All);
}

#[test]
fn lists_come_from_the_environment_by_index_or_by_commas() {
    let ids = ["019ad2f0-1111-7000-8000-000000000002", "019ad2f0-1111-7000-8000-000000000003"];
    let joined = ids.join(", ");
    let mut pairs = good();
    pairs.extend([
        ("LANEWAY_SOURCES__0__NAME", "shop"),
        ("LANEWAY_SOURCES__0__URL", "postgres://localhost/shop"),
        ("LANEWAY_SOURCES__0__TENANTS", joined.as_str()),
        ("LANEWAY_SOURCES__1__NAME", "control"),
        ("LANEWAY_SOURCES__1__URL", "postgresql:///control?host=/run/postgresql"),
    ]);
    let loaded = load::<Everything>(&Origins::of_pairs(pairs)).unwrap();
    let [shop, control] = &loaded.settings.sources[..] else { panic!("two sources") };
    assert_eq!(shop.tenants, Tenants::These(ids.iter().map(|id| id.parse().unwrap()).collect()));
    assert!(control.tenants.contains(ids[0].parse().unwrap()));
}

#[test]
fn all_problems_are_told_at_once_with_key_and_origin() {
    let text = r#"
[database]
max_connections = "many"
pool = 3
[kafka]
brokers = "localhost"
partitions = 2000
session_timeout = "1 fortnight"
[relay]
batch = 0
[[sources]]
name = "shop"
url = "postgres://localhost/shop"
[[sources]]
name = "Shop 2"
url = "mysql://localhost/shop"
tenants = ["nobody"]
[shop]
open = true
"#;
    let file = TempFile::new("bad.toml", text);
    let name = file.0.display().to_string();
    let mut origins = Origins::of_pairs([
        ("LANEWAY_SECRETS__KEY", "c2hvcnQ="),
        ("LANEWAY_RELAI__BATCH", "5"),
        ("LANEWAY_TELEMETRY__SAMPLE_RATIO", "2"),
        ("LANEWAY_CONFIG", "/somewhere"),
        ("LANEWAY_TEST_KEEP", "1"),
        ("PATH", "/bin"),
    ]);
    origins.file = Some(file.0.clone());
    let errors = load::<Everything>(&origins).unwrap_err();
    let mut found = lines(&errors);
    found.sort();
    let mut expected = vec![
        format!("database.max_connections: expected a whole number, found a text (file {name})"),
        format!("database.pool: unknown setting (file {name})"),
        format!("kafka.brokers: expected host:port, found `localhost` (file {name})"),
        format!("kafka.partitions: 2000 is out of range: 1 to 1024 (file {name})"),
        format!("relay.batch: 0 is out of range: 1 to 10000 (file {name})"),
        format!("shop: unknown section (file {name})"),
        "database.url: is required".to_owned(),
        "secrets.key: expected 32 bytes in base64 (environment LANEWAY_SECRETS__KEY)".to_owned(),
        "telemetry.sample_ratio: 2 is out of range: 0 to 1 (environment LANEWAY_TELEMETRY__SAMPLE_RATIO)"
            .to_owned(),
    ];
    expected.sort();
    for line in &expected {
        assert!(found.contains(line), "missing: {line}\nfound: {found:#?}");
    }
    let also = [
        "kafka.session_timeout: ",
        "sources[1].tenants: want `prj_`",
        "sources[1].name: ",
        "sources[1].url: ",
        "unknown variable; ",
    ];
    for start in also {
        assert_eq!(
            found.iter().filter(|line| line.starts_with(start)).count(),
            1,
            "{start} in {found:#?}"
        );
    }
    assert_eq!(found.len(), expected.len() + also.len(), "{found:#?}");
    assert!(errors.to_string().starts_with("configuration has 14 problems:\n  "));
    assert_eq!(crate::ExitCode::Config.code(), 64);
}

#[test]
fn a_file_that_cannot_be_read_is_a_problem_among_the_others_and_shows_no_line_of_it() {
    let file =
        TempFile::new("broken.toml", "[database]\nurl = \"postgres://laneway:hunter2@localhost\n");
    let origins = Origins { file: Some(file.0.clone()), ..Origins::default() };
    let errors = load::<Everything>(&origins).unwrap_err();
    let text = errors.to_string();
    assert!(text.contains("cannot be parsed") && text.contains("line 2"), "{text}");
    assert!(text.contains("kafka.brokers: is required"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    let origins = Origins { file: Some("/nowhere/laneway.toml".into()), ..Origins::default() };
    let text = load::<Everything>(&origins).unwrap_err().to_string();
    assert!(text.contains("/nowhere/laneway.toml"), "{text}");
}

#[test]
fn the_effective_configuration_shows_origins_and_no_secret() {
    let mut pairs = good();
    pairs.extend([
        ("LANEWAY_KAFKA__SECURITY_PROTOCOL", "sasl_ssl"),
        ("LANEWAY_KAFKA__SASL_USERNAME", "relay"),
        ("LANEWAY_KAFKA__SASL_PASSWORD", PASSWORD),
        ("LANEWAY_SOURCES__0__NAME", "shop"),
        ("LANEWAY_SOURCES__0__URL", "postgres://u:0815@localhost/shop?sslpassword=0815"),
    ]);
    let loaded = load::<Everything>(&Origins::of_pairs(pairs)).unwrap();
    let password = loaded.settings.kafka.sasl_password.as_ref().unwrap();
    assert_eq!(password.expose_secret(), PASSWORD, "digits stay a text");
    let shown = loaded.show();
    assert!(!shown.contains(PASSWORD) && !shown.contains(KEY), "{shown}");
    for line in [
        "[database]",
        "url = \"postgres://laneway:secret@localhost:5432/control\"  # environment LANEWAY_DATABASE__URL",
        "max_connections = 16",
        "sasl_password = \"(secret)\"  # environment LANEWAY_KAFKA__SASL_PASSWORD",
        "# ssl_ca_location is not set",
        "[[sources]]",
        "tenants = \"all\"",
        "lease = \"10s\"",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in\n{shown}");
    }
    assert!(!format!("{loaded:?}").contains(PASSWORD), "{loaded:?}");
    let file = TempFile::new("shown.toml", &shown);
    let again = Origins { file: Some(file.0.clone()), ..Origins::of_pairs(good()) };
    load::<Everything>(&again).expect("what is shown can be read");
}

#[test]
fn the_problems_of_two_services_join() {
    let one = load::<Everything>(&Origins::default()).unwrap_err();
    let other = load::<Everything>(&Origins::of_pairs([("LANEWAY_NO", "1")])).unwrap_err();
    assert_eq!(one.clone().merge(other).problems().len(), one.problems().len() + 1);
}

#[test]
fn a_secret_of_the_wrong_form_is_not_told() {
    let text = "[secrets]\nkey = \"hunter2\"\n[database]\nurl = \"hunter2\"\n";
    let file = TempFile::new("secret.toml", text);
    let origins = Origins { file: Some(file.0.clone()), ..Origins::default() };
    let text = load::<Everything>(&origins).unwrap_err().to_string();
    assert!(!text.contains("hunter2"), "{text}");
}
