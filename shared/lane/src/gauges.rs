//! What the core tells of itself: numbers for metrics, and a check of its invariants for tests.

use crate::endpoint::Ep;
use crate::hash::Map;
use crate::input::Partition;
use crate::lanes::{Lane, Phase};
use crate::partition::{Part, What};
use crate::shared::Shared;
use laneway_wire::{EndpointId, Timestamp};
use std::collections::BTreeMap;

/// Present numbers of the whole core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauges {
    /// Partitions held.
    pub partitions: usize,
    /// Lanes with an entry in memory: live ones, and parked ones with something loaded or queued.
    pub lanes_in_memory: usize,
    /// Lanes parked, loaded or not.
    pub lanes_parked: usize,
    /// Parked lanes with something loaded.
    pub lanes_loaded: u32,
    /// Payload bytes of loaded parked events.
    pub loaded_bytes: u64,
    /// Requests under way, and intents before theirs.
    pub in_flight: u32,
    /// Records taken in and not complete.
    pub open_events: u64,
    /// Their payload bytes.
    pub open_bytes: u64,
    /// Items queued and not durable.
    pub unsettled: usize,
    /// Endpoints that count as degraded.
    pub endpoints_degraded: usize,
    /// When the last health view was read.
    pub health_view: Option<Timestamp>,
    /// Inputs that fitted nothing: of an old epoch, late, or repeated.
    pub stale_inputs: u64,
    /// Records that were complete when they came: settled, or open already.
    pub duplicates: u64,
}

/// Present numbers of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointGauges {
    /// Which.
    pub endpoint: EndpointId,
    /// Lanes live in memory.
    pub lanes_live: u32,
    /// Lanes parked.
    pub lanes_parked: u32,
    /// Requests under way, and intents before theirs.
    pub in_flight: u32,
    /// It counts as degraded.
    pub degraded: bool,
}

#[derive(Default)]
struct Counted {
    in_flight: u32,
    live: u32,
    parked: u32,
    loaded: u32,
    live_events: u64,
}

macro_rules! hold {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}

/// Counts everything anew and compares.
pub(crate) fn check(sh: &Shared, parts: &BTreeMap<Partition, Part>) -> Result<(), String> {
    let mut by_endpoint: Map<Ep, Counted> = Map::default();
    let (mut loaded_bytes, mut reserved) = (0, 0);
    for part in parts.values() {
        check_part(part, &mut by_endpoint, &mut loaded_bytes)
            .map_err(|what| format!("partition {}: {what}", part.id))?;
        reserved += part.reserved();
    }
    let (mut in_flight, mut loaded) = (0, 0);
    for (ep, entry) in sh.endpoints.all() {
        let counted = by_endpoint.remove(&ep).unwrap_or_default();
        in_flight += counted.in_flight;
        loaded += counted.loaded;
        let said = (entry.in_flight, entry.live_lanes, entry.parked_lanes, entry.loaded);
        let found = (counted.in_flight, counted.live, counted.parked, counted.loaded);
        hold!(
            said == found,
            "{}: (in flight, live, parked, loaded) {said:?} but {found:?}",
            entry.id
        );
        hold!(
            entry.live_events == counted.live_events,
            "{}: {} live events but {}",
            entry.id,
            entry.live_events,
            counted.live_events
        );
    }
    hold!(sh.in_flight == in_flight, "{} in flight but {in_flight}", sh.in_flight);
    hold!(in_flight <= sh.limits.max_in_flight, "{in_flight} in flight in all");
    hold!(sh.loaded_lanes == loaded, "{} loaded but {loaded}", sh.loaded_lanes);
    hold!(sh.loaded_bytes == loaded_bytes, "{} loaded bytes but {loaded_bytes}", sh.loaded_bytes);
    hold!(sh.reserved_lanes == reserved, "{} reserved but {reserved}", sh.reserved_lanes);
    Ok(())
}

