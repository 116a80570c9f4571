//! Where requests may go (security 5.1): one judgement of addresses, names, ports and URLs for everybody who asks.

mod ip;
mod url;

pub use self::url::{CheckedUrl, MAX_URL, UrlProblem};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Where requests may go. The default is the public internet over https and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AddressPolicy {
    /// Whether plain `http` is taken too.
    pub allow_http: bool,
    /// Networks that are allowed though the lists refuse them, e.g. `127.0.0.0/8` in development.
    pub allowed: Vec<IpNet>,
    /// Networks that are always refused, e.g. the cluster's own pods and services. Goes before `allowed`.
    pub refused: Vec<IpNet>,
    /// Names that pass though the rules for names refuse them, e.g. `localhost`. Their addresses are judged all the
    /// same.
    pub allowed_hosts: Vec<String>,
    /// Names that are refused, with all names below them, beside the built-in ones.
    pub refused_suffixes: Vec<String>,
}

impl AddressPolicy {
    /// Whether a connection to `ip` may be made.
    ///
    /// An address that carries an IPv4 address and is routed to it (IPv4-mapped, NAT64's well-known prefix) is
    /// judged by what it carries.
    pub fn check_ip(&self, ip: IpAddr) -> bool {
        let inside = ip::carried(ip);
        let is_in =
            |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip) || net.contains(&inside));
        if is_in(&self.refused) {
            return false;
        }
        is_in(&self.allowed) || !ip::is_blocked(inside)
    }

    /// Judges an endpoint's URL: its form, scheme, host, port and, if the host is an address, that.
    ///
    /// What the host's name stands for is judged each time it is connected to.
    pub fn check_url(&self, text: &str) -> Result<CheckedUrl, UrlProblem> {
        url::check(self, text)
    }
}
