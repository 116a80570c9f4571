//! What follows from the event log, kept up line by line, for the checkers.

pub mod rewind;

use crate::event::{
    Delivery, Event, Instance, Kind, Lane, Outcome, Policy, Request, Seen, Switch, Time, Word,
    Write,
};
use crate::plan::{MAX_SKEW, Plan};
use laneway_lane::{Epoch, Partition};
use std::collections::{BTreeMap, BTreeSet};

/// One delivery, as far as the log tells.
#[derive(Debug, Clone)]
pub struct Story {
    /// Its lane.
    pub lane: Lane,
    /// Its endpoint.
    pub endpoint: u32,
    /// Its place in the lane's order: that of first occurrences in the topic.
    pub order: usize,
    /// Its final outcome, once durable.
    pub outcome: Option<Outcome>,
    /// Number of the last recorded attempt.
    pub recorded: u32,
    /// Recorded end of the last attempt that was made, what it was, and its number.
    pub last: Option<(Time, Kind, u32)>,
    /// The last request of it.
    pub last_request: Option<Request>,
    /// When a core first had it.
    pub first_took: Option<Time>,
    /// The earliest `first_held` in a row, or begin of the first recorded attempt.
    pub first_held: Option<Time>,
    /// Its horizon does not begin before this: it was never tried when an unknown or a disabled time ended before it.
    pub clock_from: Time,
    /// How long the horizon's clock had stood still when a core first had it, and when it was first tried, ms.
    pub stalled: (Time, Option<Time>),
    /// How long its endpoint was disabled since its first attempt, up to the last enabling, while it was parked and
    /// no held unknown, ms.
    pub stood: Time,
    /// When it was written.
    pub created: Time,
    /// It is to be erased.
    pub erased: bool,
    /// Under this epoch it was to end unsent: a command to erase it had been answered.
    pub doomed: Option<Epoch>,
    /// The last write about it.
    pub touched: Time,
    /// It has a parked row, or had one.
    pub parked: bool,
    /// It is a held unknown.
    pub held: bool,
    /// Its intent: epoch and attempt.
    pub intent: Option<(Epoch, u32)>,
    /// When a command last released it, and how many attempts were recorded then.
    pub released: Option<(Time, u32)>,
    /// How often the work of its key was done, and how often later than anybody can wait for: of what repeats another see
    /// [`Book::key`].
    pub effects: u32,
    /// See `effects`.
    pub late_effects: u32,
    /// The last answer of its authority, and on how many attempts.
    pub answer: Option<(u32, Word)>,
    /// Its outcome is what a command said.
    pub by_word: bool,
    /// Words about it, of operators and authorities.
    pub words: Vec<(i64, Word)>,
}

