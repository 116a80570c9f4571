//! One line of NDJSON as an event: `{"type", "key"?, "payload"}`, the payload kept byte for byte.

use laneway_wire::record::{MAX_EVENT_TYPE, MAX_PAYLOAD, MAX_USER_KEY};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The longest line: a payload, and the rest with every character escaped.
pub(super) const MAX_LINE: usize = MAX_PAYLOAD + 16 * 1024;

/// An event that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// Number of its line, from 1.
    pub(super) line: u64,
    /// Its type.
    pub(super) event_type: String,
    /// Its user key.
    pub(super) key: Option<String>,
    /// The bytes between the colon and the end, without the white space around.
    pub(super) payload: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(rename = "type")]
    event_type: String,
    key: Option<String>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Reads `text`, the line of that `number`; `None` if it is empty.
///
/// # Errors
/// What is wrong with it, for a person.
pub(super) fn parse(number: u64, text: &[u8]) -> Result<Option<Event>, String> {
    // A file may begin with a byte order mark; JSON knows none.
    let text = if number == 1 { text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text) } else { text };
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line: Line<'_> = serde_json::from_slice(text).map_err(|error| {
        // The library counts lines itself, and there is only one.
        let told = error.to_string();
        told.replacen("at line 1 column", "at column", 1)
    })?;
    within("type", &line.event_type, MAX_EVENT_TYPE)?;
    if let Some(key) = &line.key {
        within("key", key, MAX_USER_KEY)?;
    }
    let payload = line.payload.get().as_bytes();
    if payload.len() > MAX_PAYLOAD {
        return Err(format!(
            "payload has {} bytes, at most {MAX_PAYLOAD} are taken",
            payload.len()
        ));
    }
    Ok(Some(Event {
        line: number,
        event_type: line.event_type,
        key: line.key,
        payload: payload.to_vec(),
    }))
}

fn within(field: &str, text: &str, most: usize) -> Result<(), String> {
    if text.is_empty() {
        Err(format!("{field} is empty"))
    } else if text.len() > most {
        Err(format!("{field} has {} bytes, at most {most} are taken", text.len()))
    } else if text.contains('\0') {
        Err(format!("{field} has a NUL character"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Event {
        parse(7, text.as_bytes()).unwrap().unwrap()
    }

    fn problem(text: &str) -> String {
        parse(7, text.as_bytes()).unwrap_err()
    }

    #[test]
    fn the_payload_is_kept_byte_for_byte() {
        let payload = r#"{ "b":1.0,"a":[ 1e3, "\u00e9é" ],"b":2 }"#;
        let read =
            event(&format!(r#"{{"type":"order.created","key":"u1","payload":  {payload} }}"#));
        assert_eq!(String::from_utf8(read.payload).unwrap(), payload);
        assert_eq!((read.line, read.event_type.as_str()), (7, "order.created"));
        assert_eq!(read.key.as_deref(), Some("u1"));
    }

    #[test]
    fn a_key_may_be_missing_or_null_and_a_payload_may_be_any_json() {
        for payload in ["null", "\"text\"", "17", "[]"] {
            let read = event(&format!(r#"{{"payload":{payload},"type":"a","key":null}}"#));
            assert_eq!(read.key, None);
            assert_eq!(read.payload, payload.as_bytes());
        }
        assert_eq!(event(r#"{"type":"a","payload":{}}"#).key, None);
    }

    #[test]
    fn empty_lines_and_a_byte_order_mark_are_passed_over() {
        assert_eq!(parse(2, b"  \r"), Ok(None));
        let marked = b"\xef\xbb\xbf{\"type\":\"a\",\"payload\":1}";
        assert!(parse(1, marked).unwrap().is_some());
        assert!(parse(2, marked).is_err());
    }

    #[test]
    fn what_is_wrong_is_said_for_one_line() {
        assert_eq!(problem("{"), "EOF while parsing an object at column 1");
        assert!(problem(r#"{"payload":1}"#).starts_with("missing field `type`"));
        assert!(problem(r#"{"type":"a"}"#).starts_with("missing field `payload`"));
        assert!(
            problem(r#"{"type":"a","payload":1,"kye":"u"}"#).starts_with("unknown field `kye`")
        );
        assert!(problem(r#"{"type":"a","payload":1} x"#).starts_with("trailing characters"));
        assert_eq!(problem(r#"{"type":"","payload":1}"#), "type is empty");
        assert_eq!(
            problem(r#"{"type":"a","key":"a\u0000","payload":1}"#),
            "key has a NUL character"
        );
        let long = "k".repeat(256);
        assert!(
            problem(&format!(r#"{{"type":"a","key":"{long}","payload":1}}"#))
                .contains("at most 255")
        );
        let big = "x".repeat(MAX_PAYLOAD);
        assert!(
            problem(&format!(r#"{{"type":"a","payload":"{big}"}}"#)).contains("at most 262144")
        );
        assert!(parse(7, b"{\"type\":\"\xff\",\"payload\":1}").is_err());
    }
}
