//! One process: a real core and around it what `services/deliver` does by contract (settle queue per partition,
//! grouped commits, intake facts read in the queue, leases on its own clock, take-over by watching, clean release).

mod ask;
mod own;

use crate::event::{Event, Gauges, Instance, Time};
use crate::mutants::{Planted, Slip};
use crate::plan::{Fault, LEASE_MARGIN, MAX_SKEW, Plan};
use crate::rng::Rng;
use crate::store::{Owner, Settle, Settled};
use crate::world::{Happening, LogRecord, Note, World};
use laneway_lane::{
    AttemptResult, CommandId, Core, Effect, Epoch, Input, Partition, SettleItem, SettleSeq,
};
use laneway_wire::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

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
    /// The generation under which it was taken, and the losses that were known then.
    generation: u64,
    losses: Vec<(u64, i64)>,
    /// The log was cut before `fetch_next`.
    cut_off: bool,
    fetch_next: i64,
    stored_next: i64,
    pub(crate) draining_since: Option<Time>,
    releasing: bool,
    /// Commands handed in, and from when on they may be again.
    handed: BTreeMap<CommandId, Time>,
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
    pub(crate) pause_at_commit: bool,
    /// Its machine sleeps for so long after its next commit.
    pub(crate) sleep_at_commit: Option<Time>,
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
    /// Versions of the probes that it claimed, by endpoint.
    claims: Vec<Option<u64>>,
    health_read: Time,
    seen_topic: u64,
    /// How long its machine has slept since it began.
    pub(crate) slept: Time,
    pub(crate) asleep_until: Time,
    /// Its machine's wall clock is so far off.
    pub(crate) wall: Time,
    slip: Option<Slip>,
}