/// One lane.
#[derive(Debug, Clone, Default)]
pub struct LaneStory {
    /// Its deliveries in order.
    pub order: Vec<Delivery>,
    /// So many of the first have their outcome.
    pub done: usize,
    /// Requests that may be under way.
    pub open: Vec<Request>,
    /// Since when its head is a held unknown.
    pub held_since: Option<Time>,
    /// How long heads of it were held in all, up to the last release, ms.
    pub held_for: Time,
    /// So many of the first were erased, with nothing left to be sent.
    pub erased: usize,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Trip {
    /// Who sent it.
    pub instance: Instance,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Of which partition.
    pub partition: Partition,
    /// What.
    pub delivery: Delivery,
    /// Attempt number.
    pub attempt: u32,
    /// When it began.
    pub began: Time,
    /// When it is cut.
    pub deadline: Time,
    /// What its process saw, and when.
    pub seen: Option<Seen>,
    /// See above.
    pub seen_at: Option<Time>,
}

impl Trip {
    /// Whether it may still be under way.
    pub fn is_open(&self, now: Time) -> bool {
        now < self.deadline && matches!(self.seen, None | Some(Seen::Cut))
    }
}

/// One partition.
#[derive(Debug, Clone, Default)]
pub struct PartitionStory {
    /// Its present epoch; 0 before the first.
    pub epoch: Epoch,
    /// It was released in good order.
    pub released: bool,
    /// Its records that count: offset, the generation that they are stamped with, and delivery, if it is one.
    pub records: Vec<(i64, u64, Option<Delivery>)>,
    /// The offset behind all that the log had since the last loss that was noticed.
    pub behind: i64,
    /// Where something else stands by now than what was acknowledged, since that loss: nobody can read that.
    pub written_over: BTreeSet<i64>,
    /// Generations that began with a loss, each with its first lost offset.
    pub losses: Vec<(u64, i64)>,
    /// Offsets in quarantine, and those of strangers' bytes that were lost with the log.
    pub quarantined: BTreeSet<i64>,
    /// Stored position.
    pub next_offset: i64,
}

impl PartitionStory {
    /// Whether a record counts for nothing: it lies at or behind a loss that a later generation began with.
    pub fn is_lost(&self, generation: u64, offset: i64) -> bool {
        self.losses.iter().any(|(began, first)| *began > generation && offset >= *first)
    }
}

/// One endpoint.
#[derive(Debug, Clone, Default)]
pub struct EndpointStory {
    /// Since when it is degraded.
    pub degraded: Option<Time>,
    /// Since when it is disabled.
    pub disabled: Option<Time>,
    /// It is deleted.
    pub deleted: bool,
    /// How long it was disabled in all, up to the last enabling, ms.
    pub disabled_for: Time,
    /// When the last request that was within its deadline reached it, and when that had begun.
    pub last_arrival: Option<(Time, Time)>,
}

/// What follows from the log.
#[derive(Debug)]
pub struct Book {
    /// By delivery.
    pub deliveries: Vec<Story>,
    /// By lane.
    pub lanes: Vec<LaneStory>,
    /// By request.
    pub trips: Vec<Trip>,
    /// By partition.
    pub partitions: Vec<PartitionStory>,
    /// By endpoint.
    pub endpoints: Vec<EndpointStory>,
    /// By endpoint.
    pub policies: Vec<Policy>,
    /// Epochs whose owner crashed, lost them or was taken over from: what it had under way may be repeated.
    pub broken: BTreeSet<Epoch>,
    /// The present generation of the topic.
    pub generation: u64,
    /// Commands to erase, each with its lane and what it is about.
    pub erasures: BTreeMap<i64, (Lane, Time)>,
    /// Dead letters, and what is sent again.
    pub rewinds: rewind::Rewinds,
    holders: Vec<(Instance, Epoch)>,
}

impl Book {
    /// An empty one.
    pub fn new(plan: &Plan) -> Self {
        Self {
            deliveries: Vec::new(),
            lanes: Vec::new(),
            trips: Vec::new(),
            partitions: vec![PartitionStory::default(); plan.partitions as usize],
            endpoints: vec![EndpointStory::default(); plan.endpoints.len()],
            policies: plan.endpoints.iter().map(|endpoint| endpoint.on_unknown.into()).collect(),
            broken: BTreeSet::new(),
            generation: 1,
            erasures: BTreeMap::new(),
            rewinds: rewind::Rewinds::default(),
            holders: Vec::new(),
        }
    }

    /// A delivery's story.
    pub fn story(&self, delivery: Delivery) -> &Story {
        &self.deliveries[delivery as usize]
    }

    /// The story that has the effects of a delivery's key.
    pub fn key(&self, delivery: Delivery) -> &Story {
        self.story(self.rewinds.first(delivery))
    }

    /// Whether all that comes before it in its lane has its outcome.
    pub fn is_head(&self, delivery: Delivery) -> bool {
        let story = self.story(delivery);
        self.lanes[story.lane as usize].done >= story.order
    }

    /// Whether the epoch is the present one of the partition.
    pub fn is_current(&self, partition: Partition, epoch: Epoch) -> bool {
        let story = &self.partitions[partition as usize];
        story.epoch == epoch && !story.released
    }

