//! One process: a real core and around it what `services/deliver` does by contract (settle queue per partition,
//! grouped commits, intake facts read in the queue, leases on its own clock, take-over by watching, clean release).

use crate::event::{Event, Gauges, Instance, Seen, Time};
use crate::mutants::{Planted, Slip};
use crate::plan::{Fault, LEASE_MARGIN, MAX_SKEW, Plan};
use crate::rng::Rng;
use crate::store::{Owner, Settle, Settled};
use crate::world::{Happening, LogRecord, Note, World};
use laneway_lane::{
    AttemptResult, CommandId, Core, Effect, Epoch, Input, Partition, SettleItem, SettleSeq,
};
use laneway_wire::Timestamp;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Ids of parked lanes read at a time.
const LANE_PAGE: usize = 3;

/// An entry of a settle queue.
#[derive(Debug)]
pub(crate) enum Entry {
    Item(SettleSeq, SettleItem),
    /// Facts of these are to be read here.
    Intake(Vec<LogRecord>),
    Release,
}

/// What a process holds of a partition that it owns.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) epoch: Epoch,
    /// On the process's own clock.
    lease_end: Time,
    queue: VecDeque<Entry>,
    last_seq: SettleSeq,
    open: Option<(Rc<Settle>, Vec<LogRecord>, Time)>,
    /// All ids of parked lanes were handed over.
    pub(crate) running: bool,
    pub(crate) fetching: bool,
    fetch_next: i64,
    stored_next: i64,
    pub(crate) draining_since: Option<Time>,
    releasing: bool,
    handed: BTreeSet<CommandId>,
}

/// One process.
pub(crate) struct Process {
    pub(crate) incarnation: u32,
    pub(crate) alive: bool,
    pub(crate) core: Core,
    parts: Vec<(Partition, Part)>,
    pub(crate) paused_until: Time,
    pub(crate) deferred: Vec<Note>,
    pub(crate) crash_at_step: bool,
    pub(crate) crash_at_commit: bool,
    pub(crate) pause_at_send: bool,
    pub(crate) stopping: bool,
    pub(crate) in_flight: usize,
    pub(crate) gauges: Gauges,
    /// Its idea of the database's time lags by this.
    skew: Time,
    /// Its own clock gains so many ms in a million.
    drift: Time,
    last_now: Timestamp,
    wake: Option<Timestamp>,
    watch: Vec<Option<(Owner, Time)>>,
    taking: Vec<bool>,
    settings: Vec<u64>,
    health_read: Time,
}

impl Process {
    pub(crate) fn start(
        _instance: Instance,
        incarnation: u32,
        plan: &Plan,
        planted: Option<Planted>,
        chance: &mut Rng,
    ) -> Self {
        let partitions = plan.partitions as usize;
        let (skew, drift) = (chance.range(0, MAX_SKEW), chance.range(-300, 300));
        let skewed = plan.has(Fault::Skew);
        Self {
            incarnation,
            alive: true,
            core: crate::mutants::core(plan.limits.clone(), planted),
            parts: Vec::new(),
            paused_until: 0,
            deferred: Vec::new(),
            crash_at_step: false,
            crash_at_commit: false,
            pause_at_send: false,
            stopping: false,
            in_flight: 0,
            gauges: Gauges::default(),
            skew: if skewed { skew } else { 0 },
            drift: if skewed { drift } else { 0 },
            last_now: Timestamp(0),
            wake: None,
            watch: vec![None; partitions],
            taking: vec![false; partitions],
            settings: vec![0; plan.endpoints.len()],
            health_read: 0,
        }
    }

    /// Its own monotonic clock.
    fn own(&self, now: Time) -> Time {
        now + now * self.drift / 1_000_000
    }

    /// What it takes for the database's time.
    pub(crate) fn database_time(&self, now: Time) -> Timestamp {
        Timestamp(now - self.skew).max(self.last_now)
    }

    pub(crate) fn part(&self, partition: Partition) -> Option<&Part> {
        self.parts.iter().find(|(p, _)| *p == partition).map(|(_, part)| part)
    }

    pub(crate) fn part_mut(&mut self, partition: Partition) -> Option<&mut Part> {
        self.parts.iter_mut().find(|(p, _)| *p == partition).map(|(_, part)| part)
    }

    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }
}

