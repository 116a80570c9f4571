//! Which addresses are somebody's inside (security 5.1, item 3). IPv6 is an allow-list with exceptions, so that a
//! range nobody thought of is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a connection to `ip` really reaches.
pub(super) fn carried(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            IpAddr::V4(v4(high, low))
        }
        _ => ip,
    }
}

/// Whether the lists refuse `ip`; [`carried`] was applied to it.
pub(super) fn is_blocked(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_blocked_v4(ip),
        IpAddr::V6(ip) => is_blocked_v6(ip),
    }
}

fn is_blocked_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    match (a, b, c) {
        (0 | 10 | 127, _, _)            // this network, private, loopback
        | (100, 64..=127, _)            // carrier-grade NAT, some clouds' metadata
        | (169, 254, _)                 // link-local, metadata
        | (172, 16..=31, _)             // private
        | (192, 0, 0 | 2)               // protocol assignments, documentation
        | (192, 88, 99)                 // 6to4 relays
        | (192, 168, _)                 // private
        | (198, 18 | 19, _)             // benchmarks
        | (198, 51, 100)                // documentation
        | (203, 0, 113)                 // documentation
        | (224..=255, _, _) => true,    // multicast, reserved, broadcast
        _ => false,
    }
}

fn is_blocked_v6(ip: Ipv6Addr) -> bool {
    let s = ip.segments();
    match s {
        // Protocol assignments with Teredo, documentation, 6to4, documentation.
        [0x2001, ..=0x01ff, ..] | [0x2001, 0x0db8, ..] | [0x2002, ..] | [0x3fff, ..=0x0fff, ..] => {
            true
        }
        // ISATAP: a router of that site delivers to the IPv4 address in the last four bytes.
        [0x2000..=0x3fff, _, _, _, 0 | 0x0200, 0x5efe, high, low] => is_blocked_v4(v4(high, low)),
        [0x2000..=0x3fff, ..] => false,
        _ => true,
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use crate::AddressPolicy;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    fn allows(ip: &str) -> bool {
        AddressPolicy::default().check_ip(ip.parse().unwrap())
    }

    #[test]
    fn the_first_and_last_address_of_each_refused_network_is_refused_and_its_neighbours_are_not() {
        // (first, last, is the one before refused too, is the one after)
        for (first, last, before, after) in [
            ("0.0.0.0", "0.255.255.255", None, Some(false)),
            ("10.0.0.0", "10.255.255.255", Some(false), Some(false)),
            ("100.64.0.0", "100.127.255.255", Some(false), Some(false)),
            ("127.0.0.0", "127.255.255.255", Some(false), Some(false)),
            ("169.254.0.0", "169.254.255.255", Some(false), Some(false)),
            ("172.16.0.0", "172.31.255.255", Some(false), Some(false)),
            ("192.0.0.0", "192.0.0.255", Some(false), Some(false)),
            ("192.0.2.0", "192.0.2.255", Some(false), Some(false)),
            ("192.88.99.0", "192.88.99.255", Some(false), Some(false)),
            ("192.168.0.0", "192.168.255.255", Some(false), Some(false)),
            ("198.18.0.0", "198.19.255.255", Some(false), Some(false)),
            ("198.51.100.0", "198.51.100.255", Some(false), Some(false)),
            ("203.0.113.0", "203.0.113.255", Some(false), Some(false)),
            ("224.0.0.0", "255.255.255.255", Some(false), None),
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", Some(false), Some(false)),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Some(false), Some(false)),
            ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Some(false), Some(false)),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", Some(false), Some(false)),
            ("::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None, Some(false)),
            ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Some(false), None),
        ] {
            assert!(!allows(first) && !allows(last), "{first} {last}");
            let step = |ip: &str, by: i8| match ip.parse::<IpAddr>().unwrap() {
                IpAddr::V4(ip) => {
                    IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits().wrapping_add_signed(by.into())))
                }
                IpAddr::V6(ip) => {
                    IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits().wrapping_add_signed(by.into())))
                }
            };
            for (neighbour, refused) in [(step(first, -1), before), (step(last, 1), after)] {
                if let Some(refused) = refused {
                    assert_eq!(
                        AddressPolicy::default().check_ip(neighbour),
                        !refused,
                        "{neighbour}"
                    );
                }
            }
        }
    }

    #[test]
    fn public_addresses_pass_and_carriers_are_judged_by_what_they_carry() {
        for ip in ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"] {
            assert!(allows(ip), "{ip}");
        }
        for ip in ["64:ff9b::7f00:1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808"]
        {
            assert!(!allows(ip), "{ip}");
        }
    }

    #[test]
    fn own_networks_are_refused_before_anything_is_allowed() {
        let policy = AddressPolicy {
            allowed: vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
            refused: vec!["10.96.0.0/12".parse().unwrap(), "34.1.0.0/16".parse().unwrap()],
            ..AddressPolicy::default()
        };
        for (ip, allowed) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("10.96.0.1", false),
            ("::ffff:10.96.0.1", false),
            ("34.1.2.3", false),
            ("64:ff9b::2201:203", false),
            ("34.2.2.3", true),
            ("::1", true),
            ("127.0.0.1", false),
        ] {
            assert_eq!(policy.check_ip(ip.parse().unwrap()), allowed, "{ip}");
        }
    }

    fn inner() -> impl Strategy<Value = Ipv4Addr> {
        prop_oneof![
            (0u32..1 << 24).prop_map(|low| Ipv4Addr::from_bits(0x7f00_0000 | low)),
            (0u32..1 << 24).prop_map(|low| Ipv4Addr::from_bits(0x0a00_0000 | low)),
            Just(Ipv4Addr::new(169, 254, 169, 254)),
            Just(Ipv4Addr::new(100, 100, 100, 200)),
        ]
    }

    proptest! {
        #[test]
        fn no_carrier_of_an_inside_address_passes(v4 in inner(), kind in 0u8..9, noise: u128) {
            let low = u128::from(v4.to_bits());
            let bits = match kind {
                0 => 0xffff << 32 | low,                                        // IPv4-mapped
                1 => low,                                                       // IPv4-compatible
                2 => 0xffff << 48 | low,                                        // IPv4-translated
                3 => 0x0064_ff9b << 96 | low,                                   // NAT64
                4 => 0x0064_ff9b_0001 << 80 | (noise & 0xffff_ffff) << 32 | low, // NAT64, local prefix
                5 => 0x2002 << 112 | low << 80 | noise & ((1 << 80) - 1),       // 6to4
                6 => 0x2001 << 112 | (noise & 0xffff_ffff_ffff_ffff) << 32 | (low ^ 0xffff_ffff), // Teredo
                7 => 0x2600 << 112 | (noise & 0xffff_ffff) << 64 | 0x5efe << 32 | low, // ISATAP
                _ => 0xfe80 << 112 | 0x0200_5efe << 32 | low,                   // ISATAP, link-local
            };
            let ip = IpAddr::V6(Ipv6Addr::from_bits(bits));
            prop_assert!(!AddressPolicy::default().check_ip(ip), "{}", ip);
        }

        #[test]
        fn the_standard_librarys_own_judgement_agrees(bits: u32) {
            let ip = Ipv4Addr::from_bits(bits);
            let inside = ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified()
                || ip.is_documentation() || ip.is_multicast() || ip.is_broadcast();
            if inside {
                prop_assert!(!AddressPolicy::default().check_ip(IpAddr::V4(ip)));
            }
        }
    }
}
