//! Each rule of ARCHITECTURE.md that a machine can check, over `cargo metadata` and the text of the tree.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().exec().expect("cargo metadata")
}

fn root() -> PathBuf {
    metadata().workspace_root.into_std_path_buf()
}

/// Which part of the tree a package is in: `services`, `shared` or `tests`.
fn part(package: &Package, root: &Path) -> String {
    let relative =
        package.manifest_path.as_std_path().strip_prefix(root).expect("in the workspace");
    relative.components().next().expect("a folder").as_os_str().to_string_lossy().into_owned()
}

fn normal_dependencies(package: &Package) -> BTreeSet<&str> {
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
        .collect()
}

/// Files of the repository with one of the endings, without what is built or ignored.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    fn walk(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry")) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("type");
            if kind.is_dir() && name != "target" && (!name.starts_with('.') || name == ".ci") {
                walk(&entry.path(), endings, found);
            } else if kind.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), endings, &mut found);
    found.sort();
    found
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn drivers_are_used_only_by_the_crate_that_owns_them() {
    let owners: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("sqlx", &["laneway-store"][..]),
        ("rdkafka", &["laneway-bus"][..]),
        ("reqwest", &["laneway-courier", "laneway-client"][..]),
        ("opentelemetry", &["laneway-platform"][..]),
        ("opentelemetry-otlp", &["laneway-platform"][..]),
        ("config", &["laneway-platform"][..]),
        ("clap", &["laneway-platform", "laneway"][..]),
    ]);
    let metadata = metadata();
    let root = root();
    for package in metadata.workspace_packages() {
        if part(package, &root) == "tests" {
            continue;
        }
        for dependency in normal_dependencies(package) {
            if let Some(allowed) = owners.get(dependency) {
                assert!(
                    allowed.contains(&package.name.as_str()),
                    "{} uses {dependency}, which only {allowed:?} may",
                    package.name
                );
            }
        }
    }
}

#[test]
fn the_pure_crates_know_no_driver_runtime_clock_or_log() {
    const FORBIDDEN: [&str; 12] = [
        "tokio",
        "tokio-util",
        "futures-util",
        "tracing",
        "sqlx",
        "rdkafka",
        "reqwest",
        "axum",
        "chrono",
        "rand",
        "rustix",
        "config",
    ];
    const PURE_TEXT: [&str; 5] =
        ["std::time::Instant", "SystemTime", "std::fs", "std::net", "std::thread"];
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        if !["laneway-wire", "laneway-lane"].contains(&package.name.as_str()) {
            continue;
        }
        let dependencies = normal_dependencies(package);
        for forbidden in FORBIDDEN {
            assert!(!dependencies.contains(forbidden), "{} uses {forbidden}", package.name);
        }
        let source = package.manifest_path.parent().expect("a folder").join("src");
        for path in files(&[".rs"]).into_iter().filter(|path| path.starts_with(&source)) {
            let text = text(&path);
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            for forbidden in PURE_TEXT {
                assert!(!product.contains(forbidden), "{} uses {forbidden}", path.display());
            }
        }
    }
}

#[test]
fn shared_never_uses_services_and_services_never_each_other() {
    let metadata = metadata();
    let root = root();
    let parts: BTreeMap<&str, String> = metadata
        .workspace_packages()
        .iter()
        .map(|package| (package.name.as_str(), part(package, &root)))
        .collect();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        for dependency in normal_dependencies(package) {
            let Some(to) = parts.get(dependency) else { continue };
            let from = parts[name].as_str();
            let legal = match (from, to.as_str()) {
                ("tests", _) | (_, "shared") => true,
                ("services", "services") => name == "laneway",
                _ => false,
            };
            assert!(legal, "{name} ({from}) must not use {dependency} ({to})");
        }
    }
}

#[test]
fn the_checker_shares_no_code_with_the_product() {
    let metadata = metadata();
    let ours: BTreeSet<&str> =
        metadata.workspace_packages().iter().map(|package| package.name.as_str()).collect();
    let checker =
        metadata.workspace_packages().into_iter().find(|package| package.name == "laneway-checker");
    for dependency in checker.expect("the checker").dependencies.iter() {
        assert!(
            !ours.contains(dependency.name.as_str()),
            "laneway-checker uses {}",
            dependency.name
        );
    }
}

