//! The world around one core: log, database, requests under way, answers on their way; and the promises, checked at
//! every effect. A breach is a panic that names the promise.

use crate::database::Database;
use bytes::Bytes;
use laneway_lane::*;
use laneway_wire::record::Head;
use laneway_wire::{
    DeliveryId, EndpointId, EventId, LaneId, LaneMode, Record, TenantId, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

pub(crate) const PARTITIONS: u32 = 2;
pub(crate) const START: Timestamp = Timestamp(1_800_000_000_000);
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) offset: i64,
    /// None: not readable.
    pub(crate) record: Option<(LaneId, Arc<Record>)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) ticket: Ticket,
    pub(crate) lane: LaneId,
    pub(crate) probe: bool,
    pub(crate) endpoint: EndpointId,
    pub(crate) began: Timestamp,
}

/// An effect that asks for something, first to be read, then to be answered.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    Effect(Effect),
    Answer(Input),
}

#[derive(Debug, Default)]
pub(crate) struct Owned {
    pub(crate) epoch: Epoch,
    pub(crate) queue: VecDeque<(SettleSeq, SettleItem)>,
    /// Committed groups and intake, in order, not yet told to the core.
    pub(crate) told: VecDeque<Input>,
    pub(crate) read_to: usize,
    pub(crate) drained: bool,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) limits: Limits,
    pub(crate) core: Core,
    pub(crate) db: Database,
    pub(crate) endpoints: BTreeMap<EndpointId, Endpoint>,
    pub(crate) log: Vec<Vec<Entry>>,
    pub(crate) owned: Vec<Owned>,
    pub(crate) next_offset: Vec<i64>,
    pub(crate) requests: Vec<Request>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) late: Vec<Input>,
    /// Deliveries of a lane in the order of their first occurrence in the log.
    pub(crate) order: BTreeMap<LaneId, Vec<DeliveryId>>,
    pub(crate) records: BTreeMap<DeliveryId, (LaneId, Arc<Record>)>,
    pub(crate) sends: Vec<(Timestamp, DeliveryId, bool)>,
    /// Degraded at the core's last view, and since when.
    view: BTreeSet<EndpointId>,
    view_at: Option<Timestamp>,
    pub(crate) held_since: BTreeMap<DeliveryId, Timestamp>,
    /// Since when an endpoint is disabled, and how long it was before.
    stands: BTreeMap<EndpointId, (Option<Timestamp>, Duration)>,
    events: u128,
    commands: CommandId,
    pub(crate) inputs: Vec<(Timestamp, Input)>,
    pub(crate) effects: Vec<String>,
    pub(crate) recording: bool,
    pub(crate) checked: bool,
}

pub(crate) fn endpoint_id(number: u128) -> EndpointId {
    EndpointId::from_uuid(Uuid::from_u128(number + 1))
}

pub(crate) fn small_limits() -> Limits {
    Limits {
        window_events: 40,
        window_bytes: 1 << 20,
        open_percent: 60,
        max_in_flight: 6,
        live_retry: Duration::from_secs(6),
        page_events: 3,
        loaded_lanes: 6,
        loaded_bytes: 400,
        due_page: 3,
        expiry_every: Duration::from_secs(10),
        horizon: Duration::from_secs(60),
        degrade_after: 4,
        ..Limits::default()
    }
}

/// One line without the records' insides.
fn brief(thing: &impl std::fmt::Debug) -> String {
    let text = format!("{thing:?}");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("Record { head") {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        let id = tail.find("delivery: ").map_or("", |at| &tail[at + 10..at + 46]);
        out.push_str(id);
        rest = tail.find("\" }").map_or("", |at| &tail[at + 3..]);
    }
    out.push_str(rest);
    out
}

