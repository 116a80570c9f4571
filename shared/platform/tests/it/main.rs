//! Telemetry on a real socket: it is set up once per process, so it has a test binary of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use laneway_platform::config::{LogFormat, Telemetry};
use laneway_platform::{service, telemetry, trace};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;
use tracing::Instrument;

/// A collector that takes one request and gives it whole.
fn collector() -> (url::Url, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        let length = loop {
            let read = connection.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8_lossy(&request).to_lowercase();
            if let Some((head, _)) = text.split_once("\r\n\r\n") {
                let length = head.split("content-length: ").nth(1).unwrap();
                let length = length.lines().next().unwrap().trim().parse::<usize>().unwrap();
                break head.len() + 4 + length;
            }
        };
        while request.len() < length {
            let read = connection.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..read]);
        }
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        sender.send(request).unwrap();
    });
    (url, receiver)
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_the_collector_before_the_process_ends() {
    service::install_crypto();
    let (url, received) = collector();
    let settings =
        Telemetry { otlp_endpoint: Some(url), log_format: LogFormat::Json, ..Telemetry::default() };
    let guard = telemetry::init("test", "test-1", &settings).unwrap();
    let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let span = tracing::info_span!("process");
    trace::set_parent(&span, given);
    let own = async { trace::traceparent(&tracing::Span::current()) }.instrument(span).await;
    assert_eq!(trace::trace_id(&own.unwrap()), trace::trace_id(given));
    guard.flush().await;
    let request = received.recv_timeout(Duration::from_secs(10)).unwrap();
    let text = String::from_utf8_lossy(&request);
    assert!(text.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{text}");
    assert!(text.to_lowercase().contains("content-type: application/x-protobuf"), "{text}");
    for word in ["laneway-test", "test-1", "process"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let again = telemetry::init("test", "test-1", &Telemetry::default()).unwrap();
    again.flush().await;
}
