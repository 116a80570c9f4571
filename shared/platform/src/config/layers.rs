//! The layers and how they are merged: the only use of the `config` crate.

use super::node::{Node, Step, Tree};
use super::problems::{Origin, Problem};
use super::{OTHER_VARIABLES, Origins, SECTIONS};
use config::{Config, ConfigError, Environment, File, Value, ValueKind};
use std::collections::HashMap;

/// What a setting's variable begins with.
pub(super) const PREFIX: &str = "LANEWAY_";
/// The name that the `config` crate gives to the environment as an origin.
pub(super) const ENVIRONMENT: &str = "the environment";

/// The variable of the key at `steps`: `LANEWAY_SOURCES__0__NAME`.
pub(super) fn variable(steps: &[Step]) -> String {
    let parts: Vec<String> = steps
        .iter()
        .map(|step| match step {
            Step::Key(key) => key.to_uppercase(),
            Step::Index(index) => index.to_string(),
        })
        .collect();
    format!("{PREFIX}{}", parts.join("__"))
}

/// Reads the file and the environment and merges them; what cannot be read is a problem and left out.
pub(super) fn read(origins: &Origins, problems: &mut Vec<Problem>) -> Tree {
    let mut layers = Config::builder().add_source(variables(
        origins.defaults.iter().map(|(name, value)| (indexed(name), value.clone())).collect(),
    ));
    let name = origins.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
    if let Some(file) = &origins.file {
        let source = File::from(file.as_path());
        match Config::builder().add_source(source.clone()).build() {
            Ok(_) => layers = layers.add_source(source),
            Err(error) => problems.push(Problem {
                path: String::new(),
                origin: Origin::File(name.clone()),
                message: unreadable(error),
            }),
        }
    }
    for name in &origins.unreadable {
        problems.push(Problem {
            path: String::new(),
            origin: Origin::Variable(name.clone()),
            message: "is not UTF-8".to_owned(),
        });
    }
    let settings: HashMap<String, String> = origins
        .environment
        .iter()
        .filter(|(name, _)| name.starts_with(PREFIX) && !is_other(name))
        .filter(|(name, _)| is_known(name, problems))
        .map(|(name, value)| (indexed(name), value.clone()))
        .collect();
    let merged = layers.add_source(variables(settings)).build();
    let root = match merged {
        Ok(merged) => merged.cache,
        Err(error) => {
            problems.push(Problem {
                path: String::new(),
                origin: Origin::Default,
                message: unreadable(error),
            });
            Value::new(None, ValueKind::Table(HashMap::new()))
        }
    };
    let mut tree = Tree { root: Node::from_value(root, origins, &mut Vec::new()) };
    for section in tree.take_other_than(SECTIONS) {
        let origin = Origin::File(name.clone());
        problems.push(Problem { path: section, origin, message: "unknown section".to_owned() });
    }
    tree
}

/// No `try_parsing`: a password of digits must stay a text; numbers are read where a number is wanted.
fn variables(settings: HashMap<String, String>) -> Environment {
    Environment::with_prefix("LANEWAY").prefix_separator("_").separator("__").source(Some(settings))
}

/// Whether a variable's section exists; if not, that is a problem.
fn is_known(name: &str, problems: &mut Vec<Problem>) -> bool {
    let key = name[PREFIX.len()..].to_lowercase();
    let section = key.split("__").next().unwrap_or_default();
    let known = SECTIONS.contains(&section);
    if !known {
        problems.push(Problem {
            path: String::new(),
            origin: Origin::Variable(name.to_owned()),
            message: format!(
                "unknown variable; a setting's is {PREFIX}SECTION__KEY with a section of {}",
                SECTIONS.join(", ")
            ),
        });
    }
    known
}

/// A setting's variable has its section's end marked by `__`; no other one has that.
fn is_other(name: &str) -> bool {
    !name.contains("__")
        && OTHER_VARIABLES
            .iter()
            .any(|other| name == *other || (other.ends_with('_') && name.starts_with(other)))
}

/// `LANEWAY_SOURCES__0__NAME` as `LANEWAY_SOURCES[0]__NAME`, which the `config` crate reads as a list's element.
fn indexed(name: &str) -> String {
    name.split("__").fold(String::new(), |mut joined, part| {
        if !joined.is_empty() && !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            joined.push_str(&format!("[{part}]"));
        } else {
            if !joined.is_empty() {
                joined.push_str("__");
            }
            joined.push_str(part);
        }
        joined
    })
}

fn unreadable(error: ConfigError) -> String {
    match error {
        // Some parsers quote the line, on which a secret may stand.
        ConfigError::FileParse { cause, .. } => {
            let text = cause.to_string();
            let lines: Vec<&str> =
                text.lines().filter(|line| !line.contains(" |")).map(str::trim).collect();
            format!("cannot be parsed: {}", lines.join(": "))
        }
        ConfigError::Foreign(cause) => format!("cannot be read: {cause}"),
        other => format!("cannot be read: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_variable_is_an_index() {
        assert_eq!(indexed("LANEWAY_SOURCES__0__NAME"), "LANEWAY_SOURCES[0]__NAME");
        assert_eq!(indexed("LANEWAY_SOURCES__1__TENANTS__2"), "LANEWAY_SOURCES[1]__TENANTS[2]");
        assert_eq!(indexed("LANEWAY_KAFKA__BROKERS"), "LANEWAY_KAFKA__BROKERS");
    }

    #[test]
    fn a_setting_knows_its_variable() {
        let steps = [Step::Key("sources".into()), Step::Index(0), Step::Key("name".into())];
        assert_eq!(variable(&steps), "LANEWAY_SOURCES__0__NAME");
    }
}
