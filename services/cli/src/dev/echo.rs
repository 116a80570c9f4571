//! The built-in receiver of `laneway dev`: takes everything and prints one line for each request.

use crate::output::Output;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::any;
use laneway_platform::task;
use std::net::Ipv4Addr;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The largest body that is read, in bytes: more than any payload.
const MAX_BODY: usize = 1024 * 1024;
/// So many characters of a body are printed.
const SHOWN: usize = 100;

/// Opens the receiver on a free loopback port and gives its URL.
pub(super) async fn start(stop: CancellationToken, output: Output) -> std::io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let router = Router::new().fallback(any(move |request| receive(request, output)));
    let served =
        axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await });
    task::spawn("echo", async move {
        if let Err(error) = served.await {
            tracing::error!(%error, "the built-in receiver broke");
        }
    });
    Ok(url)
}

async fn receive(request: Request<Body>, output: Output) -> StatusCode {
    let (head, body) = request.into_parts();
    match axum::body::to_bytes(body, MAX_BODY).await {
        Ok(body) => {
            output.say(&line(&head.headers, &body));
            StatusCode::OK
        }
        Err(_) => StatusCode::PAYLOAD_TOO_LARGE,
    }
}

fn line(headers: &HeaderMap, body: &[u8]) -> String {
    let header = |name: &str| {
        let value = headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.unwrap_or("-".into()).into_owned()
    };
    let text: String = String::from_utf8_lossy(body)
        .chars()
        .take(SHOWN)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    format!(
        "received {} {} attempt {} {text}",
        header("x-event-type"),
        header("x-delivery-id"),
        header("x-attempt"),
    )
}
