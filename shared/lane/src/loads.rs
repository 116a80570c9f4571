//! Parked lanes on their way back into memory: when they are due, page by page, and for their horizon. All of it is
//! bounded over all partitions (P10), and every endpoint gets one page in turn (P3).

use crate::effect::Effect;
use crate::endpoint::Ep;
use crate::input::{EndpointState, ParkedEvent};
use crate::judge::is_expired;
use crate::lanes::{Event, Lane, Phase};
use crate::partition::{Part, Stage};
use crate::shared::{Effects, Shared, Timer};
use laneway_wire::{LaneId, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// A full page of expired heads is followed by the next after this; an idle or a full memory waits longer.
const EXPIRY_AGAIN: Duration = Duration::from_millis(50);
/// Waited before the same is asked again when the answer was of no use.
const PAUSE: Duration = Duration::from_secs(1);

/// Every due time lies before this (the last second of the year 9999).
const END_OF_TIME: Timestamp = Timestamp(253_402_300_799_000);

/// A load under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// The load clock when it was issued.
    pub(crate) clock: u32,
    /// Lanes that it may bring.
    pub(crate) reserved: u32,
}

/// When parked lanes of one endpoint in one partition are due, and how far the present look at them has come.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// None is due before this, as far as is known.
    earliest: Option<Timestamp>,
    timer: Option<Timestamp>,
    /// It stands in the load queue.
    queued: bool,
    loading: Option<Load>,
    /// The look goes on behind this.
    cursor: Option<(Timestamp, LaneId)>,
    until: Timestamp,
}

impl Due {
    pub(crate) fn is_idle(&self) -> bool {
        !self.queued && self.loading.is_none()
    }
}

/// The look for expired heads of one partition.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    loading: Option<Load>,
}

impl Part {
    /// A page of ids of parked lanes.
    pub(crate) fn know_parked(
        &mut self,
        sh: &mut Shared,
        lanes: Vec<(LaneId, laneway_wire::EndpointId, Timestamp)>,
    ) {
        for (id, endpoint, due) in lanes {
            let ep = sh.endpoints.intern(endpoint);
            let parked = crate::partition::ParkedLane { ep, touched: sh.clock };
            if self.parked.insert(id, parked).is_none() {
                sh.endpoints.at(ep).parked_lanes += 1;
                let local = self.local(ep);
                local.parked += 1;
                if due < END_OF_TIME {
                    local.due.note(due);
                }
            }
        }
    }

    /// The last page has come: records may be taken in, due lanes loaded.
    pub(crate) fn activate(&mut self, sh: &mut Shared) {
        self.stage = Stage::Active;
        let mut known: Vec<Ep> = self.locals.keys().copied().collect();
        known.sort_unstable();
        for ep in known {
            self.look_for_due(sh, ep);
        }
        let timer = Timer::Expiry { partition: self.id, epoch: self.epoch };
        sh.set_timer(sh.now + PAUSE.min(sh.limits.expiry_every), timer);
    }

    /// A parked lane of the endpoint is due at that time.
    pub(crate) fn note_due(&mut self, sh: &mut Shared, ep: Ep, due: Timestamp) {
        self.local(ep).due.note(due);
        self.look_for_due(sh, ep);
    }

    /// Queues a load if lanes of the endpoint are due and may be loaded; sets a timer if they will be.
    pub(crate) fn look_for_due(&mut self, sh: &mut Shared, ep: Ep) {
        if self.stage != Stage::Active {
            return;
        }
        let entry = sh.endpoints.get(ep);
        let Some(local) = self.locals.get_mut(&ep) else { return };
        let due = &mut local.due;
        if !due.is_idle() || !entry.is_loadable() {
            return;
        }
        if local.parked == 0 {
            due.earliest = None;
            due.cursor = None;
            self.forget_local(ep);
            return;
        }
        let Some(at) = due.cursor.map(|_| sh.now).or(due.earliest) else { return };
        if at <= sh.now || entry.state == EndpointState::Deleted {
            if !entry.load_blocked {
                due.queued = true;
                sh.load_queue.push_back((self.id, ep));
            }
        } else if due.timer.is_none_or(|timer| timer > at || timer <= sh.now) {
            due.timer = Some(at);
            sh.set_timer(at, Timer::Due { partition: self.id, ep });
        }
    }

