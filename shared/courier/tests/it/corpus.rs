//! Addresses that must not be reached, in every spelling (security 5.1, I41): refused when an endpoint is stored,
//! refused again when something is sent, and no connection is made.

use crate::receiver::*;
use laneway_courier::{AddressPolicy, Courier, MAX_URL, Settings, UrlProblem};
use std::time::Duration;
use tokio::net::TcpListener;

/// Hosts that are an address of somebody's inside. Each is tried with both schemes and a port.
const INSIDE: &[&str] = &[
    // loopback and this network
    "127.0.0.1",
    "127.0.0.2",
    "127.1.1.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::0001]",
    // carriers of 127.0.0.1
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[::7f00:1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:7f00:0001:1::1]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "[2600:1:2:3:0:5efe:127.0.0.1]",
    "[2600:1:2:3:200:5efe:7f00:1]",
    // private, shared, link-local, metadata
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "169.254.169.254",
    "169.254.0.1",
    "169.254.170.2",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[64:ff9b::169.254.169.254]",
    "[2002:a9fe:a9fe::1]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b::10.0.0.1]",
    "[2002:a00:1::]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[febf::1]",
    "[fc00::1]",
    "[fdff:ffff::1]",
    "[fec0::1]",
    // special purposes
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "[ff02::1]",
    "[ff0e::1]",
    "[100::1]",
    "[5f00::1]",
    "[2001:db8::1]",
    "[2001::1]",
    "[2001:10::1]",
    "[2001:20::1]",
    "[3fff::1]",
    "[4000::1]",
    "[64:ff9b:1::8.8.8.8]",
    "[1::1]",
];

/// Names that are somebody's inside.
const INSIDE_NAMES: &[&str] = &[
    "localhost",
    "LOCALHOST",
    "LocalHost",
    "foo.localhost",
    "a.b.localhost",
    "localhost.localdomain",
    "printer.local",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "db.internal",
    "metadata.google.internal",
    "METADATA.GOOGLE.INTERNAL",
    "instance-data.ec2.internal",
    "router.lan",
    "router.home.arpa",
    "wiki.corp",
    "wiki.intranet",
    "nas.home",
    "x.private",
    "postgres",
    "kafka",
    "a",
    "intranet",
    "own.example.cluster",
    "deep.own.example.cluster",
    // full-width and other letters that the parser folds
    "ｌｏｃａｌｈｏｓｔ",
    "foo.ＬＯＣＡＬ",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "foo。internal",
];

/// Spellings that are repaired by a lenient parser. Refused, whatever they would come to.
const NOT_PLAIN: &[&str] = &[
    // decimal, octal, hexadecimal, shortened, padded
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0/",
    "http://0x0/",
    "http://1/",
    "http://127.0.0.1./",
    "http://127.0.0.01/",
    "http://0x7F.0x0.0x0.0x1/",
    "http://3232235521/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://134744072/",
    "http://0x08080808/",
    "http://8.8.8.8./",
    "http://8.526344/",
    "http://00000010.0.0.1/",
    "http://１２７.0.0.1/",
    "http://①②⑦.0.0.1/",
    "http://127。0。0。1/",
    "http://127.0.0.1%2e/",
    "http://%31%32%37.0.0.1/",
    "http://%6c%6f%63%61%6c%68%6f%73%74/",
    "http://example%2ecom/",
    "http://exa%6dple.com/",
    "http://127.0.0.1%00.example.com/",
    // no number after all
    "http://256.1.1.1/",
    "http://1.2.3.4.5/",
    "http://0x100000000/",
    "http://127.0.0.0x/",
    "http://08.8.8.8/",
    "http://[::1%25eth0]/",
    "http://[::1%eth0]/",
    "http://[fe80::1%251]/",
    "http://[::1/",
    "http://::1/",
    "http://[]/",
    "http://[127.0.0.1]/",
    "http://[::ffff:127.0.0.256]/",
    "http://[::1].example.com/",
    // structure
    "",
    "/",
    "//127.0.0.1/",
    "127.0.0.1",
    "example.com",
    "http://",
    "https://",
    "http:///x",
    "http:127.0.0.1/",
    "http:/127.0.0.1/",
    "http:////127.0.0.1/",
    "http:///127.0.0.1/",
    "http:\\\\127.0.0.1\\",
    "http://example.com\\@127.0.0.1/",
    "http://127.0.0.1\t/",
    "http://127.0.\t0.1/",
    "http://exam\nple.com/",
    "http://exam\rple.com/",
    " http://example.com/",
    "http://example.com/ ",
    "http://example.com/a b",
    "http://example.com/\u{0}",
    "http://exa mple.com/",
    "http://example.com:99999/",
    "http://example.com:-1/",
    "http://example.com:8o/",
    "http://ex<ample.com/",
    "http://@example.com/",
    "http://:@example.com/",
    "http://example.com:80:80/",
    "http://\u{202e}moc.elpmaxe/",
    "http://ex\u{0}ample.com/",
];

