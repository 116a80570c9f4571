//! Sending a page's chains: all chains at once, within a chain one after the other (wave rule), every acknowledgement
//! compared with the mark as it was before its record was sent.

use crate::route::Delivery;
use crate::topic::{Topic, Topics};
use futures_util::stream::{FuturesUnordered, StreamExt};
use laneway_bus::{BusError, Producer};
use laneway_lane::relay::{Chain, Plan, Published, is_lost};
use laneway_platform::failpoint;
use laneway_store::relay::{HoldReason, OutboxRow};
use laneway_wire::record::{Head, Record};

/// Why a page was not published: its shard starts again from the stored cursor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// The log was lost; the watch has been told.
    #[error("an acknowledged offset lies at or below the mark")]
    Lost,
    /// The producer or the topic refuses everything.
    #[error("records are not acknowledged")]
    Bus(#[from] BusError),
}

/// What a record says beside its row and delivery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp<'a> {
    pub(crate) source: &'a str,
    pub(crate) generation: u64,
}

/// Sends `plan`'s chains and waits for all acknowledgements.
pub(crate) async fn publish(
    topics: &Topics,
    topic: &Topic,
    source: &str,
    rows: &[OutboxRow],
    deliveries: &[Delivery],
    plan: &Plan,
) -> Result<Published, PublishError> {
    let stamp = Stamp { source, generation: topic.generation };
    let mut chains: FuturesUnordered<_> = plan
        .chains
        .iter()
        .map(|chain| send_chain(topics, topic, stamp, rows, deliveries, chain))
        .collect();
    let mut all = Published::default();
    while let Some(chain) = chains.next().await {
        all.add(chain?);
    }
    Ok(all)
}

async fn send_chain(
    topics: &Topics,
    topic: &Topic,
    stamp: Stamp<'_>,
    rows: &[OutboxRow],
    deliveries: &[Delivery],
    links: &[usize],
) -> Result<Published, PublishError> {
    let mut chain = Chain::new(links);
    while let Some(index) = chain.to_send() {
        let delivery = &deliveries[index];
        let partition = topic.partition(delivery.lane.bucket());
        let value = record(stamp, &rows[delivery.row], delivery).encode();
        // Kafka numbers partitions with an i32 and there are at most 1,024.
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let key = delivery.lane.as_bytes();
        let floor = topic.mark(partition);
        let mut acked = send(&topic.producer, number, key, &value, floor).await;
        if acked.as_ref().is_err_and(BusError::is_too_large) {
            // Perhaps not for itself: the broker refuses the whole batch that it shared with others.
            acked = send(topic.alone().await?, number, key, &value, floor).await;
        }
        match acked {
            Ok(acked) => {
                if is_lost(floor, acked.offset) {
                    return Err(PublishError::Lost);
                }
                chain.acked(partition, acked.offset);
            }
            // Refused for itself: it is held, and so is what comes behind it.
            Err(error) if error.is_too_large() => {
                tracing::warn!(
                    row = rows[delivery.row].id, endpoint = %delivery.endpoint, bytes = value.len(),
                    "the broker refuses a record for its size, holding it"
                );
                chain.refused(HoldReason::Size);
            }
            Err(error) => {
                if error.is_fatal() {
                    topics.failed(topic.generation);
                }
                return Err(error.into());
            }
        }
    }
    Ok(chain.finish())
}

async fn send(
    producer: &Producer,
    partition: i32,
    key: &[u8],
    value: &[u8],
    floor: i64,
) -> Result<laneway_bus::Acked, BusError> {
    let sent = producer.send_above(partition, key, value, floor).await;
    failpoint::hit("relay.after_produce");
    sent?.await
}

/// The record of one delivery.
pub(crate) fn record(stamp: Stamp<'_>, row: &OutboxRow, delivery: &Delivery) -> Record {
    use laneway_wire::LaneMode::User;
    let user_key = match delivery.mode {
        User => row.user_key.clone(),
        laneway_wire::LaneMode::Total | laneway_wire::LaneMode::None => None,
    };
    Record {
        head: Head {
            generation: stamp.generation,
            delivery: row.delivery_id(delivery.endpoint).as_uuid(),
            event: row.event.as_uuid(),
            endpoint: delivery.endpoint.as_uuid(),
            tenant: row.tenant.as_uuid(),
            mode: delivery.mode,
            user_key,
            event_type: row.event_type.clone(),
            content_type: row.content_type.clone(),
            headers: row.headers.clone(),
            traceparent: row.traceparent.clone(),
            source: stamp.source.to_owned(),
            row: row.id,
            created_at: row.created_at,
            replay: row.rewind.map_or(0, |rewind| rewind.number),
            // 0: the first delivery once more, which repeats none.
            replay_of: row
                .rewind
                .filter(|rewind| rewind.number > 0)
                .map(|rewind| rewind.of.as_uuid()),
            erased: row.erased,
        },
        payload: row.payload.clone(),
    }
}
