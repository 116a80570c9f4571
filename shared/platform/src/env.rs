//! The one place where the process environment is read.

use std::collections::BTreeMap;

/// One variable; `None` if it is unset, empty, or not UTF-8.
#[cfg(feature = "failpoints")]
#[expect(clippy::disallowed_methods, reason = "the one place that reads an environment variable")]
pub(crate) fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// All variables whose names begin with `prefix`, and the names of those whose values are not UTF-8.
#[expect(clippy::disallowed_methods, reason = "the one place that lists the environment")]
pub(crate) fn with_prefix(prefix: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let mut readable = BTreeMap::new();
    let mut unreadable = Vec::new();
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            match value.into_string() {
                Ok(value) => drop(readable.insert(name, value)),
                Err(_) => unreadable.push(name),
            }
        }
    }
    (readable, unreadable)
}