#[test]
fn every_file_begins_by_saying_why_it_exists() {
    for path in files(&[".rs"]) {
        assert!(text(&path).starts_with("//!"), "{} does not start with //!", path.display());
    }
}

#[test]
fn no_file_is_one_that_a_reader_must_scroll_for_ever() {
    const LONGEST: usize = 900;
    for path in files(&[".rs"]) {
        let lines = text(&path).lines().count();
        assert!(lines <= LONGEST, "{} has {lines} lines", path.display());
    }
}

#[test]
fn a_service_is_a_library_with_its_own_settings_metrics_errors_and_readme() {
    for service in ["relay", "deliver", "reconciler", "api"] {
        let folder = root().join("services").join(service);
        for wanted in ["README.md", "src/lib.rs", "src/config.rs", "src/error.rs", "src/metrics.rs"]
        {
            assert!(folder.join(wanted).is_file(), "services/{service}/{wanted} is missing");
        }
    }
}

/// Names of metrics as the code registers them: string literals that look like one, in services and platform.
fn registered_metrics() -> BTreeSet<String> {
    let root = root();
    let mut found = BTreeSet::new();
    for path in files(&["metrics.rs", "registry.rs"]) {
        if !path.starts_with(root.join("services")) && !path.starts_with(root.join("shared")) {
            continue;
        }
        for literal in text(&path).split('"').skip(1).step_by(2) {
            let prefixes = ["laneway_", "http_", "webhook_"];
            if prefixes.iter().any(|prefix| literal.starts_with(prefix))
                && literal
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            {
                found.insert(literal.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_metric_is_documented() {
    let documented = text(&root().join("docs/metrics.md"));
    let metrics = registered_metrics();
    assert!(metrics.len() > 10, "found only {metrics:?}");
    for metric in metrics {
        assert!(documented.contains(&metric), "{metric} is not in docs/metrics.md");
    }
}

#[test]
fn every_alert_names_an_existing_metric_and_an_existing_runbook() {
    let metrics = registered_metrics();
    let rules = text(&root().join("deploy/observability/alerts.yaml"));
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .map(str::trim)
        .collect();
    assert!(alerts.len() >= 8, "only {} alerts", alerts.len());
    for alert in &alerts {
        assert!(
            root().join(format!("docs/runbooks/{alert}.md")).is_file(),
            "{alert} has no runbook"
        );
    }
    for runbook in std::fs::read_dir(root().join("docs/runbooks")).expect("runbooks") {
        let name = runbook.expect("entry").file_name().to_string_lossy().into_owned();
        let Some(alert) = name.strip_suffix(".md").filter(|name| name.starts_with("Laneway"))
        else {
            continue;
        };
        assert!(alerts.contains(&alert), "runbook {alert} has no alert");
    }
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for word in words.filter(|word| word.starts_with("laneway_")) {
        let stem = ["_total", "_bucket", "_sum", "_count"]
            .iter()
            .fold(word, |word, end| word.trim_end_matches(end));
        assert!(
            metrics.contains(word) || metrics.contains(stem),
            "the alerts use {word}, which no code registers"
        );
    }
}

#[test]
fn nothing_names_the_host_of_a_package_registry() {
    // Written in pieces, so that this file does not name them either.
    let hosts = [
        ["crates", "io"],
        ["repo1.maven", "org"],
        ["proxy.golang", "org"],
        ["registry.npmjs", "org"],
        ["pypi", "org"],
    ];
    let endings = [
        ".rs", ".toml", ".md", ".sh", ".yaml", ".yml", ".xml", ".json", "Makefile", "stack", "run",
    ];
    for path in files(&endings) {
        let text = text(&path);
        for [name, end] in hosts {
            assert!(
                !text.contains(&format!("{name}.{end}")),
                "{} names {name}.{end}",
                path.display()
            );
        }
    }
}