    /// The endpoint's turn to load a page has come; it stands in the queue no more.
    pub(crate) fn load_due(&mut self, sh: &mut Shared, ep: Ep, room: u32, fx: &mut Effects) {
        let Some(local) = self.locals.get_mut(&ep) else { return };
        // An entry of an epoch that is gone finds nothing queued.
        if !std::mem::take(&mut local.due.queued) {
            return;
        }
        let entry = sh.endpoints.at(ep);
        if self.stage != Stage::Active {
            return;
        }
        if !entry.is_loadable() {
            local.due.give_up();
            return;
        }
        let cap = entry.loaded_cap(&sh.limits);
        if entry.loaded >= cap {
            entry.load_blocked = true;
            return;
        }
        let limit = sh.limits.due_page.min(room).min(cap - entry.loaded).max(1);
        let due = &mut local.due;
        if due.cursor.is_none() {
            let deleted = entry.state == EndpointState::Deleted;
            due.until = if deleted { END_OF_TIME } else { sh.now };
            due.earliest = None;
        }
        let (endpoint, after, until) = (entry.id, due.cursor, due.until);
        let clock = sh.next_clock();
        due.loading = Some(Load { clock, reserved: limit });
        sh.reserved_lanes += limit;
        fx.push(Effect::LoadDue {
            partition: self.id,
            epoch: self.epoch,
            endpoint,
            after,
            until,
            limit,
        });
    }

    /// Heads of due lanes. False if none were asked for.
    pub(crate) fn due_loaded(
        &mut self,
        sh: &mut Shared,
        ep: Ep,
        heads: Vec<ParkedEvent>,
        more: bool,
        next_due: Option<Timestamp>,
        fx: &mut Effects,
    ) -> bool {
        let active = self.is_active();
        let Some(local) = self.locals.get_mut(&ep) else { return false };
        let Some(load) = local.due.loading else { return false };
        sh.reserved_lanes -= load.reserved;
        if !active {
            local.due.loading = None;
            return true;
        }
        let mut cursor = local.due.cursor;
        let mut stopped = None;
        let empty = heads.is_empty();
        let more = more && !empty;
        for head in heads {
            let entry = sh.endpoints.get(ep);
            let full = sh.loaded_lanes >= sh.limits.loaded_lanes
                || entry.loaded >= entry.loaded_cap(&sh.limits)
                || !sh.has_bytes();
            if full || !entry.is_loadable() {
                stopped = Some(head.due);
                break;
            }
            cursor = Some((head.due, head.lane));
            if let Some(index) = self.load_head(sh, load.clock, head, |_, _| true) {
                self.rouse(sh, index, fx);
            }
        }
        let Some(local) = self.locals.get_mut(&ep) else { return true };
        let due = &mut local.due;
        due.loading = None;
        if more || stopped.is_some() {
            due.cursor = cursor;
            if let (None, Some(at)) = (cursor, stopped) {
                due.note(at);
            }
            let entry = sh.endpoints.at(ep);
            if !entry.is_loadable() {
                due.give_up();
            } else if stopped.is_some() && entry.loaded >= entry.loaded_cap(&sh.limits) {
                entry.load_blocked = true;
            }
        } else {
            due.cursor = None;
            if let Some(next) = next_due {
                // Lanes that are due and have no head are not asked for over and over.
                let stuck = empty && next <= due.until;
                due.note(if stuck { next.max(sh.now + PAUSE) } else { next });
            }
        }
        self.look_for_due(sh, ep);
        true
    }

    /// Puts a head that was read by the load of `clock` into memory, unless it can be older than what was written
    /// since, or its lane has something in memory already. The caller judges it.
    pub(crate) fn load_head(
        &mut self,
        sh: &mut Shared,
        clock: u32,
        head: ParkedEvent,
        wanted: impl Fn(&Shared, &Event) -> bool,
    ) -> Option<u32> {
        let id = head.lane;
        let parked = *self.parked.get(&id)?;
        if sh.is_older(clock, parked.touched) || head.unknown {
            return None;
        }
        let found = self.lanes.find(id);
        if let Some(index) = found
            && !self.lanes.get(index).is_some_and(|lane| matches!(lane.phase, Phase::Asleep))
        {
            return None;
        }
        let event = from_row(head);
        if !wanted(sh, &event) {
            return None;
        }
        let index = found.unwrap_or_else(|| self.insert_lane(sh, Lane::new(id, parked.ep, true)));
        self.put_in(sh, index, event);
        self.count_loaded(sh, index);
        Some(index)
    }

    /// The lane counts among the loaded ones.
    pub(crate) fn count_loaded(&mut self, sh: &mut Shared, index: u32) {
        let lane = self.lanes.at(index);
        let ep = lane.ep;
        if !std::mem::replace(&mut lane.loaded, true) {
            sh.count_loaded(ep);
        }
    }

    /// Makes an event the head in memory of a parked lane that has none.
    pub(crate) fn put_in(&mut self, sh: &mut Shared, index: u32, event: Event) {
        sh.loaded_bytes += event.bytes();
        self.open_loaded(event.delivery, index);
        let lane = self.lanes.at(index);
        lane.more = false;
        lane.hungry = false;
        lane.last = event.position;
        lane.head = Some(event);
    }