impl World {
    /// A process begins to run.
    pub(crate) fn started(&mut self, instance: usize) {
        self.log(Event::Started { instance: instance as Instance });
        self.hand_settings(instance);
        let wait = self.chance.range(0, self.plan.poll());
        self.tell(instance, wait, Note::Poll);
    }

    /// Hands an input to a core and begins what it wants, unless the process dies on the way.
    pub(crate) fn step(&mut self, instance: usize, input: Input) {
        if !self.processes[instance].alive {
            return;
        }
        let mut effects = std::mem::take(&mut self.effects);
        let process = &mut self.processes[instance];
        let now = process.database_time(self.now);
        process.last_now = now;
        process.core.handle(now, input, &mut effects);
        let dies_after = (process.crash_at_step && !effects.is_empty())
            .then(|| self.nemesis.index(effects.len() + 1));
        for (index, effect) in effects.drain(..).enumerate() {
            if dies_after == Some(index) {
                break;
            }
            self.begin(instance, effect);
        }
        effects.clear();
        self.effects = effects;
        if dies_after.is_some() {
            self.crash(instance);
            return;
        }
        self.gauge(instance);
        let process = &mut self.processes[instance];
        if let Some(wake) = process.core.next_wakeup()
            && process.wake.is_none_or(|set| wake < set)
        {
            process.wake = Some(wake);
            let delay = (wake.0 + process.skew - self.now).max(0);
            self.tell(instance, delay, Note::Wake(wake));
        }
        for index in 0..self.processes[instance].parts.len() {
            self.pump(instance, index);
        }
    }

    fn begin(&mut self, instance: usize, effect: Effect) {
        match effect {
            Effect::Settle { partition, epoch, seq, item } => {
                let part = self.processes[instance].part_mut(partition);
                let Some(part) = part.filter(|part| part.epoch == epoch) else { return };
                let expected = part.last_seq + 1;
                part.last_seq = seq;
                part.queue.push_back(Entry::Item(seq, item));
                if seq != expected {
                    let what = format!("settle item {seq} where {expected} comes");
                    self.log(Event::Contract { partition, epoch, what });
                }
            }
            Effect::Send { ticket, timeout, probe, .. } => {
                let process = &self.processes[instance];
                let lease = process
                    .part(ticket.partition)
                    .filter(|part| part.epoch == ticket.epoch)
                    .map_or(0, |part| part.lease_end - process.own(self.now));
                if lease < LEASE_MARGIN && !self.slips(Slip::LeaseUnchecked) {
                    let input = Input::AttemptEnded {
                        ticket,
                        result: AttemptResult::NotStarted,
                        took: Duration::ZERO,
                    };
                    let delay = self.chance.range(1, 20);
                    self.tell(instance, delay, Note::Give(Box::new(input)));
                    return;
                }
                self.processes[instance].in_flight += 1;
                self.depart(instance, ticket, timeout, probe, lease);
            }
            Effect::Drained { partition, epoch } => {
                let part = self.processes[instance].part_mut(partition);
                let Some(part) = part.filter(|part| part.epoch == epoch) else { return };
                if part.draining_since.is_some() && !part.releasing {
                    part.releasing = true;
                    part.queue.push_back(Entry::Release);
                }
            }
            effect => {
                let incarnation = self.processes[instance].incarnation;
                let delay = self.store_delay();
                let effect = Box::new(effect);
                self.at(self.now + delay, Happening::Query { instance, incarnation, effect });
            }
        }
    }

    /// Begins the partition's next transaction, if none is under way and there is something to write.
    fn pump(&mut self, instance: usize, index: usize) {
        let process = &mut self.processes[instance];
        let own = process.own(self.now);
        let (partition, part) = &mut process.parts[index];
        let partition = *partition;
        if part.open.is_some() || part.queue.is_empty() {
            return;
        }
        self.tx_ids += 1;
        let most = self.plan.group.min(self.chance.range(1, 600) as usize);
        let mut items = Vec::new();
        let mut intake = Vec::new();
        let mut release = false;
        while let Some(entry) = part.queue.pop_front() {
            match entry {
                Entry::Item(seq, item) => items.push((seq, item)),
                Entry::Intake(records) => {
                    intake = records;
                    break;
                }
                Entry::Release => {
                    release = true;
                    break;
                }
            }
            if items.len() >= most {
                break;
            }
        }
        self.commit(instance, index, partition, own, (items, intake, release));
    }

