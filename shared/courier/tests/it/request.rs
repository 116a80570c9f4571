//! What a request carries (design 5.7, api.md 4.7).

use crate::receiver::*;
use laneway_courier::{Outgoing, Target};
use laneway_wire::signature::{DEFAULT_TOLERANCE, Secret, Signer};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// A receiver that hands over what it reads.
async fn listening() -> (Receiver, mpsc::UnboundedReceiver<Raw>) {
    let (read, requests) = mpsc::unbounded_channel();
    let receiver = Receiver::start(move |mut connection| {
        let read = read.clone();
        async move {
            while let Some(request) = connection.request().await {
                read.send(request).unwrap();
                connection.write(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            }
        }
    })
    .await;
    (receiver, requests)
}

/// The next request read, waited for 10 s at most.
async fn next(requests: &mut mpsc::UnboundedReceiver<Raw>) -> Raw {
    tokio::time::timeout(Duration::from_secs(10), requests.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn every_header_is_there_once_and_the_body_is_the_payload() {
    let (receiver, mut requests) = listening().await;
    let mut record = record(&b"{\"a\": 1.0,\n \"b\":\"\xc3\xa9\"}\x00\xff"[..]);
    record.head.traceparent =
        Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    record.head.headers = vec![("X-Shop".into(), "7".into()), ("x-plan".into(), "event".into())];
    let mut target = target(receiver.url());
    target.headers =
        vec![("X-Plan".into(), "endpoint".into()), ("Authorization".into(), "Bearer t".into())];
    let signed_at = UNIX_EPOCH + Duration::from_secs(1_796_000_123);
    let outgoing = Outgoing { record: &record, attempt: 3, sequence: 0, signed_at };
    let sent = courier().send(&target, outgoing, DEADLINE).await;
    assert_eq!(status(&sent), (204, true));

    let request = next(&mut requests).await;
    assert_eq!(request.line, "POST /hook?x=1 HTTP/1.1");
    assert_eq!(request.body, record.payload);
    let event = record.head.event_id().to_string();
    for (name, value) in [
        ("webhook-id", event.as_str()),
        ("idempotency-key", &event),
        ("webhook-timestamp", "1796000123"),
        ("x-delivery-id", &record.head.delivery_id().to_string()),
        ("x-sequence-number", "0"),
        ("x-attempt", "3"),
        ("x-event-type", "order.created"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("content-type", "application/json"),
        ("accept-encoding", "identity"),
        ("user-agent", concat!("Laneway/", env!("CARGO_PKG_VERSION"))),
        ("content-length", &record.payload.len().to_string()),
        ("host", &receiver.address.to_string()),
        ("x-shop", "7"),
        ("x-plan", "endpoint"),
        ("authorization", "Bearer t"),
    ] {
        assert_eq!(request.one(name), value, "{name}");
    }
    let names: Vec<_> = request.headers.iter().map(|header| header.0.as_str()).collect();
    for never in ["transfer-encoding", "cookie", "referer", "x-replay-of", "expect"] {
        assert!(!names.contains(&never), "{names:?}");
    }
}

#[tokio::test]
async fn the_body_signed_is_the_body_sent_under_every_active_secret() {
    let (receiver, mut requests) = listening().await;
    let secrets: Vec<_> = (1..=3u8).map(|n| Secret::from_bytes(&[n; 32]).unwrap()).collect();
    let target = Target { secrets: secrets.clone(), ..target(receiver.url()) };
    let courier = courier();
    for payload in [&b"{\"test\": 1}"[..], b"", b"plain text", &[b'x'; 100_000]] {
        let record = record(payload);
        courier.send(&target, outgoing(&record), Duration::from_secs(5)).await;
        let request = next(&mut requests).await;
        let headers =
            || request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for secret in &secrets {
            let signer = Signer::new([secret]).unwrap();
            assert_eq!(signer.verify(headers(), &request.body, now, DEFAULT_TOLERANCE), Ok(()));
            let oracle = standardwebhooks::Webhook::new(&secret.expose()).unwrap();
            let map = headers()
                .map(|(name, value)| {
                    (
                        name.parse::<http::HeaderName>().unwrap(),
                        value.parse::<http::HeaderValue>().unwrap(),
                    )
                })
                .collect();
            assert!(oracle.verify(&request.body, &map).is_ok());
        }
    }
}

#[tokio::test]
async fn a_retry_keeps_its_ids_and_gets_a_new_signature() {
    let (receiver, mut requests) = listening().await;
    let (courier, target, record) = (courier(), target(receiver.url()), record("{}"));
    for attempt in 1..=2 {
        let signed_at = UNIX_EPOCH + Duration::from_secs(1_796_000_000 + u64::from(attempt));
        let outgoing = Outgoing { record: &record, attempt, sequence: 7, signed_at };
        courier.send(&target, outgoing, DEADLINE).await;
    }
    let (first, second) = (next(&mut requests).await, next(&mut requests).await);
    for name in ["webhook-id", "x-delivery-id", "idempotency-key", "x-sequence-number"] {
        assert_eq!(first.one(name), second.one(name));
    }
    assert_eq!(first.body, second.body);
    assert_eq!((first.one("x-attempt"), second.one("x-attempt")), ("1", "2"));
    assert_ne!(first.one("webhook-signature"), second.one("webhook-signature"));
    assert_eq!(receiver.accepted(), 1, "the connection is kept");
}

#[tokio::test]
async fn headers_that_cannot_be_sent_send_nothing() {
    let (receiver, _requests) = listening().await;
    let courier = courier();
    for (name, value) in [
        ("x-a", "b\r\nHost: evil"),
        ("x-a\r\nHost", "evil"),
        ("Host", "evil"),
        ("Content-Length", "0"),
        ("webhook-signature", "v1,x"),
        ("", "x"),
    ] {
        let header = (name.to_owned(), value.to_owned());
        let mut of_event = record("{}");
        of_event.head.headers = vec![header.clone()];
        let sent = courier.send(&target(receiver.url()), outgoing(&of_event), DEADLINE).await;
        assert_eq!(sent.result, not_sent("bad_header"), "{name}");
        let of_endpoint = Target { version: 2, headers: vec![header], ..target(receiver.url()) };
        let sent = courier.send(&of_endpoint, outgoing(&record("{}")), DEADLINE).await;
        assert_eq!(sent.result, not_sent("bad_header"), "{name}");
    }
    let mut odd = record("{}");
    odd.head.content_type = "text/plain\r\nx: y".into();
    let sent = courier.send(&target(receiver.url()), outgoing(&odd), DEADLINE).await;
    assert_eq!(sent.result, not_sent("bad_header"));
    odd = record("{}");
    odd.head.event_type = "a\nb".into();
    let sent = courier.send(&target(receiver.url()), outgoing(&odd), DEADLINE).await;
    assert_eq!(sent.result, not_sent("bad_header"));
    assert_eq!(receiver.accepted(), 0);
}

#[tokio::test]
async fn a_trace_context_that_cannot_be_sent_is_left_out() {
    let (receiver, mut requests) = listening().await;
    let mut record = record("{}");
    record.head.traceparent = Some("00-\r\n".into());
    courier().send(&target(receiver.url()), outgoing(&record), DEADLINE).await;
    assert!(next(&mut requests).await.all("traceparent").is_empty());
}

#[tokio::test]
async fn an_endpoint_without_a_secret_is_sent_nothing() {
    let (receiver, _requests) = listening().await;
    let target = Target { secrets: Vec::new(), ..target(receiver.url()) };
    let sent = courier().send(&target, outgoing(&record("{}")), DEADLINE).await;
    assert_eq!(sent.result, not_sent("bad_secrets"));
}