    /// How long a delivery's horizon stood still by now at most, ms.
    pub fn stalled(&self, delivery: Delivery, now: Time) -> Time {
        let story = self.story(delivery);
        let lane = &self.lanes[story.lane as usize];
        let endpoint = &self.endpoints[story.endpoint as usize];
        let open = |since: Option<Time>| since.map_or(0, |since| now - since);
        lane.held_for + open(lane.held_since) + endpoint.disabled_for + open(endpoint.disabled)
    }

    /// Takes a line in.
    pub fn note(&mut self, at: Time, event: &Event) {
        let (deliveries, lanes) = (&self.deliveries, &self.lanes);
        let lane = |delivery: Delivery| deliveries[delivery as usize].lane;
        let waiting = |delivery: Delivery| {
            let lane = &lanes[lane(delivery) as usize];
            let waits = |other: &&Delivery| deliveries[**other as usize].outcome.is_none();
            lane.order[lane.done..].iter().filter(waits).copied().collect()
        };
        self.rewinds.note(at, event, waiting, lane);
        match event {
            Event::Produced { partition, offset, generation, delivery, lane, endpoint, first } => {
                let story = &mut self.partitions[*partition as usize];
                // In the place of what was cut off it counts for nothing either: its relay sees that and sends it again.
                if *offset < story.behind {
                    story.written_over.insert(*offset);
                } else if !story.is_lost(*generation, *offset) {
                    story.records.push((*offset, *generation, Some(*delivery)));
                }
                story.behind = story.behind.max(*offset + 1);
                if *first {
                    self.produced(at, *lane, *delivery, *endpoint);
                }
            }
            Event::Garbage { partition, offset } => {
                let generation = self.generation;
                self.partitions[*partition as usize].records.push((*offset, generation, None));
            }
            Event::Owned { partition, epoch, instance, clean } => {
                let story = &mut self.partitions[*partition as usize];
                if !clean {
                    self.broken.insert(story.epoch);
                }
                (story.epoch, story.released) = (*epoch, false);
                self.holders.push((*instance, *epoch));
            }
            Event::Released { partition, .. } => {
                self.partitions[*partition as usize].released = true;
            }
            Event::Lost { epoch, .. } => {
                self.broken.insert(*epoch);
            }
            Event::Crashed { instance } => {
                let held = self.holders.iter().filter(|(holder, _)| holder == instance);
                self.broken.extend(held.map(|(_, epoch)| *epoch));
            }
            Event::Took { delivery, .. } => {
                let stalled = self.stalled(*delivery, at);
                let story = &mut self.deliveries[*delivery as usize];
                if story.first_took.is_none() {
                    (story.first_took, story.stalled.0) = (Some(at), stalled);
                }
            }
            Event::Began {
                request: _,
                instance,
                partition,
                epoch,
                delivery,
                attempt,
                deadline,
                ..
            } => {
                let request = self.trips.len() as Request;
                self.trips.push(Trip {
                    instance: *instance,
                    epoch: *epoch,
                    partition: *partition,
                    delivery: *delivery,
                    attempt: *attempt,
                    began: at,
                    deadline: *deadline,
                    seen: None,
                    seen_at: None,
                });
                let story = &mut self.deliveries[*delivery as usize];
                story.last_request = Some(request);
                let trips = &self.trips;
                let open = &mut self.lanes[story.lane as usize].open;
                open.retain(|request| trips[*request as usize].is_open(at));
                open.push(request);
            }
            Event::Arrived { request, .. } => {
                let trip = &self.trips[*request as usize];
                let began = trip.began;
                if at <= trip.deadline {
                    let endpoint = self.deliveries[trip.delivery as usize].endpoint;
                    self.endpoints[endpoint as usize].last_arrival = Some((at, began));
                }
            }
            Event::Ended { request, seen } => {
                let trip = &mut self.trips[*request as usize];
                (trip.seen, trip.seen_at) = (Some(*seen), Some(at));
            }
            Event::Wrote { delivery, write, epoch, .. } => {
                self.wrote(at, *delivery, *epoch, write);
            }
            Event::Quarantined { partition, offset, .. } => {
                self.partitions[*partition as usize].quarantined.insert(*offset);
            }
            Event::Position { partition, next_offset, .. } => {
                self.partitions[*partition as usize].next_offset = *next_offset;
            }
            Event::LogLost { partition, begin, end } => {
                // What is no delivery comes from nowhere again.
                let story = &mut self.partitions[*partition as usize];
                let gone = story.records.iter().filter(|(offset, _, delivery)| {
                    delivery.is_none() && !(*begin..*end).contains(offset)
                });
                story.quarantined.extend(gone.map(|(offset, ..)| *offset));
            }
            Event::PositionMoved { partition, next_offset } => {
                self.partitions[*partition as usize].next_offset = *next_offset;
            }
            Event::Raised { generation, lost } => {
                self.generation = *generation;
                for (partition, first) in lost {
                    let story = &mut self.partitions[*partition as usize];
                    story.losses.push((*generation, *first));
                    story.behind = story.behind.min(*first);
                    story.written_over.split_off(first);
                    story.next_offset = story.next_offset.min(*first);
                    let mut records = std::mem::take(&mut story.records);
                    records.retain(|(offset, stamp, _)| !story.is_lost(*stamp, *offset));
                    story.records = records;
                }
            }
            Event::Worked { delivery, late, .. } => {
                let key = self.rewinds.first(*delivery);
                let story = &mut self.deliveries[key as usize];
                story.effects += u32::from(!late);
                story.late_effects += u32::from(*late);
            }
            Event::ErasureBegan { lane, before } => {
                if let Some(lane) = self.lanes.get_mut(*lane as usize) {
                    for delivery in &lane.order {
                        let story = &mut self.deliveries[*delivery as usize];
                        story.erased |= story.created < *before;
                    }
                }
            }
            Event::ErasureDone { lane, before } => {
                if let Some(lane) = self.lanes.get_mut(*lane as usize) {
                    let older = |delivery: &&Delivery| {
                        self.deliveries[**delivery as usize].created < *before
                    };
                    let older = lane.order.iter().take_while(older).count();
                    lane.erased = lane.erased.max(older);
                }
            }
            Event::CommandDone { command, epoch, refused: false } => {
                let about = self.erasures.get(command);
                let (lane, before) = about.map_or((&[][..], 0), |(lane, before)| {
                    (&self.lanes[*lane as usize].order[..], *before)
                });
                for delivery in lane {
                    let story = &mut self.deliveries[*delivery as usize];
                    if story.created < before && story.parked && story.outcome.is_none() {
                        story.doomed = Some(*epoch);
                    }
                }
            }
            Event::Commanded { command, delivery, verdict: Word::Erase { before } } => {
                let lane = self.deliveries[*delivery as usize].lane;
                self.erasures.insert(*command, (lane, *before));
            }
            Event::Commanded { command, delivery, verdict }
            | Event::Answered { command, delivery, verdict, .. } => {
                let story = &mut self.deliveries[*delivery as usize];
                story.words.push((*command, *verdict));
                if let Event::Answered { attempts, .. } = event {
                    story.answer = Some((*attempts, *verdict));
                }
            }
            Event::Endpoint { endpoint, state } => {
                let story = &mut self.endpoints[*endpoint as usize];
                story.deleted |= *state == Switch::Deleted;
                match state {
                    Switch::Disabled => story.disabled = Some(at),
                    Switch::Enabled | Switch::Deleted => {
                        let since = story.disabled.take().unwrap_or(at);
                        story.disabled_for += at - since;
                        let waits = |story: &&mut Story| {
                            story.endpoint == *endpoint && story.parked && story.outcome.is_none()
                        };
                        for story in self.deliveries.iter_mut().filter(waits) {
                            if story.recorded == 0 {
                                story.clock_from = at;
                            } else if !story.held {
                                story.stood += at - since.max(story.touched);
                            }
                        }
                    }
                }
            }
            Event::Degraded { endpoint } => {
                self.endpoints[*endpoint as usize].degraded = Some(at);
            }
            Event::Healthy { endpoint } => self.endpoints[*endpoint as usize].degraded = None,
            _ => {}
        }
    }

