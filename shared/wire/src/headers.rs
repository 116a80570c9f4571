//! Which custom headers an event or an endpoint may bring (security 5.7): checked when they are written and again
//! when they are sent, by this one function.

/// Custom headers of one request at most.
pub const MAX_HEADERS: usize = 32;
/// Names and values of one request's custom headers together at most, bytes.
pub const MAX_HEADERS_LEN: usize = 8 * 1024;

/// Names that Laneway or the HTTP client writes itself, or that belong to the connection and not to the request.
const RESERVED: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-attempt",
    "x-delivery-id",
    "x-event-type",
    "x-replay-of",
    "x-sequence-number",
];
const RESERVED_PREFIXES: &[&str] = &["proxy-", "webhook-"];

/// Why custom headers are refused. `at` is the place of the header in the list, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// More than [`MAX_HEADERS`].
    #[error("more than {MAX_HEADERS} headers")]
    TooMany,
    /// Together longer than [`MAX_HEADERS_LEN`].
    #[error("headers are longer than {MAX_HEADERS_LEN} bytes together")]
    TooLong,
    /// A name that is no token (RFC 9110, 5.6.2).
    #[error("header {at}: the name is not a token")]
    Name {
        /// Which one.
        at: usize,
    },
    /// A name that is not the caller's to set.
    #[error("header {at}: the name is reserved")]
    Reserved {
        /// Which one.
        at: usize,
    },
    /// A value with something else than visible ASCII, space and tab: CR, LF and NUL would end the header.
    #[error("header {at}: the value has a character that is not visible ASCII, space or tab")]
    Value {
        /// Which one.
        at: usize,
    },
}

impl HeaderProblem {
    /// Stable code for a problem document or a reason column.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooMany => "too_many_headers",
            Self::TooLong => "headers_too_long",
            Self::Name { .. } => "bad_header_name",
            Self::Reserved { .. } => "reserved_header",
            Self::Value { .. } => "bad_header_value",
        }
    }

    /// Which header, from 0, if it is one alone.
    pub const fn at(&self) -> Option<usize> {
        match self {
            Self::TooMany | Self::TooLong => None,
            Self::Name { at } | Self::Reserved { at } | Self::Value { at } => Some(*at),
        }
    }
}

/// Checks a request's custom headers, in their order. The same name may be there several times.
pub fn check_custom<N: AsRef<str>, V: AsRef<str>>(headers: &[(N, V)]) -> Result<(), HeaderProblem> {
    if headers.len() > MAX_HEADERS {
        return Err(HeaderProblem::TooMany);
    }
    let mut total = 0;
    for (at, (name, value)) in headers.iter().enumerate() {
        let (name, value) = (name.as_ref(), value.as_ref());
        total += name.len() + value.len();
        if total > MAX_HEADERS_LEN {
            return Err(HeaderProblem::TooLong);
        }
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(HeaderProblem::Name { at });
        }
        if is_reserved(name) {
            return Err(HeaderProblem::Reserved { at });
        }
        if !value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
            return Err(HeaderProblem::Value { at });
        }
    }
    Ok(())
}

fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
        || RESERVED_PREFIXES.iter().any(|prefix| {
            name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        })
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(name: &str, value: &str) -> Result<(), HeaderProblem> {
        check_custom(&[(name, value)])
    }

    #[test]
    fn ordinary_headers_pass() {
        for (name, value) in [
            ("X-Shop", "7"),
            ("Authorization", "Bearer abc.def"),
            ("x-empty", ""),
            ("x_y!#$%&'*+.^`|~", "tab\tand space ~"),
            ("webhooks", "not our prefix"),
            ("x-proxy-hint", "nor this"),
        ] {
            assert_eq!(one(name, value), Ok(()), "{name}");
        }
        assert_eq!(check_custom::<&str, &str>(&[]), Ok(()));
        assert_eq!(check_custom(&[("x-a", "1"), ("X-A", "2")]), Ok(()));
    }

    #[test]
    fn what_would_split_or_smuggle_is_refused() {
        for name in ["", " x", "x ", "x:", "x\r\ny", "x\0", "é", "x y", "x(y)", "\u{130}", "x\t"] {
            assert_eq!(one(name, "v"), Err(HeaderProblem::Name { at: 0 }), "{name:?}");
        }
        for value in ["a\r\nHost: b", "a\nb", "a\rb", "\0", "\u{7f}", "é", "\u{1b}[31m", "\u{85}"]
        {
            assert_eq!(one("x-v", value), Err(HeaderProblem::Value { at: 0 }), "{value:?}");
        }
    }

    #[test]
    fn owned_and_hop_by_hop_names_are_refused_in_any_case() {
        let prefixed = ["webhook-id", "webhook-signature", "webhook-x", "Proxy-Authorization"];
        for name in RESERVED.iter().copied().chain(prefixed) {
            assert_eq!(one(name, "v"), Err(HeaderProblem::Reserved { at: 0 }), "{name}");
            let upper = name.to_ascii_uppercase();
            assert_eq!(one(&upper, "v"), Err(HeaderProblem::Reserved { at: 0 }), "{upper}");
        }
        let second = check_custom(&[("x-a", "v"), ("Host", "v")]).unwrap_err();
        assert_eq!((second.code(), second.at()), ("reserved_header", Some(1)));
    }

    #[test]
    fn number_and_size_are_bounded() {
        assert_eq!(check_custom(&vec![("x", "v"); MAX_HEADERS]), Ok(()));
        assert_eq!(check_custom(&vec![("x", "v"); MAX_HEADERS + 1]), Err(HeaderProblem::TooMany));
        assert_eq!(one("x", &"v".repeat(MAX_HEADERS_LEN - 1)), Ok(()));
        assert_eq!(one("x", &"v".repeat(MAX_HEADERS_LEN)), Err(HeaderProblem::TooLong));
    }

    proptest! {
        #[test]
        fn what_passes_is_taken_by_the_http_types(name in ".{0,12}", value in ".{0,30}") {
            if one(&name, &value).is_ok() {
                prop_assert!(http::HeaderName::from_bytes(name.as_bytes()).is_ok());
                prop_assert!(http::HeaderValue::from_str(&value).is_ok());
            }
        }
    }
}