impl Part {
    /// Whether a later generation began with the loss of this.
    fn is_lost(&self, record: &LogRecord) -> bool {
        let lost =
            |(began, first): &(u64, i64)| *began > record.generation && record.offset >= *first;
        self.losses.iter().any(lost)
    }
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
            pause_at_commit: false,
            sleep_at_commit: None,
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
            claims: vec![None; plan.endpoints.len()],
            health_read: 0,
            seen_topic: 1,
            slept: 0,
            asleep_until: 0,
            wall: 0,
            slip: match planted {
                Some(Planted::Shell(slip)) => Some(slip),
                _ => None,
            },
        }
    }

    /// Its own clock since boot, sleep included.
    fn own(&self, now: Time) -> Time {
        let now = if self.slip == Some(Slip::LeaseSleeps) { now - self.slept } else { now };
        now + now * self.drift / 1_000_000
    }

    /// What it takes for the database's time.
    pub(crate) fn database_time(&self, now: Time) -> Timestamp {
        let off = match self.slip {
            Some(Slip::DatabaseTimeSleeps) => -self.slept,
            Some(Slip::WallClockDecides) => self.wall,
            _ => 0,
        };
        Timestamp(now - self.skew + off).max(self.last_now)
    }

    pub(crate) fn part(&self, partition: Partition) -> Option<&Part> {
        self.parts.iter().find(|(p, _)| *p == partition).map(|(_, part)| part)
    }

    pub(crate) fn part_mut(&mut self, partition: Partition) -> Option<&mut Part> {
        self.parts.iter_mut().find(|(p, _)| *p == partition).map(|(_, part)| part)
    }

    /// A partition's log was cut: its reader learns of it if it is beyond that.
    pub(crate) fn log_was_cut(&mut self, partition: Partition, end: i64) {
        if let Some(part) = self.part_mut(partition) {
            part.cut_off |= part.fetch_next > end;
        }
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
            let delay = (wake.0 - now.0).max(0);
            self.tell(instance, delay, Note::Wake(wake));
        }
        let parts: Vec<_> = self.processes[instance].parts.iter().map(|(p, _)| *p).collect();
        for partition in parts {
            let parts = &self.processes[instance].parts;
            if let Some(index) = parts.iter().position(|(p, _)| *p == partition) {
                self.pump(instance, index);
            }
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
            Effect::Send { ticket, timeout, probe, record } => {
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
                let empty = record.payload.is_empty();
                self.depart(instance, ticket, timeout, probe, lease, empty);
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
        if part.lease_end <= own {
            // The next owner writes it.
            return self.lose(instance, partition);
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
        let slip = self.slip();
        let process = &mut self.processes[instance];
        let next_offset = process.core.position(partition);
        let incarnation = process.incarnation;
        let ahead = slip == Some(Slip::PositionAhead);
        let part = &mut process.parts[index].1;
        // A record of a later generation than the partition was taken under: only a real transaction tells which it is.
        let generation = part.generation;
        let later = intake.iter().any(|record| record.generation > generation);
        let plain = items.is_empty()
            && (!later || slip == Some(Slip::LaterStampUnseen))
            && !intake.is_empty()
            && part.lease_end - own > self.plan.lease() * 4 / 5
            && self.chance.chance(50);
        let next_offset = if ahead {
            part.fetch_next
        } else {
            next_offset.unwrap_or(part.stored_next).max(part.stored_next)
        };
        if !plain {
            part.stored_next = next_offset;
        }
        let tx = Rc::new(Settle {
            id: self.tx_ids,
            partition,
            epoch: part.epoch,
            items,
            plain,
            intake: intake.iter().filter_map(LogRecord::taken).collect(),
            next_offset,
            generation,
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
            Note::Lanes { partition, epoch, from } if self.is_store_away() => {
                let wait = self.store_back();
                self.tell(instance, wait, Note::Lanes { partition, epoch, from });
            }
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
        let process = &mut self.processes[instance];
        let own = process.own(self.now);
        let Some(part) = process.part_mut(partition) else { return };
        let matches = part.open.as_ref().is_some_and(|(open, ..)| open.id == tx.id);
        if part.epoch != tx.epoch || !matches {
            return;
        }
        let Settled::Durable { unparked, known, generation } = result else {
            self.lose(instance, partition);
            return;
        };
        if !tx.plain {
            part.lease_end = part.lease_end.max(sent + self.plan.lease());
        }
        let mut intake = part.open.take().map(|(_, records, _)| records).unwrap_or_default();
        let (epoch, raised) = (part.epoch, generation > part.generation);
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
        if raised && !self.slips(Slip::RaisedBatchTaken) {
            // It may begin behind what comes again.
            intake.clear();
        }
        if !intake.is_empty() {
            if let Some(part) = self.processes[instance].part_mut(partition) {
                part.fetching = false;
            }
            for delivery in intake.iter().filter_map(LogRecord::taken) {
                self.log(Event::Took { partition, epoch, delivery });
            }
            let records = self.incoming(&intake, &known);
            self.step(instance, Input::Intake { partition, epoch, records });
        }
        if raised && !self.slips(Slip::GenerationUnseen) {
            self.drain(instance, partition);
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
        if part.open.as_ref().is_some_and(|(tx, ..)| tx.id == id) && self.slips(Slip::CutMeansDone)
        {
            self.take_for_done(instance, partition);
            return;
        }
        let Some(part) = self.processes[instance].part_mut(partition) else { return };
        if let Some((tx, _, sent)) = part.open.as_mut().filter(|(tx, ..)| tx.id == id) {
            *sent = own;
            let tx = tx.clone();
            self.dispatch_tx(instance, incarnation, tx, own);
        }
    }

    /// A planted fault: what a cut connection left open is taken for durable.
    fn take_for_done(&mut self, instance: usize, partition: Partition) {
        let Some(part) = self.processes[instance].part(partition) else { return };
        let Some((tx, _, sent)) = part.open.clone() else { return };
        let known = tx.intake.iter().map(|delivery| self.store.known(*delivery)).collect();
        let generation = tx.generation;
        let result = Settled::Durable { unparked: Vec::new(), known, generation };
        self.tx_reply(instance, partition, &tx, result, sent);
    }

    fn fetch(&mut self, instance: usize, partition: Partition) {
        let process = &mut self.processes[instance];
        let Some(part) = process.part(partition) else { return };
        if !part.running || part.draining_since.is_some() {
            return;
        }
        let room = process.core.intake_room(partition) as usize;
        let (from, cut_off) = (part.fetch_next, part.cut_off);
        let (begin, end) =
            (self.kafka.begin[partition as usize], self.kafka.end[partition as usize]);
        if cut_off || from < begin || from > end {
            let jumps = self.slips(Slip::SilentJump) && from < begin && !cut_off;
            let gone = self.kafka.gone;
            let part = self.processes[instance].part_mut(partition).expect("it was there just now");
            part.fetching = false;
            if jumps {
                part.fetch_next = begin;
            } else if !gone {
                self.drain(instance, partition);
            }
            return;
        }
        let log = &self.topic[partition as usize];
        let start = log.partition_point(|record| record.offset < from);
        let most = room.min(self.plan.batch);
        let mut records: Vec<_> = log[start..].iter().take(most).copied().collect();
        let more = start + records.len() < log.len();
        let unfenced = self.slips(Slip::LossNotFenced);
        let part = self.processes[instance].part_mut(partition).expect("it was there just now");
        part.fetching = false;
        for record in &mut records {
            record.skip = !unfenced && record.delivery.is_some() && part.is_lost(record);
        }
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
        if !self.is_store_away() {
            self.look_at_database(instance);
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

    /// What a process reads again and again.
    fn look_at_database(&mut self, instance: usize) {
        self.hand_settings(instance);
        self.hand_commands(instance);
        if !self.kafka.gone && self.processes[instance].seen_topic != self.kafka.topic_id {
            self.processes[instance].seen_topic = self.kafka.topic_id;
            self.is_new_topic();
        }
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