    fn commit(
        &mut self,
        instance: usize,
        index: usize,
        partition: Partition,
        own: Time,
        (items, intake, release): (Vec<(SettleSeq, SettleItem)>, Vec<LogRecord>, bool),
    ) {
        let process = &mut self.processes[instance];
        let next_offset = process.core.position(partition);
        let incarnation = process.incarnation;
        let ahead = self.planted == Some(Planted::Shell(Slip::PositionAhead));
        let part = &mut process.parts[index].1;
        let next_offset = if ahead {
            part.fetch_next
        } else {
            next_offset.unwrap_or(part.stored_next).max(part.stored_next)
        };
        part.stored_next = next_offset;
        let tx = Rc::new(Settle {
            id: self.tx_ids,
            partition,
            epoch: part.epoch,
            items,
            intake: intake.iter().filter_map(|record| record.delivery).collect(),
            next_offset,
            release,
        });
        part.open = Some((tx.clone(), intake, own));
        self.dispatch_tx(instance, incarnation, tx, own);
    }

    fn dispatch_tx(&mut self, instance: usize, incarnation: u32, tx: Rc<Settle>, sent: Time) {
        let delay = self.store_delay();
        if self.strikes(Fault::LostTransaction, self.plan.losses) {
            let note = Note::TxRetry { partition: tx.partition, id: tx.id };
            self.tell(instance, delay + 200, note);
        } else {
            self.at(self.now + delay, Happening::Tx { instance, incarnation, tx, sent });
        }
    }

    /// A message reaches a process that runs.
    pub(crate) fn note(&mut self, instance: usize, note: Note) {
        match note {
            Note::Poll => self.poll(instance),
            Note::Wake(at) => {
                let process = &mut self.processes[instance];
                if process.wake == Some(at) {
                    process.wake = None;
                    self.step(instance, Input::Tick);
                }
            }
            Note::Fetch(partition) => self.fetch(instance, partition),
            Note::TxReply { partition, tx, result, sent } => {
                self.tx_reply(instance, partition, &tx, result, sent);
            }
            Note::TxRetry { partition, id } => self.tx_retry(instance, partition, id),
            Note::Taken { partition, owner, sent } => self.taken(instance, partition, owner, sent),
            Note::Lanes { partition, epoch, from } => {
                self.hand_lanes(instance, partition, epoch, from);
            }
            Note::Give(input) => {
                let lost = partition_of(&input).is_some_and(|(partition, epoch)| {
                    self.processes[instance].part(partition).is_none_or(|part| part.epoch != epoch)
                });
                if !lost || self.strikes(Fault::LateResults, 50) {
                    self.step(instance, *input);
                }
            }
            Note::Ended { request, seen, class } => {
                if !self.travels[request as usize].ended {
                    self.processes[instance].in_flight -= 1;
                }
                self.ended(request, seen, class);
            }
        }
    }

    fn tx_reply(
        &mut self,
        instance: usize,
        partition: Partition,
        tx: &Rc<Settle>,
        result: Settled,
        sent: Time,
    ) {
        let from_reply = self.slips(Slip::LeaseFromReply);
        let process = &mut self.processes[instance];
        let own = process.own(self.now);
        let Some(part) = process.part_mut(partition) else { return };
        let matches = part.open.as_ref().is_some_and(|(open, ..)| open.id == tx.id);
        if part.epoch != tx.epoch || !matches {
            return;
        }
        let from = if from_reply { own } else { sent };
        let Settled::Durable { unparked, known } = result else {
            self.lose(instance, partition);
            return;
        };
        part.lease_end = part.lease_end.max(from + self.plan.lease());
        let intake = part.open.take().map(|(_, records, _)| records).unwrap_or_default();
        let epoch = part.epoch;
        if part.lease_end <= own {
            self.lose(instance, partition);
            return;
        }
        let incarnation = process.incarnation;
        if tx.release {
            self.forget(instance, partition);
            self.step(instance, Input::Lost { partition });
            return;
        }
        if let Some((through, _)) = tx.items.last() {
            let through = *through;
            self.step(instance, Input::Settled { partition, epoch, through, unparked });
        }
        if self.processes[instance].incarnation != incarnation || !self.processes[instance].alive {
            return;
        }
        if !intake.is_empty() {
            if let Some(part) = self.processes[instance].part_mut(partition) {
                part.fetching = false;
            }
            for delivery in intake.iter().filter_map(|record| record.delivery) {
                self.log(Event::Took { partition, epoch, delivery });
            }
            let records = self.incoming(&intake, &known);
            self.step(instance, Input::Intake { partition, epoch, records });
        }
        let index = self.processes[instance].parts.iter().position(|(p, _)| *p == partition);
        if let Some(index) = index {
            self.pump(instance, index);
            self.kick(instance, partition);
        }
    }

