//! From bytes of the topic to what the core takes in.

use crate::part::Part;
use bytes::Bytes;
use laneway_bus::RawRecord;
use laneway_lane::{Incoming, Known, Partition};
use laneway_store::delivery::EndpointRow;
use laneway_wire::{DeliveryId, EndpointId, Record, TenantId};
use std::collections::HashMap;
use std::sync::Arc;

/// Records in one intake.
pub(crate) const BATCH: usize = 500;
/// Bytes of an unreadable record that are kept.
const RAW_KEPT: usize = 64 * 1024;

/// A batch of one partition on its way through the settle queue.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) records: Vec<Incoming>,
    pub(crate) ids: Vec<DeliveryId>,
    /// Endpoints that are not known here yet, with the tenant that a record names.
    pub(crate) unknown: HashMap<EndpointId, TenantId>,
    /// Their rows, once loaded.
    pub(crate) rows: Vec<EndpointRow>,
    /// The latest generation that a record is stamped with.
    pub(crate) latest: u64,
}

/// Which partition each bucket is in.
pub(crate) type Buckets = Arc<Vec<Partition>>;

impl Batch {
    /// Reads up to `room` buffered records of the partition.
    pub(crate) fn read(
        partition: Partition,
        part: &mut Part,
        room: usize,
        buckets: &Buckets,
        is_known: impl Fn(EndpointId) -> bool,
    ) -> Self {
        let mut batch = Self::default();
        let taken: Vec<RawRecord> = part.buffer.drain(..part.buffer.len().min(room)).collect();
        for raw in taken {
            part.buffered_bytes -= raw.value.len();
            batch.records.push(match Record::decode(&raw.value) {
                Err(error) => unreadable(&raw, error.code()),
                Ok(record) => {
                    batch.latest = batch.latest.max(record.head.generation);
                    let lane = record.head.lane();
                    let home = buckets.get(usize::from(lane.bucket().number()));
                    if part.is_lost_to(record.head.generation, raw.offset) {
                        Incoming::Skip { offset: raw.offset }
                    } else if raw.key != lane.as_bytes().as_slice() {
                        unreadable(&raw, "foreign_key")
                    } else if home != Some(&partition) {
                        unreadable(&raw, "foreign_partition")
                    } else {
                        batch.ids.push(record.head.delivery_id());
                        let endpoint = record.head.endpoint_id();
                        if !is_known(endpoint) {
                            batch.unknown.insert(endpoint, record.head.tenant_id());
                        }
                        let (offset, record) = (raw.offset, Arc::new(record));
                        Incoming::Delivery { offset, record, lane, known: Known::New }
                    }
                }
            });
        }
        batch
    }

    /// Fills in what the database knew, and takes out what names an endpoint of another tenant.
    pub(crate) fn answered(
        mut self,
        known: &HashMap<DeliveryId, Known>,
        is_of: impl Fn(EndpointId, TenantId) -> bool,
    ) -> Vec<Incoming> {
        for incoming in &mut self.records {
            if let Incoming::Delivery { record, known: seen, offset, .. } = incoming {
                let head = &record.head;
                if let Some(found) = known.get(&head.delivery_id()) {
                    *seen = *found;
                }
                if !is_of(head.endpoint_id(), head.tenant_id()) {
                    *incoming = Incoming::Unreadable {
                        offset: *offset,
                        reason: "foreign_tenant",
                        raw: cut(&record.encode()),
                    };
                }
            }
        }
        self.records
    }
}

fn unreadable(raw: &RawRecord, reason: &'static str) -> Incoming {
    Incoming::Unreadable { offset: raw.offset, reason, raw: cut(&raw.value) }
}

/// A copy, so that the batch's memory can go.
fn cut(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(&bytes[..bytes.len().min(RAW_KEPT)])
}