impl World {
    /// Both partitions owned, nothing parked, all endpoints healthy.
    pub(crate) fn new(limits: Limits, core: Core) -> Self {
        let mut world = Self {
            now: START,
            limits,
            core,
            db: Database::default(),
            endpoints: BTreeMap::new(),
            log: vec![Vec::new(); PARTITIONS as usize],
            owned: Vec::new(),
            next_offset: vec![0; PARTITIONS as usize],
            requests: Vec::new(),
            asked: Vec::new(),
            late: Vec::new(),
            order: BTreeMap::new(),
            records: BTreeMap::new(),
            sends: Vec::new(),
            view: BTreeSet::new(),
            view_at: None,
            held_since: BTreeMap::new(),
            stands: BTreeMap::new(),
            events: 0,
            commands: 0,
            inputs: Vec::new(),
            effects: Vec::new(),
            recording: false,
            checked: true,
        };
        for (number, on_unknown) in
            [OnUnknown::Resend, OnUnknown::Hold, OnUnknown::Resend].into_iter().enumerate()
        {
            let id = endpoint_id(number as u128);
            let endpoint = Endpoint {
                id,
                tenant: TenantId::from_uuid(Uuid::from_u128(77)),
                state: EndpointState::Enabled,
                on_unknown,
                timeout: TIMEOUT,
                max_in_flight: 3,
            };
            world.endpoints.insert(id, endpoint);
        }
        world.owned.resize_with(PARTITIONS as usize, Owned::default);
        world
    }

    pub(crate) fn start(&mut self) {
        for endpoint in self.endpoints.values().cloned().collect::<Vec<_>>() {
            self.give(Input::Endpoint(endpoint));
        }
        self.view();
        for partition in 0..PARTITIONS {
            self.assign(partition);
        }
    }

    pub(crate) fn partition_of(lane: LaneId) -> Partition {
        u32::from(lane.as_bytes()[0]) % PARTITIONS
    }

    pub(crate) fn lane(endpoint: u128, key: &str) -> LaneId {
        LaneId::derive(endpoint_id(endpoint), LaneMode::User, key.as_bytes())
    }

    /// Appends a new event to the log; `gap` offsets are skipped before it.
    pub(crate) fn publish(&mut self, endpoint: u128, key: &str, gap: i64) -> DeliveryId {
        self.publish_as(endpoint, key, gap, |record| record)
    }

    /// The same with an event whose payload was erased.
    pub(crate) fn publish_erased(&mut self, endpoint: u128, key: &str) -> DeliveryId {
        self.publish_as(endpoint, key, 0, |record| record.erased())
    }

    fn publish_as(
        &mut self,
        endpoint: u128,
        key: &str,
        gap: i64,
        made: fn(Record) -> Record,
    ) -> DeliveryId {
        self.events += 1;
        let endpoint = endpoint_id(endpoint);
        let event = EventId::from_uuid(Uuid::from_u128(self.events << 70 | self.events));
        let delivery = DeliveryId::first(event, endpoint);
        let record = Arc::new(made(Record {
            head: Head {
                generation: 1,
                delivery: delivery.as_uuid(),
                event: event.as_uuid(),
                endpoint: endpoint.as_uuid(),
                tenant: Uuid::from_u128(77),
                mode: LaneMode::User,
                user_key: Some(key.to_owned()),
                event_type: "order.created".into(),
                content_type: "application/json".into(),
                headers: Vec::new(),
                traceparent: None,
                source: "app".into(),
                row: self.events as i64,
                created_at: self.now,
                replay: 0,
                replay_of: None,
                erased: false,
            },
            payload: Bytes::from_static(&[b'x'; 40]),
        }));
        let lane = record.head.lane();
        self.order.entry(lane).or_default().push(delivery);
        self.records.insert(delivery, (lane, record.clone()));
        self.log_entry(Self::partition_of(lane), Some((lane, record)), gap);
        delivery
    }

    pub(crate) fn log_entry(
        &mut self,
        partition: Partition,
        record: Option<(LaneId, Arc<Record>)>,
        gap: i64,
    ) {
        let log = &mut self.log[partition as usize];
        let offset = log.last().map_or(0, |entry| entry.offset + 1) + gap;
        log.push(Entry { offset, record });
    }