    fn tx_retry(&mut self, instance: usize, partition: Partition, id: u64) {
        let process = &mut self.processes[instance];
        let (own, incarnation) = (process.own(self.now), process.incarnation);
        let Some(part) = process.part_mut(partition) else { return };
        if own >= part.lease_end {
            self.lose(instance, partition);
            return;
        }
        if let Some((tx, _, sent)) = part.open.as_mut().filter(|(tx, ..)| tx.id == id) {
            *sent = own;
            let tx = tx.clone();
            self.dispatch_tx(instance, incarnation, tx, own);
        }
    }

    /// The lease is over or the fence is gone: all that is held under the epoch is dropped.
    pub(crate) fn lose(&mut self, instance: usize, partition: Partition) {
        if let Some(epoch) = self.forget(instance, partition) {
            self.log(Event::Lost { partition, epoch, instance: instance as Instance });
            self.step(instance, Input::Lost { partition });
        }
    }

    fn forget(&mut self, instance: usize, partition: Partition) -> Option<Epoch> {
        let process = &mut self.processes[instance];
        let index = process.parts.iter().position(|(p, _)| *p == partition)?;
        process.watch[partition as usize] = None;
        Some(process.parts.swap_remove(index).1.epoch)
    }

    fn fetch(&mut self, instance: usize, partition: Partition) {
        let process = &mut self.processes[instance];
        let Some(part) = process.part(partition) else { return };
        if !part.running || part.draining_since.is_some() {
            return;
        }
        let room = process.core.intake_room(partition) as usize;
        let from = part.fetch_next;
        let log = &self.topic[partition as usize];
        let start = log.partition_point(|record| record.offset < from);
        let most = room.min(self.plan.batch);
        let mut records: Vec<_> = log[start..].iter().take(most).copied().collect();
        let more = start + records.len() < log.len();
        let part = self.processes[instance].part_mut(partition).expect("it was there just now");
        part.fetching = false;
        if records.is_empty() {
            if more {
                self.kick(instance, partition);
            }
            return;
        }
        part.fetching = true;
        if self.planted == Some(Planted::Shell(Slip::FactsReadEarly)) {
            for record in &mut records {
                record.early = record.delivery.map(|delivery| self.store.known(delivery));
            }
        }
        part.fetch_next = records.last().map_or(from, |record| record.offset + 1);
        part.queue.push_back(Entry::Intake(records));
        let index = self.processes[instance].parts.iter().position(|(p, _)| *p == partition);
        self.pump(instance, index.expect("it was there just now"));
    }

    fn poll(&mut self, instance: usize) {
        let incarnation = self.processes[instance].incarnation;
        for partition in 0..self.plan.partitions {
            self.poll_partition(instance, partition);
            if self.processes[instance].incarnation != incarnation
                || !self.processes[instance].alive
            {
                return;
            }
        }
        self.hand_settings(instance);
        self.hand_commands(instance);
        if self.now - self.processes[instance].health_read >= 500 * self.plan.scale {
            self.processes[instance].health_read = self.now;
            let degraded = self
                .store
                .health
                .iter()
                .map(|(endpoint, (_, until))| (self.store.endpoints[*endpoint].1.id, *until));
            let input =
                Input::Health { read_at: Timestamp(self.now), degraded: degraded.collect() };
            let delay = self.store_delay();
            self.tell(instance, delay, Note::Give(Box::new(input)));
        }
        if !self.processes[instance].alive {
            return;
        }
        if self.processes[instance].stopping && !self.processes[instance].has_parts() {
            self.restart(instance);
            return;
        }
        let wait = self.chance.range(self.plan.poll() / 2, self.plan.poll() * 3 / 2);
        self.tell(instance, wait, Note::Poll);
    }

