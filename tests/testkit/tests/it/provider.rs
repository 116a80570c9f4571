//! The provider with effects: what its ledger says of what a sender did.

use laneway_testkit::{First, Provider, Says};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends one request and waits for its answer, or the end of the connection.
async fn ask(address: &str, request: String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let _ = stream.read(&mut [0; 1024]).await;
}

async fn request(provider: &Provider, event: &str, key: &str, attempt: u32) {
    let address = provider.receiver().address().to_string();
    let text = format!(
        "POST /do HTTP/1.1\r\nhost: test\r\nwebhook-id: {event}\r\nidempotency-key: {key}\r\n\
         x-delivery-id: d\r\nx-attempt: {attempt}\r\ncontent-length: 0\r\n\r\n"
    );
    ask(&address, text).await;
}

#[tokio::test]
async fn work_that_its_idempotency_held_back_stands_in_the_ledger() {
    let provider = Provider::start().await;
    provider.set_first(|key| if key == "a" { First::ApplyThenCut } else { First::CutBefore });
    provider.set_says(|_, _| Says::Truth);
    request(&provider, "a", "a", 1).await;
    let authority = provider.authority();
    let address = authority.split('/').nth(2).unwrap();
    ask(address, "GET /ask/b HTTP/1.1\r\nhost: test\r\n\r\n".to_owned()).await;
    request(&provider, "a", "a", 2).await;
    request(&provider, "a", "b", 3).await; // cut before it is worked on
    request(&provider, "a", "b", 4).await;
    let ledger = provider.ledger();
    let lines: Vec<_> = ledger
        .iter()
        .map(|line| (line.kind, line.key.as_str(), line.event.as_deref(), line.attempt))
        .collect();
    assert_eq!(
        lines,
        [
            ("effect", "a", None, 1),
            ("answer", "b", None, 0),
            ("worked", "a", None, 2),
            ("effect", "b", Some("a"), 4),
        ]
    );
    assert_eq!(provider.account("a").effects, 1);
}