    /// Takes a partition over with a new epoch, from what the database holds.
    pub(crate) fn assign(&mut self, partition: Partition) {
        let p = partition as usize;
        let next_offset = self.next_offset[p];
        let read_to = self.log[p].partition_point(|entry| entry.offset < next_offset);
        let epoch = self.owned[p].epoch + 1;
        self.owned[p] = Owned { epoch, read_to, ..Owned::default() };
        self.give(Input::Assigned { partition, epoch, next_offset, generation: 1 });
        let mut lanes: Vec<(LaneId, EndpointId, Timestamp)> = Vec::new();
        for (lane, (of, endpoint)) in &self.db.lanes {
            if *of == partition {
                let due = self.db.head(*lane).map_or(self.now, |(_, row)| row.due);
                lanes.push((*lane, *endpoint, due));
            }
        }
        let half = lanes.split_off(lanes.len() / 2);
        self.give(Input::ParkedLanes { partition, epoch, lanes, last: false });
        self.give(Input::ParkedLanes { partition, epoch, lanes: half, last: true });
    }

    /// The partition is gone: what was queued is not written, what is under way counts for nothing.
    pub(crate) fn lose(&mut self, partition: Partition) {
        self.drop_partition(partition);
        self.give(Input::Lost { partition });
    }

    fn drop_partition(&mut self, partition: Partition) {
        self.owned[partition as usize].queue.clear();
        let late: Vec<Input> = self.owned[partition as usize].told.drain(..).collect();
        self.late.extend(late);
        let (gone, kept): (Vec<_>, Vec<_>) =
            self.requests.drain(..).partition(|request| request.ticket.partition == partition);
        self.requests = kept;
        for request in gone {
            self.late.push(Input::AttemptEnded {
                ticket: request.ticket,
                result: AttemptResult::Responded { status: 200, body: Bytes::new() },
                took: Duration::ZERO,
            });
        }
        let (gone, kept) = self.asked.drain(..).partition(|asked| match asked {
            Asked::Effect(
                Effect::LoadDue { partition: p, .. }
                | Effect::LoadPage { partition: p, .. }
                | Effect::LoadExpired { partition: p, .. },
            ) => *p == partition,
            Asked::Answer(
                Input::Due { partition: p, .. }
                | Input::Page { partition: p, .. }
                | Input::Expired { partition: p, .. },
            ) => *p == partition,
            _ => false,
        });
        self.asked = kept;
        let gone: Vec<Asked> = gone;
        self.late.extend(gone.into_iter().filter_map(|asked| match asked {
            Asked::Answer(input) => Some(input),
            Asked::Effect(_) => None,
        }));
    }

    /// The process dies; its successor begins with an empty core.
    pub(crate) fn crash(&mut self, core: Core) {
        for partition in 0..PARTITIONS {
            self.drop_partition(partition);
        }
        self.asked.clear();
        self.core = core;
        self.now = self.now + TIMEOUT + Duration::from_secs(3);
        self.view_at = None;
        self.start();
    }

    /// The database's present view of health.
    pub(crate) fn view(&mut self) {
        let degraded: Vec<_> = self.db.health.iter().map(|(ep, until)| (*ep, *until)).collect();
        self.view = degraded.iter().map(|(ep, _)| *ep).collect();
        self.view_at = Some(self.now);
        self.give(Input::Health { read_at: self.now, degraded });
    }

    /// Reads up to `most` records of a partition, with facts as of now in its queue.
    pub(crate) fn read_log(&mut self, partition: Partition, most: usize) {
        let p = partition as usize;
        let waiting: usize = self.owned[p]
            .told
            .iter()
            .map(|input| if let Input::Intake { records, .. } = input { records.len() } else { 0 })
            .sum();
        let room = (self.core.intake_room(partition) as usize).saturating_sub(waiting);
        let from = self.owned[p].read_to;
        let to = self.log[p].len().min(from + room.min(most));
        if to <= from {
            return;
        }
        let records = self.log[p][from..to]
            .iter()
            .map(|entry| match &entry.record {
                Some((lane, record)) => {
                    let mut known = self.db.known(record.head.delivery_id());
                    if let Known::Tried(tried) = &mut known
                        && tried.attempts == 0
                    {
                        (tried.first_at, tried.last_end) = (self.now, self.now);
                    }
                    Incoming::Delivery {
                        offset: entry.offset,
                        record: record.clone(),
                        lane: *lane,
                        known,
                    }
                }
                None => Incoming::Unreadable {
                    offset: entry.offset,
                    reason: "bad_head",
                    raw: Bytes::from_static(b"?"),
                },
            })
            .collect();
        self.owned[p].read_to = to;
        let epoch = self.owned[p].epoch;
        self.owned[p].told.push_back(Input::Intake { partition, epoch, records });
    }