    fn poll_partition(&mut self, instance: usize, partition: Partition) {
        let assigned =
            self.assignment[partition as usize] == instance && !self.processes[instance].stopping;
        let max_timeout = self.plan.max_timeout();
        let process = &mut self.processes[instance];
        let own = process.own(self.now);
        let Some(index) = process.parts.iter().position(|(p, _)| *p == partition) else {
            if assigned {
                self.watch(instance, partition, own);
            }
            return;
        };
        let next_offset = process.core.position(partition);
        let part = &mut process.parts[index].1;
        if own >= part.lease_end {
            self.lose(instance, partition);
            return;
        }
        let renew = part.lease_end - own < self.plan.lease() * 4 / 5
            || next_offset.is_some_and(|next| next > part.stored_next);
        if renew && part.open.is_none() && part.queue.is_empty() {
            self.tx_ids += 1;
            self.commit(instance, index, partition, own, (Vec::new(), Vec::new(), false));
        }
        let part = &mut self.processes[instance].parts[index].1;
        match part.draining_since {
            None if !assigned => {
                part.draining_since = Some(own);
                self.step(instance, Input::Revoke { partition });
            }
            Some(since) if own - since > max_timeout / 2 => {
                let epoch = part.epoch;
                self.cut(instance, partition, epoch);
            }
            _ => self.kick(instance, partition),
        }
    }

    /// Drains no longer: requests that are still under way are recorded as unknown until their deadlines.
    fn cut(&mut self, instance: usize, partition: Partition, epoch: Epoch) {
        let incarnation = self.processes[instance].incarnation;
        for request in 0..self.travels.len() {
            let travel = &self.travels[request];
            if !travel.ended
                && (travel.instance, travel.incarnation) == (instance, incarnation)
                && (travel.ticket.partition, travel.ticket.epoch) == (partition, epoch)
            {
                let request = request as u32;
                self.note(instance, Note::Ended { request, seen: Seen::Cut, class: "cut" });
            }
        }
    }

    fn watch(&mut self, instance: usize, partition: Partition, own: Time) {
        let row = self.store.owners[partition as usize];
        let at_once = self.slips(Slip::TakeOverAtOnce);
        let wait = if at_once { 0 } else { self.plan.lease() + self.plan.max_timeout() };
        let process = &mut self.processes[instance];
        let slot = partition as usize;
        if process.taking[slot] {
            return;
        }
        let same = |seen: &Owner| {
            (seen.epoch, seen.renewal, seen.released) == (row.epoch, row.renewal, row.released)
        };
        match &process.watch[slot] {
            Some((seen, since)) if same(seen) => {
                if !row.released && own - since < wait {
                    return;
                }
            }
            _ => {
                process.watch[slot] = Some((row, own));
                if !row.released {
                    return;
                }
            }
        }
        process.taking[slot] = true;
        process.watch[slot] = None;
        let incarnation = process.incarnation;
        let delay = self.store_delay();
        let take = Happening::TakeOver { instance, incarnation, partition, seen: row, sent: own };
        self.at(self.now + delay, take);
        // If no reply ever comes it looks again.
        self.tell(
            instance,
            4_000 * self.plan.scale,
            Note::Taken { partition, owner: None, sent: own },
        );
    }

    fn taken(&mut self, instance: usize, partition: Partition, owner: Option<Owner>, sent: Time) {
        let process = &mut self.processes[instance];
        process.taking[partition as usize] = false;
        let Some(owner) = owner else { return };
        if process.part(partition).is_some() || process.own(self.now) >= sent + self.plan.lease() {
            return;
        }
        let epoch = owner.epoch;
        let part = Part {
            epoch,
            lease_end: sent + self.plan.lease(),
            queue: VecDeque::new(),
            last_seq: 0,
            open: None,
            running: false,
            fetching: false,
            fetch_next: owner.next_offset,
            stored_next: owner.next_offset,
            draining_since: None,
            releasing: false,
            handed: BTreeSet::new(),
        };
        process.parts.push((partition, part));
        let next_offset = owner.next_offset;
        self.step(instance, Input::Assigned { partition, epoch, next_offset, generation: 1 });
        let delay = self.store_delay();
        self.tell(instance, delay, Note::Lanes { partition, epoch, from: 0 });
    }

    fn hand_lanes(&mut self, instance: usize, partition: Partition, epoch: Epoch, from: usize) {
        let part = self.processes[instance].part(partition);
        if part.is_none_or(|part| part.epoch != epoch) {
            return;
        }
        // The owner has written nothing yet, so all pages are of one state.
        let mut all = self.store.parked_lanes(partition);
        if self.slips(Slip::ParkedLanesForgotten) {
            all.clear();
        }
        let lanes: Vec<_> = all.iter().skip(from).take(LANE_PAGE).copied().collect();
        let next = from + lanes.len();
        let last = next >= all.len();
        self.step(instance, Input::ParkedLanes { partition, epoch, lanes, last });
        if last {
            if let Some(part) = self.processes[instance].part_mut(partition) {
                part.running = true;
            }
            self.kick(instance, partition);
        } else {
            let delay = self.store_delay();
            self.tell(instance, delay, Note::Lanes { partition, epoch, from: next });
        }
    }

