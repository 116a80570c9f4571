//! One parse of an endpoint's URL: the parsed value that was judged is the one that is dialled.
//!
//! The WHATWG parser is lenient (`http:0x7f.1`, tabs, backslashes). What it had to repair is refused, so that what a
//! person reads in a stored URL is what is connected to.

use super::AddressPolicy;
use std::net::IpAddr;
use url::{Host, Url};

/// The longest URL, bytes.
pub const MAX_URL: usize = 2048;
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Below 1024 only these.
const LOW_PORTS: &[u16] = &[80, 443];
/// Never these: mail, shells, stores, brokers, cluster control.
const NEVER_PORTS: &[u16] = &[
    22, 25, 465, 587, 2049, 2375, 2376, 2379, 2380, 3306, 5432, 6379, 6443, 9092, 9200, 10250,
    11211, 27017,
];
/// Names that belong to somebody's inside, with all names below them.
const INSIDE_SUFFIXES: &[&str] = &[
    "localhost",
    "local",
    "internal",
    "localdomain",
    "svc",
    "home.arpa",
    "lan",
    "intranet",
    "corp",
    "home",
    "private",
];

/// A URL that the policy let through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedUrl(Url);

impl CheckedUrl {
    /// The URL as it is stored and dialled.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(crate) fn url(&self) -> &Url {
        &self.0
    }

    /// The address, if the host is one: such a host never comes to a resolver.
    pub(crate) fn literal(&self) -> Option<IpAddr> {
        match self.0.host()? {
            Host::Ipv4(ip) => Some(ip.into()),
            Host::Ipv6(ip) => Some(ip.into()),
            Host::Domain(_) => None,
        }
    }
}

/// Why a URL is refused. Where requests may not go is one reason without details (security 5.1, item 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlProblem {
    /// Not a URL, not written in its plain form, or longer than [`MAX_URL`].
    #[error("not a plain URL of at most {MAX_URL} bytes")]
    NotValid,
    /// Neither `https` nor, where that is allowed, `http`.
    #[error("the scheme is not allowed")]
    Scheme,
    /// A user name or password in the URL.
    #[error("a URL must not have credentials")]
    Credentials,
    /// A fragment, which would never be sent.
    #[error("a URL must not have a fragment")]
    Fragment,
    /// The host, address or port is not allowed.
    #[error("target_not_allowed")]
    Target,
}

impl UrlProblem {
    /// Stable code, for a problem document and as the class of an attempt.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotValid => "url_not_valid",
            Self::Scheme => "url_scheme_not_allowed",
            Self::Credentials => "url_has_credentials",
            Self::Fragment => "url_has_fragment",
            Self::Target => "target_not_allowed",
        }
    }
}

pub(super) fn check(policy: &AddressPolicy, text: &str) -> Result<CheckedUrl, UrlProblem> {
    let plain = |byte: u8| byte > b' ' && byte != 0x7f && byte != b'\\';
    if text.len() > MAX_URL || !text.bytes().all(plain) {
        return Err(UrlProblem::NotValid);
    }
    let url = Url::parse(text).map_err(|_| UrlProblem::NotValid)?;
    if url.scheme() != "https" && !(url.scheme() == "http" && policy.allow_http) {
        return Err(UrlProblem::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlProblem::Credentials);
    }
    if url.fragment().is_some() {
        return Err(UrlProblem::Fragment);
    }
    let written = written_host(text).ok_or(UrlProblem::NotValid)?;
    let host_allowed = match url.host().ok_or(UrlProblem::NotValid)? {
        // Decimal, octal, hexadecimal and shortened spellings come out of the parser as an address.
        Host::Ipv4(ip) if written != ip.to_string() => return Err(UrlProblem::NotValid),
        Host::Ipv4(ip) => policy.check_ip(ip.into()),
        Host::Ipv6(ip) => policy.check_ip(ip.into()),
        Host::Domain(_) if written.contains('%') => return Err(UrlProblem::NotValid),
        Host::Domain(name) => is_name_allowed(policy, name),
    };
    let port = url.port_or_known_default().ok_or(UrlProblem::NotValid)?;
    if host_allowed && is_port_allowed(port) {
        Ok(CheckedUrl(url))
    } else {
        Err(UrlProblem::Target)
    }
}

/// The host as it stands in the text: between `://` and what ends it. None if it is not written so.
fn written_host(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    // `https://@host` has no credentials after parsing, but is no plain URL.
    if authority.is_empty() || authority.contains('@') {
        return None;
    }
    let port = authority.rfind(':').filter(|colon| !authority[*colon..].contains(']'));
    Some(&authority[..port.unwrap_or(authority.len())])
}

fn is_name_allowed(policy: &AddressPolicy, name: &str) -> bool {
    if policy.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
        return true;
    }
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let suffixes = INSIDE_SUFFIXES.iter().copied();
    let mut suffixes = suffixes.chain(policy.refused_suffixes.iter().map(String::as_str));
    name.len() <= MAX_NAME
        && name.contains('.')
        && name.split('.').all(is_label)
        && !suffixes.any(|suffix| is_below(name, suffix.trim_start_matches('.')))
}

/// Whether `name` is `suffix` or a name below it.
fn is_below(name: &str, suffix: &str) -> bool {
    let Some(start) = name.len().checked_sub(suffix.len()) else { return false };
    name.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
        && (start == 0 || name.as_bytes()[start - 1] == b'.')
}

fn is_port_allowed(port: u16) -> bool {
    (port >= 1024 || LOW_PORTS.contains(&port)) && !NEVER_PORTS.contains(&port)
}
