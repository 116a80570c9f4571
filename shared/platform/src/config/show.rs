//! The effective configuration for people's eyes: TOML with the origin of each value, and no secret in it.

use super::Tree;
use super::problems::Origin;
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::fmt::Write;

/// What stands in the place of a secret.
pub const REDACTED: &str = "(secret)";

/// For `#[serde(serialize_with)]`: [`REDACTED`], or an empty text if nothing is set.
///
/// # Errors
/// None of its own.
pub fn redact<S: Serializer>(secret: &SecretString, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(if secret.expose_secret().is_empty() { "" } else { REDACTED })
}

/// Like [`redact`], for a secret that need not be there.
///
/// # Errors
/// None of its own.
pub fn redact_option<S: Serializer>(
    secret: &Option<SecretString>,
    to: S,
) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| REDACTED).serialize(to)
}

/// Like [`redact`], for a URL of which everything but the password is worth seeing.
///
/// # Errors
/// None of its own.
pub fn redact_url<S: Serializer>(secret: &SecretString, to: S) -> Result<S::Ok, S::Error> {
    match url::Url::parse(secret.expose_secret()) {
        Err(_) => redact(secret, to),
        Ok(mut url) => {
            if url.password().is_some() && url.set_password(Some("secret")).is_err() {
                return redact(secret, to);
            }
            let kept: Vec<(String, String)> = url
                .query_pairs()
                .map(|(key, value)| match &*key {
                    "password" | "sslpassword" => (key.into_owned(), "secret".to_owned()),
                    _ => (key.into_owned(), value.into_owned()),
                })
                .collect();
            if !kept.is_empty() {
                url.query_pairs_mut().clear().extend_pairs(kept);
            }
            to.serialize_str(url.as_str())
        }
    }
}

/// Renders `settings`; the tree says where each value came from.
pub(super) fn render(settings: &impl Serialize, tree: &Tree) -> String {
    match serde_json::to_value(settings) {
        Ok(Value::Object(table)) => {
            let mut text = String::new();
            write_table(&mut text, "", "", &table, tree);
            text.trim_start().to_owned()
        }
        Ok(other) => other.to_string(),
        Err(error) => format!("# cannot be shown: {error}\n"),
    }
}

fn is_tables(value: &Value) -> bool {
    value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_object))
}

/// Values first, then tables, then lists of tables: what follows a heading belongs to it.
fn write_table(
    text: &mut String,
    heading: &str,
    path: &str,
    table: &serde_json::Map<String, Value>,
    tree: &Tree,
) {
    let under = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let plain = |value: &Value| !value.is_object() && !is_tables(value);
    if !heading.is_empty() && (table.is_empty() || table.values().any(plain)) {
        let _ = writeln!(text, "\n{heading}");
    }
    for (key, value) in table.iter().filter(|(_, value)| plain(value)) {
        let origin = match tree.origin(&under(key)) {
            Origin::Default => String::new(),
            origin => format!("  # {origin}"),
        };
        let _ = match value {
            Value::Null => writeln!(text, "# {key} is not set"),
            value => writeln!(text, "{key} = {value}{origin}"),
        };
    }
    for (key, value) in table {
        let path = under(key);
        if let Some(inner) = value.as_object() {
            write_table(text, &format!("[{path}]"), &path, inner, tree);
        } else if is_tables(value) {
            let list = value.as_array().into_iter().flatten().filter_map(Value::as_object);
            for (index, inner) in list.enumerate() {
                write_table(text, &format!("[[{path}]]"), &format!("{path}[{index}]"), inner, tree);
            }
        }
    }
}