fn check_part(
    part: &Part,
    by_endpoint: &mut Map<Ep, Counted>,
    loaded_bytes: &mut u64,
) -> Result<(), String> {
    let mut open_offsets = 0;
    let mut in_flight = 0;
    let mut held = 0;
    let mut appends: Map<u32, u32> = Map::default();
    let mut live_by_ep: Map<Ep, u64> = Map::default();
    for (index, lane) in part.lanes.all() {
        let counted = by_endpoint.entry(lane.ep).or_default();
        check_lane(part, index, lane)?;
        let flying = matches!(lane.phase, Phase::Intent { .. } | Phase::InFlight { .. });
        in_flight += u32::from(flying);
        counted.in_flight += u32::from(flying);
        counted.live += u32::from(!lane.parked);
        counted.loaded += u32::from(lane.loaded);
        let mut events: Vec<_> = lane.head.iter().chain(&lane.queue).collect();
        if let Phase::Held(outcome) = &lane.phase {
            held += 1;
            events.push(&outcome.event);
        }
        for event in events {
            hold!(part.open.contains_key(&event.delivery), "{:?} is not open", event.delivery);
            if event.logged {
                open_offsets += 1;
                let offset = event.position.offset;
                hold!(part.ledger.is_open(offset), "offset {offset} is in memory and complete");
                if !lane.parked {
                    counted.live_events += 1;
                    *live_by_ep.entry(lane.ep).or_default() += 1;
                }
            } else {
                *loaded_bytes += event.bytes();
            }
        }
        if lane.appends > 0 {
            appends.insert(index, lane.appends);
        }
    }
    for pending in &part.pending {
        let offset = match pending.what {
            What::Park { offset, .. } | What::ParkInFlight { offset, .. } => Some(offset),
            What::Final { lane, offset, .. } => {
                if let (Some(_), Some(lane)) = (offset, part.lanes.get(lane)) {
                    by_endpoint.entry(lane.ep).or_default().live_events += 1;
                    *live_by_ep.entry(lane.ep).or_default() += 1;
                }
                offset
            }
            What::Quarantine { offset } => Some(offset),
            What::Append { lane, offset, .. } => {
                let left = appends.get_mut(&lane).ok_or("an append of a lane without an entry")?;
                *left = left.checked_sub(1).ok_or("more appends queued than counted")?;
                Some(offset)
            }
            _ => None,
        };
        if let Some(offset) = offset {
            open_offsets += 1;
            hold!(part.ledger.is_open(offset), "offset {offset} is queued and complete");
        }
    }
    hold!(appends.values().all(|left| *left == 0), "fewer appends queued than counted");
    hold!(part.ledger.open() == open_offsets, "{} open but {open_offsets}", part.ledger.open());
    hold!(part.in_flight == in_flight, "{} in flight but {in_flight}", part.in_flight);
    hold!(part.held == held, "{} held but {held}", part.held);
    let mut parked: Map<Ep, u32> = Map::default();
    for entry in part.parked.values() {
        *parked.entry(entry.ep).or_default() += 1;
        by_endpoint.entry(entry.ep).or_default().parked += 1;
    }
    for (ep, local) in &part.locals {
        let found = parked.remove(ep).unwrap_or(0);
        hold!(local.parked == found, "endpoint {ep}: {} parked but {found}", local.parked);
        let live = live_by_ep.get(ep).copied().unwrap_or(0);
        hold!(local.live_events == live, "endpoint {ep}: {} live but {live}", local.live_events);
    }
    hold!(parked.is_empty(), "parked lanes of an endpoint that has nothing here");
    Ok(())
}

fn check_lane(part: &Part, index: u32, lane: &Lane) -> Result<(), String> {
    let id = lane.id;
    hold!(part.lanes.find(id) == Some(index), "{id}: index");
    hold!(part.parked.contains_key(&id) == lane.parked, "{id}: parked and not in the set, or not");
    let wants_head = match lane.phase {
        Phase::Ready | Phase::Waiting | Phase::Intent { .. } | Phase::InFlight { .. } => true,
        Phase::Parking | Phase::Asleep | Phase::Held(_) | Phase::Paging => false,
        Phase::Settling { .. } | Phase::Stopped => lane.head.is_some(),
    };
    hold!(lane.head.is_some() == wants_head, "{id}: head in {:?}", lane.phase);
    match lane.phase {
        Phase::Parking => hold!(lane.parked && lane.queue.is_empty(), "{id}: parking"),
        Phase::Asleep => {
            hold!(lane.parked && lane.queue.is_empty() && lane.appends > 0, "{id}: asleep");
        }
        Phase::Waiting => hold!(!lane.parked, "{id}: a parked lane has no timer"),
        Phase::Settling { leaving: true } => {
            hold!(lane.parked && lane.appends == 0, "{id}: leaving")
        }
        _ => {}
    }
    hold!(lane.parked || lane.appends == 0, "{id}: appends of a live lane");
    hold!(!lane.loaded || lane.parked, "{id}: loaded and live");
    Ok(())
}
