//! The resolver that clients are given: every answer for a name is judged, and what was judged is what is dialled,
//! so that no second answer can come between (DNS rebinding).

use crate::address::AddressPolicy;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Addresses of one name that are tried at most; all are judged.
pub const MAX_ADDRESSES: usize = 8;
/// Lookups under way at once; each holds a thread of the blocking pool until the system's resolver gives up.
pub const MAX_LOOKUPS: usize = 64;

/// A name stands for an address that is not allowed. Says nothing about which.
#[derive(Debug, thiserror::Error)]
#[error("target_not_allowed")]
pub(crate) struct NotAllowed;

#[derive(Debug, thiserror::Error)]
#[error("the name has no address")]
struct NoAddress;

#[derive(Clone)]
pub(crate) struct Resolver {
    policy: Arc<AddressPolicy>,
    lookups: Arc<Semaphore>,
}

impl Resolver {
    pub(crate) fn new(policy: Arc<AddressPolicy>) -> Self {
        Self { policy, lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }

    /// The name for the system's resolver. A dot at the end keeps it from trying the machine's search domains first
    /// (in a cluster `a.b` would find the service `a` of the namespace `b`); names that the configuration allows may
    /// be such a name or stand in the hosts file.
    fn absolute(&self, name: &str) -> String {
        let is_listed =
            self.policy.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
        if is_listed { name.to_owned() } else { format!("{name}.") }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (this, name) = (self.clone(), self.absolute(name.as_str()));
        Box::pin(async move {
            // Held by the lookup itself: its thread goes on when nobody waits for it any more.
            let permit = this.lookups.acquire_owned().await?;
            let lookup = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                (name.as_str(), 0).to_socket_addrs().map(|found| found.map(|a| a.ip()).collect())
            });
            let answers: Vec<IpAddr> = lookup.await??;
            let vetted = vet(&this.policy, answers)?;
            Ok(Box::new(vetted.into_iter()) as Addrs)
        })
    }
}

/// All answers, if every one is allowed; the first [`MAX_ADDRESSES`] of them. Port 0 stands for the URL's.
fn vet(
    policy: &AddressPolicy,
    answers: Vec<IpAddr>,
) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
    if answers.is_empty() {
        return Err(NoAddress.into());
    }
    if !answers.iter().all(|ip| policy.check_ip(*ip)) {
        return Err(NotAllowed.into());
    }
    Ok(answers.into_iter().take(MAX_ADDRESSES).map(|ip| SocketAddr::new(ip, 0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vetted(answers: &[&str]) -> Result<Vec<SocketAddr>, bool> {
        let answers = answers.iter().map(|ip| ip.parse().unwrap()).collect();
        vet(&AddressPolicy::default(), answers).map_err(|error| error.is::<NotAllowed>())
    }

    #[test]
    fn one_inside_answer_among_public_ones_refuses_the_name() {
        assert_eq!(vetted(&["8.8.8.8", "2606:4700::1111"]).unwrap().len(), 2);
        assert_eq!(vetted(&["8.8.8.8", "10.0.0.1"]), Err(true));
        assert_eq!(vetted(&["::1", "8.8.8.8"]), Err(true));
        let mut many = vec!["8.8.8.8"; 20];
        many.push("169.254.169.254");
        assert_eq!(vetted(&many), Err(true), "also behind those that would be tried");
    }

    #[test]
    fn a_name_without_an_answer_is_no_refusal_and_the_number_tried_is_bounded() {
        assert_eq!(vetted(&[]), Err(false));
        assert_eq!(vetted(&["8.8.8.8"; 20]).unwrap().len(), MAX_ADDRESSES);
    }

    #[test]
    fn search_domains_are_left_out_but_for_names_that_the_configuration_lists() {
        let policy =
            AddressPolicy { allowed_hosts: vec!["localhost".into()], ..AddressPolicy::default() };
        let resolver = Resolver::new(Arc::new(policy));
        assert_eq!(resolver.absolute("kubernetes.default"), "kubernetes.default.");
        assert_eq!(resolver.absolute("LocalHost"), "LocalHost");
    }
}