    /// Commits the first `most` items of a partition's queue as one group.
    pub(crate) fn commit(&mut self, partition: Partition, most: usize) {
        let p = partition as usize;
        let count = self.owned[p].queue.len().min(most);
        if count == 0 {
            return;
        }
        let group: Vec<_> = self.owned[p].queue.drain(..count).collect();
        let through = group.last().unwrap().0;
        for (_, item) in &group {
            if let SettleItem::Failed { record, unknown: true, .. } = item {
                self.held_since.insert(record.head.delivery_id(), self.now);
            }
            if let SettleItem::Park { head, .. } = item
                && head.unknown
            {
                self.held_since.insert(head.record.head.delivery_id(), self.now);
            }
        }
        let items = group.into_iter().map(|(_, item)| item).collect();
        let unparked = self.db.commit(self.now, partition, items);
        // The position written is the one that the core knew when the group was made.
        self.next_offset[p] = self.next_offset[p].max(self.core.position(partition).unwrap_or(0));
        let epoch = self.owned[p].epoch;
        self.owned[p].told.push_back(Input::Settled { partition, epoch, through, unparked });
    }

    /// Tells the core the oldest thing of a partition that it has not been told.
    pub(crate) fn tell(&mut self, partition: Partition) -> bool {
        match self.owned[partition as usize].told.pop_front() {
            Some(input) => {
                self.give(input);
                true
            }
            None => false,
        }
    }

    /// Reads or answers what was asked.
    pub(crate) fn serve(&mut self, index: usize) {
        let asked = self.asked.remove(index);
        match asked {
            Asked::Answer(input) => self.give(input),
            Asked::Effect(effect) => {
                if let Some(input) = self.read(effect) {
                    self.asked.push(Asked::Answer(input));
                }
            }
        }
    }

    fn read(&mut self, effect: Effect) -> Option<Input> {
        Some(match effect {
            Effect::LoadDue { partition, epoch, endpoint, after, until, limit } => {
                let (heads, more, next_due) = self.db.due(partition, endpoint, after, until, limit);
                Input::Due { partition, epoch, endpoint, heads, more, next_due }
            }
            Effect::LoadPage { partition, epoch, lane, after, limit } => {
                let (events, more) = self.db.page(lane, after, limit);
                Input::Page { partition, epoch, lane, events, more }
            }
            Effect::LoadExpired { partition, epoch, held_before, limit } => {
                let (heads, more) = self.db.expired(partition, held_before, limit);
                Input::Expired { partition, epoch, heads, more }
            }
            Effect::ClaimProbe { endpoint, timeout } => {
                let until = self.db.health.get(&endpoint).copied();
                let free = until.is_some_and(|until| until <= self.now);
                let head = if free { self.db.probe_head(0..PARTITIONS, endpoint) } else { None };
                let mut probe_until = until.unwrap_or(self.now);
                let head = head.map(|(partition, head)| {
                    probe_until = self.now + timeout + Duration::from_secs(1);
                    self.db.health.insert(endpoint, probe_until);
                    (partition, self.owned[partition as usize].epoch, head)
                });
                Input::Probe { endpoint, head, probe_until }
            }
            Effect::Degrade { endpoint } => {
                let next = self.now + Duration::from_secs(1);
                self.db.health.entry(endpoint).or_insert(next);
                return None;
            }
            Effect::ProbeEnded { endpoint, alive } => {
                if alive {
                    self.db.health.remove(&endpoint);
                } else if let Some(until) = self.db.health.get_mut(&endpoint) {
                    *until = self.now + Duration::from_secs(1);
                }
                return None;
            }
            Effect::Disable { endpoint } => {
                self.switch(endpoint, EndpointState::Disabled);
                return None;
            }
            other => panic!("nothing to read for {other:?}"),
        })
    }

