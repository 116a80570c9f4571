//! Waiting for conditions, and names that no other test has.

use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between the first looks at a condition, and between the later ones: a look may be a query, and many tests look.
const POLL: Duration = Duration::from_millis(20);
const POLL_AT_LENGTH: Duration = Duration::from_millis(100);

/// Waits until `condition` is true; panics with `what` when `limit` passes first.
pub async fn wait_for<F, Fut>(what: &str, limit: Duration, mut condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    wait_for_some(what, limit, || {
        let looked = condition();
        async move { looked.await.then_some(()) }
    })
    .await;
}

/// Waits until `condition` gives a value; panics with `what` when `limit` passes first.
pub async fn wait_for_some<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        let waited = start.elapsed();
        assert!(waited < limit, "waited {limit:?} in vain for: {what}");
        tokio::time::sleep((waited / 10).clamp(POLL, POLL_AT_LENGTH)).await;
    }
}

/// A loopback port that nothing listens on now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .expect("the loopback interface has a free port")
        .port()
}

/// A Kafka topic name that no other test uses.
pub fn fresh_topic_name(prefix: &str) -> String {
    format!("{prefix}.{}", uuid::Uuid::now_v7().simple())
}

/// A new folder for one test's files, below the system's temporary folder; the caller may remove it.
pub fn temp_dir(name: &str) -> PathBuf {
    let path =
        std::env::temp_dir().join(format!("laneway-{name}-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&path).expect("the temporary folder can be written");
    path
}