fn policy() -> AddressPolicy {
    AddressPolicy {
        allow_http: true,
        refused: vec!["34.118.224.0/20".parse().unwrap(), "2600:2d00::/32".parse().unwrap()],
        refused_suffixes: vec!["own.example.cluster".into()],
        ..AddressPolicy::default()
    }
}

fn code(policy: &AddressPolicy, url: &str) -> &'static str {
    policy.check_url(url).map_or_else(|problem| problem.code(), |_| "allowed")
}

fn refused_targets() -> Vec<String> {
    let mut urls = Vec::new();
    for host in INSIDE.iter().chain(INSIDE_NAMES) {
        urls.push(format!("http://{host}/"));
        urls.push(format!("https://{host}:8443/hook?a=b"));
    }
    for host in
        ["34.118.224.10", "[::ffff:34.118.224.10]", "[64:ff9b::34.118.224.10]", "[2600:2d00::1]"]
    {
        urls.push(format!("https://{host}/"));
    }
    for port in [
        0, 1, 21, 22, 23, 25, 53, 111, 139, 389, 445, 465, 587, 631, 1023, 2049, 2375, 2379, 3306,
        5432, 6379, 6443, 9092, 9200, 10250, 11211, 27017,
    ] {
        urls.push(format!("https://example.com:{port}/"));
    }
    let long = "a".repeat(64);
    for name in [
        "example.com.",
        "example..com",
        ".example.com",
        ".",
        "..",
        "example.com..",
        "ex!ample.com",
        "exa$mple.com",
        "a*b.com",
        &format!("{long}.com"),
        &["abcdefgh"; 32].join("."),
    ] {
        urls.push(format!("https://{name}/"));
    }
    urls
}

#[test]
fn every_inside_target_is_refused_with_one_reason() {
    let urls = refused_targets();
    assert!(urls.len() + NOT_PLAIN.len() >= 300, "{}", urls.len());
    for url in &urls {
        let code = code(&policy(), url);
        assert!(code == "target_not_allowed" || code == "url_not_valid", "{url}: {code}");
    }
    for host in INSIDE {
        assert_eq!(code(&policy(), &format!("http://{host}/")), "target_not_allowed", "{host}");
    }
    assert_eq!(UrlProblem::Target.to_string(), "target_not_allowed", "and says no more");
}

#[test]
fn what_is_not_plainly_written_is_refused() {
    for url in NOT_PLAIN {
        let code = code(&policy(), url);
        let refused = ["url_not_valid", "url_scheme_not_allowed", "target_not_allowed"];
        assert!(refused.contains(&code), "{url:?}: {code}");
    }
    let long = format!("https://example.com/{}", "a".repeat(MAX_URL));
    assert_eq!(code(&policy(), &long), "url_not_valid");
}

