//! What all partitions of a process share: limits, endpoints, timers, the budgets for requests and loaded events.

use crate::effect::Effect;
use crate::endpoint::{Endpoints, Ep};
use crate::input::{Epoch, Partition};
use crate::invariant::Violations;
use crate::limits::Limits;
use crate::mutant::{Mutant, Planted};
use laneway_wire::Timestamp;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Effects in the order in which they must be begun.
pub type Effects = Vec<Effect>;

/// What a point in time is for. A timer whose purpose has passed is asked in vain and changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A live lane's head is due again.
    Lane { partition: Partition, lane: u32, stamp: u64 },
    /// Parked lanes of the endpoint are due.
    Due { partition: Partition, ep: Ep },
    /// The endpoint's probe may be claimed.
    Probe { ep: Ep },
    /// Look for expired heads.
    Expiry { partition: Partition, epoch: u64 },
    /// A person's word on an unknown may be applied now.
    Word { partition: Partition },
    /// Look whether the window must be relieved.
    Relief { partition: Partition },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) planted: Planted,
    pub(crate) now: Timestamp,
    pub(crate) endpoints: Endpoints,
    timers: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// Endpoints with due rows that wait for room, each one page in turn.
    pub(crate) load_queue: VecDeque<(Partition, Ep)>,
    /// Endpoints whose due rows are to be looked at again.
    pub(crate) recheck: Vec<Ep>,
    /// Endpoints that take requests no more: their lanes are to be judged anew.
    pub(crate) changed: Vec<Ep>,
    /// Rises with each load: tells answers read before a write from later ones.
    pub(crate) clock: u32,
    stamp: u64,
    /// The last epoch assigned: no other instance has it.
    pub(crate) last_epoch: Epoch,
    pub(crate) in_flight: u32,
    /// Probes asked for: each will need a slot.
    pub(crate) claims: u32,
    pub(crate) loaded_lanes: u32,
    /// Lanes that loads under way may bring.
    pub(crate) reserved_lanes: u32,
    pub(crate) loaded_bytes: u64,
    pub(crate) view: Option<Timestamp>,
    pub(crate) stale_inputs: u64,
    pub(crate) violations: Violations,
    pub(crate) duplicates: u64,
}

impl Shared {
    pub(crate) fn new(limits: Limits, planted: Planted) -> Self {
        Self {
            limits,
            planted,
            now: Timestamp(0),
            endpoints: Endpoints::default(),
            timers: BinaryHeap::new(),
            load_queue: VecDeque::new(),
            recheck: Vec::new(),
            changed: Vec::new(),
            clock: 0,
            stamp: 0,
            last_epoch: 0,
            in_flight: 0,
            claims: 0,
            loaded_lanes: 0,
            reserved_lanes: 0,
            loaded_bytes: 0,
            view: None,
            stale_inputs: 0,
            violations: Violations::default(),
            duplicates: 0,
        }
    }

    #[inline]
    pub(crate) fn broken(&self, mutant: Mutant) -> bool {
        self.planted.is(mutant)
    }

    /// Whether the health view is young enough to send anything at all by it (P7).
    pub(crate) fn is_view_fresh(&self) -> bool {
        self.view.is_some_and(|read| self.now.since(read) <= self.limits.health_view_max_age)
    }

    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    pub(crate) fn next_clock(&mut self) -> u32 {
        self.clock = self.clock.wrapping_add(1);
        self.clock
    }

    /// Whether what was read by a load of `clock` can be older than a write noted at `touched`.
    pub(crate) fn is_older(&self, clock: u32, touched: u32) -> bool {
        self.clock.wrapping_sub(touched) <= self.clock.wrapping_sub(clock)
    }

    pub(crate) fn set_timer(&mut self, at: Timestamp, timer: Timer) {
        self.timers.push(Reverse((at, timer)));
    }

    /// Has the endpoint's probe looked at again at that time; one timer an endpoint.
    pub(crate) fn set_probe_timer(&mut self, ep: Ep, at: Timestamp) {
        let now = self.now;
        let entry = self.endpoints.at(ep);
        if entry.probe_timer.is_none_or(|timer| timer > at || timer <= now) {
            entry.probe_timer = Some(at);
            self.set_timer(at, Timer::Probe { ep });
        }
    }

    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// The next timer that has come.
    pub(crate) fn pop_timer(&mut self) -> Option<Timer> {
        if self.next_timer()? > self.now {
            return None;
        }
        self.timers.pop().map(|Reverse((_, timer))| timer)
    }

    /// Lanes that may be loaded now, beside what is loaded or on its way.
    pub(crate) fn load_room(&self) -> u32 {
        if self.loaded_lanes > 0 && self.loaded_bytes >= self.limits.loaded_bytes {
            return 0;
        }
        self.limits.loaded_lanes.saturating_sub(self.loaded_lanes + self.reserved_lanes)
    }

    /// Whether one more event may be loaded: the last one may exceed the budget by its size.
    pub(crate) fn has_bytes(&self) -> bool {
        self.loaded_bytes < self.limits.loaded_bytes.max(1)
    }

    /// A slot of the endpoint is taken.
    pub(crate) fn take_slot(&mut self, ep: Ep) {
        self.in_flight += 1;
        self.endpoints.at(ep).in_flight += 1;
    }

    /// A slot of the endpoint is free again.
    pub(crate) fn free_slot(&mut self, ep: Ep) {
        self.in_flight -= 1;
        self.endpoints.at(ep).in_flight -= 1;
        self.endpoints.ring_if_ready(ep);
    }

    /// One parked lane of the endpoint has something loaded.
    pub(crate) fn count_loaded(&mut self, ep: Ep) {
        self.loaded_lanes += 1;
        self.endpoints.at(ep).loaded += 1;
    }

    /// One fewer.
    pub(crate) fn uncount_loaded(&mut self, ep: Ep) {
        self.loaded_lanes -= 1;
        let cap = self.endpoints.get(ep).loaded_cap(&self.limits);
        let entry = self.endpoints.at(ep);
        entry.loaded -= 1;
        if entry.load_blocked && entry.loaded * 2 <= cap {
            entry.load_blocked = false;
            self.recheck.push(ep);
        }
    }
}
