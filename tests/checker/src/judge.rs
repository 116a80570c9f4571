//! One pass over the journals, with what must hold at each line.

use crate::Options;
use crate::faults::{Faults, Repeat};
use crate::flights::Flights;
use crate::ids;
use crate::input::{Inputs, JournalLine, Kind, Line, Order, Outcome};
use crate::journal;
use crate::unknown::Unknowns;
use crate::verdict::{Check, Figures, Findings, Verdict, percentile};
use crate::world::{NONE, Pair, World, near, ns_of_ms};
use anyhow::Result;
use std::collections::HashMap;
use std::time::Duration;

/// Pairs of a lane that overlapped, and repeats, that are kept to be judged at the end; a run with more is bad enough.
const MAX_OPEN: usize = 1_000_000;

struct Judge<'a> {
    world: World,
    options: &'a Options,
    findings: Findings,
    /// From monotonic to wall clock, ns; known from the first line on.
    offset: Option<i64>,
    faults: Faults,
    deliveries: HashMap<u128, u32>,
    /// The last request on each connection of each journal.
    connections: HashMap<(usize, u64), i64>,
    /// (a pair that had no answer, the pair that was sent all the same, when, line).
    overlaps: Vec<(u32, u32, i64, Line)>,
    /// Requests for deliveries that had been answered with 2xx.
    repeats: Vec<Repeated>,
    duplicates: u64,
    flights: Flights,
    unknowns: Unknowns,
}

struct Repeated {
    pair: u32,
    read_ns: i64,
    is_overtaken: bool,
    /// The last 2xx before it: when, how long after its request was read, and on which journal's connection.
    success_ns: i64,
    success_after: i64,
    conn: (usize, u64),
    line: Line,
}

pub(crate) fn judge(inputs: &Inputs, world: World, options: &Options) -> Result<Verdict> {
    let unknowns = Unknowns::load(inputs, &world, options)?;
    let mut judge = Judge {
        world,
        options,
        findings: Findings::default(),
        offset: None,
        faults: Faults::default(),
        deliveries: HashMap::new(),
        connections: HashMap::new(),
        overlaps: Vec::new(),
        repeats: Vec::new(),
        duplicates: 0,
        flights: Flights::default(),
        unknowns,
    };
    journal::each(&inputs.journals, |file, at, line| judge.line(file, at, line))?;
    judge.start(0)?;
    let figures = judge.end();
    judge.findings.verdict(inputs, figures)
}

