//! The one workload of all parts: 512-byte JSON bodies with a key and a dense number per key, by which the receiver
//! checks order.

use anyhow::Result;
use bytes::Bytes;
use laneway_wire::record::Head;
use laneway_wire::{DeliveryId, EndpointId, EventId, LaneMode, Record, TenantId, Timestamp};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// User keys, each a lane.
pub(crate) const KEYS: u32 = 10_000;
/// Bytes of a body.
pub(crate) const BODY: usize = 512;
/// Partitions of the topic.
pub(crate) const PARTITIONS: u16 = 12;
/// Requests in flight, of either engine.
pub(crate) const IN_FLIGHT: u32 = 200;
/// Between two looks at a condition.
const POLL: Duration = Duration::from_millis(50);

/// The `i`-th event's key and its number within the key, from 1.
pub(crate) fn key_and_number(i: u32, keys: u32) -> (String, u32) {
    (format!("u{}", i % keys), i / keys + 1)
}

/// A body of [`BODY`] bytes.
pub(crate) fn body(key: &str, n: u32) -> Vec<u8> {
    let mut body = format!(r#"{{"key":"{key}","n":{n},"pad":""#).into_bytes();
    body.resize(BODY - 2, b'x');
    body.extend(b"\"}");
    body
}

/// A record as the relay makes it.
pub(crate) fn record(
    tenant: TenantId,
    endpoint: EndpointId,
    key: &str,
    payload: Vec<u8>,
) -> Record {
    let event = EventId::from_uuid(Uuid::now_v7());
    Record {
        head: Head {
            generation: 1,
            delivery: DeliveryId::first(event, endpoint).as_uuid(),
            event: event.as_uuid(),
            endpoint: endpoint.as_uuid(),
            tenant: tenant.as_uuid(),
            mode: LaneMode::User,
            user_key: Some(key.to_owned()),
            event_type: "bench.made".to_owned(),
            content_type: "application/json".to_owned(),
            headers: Vec::new(),
            traceparent: None,
            source: "main".to_owned(),
            row: 1,
            created_at: now(),
            replay: 0,
            replay_of: None,
            erased: false,
        },
        payload: Bytes::from(payload),
    }
}

/// The wall clock; the database is on the same machine.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Waits until `condition` is true.
///
/// # Errors
/// With `what` when `limit` passes first, and whatever the condition says.
pub(crate) async fn until<F, Fut>(what: &str, limit: Duration, mut condition: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    let start = Instant::now();
    while !condition().await? {
        anyhow::ensure!(start.elapsed() < limit, "waited {limit:?} in vain for {what}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
