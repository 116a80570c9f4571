//! Reading a JSON body: media type and size first, then field by field, so that every error has a JSON pointer and all
//! of them are told at once. Unknown and repeated fields are refused (security 5.10, property level).

use crate::problem::{self, FieldError, Problem};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use laneway_wire::record::MAX_PAYLOAD;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::ops::RangeInclusive;

/// The largest body, bytes: the largest payload and what stands around it.
pub(crate) const MAX_BODY: usize = MAX_PAYLOAD + 16 * 1024;
/// Fields of a body that are looked at; no request has nearly as many.
const MAX_FIELDS: usize = 64;
/// Characters of a client's own text that are repeated in an error.
const MAX_ECHO: usize = 64;

/// A body that is `application/json` by its own word and not too large. Extracted after the caller is known.
pub(crate) struct JsonBody(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(problem::CONTENT_TYPE.problem());
        }
        let announced = request
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > MAX_BODY as u64) {
            return Err(problem::BODY_TOO_LARGE.problem());
        }
        match Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(Self(bytes)),
            Err(rejection) if rejection.status() == 413 => Err(problem::BODY_TOO_LARGE.problem()),
            Err(_) => Err(problem::BODY_NOT_JSON.detail("the body could not be read to its end")),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(only), None) = (types.next(), types.next()) else { return false };
    let Ok(text) = only.to_str() else { return false };
    let mut parts = text.split(';').map(|part| part.trim().to_ascii_lowercase());
    let media = parts.next().is_some_and(|media| media == "application/json");
    let charset = parts.all(|parameter| {
        !parameter.starts_with("charset=")
            || matches!(parameter.as_str(), "charset=utf-8" | "charset=\"utf-8\"")
    });
    let plain = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    media && charset && plain
}

/// The fields of a body that is a JSON object.
pub(crate) struct Fields<'a> {
    members: Vec<(String, &'a RawValue)>,
    errors: Vec<FieldError>,
}