#[test]
fn schemes_credentials_and_fragments_are_refused_with_their_reason() {
    for url in [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "ws://example.com/",
        "javascript:alert(1)",
        "data:text/plain,x",
        "unix:///var/run/docker.sock",
        "dict://example.com/",
        "ldap://example.com/",
        "jar:http://example.com!/",
        "httpss://example.com/",
        "HTTPX://example.com",
    ] {
        assert_eq!(code(&policy(), url), "url_scheme_not_allowed", "{url}");
    }
    for url in [
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://:pass@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com:443@127.0.0.1/",
        "https://a%40b:c@example.com/",
        "https://127.0.0.1:80@example.com/",
    ] {
        assert_eq!(code(&policy(), url), "url_has_credentials", "{url}");
    }
    for url in
        ["https://example.com/#x", "https://example.com#@127.0.0.1/", "https://example.com/#"]
    {
        assert_eq!(code(&policy(), url), "url_has_fragment", "{url}");
    }
    let https_only = AddressPolicy::default();
    assert_eq!(code(&https_only, "http://example.com/"), "url_scheme_not_allowed");
}

#[test]
fn ordinary_endpoints_pass_and_keep_their_text() {
    for url in [
        "https://example.com/",
        "https://api.example.co.uk/webhooks?tenant=1&x=%20",
        "https://example.com:8443/a",
        "http://example.com/",
        "http://example.com:8080/",
        "https://example.com:1024/",
        "https://example.com:65535/",
        "https://8.8.8.8/",
        "https://93.184.216.34:8443/x",
        "https://[2606:4700::1111]/",
        "https://xn--bcher-kva.example/",
        "https://a-b_c.example.com/",
        "https://local.example.com/",
        "https://internal.example.com/",
        "https://notlocalhost.com/",
        "https://mylocal.dev/",
        "https://svc.example/",
    ] {
        let checked = policy().check_url(url).unwrap_or_else(|problem| panic!("{url}: {problem}"));
        assert_eq!(checked.as_str(), url);
    }
    for (url, text) in [
        ("HTTPS://Example.COM/A", "https://example.com/A"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://example.com", "https://example.com/"),
        ("https://example.com:443/", "https://example.com/"),
    ] {
        assert_eq!(policy().check_url(url).unwrap().as_str(), text);
    }
}

#[tokio::test]
async fn nothing_is_connected_to_whatever_the_spelling() {
    let v4 = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = v4.local_addr().unwrap().port();
    let mut listening = vec![Receiver::on(v4, Connection::hold)];
    if let Ok(v6) = TcpListener::bind(("::1", port)).await {
        listening.push(Receiver::on(v6, Connection::hold));
    }
    let courier = Courier::new(Settings { address: policy(), ..Settings::default() }).unwrap();
    let mut urls: Vec<_> =
        INSIDE.iter().chain(INSIDE_NAMES).map(|host| format!("http://{host}:{port}/")).collect();
    for url in NOT_PLAIN {
        urls.push(url.replacen("/", &format!(":{port}/"), 3).replacen(
            &format!(":{port}/:{port}/"),
            "//",
            1,
        ));
        urls.push((*url).to_owned());
    }
    for url in &urls {
        let sent =
            courier.send(&target(url), outgoing(&record("{}")), Duration::from_secs(5)).await;
        assert!(!sent.result.was_sent(), "{url}: {sent:?}");
        assert!(
            sent.took < Duration::from_secs(2),
            "refused before anything is looked up or connected"
        );
    }
    assert_eq!(listening.iter().map(Receiver::accepted).sum::<usize>(), 0);
}

#[tokio::test]
async fn a_name_is_judged_by_all_its_addresses_when_it_is_connected_to() {
    let receiver = Receiver::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let url = format!("http://localhost:{}/", receiver.address.port());
    let send = async |allowed: &[&str]| {
        let address = AddressPolicy {
            allowed: allowed.iter().map(|net| net.parse().unwrap()).collect(),
            allowed_hosts: vec!["localhost".into()],
            ..policy()
        };
        let courier = Courier::new(Settings { address, ..Settings::default() }).unwrap();
        courier.send(&target(&url), outgoing(&record("{}")), Duration::from_secs(5)).await
    };
    // The name passes the rules for names, its addresses do not pass those for addresses.
    assert_eq!(send(&[]).await.result, not_sent("target_not_allowed"));
    assert_eq!(send(&["10.0.0.0/8"]).await.result, not_sent("target_not_allowed"));
    assert_eq!(receiver.accepted(), 0);
    assert_eq!(status(&send(&["127.0.0.0/8", "::1/128"]).await).0, 200);
}