    fn produced(&mut self, at: Time, lane: Lane, delivery: Delivery, endpoint: u32) {
        if lane as usize >= self.lanes.len() {
            self.lanes.resize(lane as usize + 1, LaneStory::default());
        }
        let order = self.lanes[lane as usize].order.len();
        self.lanes[lane as usize].order.push(delivery);
        let copy = self.rewinds.copy(delivery);
        self.deliveries.push(Story {
            lane,
            endpoint,
            order,
            outcome: None,
            recorded: 0,
            last: None,
            last_request: None,
            first_took: None,
            first_held: None,
            clock_from: 0,
            stalled: (0, None),
            stood: 0,
            created: copy.map_or(at, |copy| copy.written),
            erased: copy.is_some_and(|copy| copy.erased),
            doomed: None,
            touched: 0,
            parked: false,
            held: false,
            intent: None,
            released: None,
            effects: 0,
            late_effects: 0,
            answer: None,
            by_word: false,
            words: Vec::new(),
        });
    }

    fn wrote(&mut self, at: Time, delivery: Delivery, epoch: Epoch, write: &Write) {
        let stalled = self.stalled(delivery, at);
        let story = &mut self.deliveries[delivery as usize];
        story.touched = at;
        let mut held = story.held;
        let mut since = at;
        match write {
            Write::Park { first_held, unknown } => {
                story.parked = true;
                held = *unknown;
                story.first_held =
                    Some(story.first_held.map_or(*first_held, |h| h.min(*first_held)));
            }
            Write::Append => story.parked = true,
            Write::Intent { attempt } => story.intent = Some((epoch, *attempt)),
            Write::Attempt { attempt, kind, ended, unknown, made, .. } => {
                story.recorded = story.recorded.max(*attempt);
                story.stalled.1.get_or_insert(stalled);
                if *made {
                    story.last = Some((*ended, *kind, *attempt));
                }
                held = *unknown;
                since = since.min(*ended);
                if let Some(request) = story.last_request {
                    // The row tells the begin by the end, which for an unknown attempt is when it cannot travel any
                    // more, on a clock that may lag.
                    // What is written late was made before.
                    let trip = &self.trips[request as usize];
                    let made = trip.seen_at.unwrap_or(at);
                    let ahead = (*ended - made).max(0) + 2 * MAX_SKEW;
                    let began = trip.began + ahead;
                    story.first_held = Some(story.first_held.map_or(began, |h| h.min(began)));
                }
            }
            Write::Final { outcome, command, .. } => {
                if story.outcome.is_none() {
                    (story.outcome, story.by_word) = (Some(*outcome), *command);
                }
                held = false;
            }
            Write::Release => {
                held = false;
                story.released = Some((at, story.recorded));
            }
        }
        let was_held = std::mem::replace(&mut story.held, held);
        let lane = story.lane as usize;
        if held && was_held {
            let from = &mut self.lanes[lane].held_since;
            *from = from.map(|from| from.min(since));
        }
        if held != was_held {
            let lane = &mut self.lanes[lane];
            if held {
                lane.held_since = Some(since);
            } else {
                lane.held_for += lane.held_since.take().map_or(0, |since| at - since);
                for next in lane.order[lane.done..].iter().filter(|next| **next != delivery) {
                    let story = &mut self.deliveries[*next as usize];
                    if story.parked && story.recorded == 0 {
                        story.clock_from = at;
                    }
                }
            }
        }
        let lane = &mut self.lanes[lane];
        while lane
            .order
            .get(lane.done)
            .is_some_and(|next| self.deliveries[*next as usize].outcome.is_some())
        {
            lane.done += 1;
        }
    }
}