    fn hand_settings(&mut self, instance: usize) {
        for endpoint in 0..self.store.endpoints.len() {
            let (version, settings) = &self.store.endpoints[endpoint];
            let known = &mut self.processes[instance].settings[endpoint];
            if *known < *version {
                *known = *version;
                let settings = settings.clone();
                self.step(instance, Input::Endpoint(settings));
            }
        }
    }

    fn hand_commands(&mut self, instance: usize) {
        for command in 0..self.store.commands.len() {
            let row = &self.store.commands[command];
            let (id, delivery, verdict) = (command as CommandId, row.delivery, row.verdict);
            let info = &self.store.deliveries[delivery as usize];
            let (partition, lane) = (info.partition, info.lane_id);
            if row.done {
                continue;
            }
            let part = self.processes[instance].part_mut(partition);
            let Some(part) = part.filter(|part| part.running) else { continue };
            let epoch = part.epoch;
            if part.handed.insert(id) {
                let head = self.store.unknown_head(delivery);
                let input = Input::Command { partition, epoch, command: id, lane, head, verdict };
                let delay = self.store_delay();
                self.tell(instance, delay, Note::Give(Box::new(input)));
            }
        }
    }

    /// A query or a write outside the settle queues reaches the database.
    pub(crate) fn query(&mut self, instance: usize, effect: Effect) {
        let current = |world: &Self, partition, epoch| {
            world.processes[instance].part(partition).is_some_and(|part| part.epoch == epoch)
        };
        let input = match effect {
            Effect::LoadDue { partition, epoch, endpoint, after, until, limit } => {
                if !current(self, partition, epoch) {
                    return;
                }
                let (heads, more, next_due) =
                    self.store.due(partition, endpoint, after, until, limit as usize);
                Input::Due { partition, epoch, endpoint, heads, more, next_due }
            }
            Effect::LoadPage { partition, epoch, lane, after, limit } => {
                if !current(self, partition, epoch) {
                    return;
                }
                let (events, more) = self.store.page(lane, after, limit as usize);
                Input::Page { partition, epoch, lane, events, more }
            }
            Effect::LoadExpired { partition, epoch, held_before, limit } => {
                if !current(self, partition, epoch) {
                    return;
                }
                let (heads, more) = self.store.expired(partition, held_before, limit as usize);
                Input::Expired { partition, epoch, heads, more }
            }
            Effect::ClaimProbe { endpoint, timeout } => {
                let parts = self.processes[instance].parts.iter();
                let own: Vec<_> = parts
                    .filter(|(_, part)| part.running && part.draining_since.is_none())
                    .map(|(partition, part)| (*partition, part.epoch))
                    .collect();
                let (head, probe_until) = self.store.claim_probe(self.now, &own, endpoint, timeout);
                Input::Probe { endpoint, head, probe_until }
            }
            Effect::Degrade { endpoint } => {
                if let Some(endpoint) = self.store.degrade(self.now, endpoint) {
                    self.log(Event::Degraded { endpoint: endpoint as u32 });
                }
                return;
            }
            Effect::ProbeEnded { endpoint, alive } => {
                if let Some(endpoint) = self.store.probe_ended(self.now, endpoint, alive) {
                    self.log(Event::Healthy { endpoint: endpoint as u32 });
                }
                return;
            }
            Effect::Disable { endpoint } => {
                let endpoint = self.store.endpoint_by_id[&endpoint];
                self.switch(endpoint, laneway_lane::EndpointState::Disabled);
                return;
            }
            Effect::Settle { .. } | Effect::Send { .. } | Effect::Drained { .. } => return,
        };
        let delay = self.store_delay();
        self.tell(instance, delay, Note::Give(Box::new(input)));
    }
}

fn partition_of(input: &Input) -> Option<(Partition, Epoch)> {
    match input {
        Input::Due { partition, epoch, .. }
        | Input::Page { partition, epoch, .. }
        | Input::Expired { partition, epoch, .. }
        | Input::Command { partition, epoch, .. } => Some((*partition, *epoch)),
        Input::AttemptEnded { ticket, .. } => Some((ticket.partition, ticket.epoch)),
        _ => None,
    }
}