impl<'a> Fields<'a> {
    /// # Errors
    /// `body_not_json`, or `body_not_valid` if it is something else than an object.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, Problem> {
        let value: &RawValue = serde_json::from_slice(body)
            .map_err(|error| problem::BODY_NOT_JSON.detail(error.to_string()))?;
        let members = serde_json::from_str::<Members<'a>>(value.get()).map_err(|_| {
            problem::BODY_NOT_VALID
                .problem()
                .with_errors(vec![wrong_type(String::new(), "a JSON object")])
        })?;
        Ok(Self { members: members.0, errors: Vec::new() })
    }

    /// Takes the field `name` as it is written; `null` is a value.
    pub(crate) fn raw(&mut self, name: &'static str) -> Option<&'a RawValue> {
        let at = self.members.iter().position(|(member, _)| member == name)?;
        let (_, value) = self.members.remove(at);
        if self.members.iter().any(|(member, _)| member == name) {
            self.members.retain(|(member, _)| member != name);
            self.error(name, "field_repeated", "the field stands more than once");
        }
        Some(value)
    }

    /// As [`Fields::raw`], and reports that it is missing.
    pub(crate) fn required_raw(&mut self, name: &'static str) -> Option<&'a RawValue> {
        let value = self.raw(name);
        if value.is_none() {
            self.missing(name);
        }
        value
    }

    /// A text; `null` is none.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        let value = self.raw(name)?;
        self.typed::<Option<String>>(name, value, "a text").flatten()
    }

    /// A text that must be there.
    pub(crate) fn required_text(&mut self, name: &'static str) -> Option<String> {
        let value = self.required_raw(name)?;
        self.typed(name, value, "a text")
    }

    /// `true` or `false`; `null` is none.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Option<bool> {
        let value = self.raw(name)?;
        self.typed::<Option<bool>>(name, value, "true or false").flatten()
    }

    /// A whole number within `range`; `null` is none.
    pub(crate) fn number(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let value = self.raw(name)?;
        // As in JSON Schema, 2.0 is a whole number; every number that a range can have is exact as a double.
        let number = self.typed::<Option<f64>>(name, value, "a whole number").flatten()?;
        if number.fract() != 0.0 {
            self.errors.push(wrong_type(pointer(name), "a whole number"));
            return None;
        }
        let bounds = f64::from(*range.start())..=f64::from(*range.end());
        let within = bounds.contains(&number).then_some(number as u32);
        if within.is_none() {
            let (from, to) = range.into_inner();
            self.error(name, "out_of_range", format!("expected {from} to {to}"));
        }
        within
    }

    /// One of some words; `null` is none.
    pub(crate) fn choice<T>(
        &mut self,
        name: &'static str,
        words: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(name)?;
        let chosen = parse(&text);
        if chosen.is_none() {
            self.error(name, "unknown_value", format!("expected one of {words}"));
        }
        chosen
    }

    /// Reports that the field `name` is missing; not of one whose value was refused.
    pub(crate) fn missing(&mut self, name: &str) {
        let pointer = pointer(name);
        if self.errors.iter().any(|error| error.pointer == pointer) {
            return;
        }
        self.error(name, "field_missing", "the field is required");
    }

    /// Reports an error of the field `name`.
    pub(crate) fn error(&mut self, name: &str, code: &'static str, detail: impl Into<String>) {
        self.errors.push(FieldError { pointer: pointer(name), code, detail: detail.into() });
    }

    /// # Errors
    /// `body_not_valid` with every error, what was not taken included.
    pub(crate) fn finish(mut self) -> Result<(), Problem> {
        for (name, _) in std::mem::take(&mut self.members) {
            self.error(&name, "field_unknown", "there is no such field");
        }
        if self.errors.is_empty() {
            return Ok(());
        }
        Err(problem::BODY_NOT_VALID.problem().with_errors(self.errors))
    }

    fn typed<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
        value: &'a RawValue,
        expected: &'static str,
    ) -> Option<T> {
        let typed = serde_json::from_str(value.get()).ok();
        if typed.is_none() {
            self.errors.push(wrong_type(pointer(name), expected));
        }
        typed
    }
}

fn wrong_type(pointer: String, expected: &'static str) -> FieldError {
    FieldError { pointer, code: "wrong_type", detail: format!("expected {expected}") }
}

/// RFC 6901.
fn pointer(name: &str) -> String {
    let name: String = name.chars().take(MAX_ECHO).collect();
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// The members of an object in their order, repeated ones too.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &RawValue>()? {
                    if members.len() < MAX_FIELDS {
                        members.push(member);
                    }
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn json(types: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        for text in types {
            headers.append(header::CONTENT_TYPE, HeaderValue::from_static(text));
        }
        is_json(&headers)
    }

    #[test]
    fn only_json_in_utf_8_is_read() {
        assert!(json(&["application/json"]));
        assert!(json(&["Application/JSON; charset=UTF-8"]));
        for refused in [
            &[][..],
            &["text/plain"],
            &["application/json; charset=latin1"],
            &["application/jsonx"],
            &["application/json", "application/json"],
        ] {
            assert!(!json(refused), "{refused:?}");
        }
    }

    #[test]
    fn a_value_is_taken_as_it_is_written() {
        let body = br#" { "payload" : { "a" : 1.0,"b":[ ] }  } "#;
        let mut fields = Fields::read(body).ok().unwrap();
        assert_eq!(fields.required_raw("payload").unwrap().get(), r#"{ "a" : 1.0,"b":[ ] }"#);
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn a_field_that_stands_twice_is_refused_whatever_it_says() {
        let mut fields = Fields::read(br#"{"a":1,"a":1}"#).ok().unwrap();
        assert_eq!(fields.number("a", 0..=9), Some(1));
        assert!(fields.finish().is_err());
    }

    #[test]
    fn pointers_are_escaped_and_short() {
        assert_eq!(pointer("a/b~c"), "/a~1b~0c");
        assert_eq!(pointer(&"x".repeat(1000)).len(), 1 + MAX_ECHO);
    }
}