fn ns(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Judge<'_> {
    /// Places the faults on the wall clock, once.
    fn start(&mut self, offset: i64) -> Result<()> {
        if self.offset.is_none() {
            self.offset = Some(offset);
            self.faults = Faults::new(&self.world, self.options, offset)?;
        }
        Ok(())
    }

    fn line(&mut self, file: usize, at: Line, line: &JournalLine<'_>) -> Result<()> {
        let now = near(Some(line.ns))?;
        self.start(near(ns_of_ms(line.unix_ms)?.checked_sub(now))?)?;
        let now = near(now.checked_add(self.offset.unwrap_or_default()))?;
        self.unknowns.reach(line.ns, &self.world, &mut self.findings);
        if line.kind == Kind::Request {
            self.connections.insert((file, line.conn), now);
            self.faults.saw((file, line.conn), now);
        }
        let Some(pair) = self.pair(at, line) else { return Ok(()) };
        match line.kind {
            Kind::Request => {
                self.flight(at, line, pair, now);
                self.request(at, line, pair, now);
            }
            Kind::Response => self.response(at, line, pair, now),
        }
        Ok(())
    }

    /// The delivery that a line is about; a ghost if there is none (I4), nameless if it does not say (I7).
    fn pair(&mut self, at: Line, line: &JournalLine<'_>) -> Option<u32> {
        let Some(event) = line.webhook_id.as_ref().and_then(|id| ids::parse(&id.0)) else {
            self.findings.add(Check::I7, &[at]);
            return None;
        };
        let endpoint = self.world.endpoint_of_path(&line.path);
        let delivery = line.delivery_id.as_ref().and_then(|id| ids::parse(&id.0));
        let pair = match delivery.and_then(|id| self.world.rewinds.get(&id)) {
            Some(rewound) => {
                let pair = &self.world.pairs[rewound.pair as usize];
                let is_it = self.world.rows[pair.row as usize].event == event
                    && Some(pair.endpoint) == endpoint;
                is_it.then_some(rewound.pair)
            }
            None => {
                let row = self.world.by_event.get(&event).copied();
                row.zip(endpoint).and_then(|(row, endpoint)| self.world.pair(row, endpoint))
            }
        };
        if pair.is_none() {
            self.findings.add(Check::I4, &[at]);
        }
        pair
    }

    fn request(&mut self, at: Line, line: &JournalLine<'_>, number: u32, now: i64) {
        self.identity(at, line, number);
        let pair = &self.world.pairs[number as usize];
        if self.unknowns.has(pair) {
            let lane = (pair.endpoint, self.world.rows[pair.row as usize].key);
            let is_late = self.faults.hold_up(lane, now);
            self.unknowns.request(number, line, at, is_late, &mut self.findings);
        }
        let is_first = !pair.first.is_some();
        let exact = ns(self.options.fault_times);
        if pair.is_dead() && pair.outcome_ns + exact < now && !self.is_straggler(line, pair, now) {
            self.findings.add(Check::I3, &[pair.first, pair.last, at]);
        }
        if is_first {
            self.rewound(at, line, now);
            self.head(at, number, now);
        } else {
            self.repeat(at, line, number, now);
        }
        let pair = &mut self.world.pairs[number as usize];
        if is_first {
            pair.first = at;
        }
        pair.last = at;
        pair.last_ns = now;
        pair.failed = false;
        pair.attempt = line.attempt.unwrap_or(0);
        let broken_off = line.behaviour.as_ref().is_some_and(|name| name.0.ends_with("_mid_body"));
        pair.promised |= broken_off && is_success(line.status);
        if pair.lane != NONE {
            let seen = &mut self.world.lanes[pair.lane as usize];
            *seen = (*seen).max(self.world.rows[pair.row as usize].id);
        }
    }

    /// I7 and I25: every request of a delivery says the same of it, and the body is the row's.
    fn identity(&mut self, at: Line, line: &JournalLine<'_>, number: u32) {
        let pair = &mut self.world.pairs[number as usize];
        let row = &self.world.rows[pair.row as usize];
        let id = line.webhook_id.as_ref().map(|id| &id.0);
        let delivery = line.delivery_id.as_ref().and_then(|id| ids::parse(&id.0));
        let body = line.body_sha256.as_ref().and_then(|hash| ids::sha256(&hash.0));
        let event_type = line.event_type.as_ref().and_then(|name| self.world.types.get(&name.0));
        let is_stable = delivery.is_some_and(|delivery| {
            pair.delivery = if pair.first.is_some() { pair.delivery } else { delivery };
            pair.delivery == delivery
                && *self.deliveries.entry(delivery).or_insert(number) == number
        }) && line.idempotency_key.as_ref().map(|key| &key.0) == id
            && body == Some(row.sha256)
            && event_type == Some(row.event_type)
            && line.attempt.is_some_and(|attempt| attempt >= 1);
        if !is_stable {
            self.findings.add(Check::I7, &[row.line, pair.first, at]);
        }
        let is_total = self.world.endpoints[usize::from(pair.endpoint)].order == Order::Total;
        if line.sequence.is_none_or(|sequence| (sequence == 0) == is_total) {
            self.findings.add(Check::I25, &[pair.first, at]);
        }
    }

    /// I31: what is sent again had its end before.
    fn rewound(&mut self, at: Line, line: &JournalLine<'_>, now: i64) {
        let delivery = line.delivery_id.as_ref().and_then(|id| ids::parse(&id.0));
        let Some(rewound) = delivery.and_then(|id| self.world.rewinds.get(&id)) else { return };
        let exact = ns(self.options.fault_times);
        let of = self.world.repeated.get(&rewound.of).map(|of| &self.world.pairs[*of as usize]);
        let has_ended = of.is_some_and(|of| {
            let is_end = matches!(of.outcome, Some(Outcome::DeadLettered | Outcome::Delivered));
            is_end && of.outcome_ns <= now + exact
        });
        if !has_ended {
            self.findings.add(Check::I31, &[of.map_or(Line::default(), |of| of.last), at]);
        }
    }

    /// I31 and I32: what a command sends again of a lane is in the order that it had, and what was given up is sent again
    /// by one row.
    fn judge_rewinds(&mut self) {
        let world = &self.world;
        let mut rewinds: Vec<(u32, Option<u32>)> = world
            .rewinds
            .values()
            .map(|rewound| (rewound.pair, world.repeated.get(&rewound.of).copied()))
            .collect();
        rewinds.sort_unstable();
        // Of each lane and command, the last of each series that it repeats.
        let mut last: HashMap<(u32, u32), (u32, u32)> = HashMap::new();
        let mut given_up: HashMap<u32, u32> = HashMap::new();
        let lane = |pair: u32| world.pairs[pair as usize].lane;
        let line = |pair: u32| world.rows[world.pairs[pair as usize].row as usize].line;
        for (pair, original) in rewinds {
            let Some(original) = original else { continue };
            if lane(pair) != NONE
                && let Some((before, earlier)) =
                    last.insert((lane(pair), lane(original)), (original, pair))
                && before > original
            {
                self.findings.add(Check::I31, &[line(earlier), line(pair)]);
            }
            if world.pairs[original as usize].outcome == Some(Outcome::DeadLettered)
                && let Some(other) = given_up.insert(original, pair)
            {
                self.findings.add(Check::I32, &[line(other), line(pair)]);
            }
        }
    }

    /// I1 and I5: a first send finds everything before it in its lane seen, and done with.
    fn head(&mut self, at: Line, number: u32, now: i64) {
        let exact = ns(self.options.fault_times);
        let mut before = self.world.pairs[number as usize].before;
        while before != NONE {
            let earlier = &self.world.pairs[before as usize];
            if earlier.is_dead() && earlier.outcome_ns <= now + exact {
                before = earlier.before;
                continue;
            }
            let is_done = earlier.answered.is_some() || earlier.promised || earlier.resolved;
            if !earlier.first.is_some() && !earlier.resolved {
                let row = &self.world.rows[earlier.row as usize];
                self.findings.add(Check::I1, &[row.line, at]);
            } else if earlier.resolved && !earlier.answered.is_some() && self.unknowns.has(earlier)
            {
                if !self.unknowns.is_decided(before) {
                    self.findings.add(Check::I12, &[earlier.last, at]);
                }
            } else if !is_done && self.overlaps.len() < MAX_OPEN {
                self.overlaps.push((before, number, now, at));
            }
            return;
        }
    }

    /// Whether a request had been under way for long when it is read now. Known limit: nothing that the sender can do calls
    /// back what the network still has.
    fn is_straggler(&self, line: &JournalLine<'_>, pair: &Pair, now: i64) -> bool {
        let lane = (pair.endpoint, self.world.rows[pair.row as usize].key);
        let falls_back = line.attempt.is_some_and(|attempt| attempt < pair.attempt);
        falls_back && self.faults.delay(pair.endpoint, now)
            || pair.first.is_some() && self.faults.leave_stragglers(lane, pair.last_ns, now)
    }

    /// I3, I5 and I7 of a delivery that was sent before.
    fn repeat(&mut self, at: Line, line: &JournalLine<'_>, number: u32, now: i64) {
        let pair = &self.world.pairs[number as usize];
        let row = &self.world.rows[pair.row as usize];
        let since = pair.last_ns;
        let falls_back = line.attempt.is_some_and(|attempt| attempt < pair.attempt);
        let lane = (pair.endpoint, row.key);
        let is_straggler = self.is_straggler(line, pair, now);
        // After a failure that was answered the same number is a record that was lost.
        let stays = pair.failed && line.attempt == Some(pair.attempt);
        let is_lost = self.faults.lose_attempts(lane, since, now);
        if (falls_back || stays) && !is_straggler && !is_lost {
            self.findings.add(Check::I7, &[pair.last, at]);
        }
        let is_head = pair.lane == NONE || self.world.lanes[pair.lane as usize] <= row.id;
        if !is_head && !is_straggler {
            self.findings.add(Check::I5, &[pair.first, pair.answered, at]);
        }
        if pair.answered.is_some() {
            self.duplicates += 1;
            if self.repeats.len() < MAX_OPEN {
                self.repeats.push(Repeated {
                    pair: number,
                    read_ns: now,
                    is_overtaken: falls_back,
                    success_ns: pair.success_ns,
                    success_after: pair.success_after,
                    // Of one journal all: a path is one receiver's.
                    conn: (pair.answered.file(), pair.success_conn),
                    line: at,
                });
            } else {
                self.findings.add(Check::I3, &[at]);
            }
        }
    }

    /// What will not be answered is over when it was read.
    fn flight(&mut self, at: Line, line: &JournalLine<'_>, number: u32, now: i64) {
        let pair = &self.world.pairs[number as usize];
        let broken_off = line.behaviour.as_ref().is_some_and(|name| name.0.ends_with("_mid_body"));
        if pair.through == NONE || line.status.is_none() || broken_off {
            return;
        }
        let deadline = self.options.deadline.map(ns);
        let since = now - deadline.unwrap_or(0);
        let lane = (pair.endpoint, self.world.rows[pair.row as usize].key);
        let is_late = self.faults.leave_stragglers(lane, since, now)
            || self.faults.break_way(pair.endpoint, since, now);
        self.flights.begin(pair.through, (at.file(), line.conn), now, deadline, is_late);
    }

    fn response(&mut self, at: Line, line: &JournalLine<'_>, number: u32, now: i64) {
        self.unknowns.response(number, at, line);
        self.flights.end(self.world.pairs[number as usize].through, (at.file(), line.conn));
        let pair = &mut self.world.pairs[number as usize];
        pair.failed = !is_success(line.status);
        if is_success(line.status) {
            if !pair.answered.is_some() {
                pair.answered = at;
                pair.answered_ns = now;
            }
            pair.success_ns = now;
            pair.success_after = now - pair.last_ns;
            pair.success_conn = line.conn;
        }
    }

    /// What can only be said when all has been read.
    fn end(&mut self) -> Figures {
        self.unknowns.end(&self.world, &mut self.findings);
        self.judge_overlaps();
        let explained = self.judge_repeats();
        self.judge_rewinds();
        for at in std::mem::take(&mut self.world.stray_finals) {
            self.findings.add(Check::I4, &[at]);
        }
        let mut figures = Figures {
            events: (self.world.rows.len() - self.world.rewinds.len()) as u64,
            rewinds: self.world.rewinds.len() as u64,
            duplicates: self.duplicates,
            duplicates_explained: explained,
            max_in_flight_per_lane: self.flights.max,
            effects: self.unknowns.effects,
            answers: self.unknowns.answers,
            ..Figures::default()
        };
        let (mut all, mut untouched) = (Vec::new(), Vec::new());
        for pair in &self.world.pairs {
            let row = &self.world.rows[pair.row as usize];
            let is_delivered = pair.outcome == Some(Outcome::Delivered);
            if pair.answered.is_some() {
                let took = pair.answered_ns - row.created_ns;
                all.push(took);
                if !self.faults.touch((pair.endpoint, row.key)) {
                    untouched.push(took);
                }
            }
            let is_told = !self.options.finals_whole || pair.outcome.is_some();
            if pair.answered.is_some() && is_told
                || (is_delivered && (pair.promised || pair.resolved))
            {
                figures.deliveries += 1;
            } else if pair.is_dead() {
                figures.dead_letters += u64::from(pair.outcome == Some(Outcome::DeadLettered));
            } else if pair.outcome == Some(Outcome::Held) {
                figures.held += 1;
            } else {
                figures.lost += 1;
                self.findings.add(Check::I2, &[row.line, pair.last]);
            }
        }
        figures.order_violations = self.findings.count(Check::I1) + self.findings.count(Check::I5);
        figures.p50_ms = percentile(&mut untouched, 50);
        figures.p99_ms = percentile(&mut untouched, 99);
        figures.p99_all_ms = percentile(&mut all, 99);
        figures
    }

    /// I5: an answer that came only just after is a line written down late, and no overlap.
    fn judge_overlaps(&mut self) {
        let late = ns(self.options.late_lines);
        for (earlier, later, at_ns, at) in std::mem::take(&mut self.overlaps) {
            let earlier = &self.world.pairs[earlier as usize];
            if !(earlier.answered.is_some() && earlier.answered_ns <= at_ns + late) {
                debug_assert_eq!(earlier.lane, self.world.pairs[later as usize].lane);
                self.findings.add(Check::I5, &[earlier.first, at, earlier.answered]);
            }
        }
    }

    /// I3: each repeat of a delivery needs a fault that lost the 2xx before it. Gives the number explained.
    fn judge_repeats(&mut self) -> u64 {
        let exact = ns(self.options.fault_times);
        let mut explained = 0;
        for repeated in std::mem::take(&mut self.repeats) {
            let pair = &self.world.pairs[repeated.pair as usize];
            let is_recorded = pair.outcome == Some(Outcome::Delivered) && pair.outcome_ns > 0;
            let repeat = Repeat {
                lane: (pair.endpoint, self.world.rows[pair.row as usize].key),
                answered_ns: repeated.success_ns,
                asked_ns: repeated.success_ns - repeated.success_after,
                conn: repeated.conn,
                is_late: self
                    .options
                    .deadline
                    .is_some_and(|limit| repeated.success_after + exact >= ns(limit)),
                read_ns: repeated.read_ns,
                is_overtaken: repeated.is_overtaken,
                conn_last_ns: self.connections.get(&repeated.conn).copied().unwrap_or(i64::MIN),
                recorded_ns: is_recorded.then_some(pair.outcome_ns),
            };
            if self.faults.explain(&repeat) {
                explained += 1;
            } else {
                self.findings.add(Check::I3, &[pair.first, pair.answered, repeated.line]);
            }
        }
        explained
    }
}

fn is_success(status: Option<u16>) -> bool {
    status.is_some_and(|status| (200..300).contains(&status))
}