    /// Ends a request.
    pub(crate) fn answer(&mut self, index: usize, result: AttemptResult) {
        let request = self.requests.remove(index);
        let took = self.now.since(request.began);
        // A request that was not started has the next one's name: it is never answered twice.
        let repeatable = result != AttemptResult::NotStarted && self.late.len() < 50;
        let input = Input::AttemptEnded { ticket: request.ticket, result, took };
        if repeatable {
            self.late.push(input.clone());
        }
        self.give(input);
    }

    /// Ends the request of a delivery with a status.
    pub(crate) fn respond(&mut self, delivery: DeliveryId, status: u16) {
        let index = self.under_way(delivery).expect("a request is under way");
        self.answer(index, AttemptResult::Responded { status, body: Bytes::new() });
    }

    /// Deliveries sent so far, in order.
    pub(crate) fn sent(&self) -> Vec<DeliveryId> {
        self.sends.iter().map(|(_, delivery, _)| *delivery).collect()
    }

    /// Changes an endpoint's state.
    pub(crate) fn set_state(&mut self, endpoint: u128, state: EndpointState) {
        let endpoint = self.switch(endpoint_id(endpoint), state);
        self.give(Input::Endpoint(endpoint));
    }

    /// Makes it so in the database; the core is not told.
    pub(crate) fn switch(&mut self, id: EndpointId, state: EndpointState) -> Endpoint {
        let (since, stood) = self.stands.entry(id).or_default();
        if state == EndpointState::Disabled {
            since.get_or_insert(self.now);
        } else if let Some(since) = since.take() {
            *stood += self.now.since(since);
        }
        let endpoint = self.endpoints.get_mut(&id).unwrap();
        endpoint.state = state;
        endpoint.clone()
    }

    pub(crate) fn under_way(&self, delivery: DeliveryId) -> Option<usize> {
        self.requests.iter().position(|request| request.ticket.delivery == delivery)
    }

    /// An operator's word.
    pub(crate) fn command(&mut self, lane: LaneId, verdict: Verdict) -> CommandId {
        let head = self.db.unknown_head(lane);
        self.command_on(lane, head, verdict)
    }

    /// An operator's word, with the head as it was read some time ago.
    pub(crate) fn command_on(
        &mut self,
        lane: LaneId,
        head: Option<ParkedEvent>,
        verdict: Verdict,
    ) -> CommandId {
        self.commands += 1;
        let partition = Self::partition_of(lane);
        let input = Input::Command {
            partition,
            epoch: self.owned[partition as usize].epoch,
            command: self.commands,
            lane,
            head,
            verdict,
        };
        self.give(input);
        self.commands
    }

    pub(crate) fn give(&mut self, input: Input) {
        if self.recording {
            self.inputs.push((self.now, input.clone()));
        }
        let mut effects = Vec::new();
        let trace = std::env::var_os("LANE_TRACE").is_some();
        if trace {
            eprintln!("{} {}", self.now.0 - START.0, brief(&input));
        }
        self.core.handle(self.now, input, &mut effects);
        if trace {
            effects.iter().for_each(|effect| eprintln!("    -> {}", brief(effect)));
        }
        if self.recording {
            self.effects.extend(effects.iter().map(|effect| format!("{effect:?}")));
        }
        for effect in effects {
            self.take(effect);
        }
        if self.checked {
            self.core.check().unwrap();
            self.check_bounds();
        }
    }

