//! The fingerprint of a request: what "the same request again" means for an `Idempotency-Key` (C2, P12).
//!
//! SHA-256 over a version tag and the request's parts, each with its length in front, so that no two different
//! requests can be written as the same bytes. A JSON body is hashed in a normal form: no white space between tokens,
//! object members sorted by name, strings with one way of escaping. Numbers keep their digits as they were written:
//! `1` and `1.0` are different payloads, because the receiver gets them byte for byte, and numbers too long for a
//! double must not become equal. Stored for as long as an idempotency record lives: fixed for ever, with golden
//! vectors.

use sha2::{Digest, Sha256};

/// How deep arrays and objects may lie in each other; as many levels as common JSON readers take.
pub const MAX_DEPTH: usize = 128;

/// SHA-256 of a request in its normal form.
pub type Fingerprint = [u8; 32];

/// The parts of a request that make it the same or another one.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The route's template, e.g. `/api/v1/projects/{project}/events`.
    pub route: &'a str,
    /// The values of the template's parameters in their canonical form, in order.
    pub params: &'a [&'a str],
    /// The media type of the body without parameters, in small letters.
    pub content_type: &'a str,
    /// The body as it came.
    pub body: &'a [u8],
}

/// Why a request has no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FingerprintError {
    /// The body says that it is JSON and is not.
    #[error("the body is not JSON")]
    NotJson,
    /// More than [`MAX_DEPTH`] levels.
    #[error("the body is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// The fingerprint of `request`. A body of the type `application/json` is normalised, any other is hashed as it is.
///
/// # Errors
/// [`FingerprintError`], for JSON bodies only.
pub fn fingerprint(request: &Request<'_>) -> Result<Fingerprint, FingerprintError> {
    let normal;
    let body = if request.content_type == "application/json" {
        normal = normalise(request.body)?;
        normal.as_slice()
    } else {
        request.body
    };
    let mut digest = Sha256::new_with_prefix(b"laneway.fingerprint.1");
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    part(request.method.as_bytes());
    part(request.route.as_bytes());
    part(&(request.params.len() as u64).to_be_bytes());
    for param in request.params {
        part(param.as_bytes());
    }
    part(request.content_type.as_bytes());
    part(body);
    Ok(digest.finalize().into())
}

/// The normal form of a JSON text.
///
/// # Errors
/// [`FingerprintError`].
pub fn normalise(json: &[u8]) -> Result<Vec<u8>, FingerprintError> {
    // The grammar is checked once by a reader that is known to be right; the walk below then only has to find the
    // borders of tokens.
    serde_json::from_slice::<&serde_json::value::RawValue>(json)
        .map_err(|_| FingerprintError::NotJson)?;
    let mut reader = Reader { json, at: 0 };
    let mut out = Vec::with_capacity(json.len());
    reader.value(&mut out, 0)?;
    Ok(out)
}

/// Walks over a text that is known to be JSON.
struct Reader<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next byte that is no white space, not consumed.
    fn peek(&mut self) -> Result<u8, FingerprintError> {
        while let Some(byte) = self.json.get(self.at) {
            if !byte.is_ascii_whitespace() {
                return Ok(*byte);
            }
            self.at += 1;
        }
        Err(FingerprintError::NotJson)
    }

    fn value(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<(), FingerprintError> {
        match self.peek()? {
            b'{' | b'[' if depth == MAX_DEPTH => Err(FingerprintError::TooDeep),
            b'{' => self.object(out, depth + 1),
            b'[' => self.array(out, depth + 1),
            b'"' => {
                out.extend_from_slice(&normal_string(self.string()));
                Ok(())
            }
            _ => {
                out.extend_from_slice(self.scalar());
                Ok(())
            }
        }
    }

    fn array(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<(), FingerprintError> {
        self.at += 1;
        out.push(b'[');
        let mut first = true;
        while self.peek()? != b']' {
            if self.peek()? == b',' {
                self.at += 1;
            }
            if !first {
                out.push(b',');
            }
            first = false;
            self.value(out, depth)?;
        }
        self.at += 1;
        out.push(b']');
        Ok(())
    }

    fn object(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<(), FingerprintError> {
        self.at += 1;
        let mut members = Vec::new();
        while self.peek()? != b'}' {
            if self.peek()? == b',' {
                self.at += 1;
                self.peek()?;
            }
            let name = normal_string(self.string());
            self.peek()?;
            self.at += 1; // the colon
            let mut value = Vec::new();
            self.value(&mut value, depth)?;
            members.push((name, value));
        }
        self.at += 1;
        // Stable: members of the same name keep their order, whatever a reader makes of them.
        members.sort_by(|a, b| a.0.cmp(&b.0));
        out.push(b'{');
        for (index, (name, value)) in members.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(name);
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.push(b'}');
        Ok(())
    }

    /// A string with its quotes.
    fn string(&mut self) -> &'a [u8] {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.json.get(self.at) {
            self.at += if *byte == b'\\' { 2 } else { 1 };
            if *byte == b'"' {
                break;
            }
        }
        self.json.get(start..self.at).unwrap_or_default()
    }

    /// A number or a word.
    fn scalar(&mut self) -> &'a [u8] {
        let rest = self.json.get(self.at..).unwrap_or_default();
        let end = rest
            .iter()
            .position(|byte| byte.is_ascii_whitespace() || b",]}".contains(byte))
            .unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }
}

