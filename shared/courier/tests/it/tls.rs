//! Row D27 of the fault matrix: what can be wrong with a receiver's TLS. The request was not sent, and its class says
//! what is wrong.

use crate::receiver::*;
use laneway_courier::{Courier, SendResult, Settings};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

/// Made by `make.sh` there.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file(name)).unwrap()
}

/// A server with that certificate; `asks`: it takes nobody who has none.
fn config(name: &str, versions: &[&'static SupportedProtocolVersion], asks: bool) -> ServerConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .unwrap();
    let builder = if asks {
        let mut roots = RootCertStore::empty();
        roots.add(certificate("authority.pem")).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    builder.with_single_cert(vec![certificate(name)], key).unwrap()
}

/// A receiver that speaks TLS and answers 200, and how many requests it could read.
async fn receiver(config: ServerConfig) -> (Receiver, Arc<AtomicUsize>) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let requests = Arc::<AtomicUsize>::default();
    let read = Arc::clone(&requests);
    let receiver = Receiver::start(move |connection| {
        let (acceptor, requests) = (acceptor.clone(), Arc::clone(&read));
        async move {
            match acceptor.accept(connection.stream).into_fallible().await {
                Ok(mut stream) => {
                    if stream.read(&mut [0; 65_536]).await.is_ok_and(|read| read > 0) {
                        requests.fetch_add(1, Ordering::SeqCst);
                    }
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                    let _ = stream.read(&mut [0; 65_536]).await;
                }
                // Its alert is on the way: closing now, with something unread, would take it back.
                Err((_, mut stream)) => {
                    while stream.read(&mut [0; 1_024]).await.is_ok_and(|read| read > 0) {}
                }
            }
        }
    })
    .await;
    (receiver, requests)
}

/// One send by a courier that trusts the test's authority, or not.
async fn send_to(receiver: &Receiver, trusting: bool) -> SendResult {
    let extra_ca_file = trusting.then(|| file("authority.pem"));
    let courier = Courier::new(Settings { extra_ca_file, ..settings() }).unwrap();
    let url = format!("https://{}/", receiver.address);
    courier.send(&target(url), outgoing(&record("{}")), DEADLINE).await.result
}

const BOTH: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;
const OLD: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];

#[tokio::test]
async fn d27_a_certificate_that_is_not_accepted_was_not_sent() {
    let cases = [
        ("expired.pem", true, "certificate_expired"),
        ("elsewhere.pem", true, "certificate_name"),
        ("good.pem", false, "certificate_untrusted"),
        ("self-signed.pem", true, "certificate_untrusted"),
    ];
    for (certificate, trusting, class) in cases {
        for versions in [BOTH, OLD] {
            let (receiver, requests) = receiver(config(certificate, versions, false)).await;
            assert_eq!(send_to(&receiver, trusting).await, not_sent(class), "{certificate}");
            assert_eq!(receiver.accepted(), 1, "{certificate}: and nothing was tried again");
            assert_eq!(requests.load(Ordering::SeqCst), 0, "{certificate}");
        }
    }
    let (receiver, requests) = receiver(config("good.pem", BOTH, false)).await;
    assert!(matches!(send_to(&receiver, true).await, SendResult::Responded { status: 200, .. }));
    assert_eq!(requests.load(Ordering::SeqCst), 1, "with nothing wrong it is sent");
}

#[tokio::test]
async fn d27_a_receiver_that_wants_a_certificate_was_not_sent() {
    for (versions, class) in [(BOTH, "client_certificate"), (OLD, "tls")] {
        let (receiver, requests) = receiver(config("good.pem", versions, true)).await;
        assert_eq!(send_to(&receiver, true).await, not_sent(class));
        assert_eq!(requests.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn d27_a_handshake_that_comes_to_nothing_was_not_sent() {
    // A ServerHello of TLS 1.0, which is not offered: TLS_RSA_WITH_AES_128_CBC_SHA, no session.
    let mut hello = vec![0x16, 3, 1, 0, 42, 2, 0, 0, 38, 3, 1];
    hello.extend([7; 32]);
    hello.extend([0, 0, 0x2f, 0]);
    let hello = Arc::new(hello);
    let old = Receiver::start(move |mut connection| {
        let hello = Arc::clone(&hello);
        async move {
            let _ = connection.stream.read(&mut [0; 4_096]).await;
            connection.write(&hello).await;
            connection.hold().await;
        }
    })
    .await;
    assert_eq!(send_to(&old, true).await, not_sent("tls"));

    let resets = Receiver::start(|mut connection| async move {
        let _ = connection.stream.read(&mut [0; 4_096]).await;
        connection.reset();
    })
    .await;
    assert!(!send_to(&resets, true).await.was_sent());
    assert_eq!((old.accepted(), resets.accepted()), (1, 1), "and nothing was tried again");
}