    fn take(&mut self, effect: Effect) {
        if let Effect::Disable { endpoint } = effect {
            // The core stands still from now on, also before the database knows it.
            self.stands.entry(endpoint).or_default().0.get_or_insert(self.now);
        }
        match effect {
            Effect::Settle { partition, epoch, seq, item } => {
                let owned = &self.owned[partition as usize];
                assert_eq!(owned.epoch, epoch);
                if let SettleItem::Final { lane, may_unpark: true, .. } = &item {
                    let queued = owned.queue.iter().any(|(_, item)| {
                        matches!(item, SettleItem::Append { lane: of, .. } if of == lane)
                    });
                    assert!(!queued, "P4: may unpark while an append is queued");
                }
                self.owned[partition as usize].queue.push_back((seq, item));
            }
            Effect::Send { ticket, record, probe, .. } => self.take_send(ticket, &record, probe),
            Effect::Drained { partition, epoch } => {
                let owned = &mut self.owned[partition as usize];
                assert_eq!(owned.epoch, epoch);
                assert!(owned.queue.is_empty() && !owned.drained, "drained once, when settled");
                owned.drained = true;
                assert!(self.requests.iter().all(|r| r.ticket.partition != partition));
            }
            Effect::LoadDue { limit, .. }
            | Effect::LoadPage { limit, .. }
            | Effect::LoadExpired { limit, .. } => {
                assert!(limit > 0);
                self.asked.push(Asked::Effect(effect));
            }
            other => self.asked.push(Asked::Effect(other)),
        }
    }

    fn take_send(&mut self, ticket: Ticket, record: &Record, probe: bool) {
        let delivery = ticket.delivery;
        let (lane, _) = self.records[&delivery].clone();
        let endpoint = record.head.endpoint_id();
        let owned = &self.owned[ticket.partition as usize];
        assert_eq!(owned.epoch, ticket.epoch, "P13: a send under an old epoch");
        assert!(self.requests.iter().all(|r| r.lane != lane), "P1: two in flight in a lane");
        assert!(!self.db.inbox.contains_key(&delivery), "P5: sent after its outcome");
        for earlier in self.order[&lane].iter().take_while(|d| **d != delivery) {
            assert!(
                self.db.inbox.contains_key(earlier),
                "P2: {delivery} before {earlier} is durable"
            );
        }
        let attempts = self.db.attempts.get(&delivery).map_or(&[][..], |all| &all[..]);
        assert_eq!(ticket.attempt as usize, attempts.len() + 1, "P5: attempt number");
        let on_unknown = self.endpoints[&endpoint].on_unknown;
        if let Some(last) = attempts.last() {
            if last.kind == AttemptKind::Unknown && on_unknown != OnUnknown::Resend {
                assert!(self.db.released.remove(&delivery), "P6: an unknown was sent again");
            }
            let step = match last.class {
                "not_started" => Duration::ZERO,
                _ => Duration::from_secs((1 << (last.number - 1).min(9)).min(900)),
            };
            let released = self.held_since.contains_key(&delivery);
            assert!(
                probe || released || self.now >= last.ended + step,
                "I17: {delivery} again after {:?}",
                self.now.since(last.ended)
            );
            if !self.held_since.contains_key(&delivery) {
                let stood = self.stands.get(&endpoint).map_or(Duration::ZERO, |(_, stood)| *stood);
                let end = attempts[0].began + self.limits.horizon + stood;
                assert!(self.now < end, "P8: sent beyond the horizon");
            }
        }
        if on_unknown != OnUnknown::Resend {
            assert!(
                self.db.intents.contains(&(delivery, ticket.attempt)),
                "I16: no durable intent"
            );
        }
        let fresh = self.view_at.is_some_and(|at| self.now.since(at) <= Duration::from_secs(2));
        assert!(fresh, "P7: sent by an old view");
        assert!(probe || !self.view.contains(&endpoint), "P7: sent to a degraded endpoint");
        let state = self.endpoints[&endpoint].state;
        assert!(state != EndpointState::Deleted, "sent to a deleted endpoint");
        self.sends.push((self.now, delivery, probe));
        self.requests.push(Request { ticket, lane, probe, endpoint, began: self.now });
    }