/// One way of escaping. What is no Unicode text (a lone surrogate) stays as it was written.
fn normal_string(token: &[u8]) -> Vec<u8> {
    serde_json::from_slice::<String>(token)
        .and_then(|text| serde_json::to_vec(&text))
        .unwrap_or_else(|_| token.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(json: &str) -> String {
        String::from_utf8(normalise(json.as_bytes()).unwrap()).unwrap()
    }

    fn of(route: &str, params: &[&str], body: &str) -> Fingerprint {
        fingerprint(&Request {
            method: "POST",
            route,
            params,
            content_type: "application/json",
            body: body.as_bytes(),
        })
        .unwrap()
    }

    #[test]
    fn fingerprints_are_fixed_for_ever() {
        let hex: String = of("/events", &["prj_1"], r#"{"b": [1, 2.50], "a": "é\n"}"#)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, GOLDEN);
    }

    const GOLDEN: &str = "8e020dab61c08277365b6cc67c5cda511d089d85746e66ef0c9c7a0a52ffb15e";

    #[test]
    fn white_space_member_order_and_escapes_do_not_matter() {
        assert_eq!(
            normal(" { \"b\" : [ 1 , 2 ] ,\r\n\t\"a\":{} , \"\\u0063\":\"\\u00e9\\/\" } "),
            r#"{"a":{},"b":[1,2],"c":"é/"}"#
        );
        assert_eq!(normal("[]"), "[]");
        assert_eq!(normal(r#"[[],{},"",null,true]"#), r#"[[],{},"",null,true]"#);
    }

    #[test]
    fn numbers_keep_their_digits() {
        assert_ne!(normal("1"), normal("1.0"));
        assert_eq!(normal(" 1e400 "), "1e400");
        assert_ne!(normal("12345678901234567890123"), normal("12345678901234567890124"));
    }

    #[test]
    fn order_in_arrays_and_repeated_members_matter() {
        assert_ne!(normal("[1,2]"), normal("[2,1]"));
        assert_ne!(normal(r#"{"a":1,"a":2}"#), normal(r#"{"a":2,"a":1}"#));
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(of("/a", &["b", "c"], "1"), of("/a", &["bc"], "1"));
        assert_ne!(of("/a", &["bc"], "1"), of("/ab", &["c"], "1"));
    }

    #[test]
    fn what_is_no_json_or_too_deep_is_refused() {
        for text in ["", " ", "{", "[1,]", "{\"a\"}", "nul", "\"a", "1 2", "\u{0}"] {
            assert_eq!(normalise(text.as_bytes()), Err(FingerprintError::NotJson), "{text}");
        }
        let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
        assert!(normalise(deep(MAX_DEPTH).as_bytes()).is_ok());
        assert_eq!(normalise(deep(MAX_DEPTH + 1).as_bytes()), Err(FingerprintError::TooDeep));
        assert_eq!(normalise(deep(100_000).as_bytes()), Err(FingerprintError::TooDeep));
    }

    #[test]
    fn a_lone_surrogate_is_kept_as_written() {
        assert_eq!(normal(r#""\ud800""#), r#""\ud800""#);
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(|text: String| text.into()),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                proptest::collection::btree_map(".*", inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_normal_form_means_the_same_and_is_its_own_normal_form(value in json()) {
            let pretty = serde_json::to_vec_pretty(&value).unwrap();
            let normal = normalise(&pretty).unwrap();
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&normal).unwrap(), value);
            prop_assert_eq!(normalise(&normal).unwrap(), normal);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = normalise(&bytes);
        }

        #[test]
        fn arbitrary_text_like_json_never_panics(text in r#"[\[\]{}",:\\u0-9a \n-]{0,60}"#) {
            let _ = normalise(text.as_bytes());
        }
    }
}