    /// What follows in a lane. False if nothing was asked for.
    pub(crate) fn page_loaded(
        &mut self,
        sh: &mut Shared,
        id: LaneId,
        events: Vec<ParkedEvent>,
        more: bool,
        fx: &mut Effects,
    ) -> bool {
        let Some(index) = self.lanes.find(id) else { return false };
        if !matches!(self.lanes.at(index).phase, Phase::Paging) {
            return false;
        }
        if !self.is_active() {
            self.lanes.at(index).phase = Phase::Stopped;
            return true;
        }
        let asked = events.len();
        let mut taken = 0;
        for event in events {
            let mut event = from_row(event);
            if self.lanes.at(index).erases(&event) {
                // What ends unsent needs no payload: without room its lane would be put away, forget that it is to end,
                // and be sent when there is room again (C17).
                event.record = Arc::new(event.record.erased());
            } else if !sh.has_bytes() {
                break;
            }
            taken += 1;
            if event.attempts == 0 {
                // Only heads have a due time of their own.
                event.due = event.due.min(sh.now);
            }
            sh.loaded_bytes += event.bytes();
            self.open_loaded(event.delivery, index);
            let lane = self.lanes.at(index);
            lane.last = event.position;
            lane.queue.push_back(event);
        }
        let lane = self.lanes.at(index);
        lane.more = more || taken < asked;
        if taken > 0 {
            self.rouse(sh, index, fx);
        } else {
            // Nothing there, or no room for it: it is looked for again like any due lane.
            lane.hungry = asked == 0;
            self.sleep(sh, index, Some(sh.now));
        }
        true
    }

    /// Looks for heads whose horizon has passed.
    pub(crate) fn look_for_expired(&mut self, sh: &mut Shared, fx: &mut Effects) {
        if self.stage != Stage::Active || self.expiry.loading.is_some() {
            return;
        }
        let room = sh.load_room();
        if room == 0 || self.parked.is_empty() {
            let wait = if room == 0 { PAUSE } else { sh.limits.expiry_every };
            return self.set_expiry_timer(sh, wait);
        }
        let limit = sh.limits.due_page.min(room);
        let clock = sh.next_clock();
        self.expiry.loading = Some(Load { clock, reserved: limit });
        sh.reserved_lanes += limit;
        fx.push(Effect::LoadExpired {
            partition: self.id,
            epoch: self.epoch,
            held_before: sh.now - sh.limits.horizon,
            limit,
        });
    }

    fn set_expiry_timer(&self, sh: &mut Shared, wait: Duration) {
        let timer = Timer::Expiry { partition: self.id, epoch: self.epoch };
        sh.set_timer(sh.now + wait, timer);
    }

    /// Heads whose horizon has passed. False if none were asked for.
    pub(crate) fn expired_loaded(
        &mut self,
        sh: &mut Shared,
        heads: Vec<ParkedEvent>,
        more: bool,
        fx: &mut Effects,
    ) -> bool {
        let Some(load) = self.expiry.loading.take() else { return false };
        sh.reserved_lanes -= load.reserved;
        if !self.is_active() {
            return true;
        }
        let mut used = 0;
        for head in heads {
            if sh.loaded_lanes >= sh.limits.loaded_lanes || !sh.has_bytes() {
                break;
            }
            let parked = self.parked.get(&head.lane);
            if parked.is_some_and(|it| sh.endpoints.get(it.ep).state == EndpointState::Disabled) {
                continue;
            }
            let loaded = self.load_head(sh, load.clock, head, is_expired);
            if let Some(index) = loaded {
                used += 1;
                self.rouse(sh, index, fx);
            }
        }
        let wait = match (more, used) {
            (false, _) => sh.limits.expiry_every,
            (true, 0) => PAUSE.min(sh.limits.expiry_every),
            (true, _) => EXPIRY_AGAIN.min(sh.limits.expiry_every),
        };
        self.set_expiry_timer(sh, wait);
        true
    }

    /// What loads under way may bring is not coming: the partition goes.
    pub(crate) fn drop_loads(&self, sh: &mut Shared) {
        sh.reserved_lanes -= self.reserved();
    }

    /// Lanes that loads under way may bring.
    pub(crate) fn reserved(&self) -> u32 {
        let due = self.locals.values().filter_map(|local| local.due.loading);
        due.chain(self.expiry.loading).map(|load| load.reserved).sum()
    }
}

impl Due {
    fn note(&mut self, due: Timestamp) {
        self.earliest = Some(self.earliest.map_or(due, |earliest| earliest.min(due)));
    }

    /// The endpoint takes nothing now: the look begins anew later.
    fn give_up(&mut self) {
        if self.cursor.take().is_some() {
            let until = self.until;
            self.note(until.min(self.earliest.unwrap_or(until)));
        }
    }
}

fn from_row(row: ParkedEvent) -> Event {
    Event {
        delivery: row.record.head.delivery_id(),
        record: row.record,
        position: row.position,
        logged: false,
        attempts: row.attempts,
        first_held: row.first_held,
        clock_from: row.clock_from,
        first_tried: (row.attempts > 0).then_some(row.first_held),
        due: row.due,
        unknown: row.unknown,
        open_intent: row.open_intent,
        settled: row.settled,
    }
}
