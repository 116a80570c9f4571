//! Connections, clients and time are bounded (P10), and settings take effect.

use crate::receiver::*;
use laneway_courier::{Courier, Settings, Target};
use laneway_wire::EndpointId;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use uuid::Uuid;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn no_more_requests_are_under_way_than_the_endpoint_takes_connections() {
    let (now, peak) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (now_in, peak_in) = (Arc::clone(&now), Arc::clone(&peak));
    let receiver = Receiver::start(move |mut connection| {
        let (now, peak) = (Arc::clone(&now_in), Arc::clone(&peak_in));
        async move {
            while connection.request().await.is_some() {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                connection.write(OK).await;
            }
        }
    })
    .await;
    let target = Arc::new(Target { max_connections: 3, ..target(receiver.url()) });
    let courier = Arc::new(courier());
    let sends: Vec<_> = (0..60)
        .map(|_| {
            let (courier, target) = (Arc::clone(&courier), Arc::clone(&target));
            tokio::spawn(async move {
                courier.send(&target, outgoing(&record("{}")), Duration::from_secs(20)).await
            })
        })
        .collect();
    for send in sends {
        assert_eq!(status(&send.await.unwrap()).0, 200);
    }
    assert_eq!(peak.load(Ordering::SeqCst), 3);
    assert!(receiver.accepted() <= 6, "{} connections", receiver.accepted());
}

#[tokio::test]
async fn a_request_that_gets_no_connection_was_not_sent() {
    let silent = Receiver::start(Connection::hold).await;
    let target = Arc::new(Target { max_connections: 1, ..target(silent.url()) });
    let courier = Arc::new(courier());
    let busy = tokio::spawn({
        let (courier, target) = (Arc::clone(&courier), Arc::clone(&target));
        async move { courier.send(&target, outgoing(&record("{}")), Duration::from_secs(5)).await }
    });
    until("the first request is under way", || silent.accepted() == 1).await;
    let sent = courier.send(&target, outgoing(&record("{}")), DEADLINE).await;
    assert_eq!(sent.result, not_sent("connections_busy"));
    // Settings of another version do not lift the cap of what is under way.
    let newer = Target { version: 2, ..(*target).clone() };
    let sent = courier.send(&newer, outgoing(&record("{}")), DEADLINE).await;
    assert_eq!(sent.result, not_sent("connections_busy"));
    busy.abort();
}

#[tokio::test]
async fn endpoints_share_no_connection_even_to_the_same_url() {
    let receiver = Receiver::answering(OK).await;
    let courier = courier();
    for endpoint in 1..=3 {
        for _ in 0..3 {
            let endpoint = EndpointId::from_uuid(Uuid::from_u128(endpoint));
            let target = Target { endpoint, ..target(receiver.url()) };
            let sent = courier.send(&target, outgoing(&record("{}")), DEADLINE).await;
            assert_eq!(status(&sent).0, 200);
        }
    }
    assert_eq!((receiver.accepted(), receiver.requests()), (3, 9));
    assert_eq!(courier.clients(), 3);
}

#[tokio::test]
async fn the_number_of_clients_kept_is_bounded_and_the_busiest_stay() {
    let receiver = Receiver::answering(OK).await;
    let courier = Courier::new(Settings { max_clients: 32, ..settings() }).unwrap();
    let send = |endpoint: u128| {
        let endpoint = EndpointId::from_uuid(Uuid::from_u128(endpoint));
        let target = Target { endpoint, ..target(receiver.url()) };
        let courier = &courier;
        async move { courier.send(&target, outgoing(&record("{}")), Duration::from_secs(5)).await }
    };
    for endpoint in 0..100 {
        assert_eq!(status(&send(endpoint).await).0, 200);
        assert_eq!(status(&send(1_000).await).0, 200);
        assert!(courier.clients() <= 32);
    }
    assert_eq!(receiver.accepted(), 101, "the one in constant use was never made anew");
}

#[tokio::test]
async fn a_new_version_of_an_endpoints_settings_takes_effect_at_once() {
    let (before, after) = (Receiver::answering(OK).await, Receiver::answering(OK).await);
    let courier = courier();
    let old = target(before.url());
    let new = Target { version: 2, ..target(after.url()) };
    for (target, counts) in [(&old, (1, 0)), (&old, (2, 0)), (&new, (2, 1)), (&new, (2, 2))] {
        courier.send(target, outgoing(&record("{}")), DEADLINE).await;
        assert_eq!((before.requests(), after.requests()), counts);
    }
}

#[tokio::test]
async fn a_client_is_made_anew_after_a_minute() {
    let receiver = Receiver::answering(OK).await;
    let (courier, target) = (courier(), target(receiver.url()));
    let send = async || courier.send(&target, outgoing(&record("{}")), DEADLINE).await;
    for _ in 0..2 {
        assert_eq!(status(&send().await).0, 200);
    }
    assert_eq!(receiver.accepted(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    assert_eq!(status(&send().await).0, 200);
    assert_eq!((receiver.accepted(), courier.clients()), (2, 1), "no connection outlives a minute");
}

/// `cargo test --release -p laneway-courier -- --ignored --nocapture per_send` prints what a send costs.
#[tokio::test]
#[ignore = "a measurement"]
async fn per_send_cpu() {
    const SENDS: usize = 30_000;
    let receiver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", receiver.local_addr().unwrap());
    // On a thread of its own, so that only the sending side is counted.
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = receiver.accept().unwrap();
        let mut buffer = vec![0; 65_536];
        while stream.read(&mut buffer).unwrap() > 0 {
            stream.write_all(OK).unwrap();
        }
    });
    let (courier, target, record) = (courier(), target(url), record(vec![b'x'; 512]));
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        stat.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    for sends in [1_000, SENDS] {
        let before = cpu();
        for _ in 0..sends {
            let sent = courier.send(&target, outgoing(&record), Duration::from_secs(5)).await;
            assert_eq!(status(&sent).0, 200);
        }
        let each = (cpu() - before) as f64 / sends as f64 / 1_000.0;
        println!("{each:.1} us of CPU a send on the sending side, its kernel's part included");
    }
}