    fn check_bounds(&mut self) {
        let gauges = self.core.gauges();
        assert!(gauges.in_flight <= self.limits.max_in_flight, "P10: requests in flight");
        // A command takes a slot for the moment of its outcome, a probe one for its head.
        assert!(gauges.lanes_loaded <= self.limits.loaded_lanes + 4, "P10: loaded lanes");
        assert!(gauges.loaded_bytes <= self.limits.loaded_bytes + 5 * 40, "P10: loaded bytes");
        for (id, endpoint) in &self.endpoints {
            let plain = self.requests.iter().filter(|r| r.endpoint == *id && !r.probe).count();
            assert!(plain <= endpoint.max_in_flight as usize, "endpoint limit");
            let probes = self.requests.iter().filter(|r| r.endpoint == *id && r.probe).count();
            assert!(probes <= 1, "P7: probes");
        }
        for partition in 0..PARTITIONS {
            let Some(position) = self.core.position(partition) else { continue };
            if Some(self.owned[partition as usize].epoch) != self.core.epoch(partition) {
                continue;
            }
            let p = partition as usize;
            for entry in self.log[p].iter().take_while(|entry| entry.offset < position) {
                if entry.offset < self.next_offset[p] {
                    continue;
                }
                let durable = match &entry.record {
                    Some((lane, record)) => {
                        let delivery = record.head.delivery_id();
                        self.db.inbox.contains_key(&delivery) || self.db.has_row(*lane, delivery)
                    }
                    None => self.db.quarantine.contains(&(partition, entry.offset)),
                };
                assert!(durable, "I9: the position passed {}", entry.offset);
            }
        }
    }

    /// Does everything that needs no decision, and lets no time pass.
    pub(crate) fn pump(&mut self) {
        for _ in 0..100_000 {
            let mut idle = true;
            for partition in 0..PARTITIONS {
                self.read_log(partition, 10);
                self.commit(partition, 7);
                idle &= !self.tell(partition);
            }
            if !self.asked.is_empty() {
                self.serve(0);
                idle = false;
            }
            if idle {
                return;
            }
        }
        panic!("the core asks without end");
    }

    /// Lets time pass, with fresh views on the way.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            let wake =
                self.core.next_wakeup().unwrap_or(end).max(self.now + Duration::from_millis(1));
            self.now = end.min(wake).min(self.now + Duration::from_millis(500));
            self.view();
            self.give(Input::Tick);
            self.pump();
        }
    }

    /// Answers everything well until nothing is left. Panics if something never ends.
    pub(crate) fn drain(&mut self) {
        for _ in 0..5_000 {
            self.pump();
            if self.is_quiet() {
                return;
            }
            while !self.requests.is_empty() {
                self.answer(0, AttemptResult::Responded { status: 200, body: Bytes::new() });
            }
            let lanes: Vec<LaneId> = self.db.lanes.keys().copied().collect();
            for lane in lanes {
                if self.db.unknown_head(lane).is_some() {
                    self.command(lane, Verdict::NotApplied);
                }
            }
            self.pump();
            if self.requests.is_empty() {
                self.pass(Duration::from_secs(1));
            }
        }
        panic!(
            "P4: not drained: {:#?}\n{:?}\n{:?}",
            self.db.lanes,
            self.db.rows,
            self.core.gauges()
        );
    }

    fn is_quiet(&self) -> bool {
        let all_in = (0..PARTITIONS as usize)
            .all(|p| self.owned[p].read_to == self.log[p].len() && self.owned[p].queue.is_empty());
        let gauges = self.core.gauges();
        all_in
            && self.requests.is_empty()
            && gauges.lanes_in_memory == 0
            && gauges.lanes_parked == 0
            && self.records.keys().all(|delivery| self.db.inbox.contains_key(delivery))
    }

    /// What must hold when nothing is left to do.
    pub(crate) fn check_end(&self) {
        assert!(self.db.rows.is_empty() && self.db.lanes.is_empty(), "A4: idle lanes hold nothing");
        let gauges = self.core.gauges();
        assert_eq!((gauges.loaded_bytes, gauges.lanes_loaded, gauges.open_events), (0, 0, 0));
        for partition in 0..PARTITIONS {
            let end = self.log[partition as usize].last().map_or(0, |entry| entry.offset + 1);
            let position = self.core.position(partition).unwrap();
            assert!(position >= end, "position {position} of {end}");
        }
    }
}
