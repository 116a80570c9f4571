//! What should have happened: every (row, endpoint) pair, its place in its lane, and what the database says of it.

use crate::ids;
use crate::input::{
    self, FaultLine, FinalLine, Inputs, Line, Order, Outcome, RowLine, SubscriptionLine,
};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, HashSet};

pub(crate) const NS_PER_MS: i64 = 1_000_000;

/// Times lie within this of their clock's zero, so that nothing that is added to them or taken off overflows.
const FARTHEST_NS: i64 = i64::MAX / 4;

/// A wall clock time in ns, on the clock of a journal's first line.
pub(crate) fn ns_of_ms(ms: i64) -> Result<i64> {
    near(ms.checked_mul(NS_PER_MS))
}

/// Refuses a time that nobody can have read on a clock.
pub(crate) fn near(ns: Option<i64>) -> Result<i64> {
    ns.filter(|ns| (-FARTHEST_NS..=FARTHEST_NS).contains(ns)).context("a time out of range")
}

/// "No such thing" for the small numbers below.
pub(crate) const NONE: u32 = u32::MAX;

pub(crate) struct World {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) by_path: HashMap<String, u16>,
    pub(crate) rows: Vec<Row>,
    /// The row of each event; rewinds are others.
    pub(crate) by_event: HashMap<u128, u32>,
    /// The pair of each delivery that is a rewind.
    pub(crate) rewinds: HashMap<u128, Rewound>,
    /// The deliveries that rewinds repeat, and their pairs as far as the final states name them.
    wanted: HashSet<u128>,
    pub(crate) repeated: HashMap<u128, u32>,
    /// The endpoints of each (tenant, type).
    pub(crate) routes: Vec<Vec<u16>>,
    pub(crate) pairs: Vec<Pair>,
    /// Of each lane, the highest row id that a receiver has seen.
    pub(crate) lanes: Vec<i64>,
    pub(crate) types: Names,
    pub(crate) keys: Names,
    pub(crate) faults: Vec<FaultLine>,
    /// Final states of pairs that should not exist.
    pub(crate) stray_finals: Vec<Line>,
}

pub(crate) struct Endpoint {
    pub(crate) id: u128,
    pub(crate) path: String,
    tenant: u128,
    patterns: Vec<String>,
    pub(crate) order: Order,
}

pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) event: u128,
    pub(crate) event_type: u32,
    pub(crate) key: u32,
    pub(crate) route: u32,
    /// Its first pair; one per endpoint of its route, in that order.
    pub(crate) pairs: u32,
    pub(crate) created_ns: i64,
    pub(crate) sha256: [u8; 32],
    ordered: bool,
    rewind: Option<Box<Rewind>>,
    pub(crate) line: Line,
}

/// What a row says that sends an event again.
struct Rewind {
    delivery: u128,
    endpoint: u128,
    of: u128,
    command: u128,
}

/// A delivery that repeats another one.
#[derive(Clone, Copy)]
pub(crate) struct Rewound {
    pub(crate) pair: u32,
    pub(crate) of: u128,
}

/// One delivery: what it is, what the database says, and what the journals show so far. Times are wall clock ns.
pub(crate) struct Pair {
    pub(crate) row: u32,
    pub(crate) endpoint: u16,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) resolved: bool,
    /// A status line of success was part of what a receiver began to answer and broke off.
    pub(crate) promised: bool,
    /// Its last request was answered with a failure.
    pub(crate) failed: bool,
    /// Its lane's number; rewinds of a lane have one of their own for each command, as nobody says where they stand in it.
    pub(crate) lane: u32,
    /// The lane that it goes through.
    pub(crate) through: u32,
    /// The pair before it in its lane.
    pub(crate) before: u32,
    pub(crate) attempt: u32,
    pub(crate) delivery: u128,
    pub(crate) outcome_ns: i64,
    pub(crate) last_ns: i64,
    /// When the first 2xx was written.
    pub(crate) answered_ns: i64,
    /// The last 2xx: when, how long after its request had been read, and on which connection.
    pub(crate) success_ns: i64,
    pub(crate) success_after: i64,
    pub(crate) success_conn: u64,
    pub(crate) first: Line,
    pub(crate) last: Line,
    pub(crate) answered: Line,
}

impl Pair {
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.outcome, Some(Outcome::DeadLettered | Outcome::Discarded))
    }
}

/// Texts as small numbers.
#[derive(Default)]
pub(crate) struct Names(HashMap<String, u32>);

impl Names {
    fn number(&mut self, name: String) -> u32 {
        let next = u32::try_from(self.0.len()).expect("fewer names than lines");
        *self.0.entry(name).or_insert(next)
    }

    pub(crate) fn get(&self, name: &str) -> Option<u32> {
        self.0.get(name).copied()
    }
}

impl World {
    pub(crate) fn load(inputs: &Inputs) -> Result<Self> {
        let mut world = Self {
            endpoints: Vec::new(),
            by_path: HashMap::new(),
            rows: Vec::new(),
            by_event: HashMap::new(),
            rewinds: HashMap::new(),
            wanted: HashSet::new(),
            repeated: HashMap::new(),
            routes: Vec::new(),
            pairs: Vec::new(),
            lanes: Vec::new(),
            types: Names::default(),
            keys: Names::default(),
            faults: Vec::new(),
            stray_finals: Vec::new(),
        };
        input::each(&inputs.subscriptions, |_, line| world.subscription(line))?;
        world.load_rows(inputs)?;
        world.make_pairs()?;
        world.wanted = world.rewinds.values().map(|rewound| rewound.of).collect();
        input::each(&inputs.finals, |number, line| {
            world.outcome(Line::new(inputs.finals_file(), number), &line)
        })?;
        input::each(&inputs.faults, |_, line| {
            world.faults.push(line);
            Ok(())
        })?;
        Ok(world)
    }

    /// The number of the pair of a row and an endpoint, if the endpoint is subscribed to it.
    pub(crate) fn pair(&self, row: u32, endpoint: u16) -> Option<u32> {
        let row = &self.rows[row as usize];
        let place = self.routes[row.route as usize].iter().position(|one| *one == endpoint)?;
        Some(row.pairs + u32::try_from(place).expect("fewer than 65,536 endpoints"))
    }

    pub(crate) fn endpoint_of_path(&self, path: &str) -> Option<u16> {
        let without_query = path.split('?').next().unwrap_or(path);
        self.by_path.get(path).or_else(|| self.by_path.get(without_query)).copied()
    }

    fn subscription(&mut self, line: SubscriptionLine) -> Result<()> {
        let id = ids::parse(&line.endpoint).context("`endpoint` is no id")?;
        let tenant = ids::parse(&line.tenant).context("`tenant` is no id")?;
        if let Some(known) = self.endpoints.iter_mut().find(|endpoint| endpoint.id == id) {
            ensure!(known.path == line.path, "an endpoint has one path");
            known.patterns.extend(line.patterns);
            return Ok(());
        }
        let number = u16::try_from(self.endpoints.len()).context("more than 65,536 endpoints")?;
        let taken = self.by_path.insert(line.path.clone(), number);
        ensure!(taken.is_none(), "two endpoints share the path {}", line.path);
        let (path, patterns, order) = (line.path, line.patterns, line.order);
        self.endpoints.push(Endpoint { id, path, tenant, patterns, order });
        Ok(())
    }

    fn load_rows(&mut self, inputs: &Inputs) -> Result<()> {
        let mut routes: HashMap<(u128, u32), u32> = HashMap::new();
        input::each(&inputs.rows, |number, line: RowLine| {
            let tenant = ids::parse(&line.tenant).context("`tenant` is no id")?;
            let endpoints = || {
                let all = self.endpoints.iter().zip(0..);
                let matching =
                    all.filter(|(one, _)| one.tenant == tenant && one.takes(&line.event_type));
                matching.map(|(_, number)| number).collect()
            };
            let event_type = match self.types.get(&line.event_type) {
                Some(known) => known,
                None => self.types.number(line.event_type.clone()),
            };
            let route = *routes.entry((tenant, event_type)).or_insert_with(|| {
                self.routes.push(endpoints());
                u32::try_from(self.routes.len() - 1).expect("fewer routes than rows")
            });
            let rewind = line.rewind.map(|rewind| {
                let id = |text: &str| ids::parse(text).context("`rewind` has no ids");
                Ok::<_, anyhow::Error>(Box::new(Rewind {
                    delivery: id(&rewind.delivery)?,
                    endpoint: id(&rewind.endpoint)?,
                    of: id(&rewind.of)?,
                    command: id(&rewind.command)?,
                }))
            });
            self.rows.push(Row {
                id: line.id,
                event: ids::parse(&line.event).context("`event` is no id")?,
                event_type,
                key: line.key.map_or(NONE, |key| self.keys.number(key)),
                route,
                pairs: 0,
                created_ns: ns_of_ms(line.created_ms)?,
                sha256: ids::sha256(&line.sha256).context("`sha256` is no hex of 32 bytes")?,
                ordered: line.ordered,
                rewind: rewind.transpose()?,
                line: Line::new(inputs.rows_file(), number),
            });
            Ok(())
        })?;
        self.rows.sort_unstable_by_key(|row| row.id);
        if let Some([one, _]) = self.rows.array_windows().find(|[one, next]| one.id == next.id) {
            bail!("row {} stands there twice", one.id);
        }
        self.rows.shrink_to_fit();
        Ok(())
    }

    /// One pair per row and endpoint, linked in the order of row ids within each lane.
    fn make_pairs(&mut self) -> Result<()> {
        let mut lanes: HashMap<(u16, u32, Option<u128>), u32> = HashMap::new();
        let mut last_of_lane: Vec<u32> = Vec::new();
        // Millions of them: not a byte more than needed.
        let all = self.rows.iter().map(|row| match row.rewind {
            Some(_) => 1,
            None => self.routes[row.route as usize].len(),
        });
        let all = all.sum();
        self.pairs.reserve_exact(all);
        self.by_event.reserve(self.rows.len());
        for number in 0..self.rows.len() {
            let row = &mut self.rows[number];
            row.pairs = u32::try_from(self.pairs.len()).context("more than 4 billion pairs")?;
            let number = u32::try_from(number).context("more than 4 billion rows")?;
            let rewind = row.rewind.take();
            if rewind.is_none() && self.by_event.insert(row.event, number).is_some() {
                bail!("event {:032x} stands in two rows", row.event);
            }
            let row = &self.rows[number as usize];
            let command = rewind.as_ref().map(|rewind| rewind.command);
            let mut place = |endpoint: u16, command: Option<u128>, pair: u32| {
                let key = match self.endpoints[usize::from(endpoint)].order {
                    Order::User if row.ordered => row.key,
                    // A lane of its own for total order cannot be confused with a user's: modes do not mix.
                    Order::Total if row.ordered => 0,
                    _ => NONE,
                };
                if key == NONE {
                    return (NONE, NONE);
                }
                let lane = *lanes.entry((endpoint, key, command)).or_insert_with(|| {
                    last_of_lane.push(NONE);
                    u32::try_from(last_of_lane.len() - 1).expect("fewer lanes than pairs")
                });
                (lane, std::mem::replace(&mut last_of_lane[lane as usize], pair))
            };
            if let Some(rewind) = rewind {
                let pair = u32::try_from(self.pairs.len()).context("more than 4 billion pairs")?;
                let endpoint = self.endpoints.iter().position(|one| one.id == rewind.endpoint);
                let endpoint = endpoint.context("a rewind names an unknown endpoint")?;
                let endpoint = u16::try_from(endpoint).expect("numbered by u16");
                let (lane, before) = place(endpoint, command, pair);
                let key = if lane == NONE { NONE } else { row.key };
                let through = match self.endpoints[usize::from(endpoint)].order {
                    _ if lane == NONE => NONE,
                    Order::Total => lanes.get(&(endpoint, 0, None)).copied().unwrap_or(lane),
                    _ => lanes.get(&(endpoint, key, None)).copied().unwrap_or(lane),
                };
                let made = Pair { through, ..Pair::new(number, endpoint, lane, before) };
                self.pairs.push(made);
                let rewound = Rewound { pair, of: rewind.of };
                ensure!(
                    self.rewinds.insert(rewind.delivery, rewound).is_none(),
                    "delivery {:032x} stands in two rows",
                    rewind.delivery
                );
                continue;
            }
            for &endpoint in &self.routes[row.route as usize] {
                let pair = u32::try_from(self.pairs.len()).context("more than 4 billion pairs")?;
                let (lane, before) = place(endpoint, None, pair);
                self.pairs.push(Pair::new(number, endpoint, lane, before));
            }
        }
        self.lanes = vec![i64::MIN; last_of_lane.len()];
        Ok(())
    }

    fn outcome(&mut self, at: Line, line: &FinalLine) -> Result<()> {
        let event = ids::parse(&line.event).context("`event` is no id")?;
        let endpoint = ids::parse(&line.endpoint).context("`endpoint` is no id")?;
        let endpoint = self.endpoints.iter().position(|one| one.id == endpoint);
        let endpoint = endpoint.map(|number| u16::try_from(number).expect("numbered by u16"));
        let delivery = line.delivery.as_deref().map(|id| ids::parse(id).context("no delivery id"));
        let delivery = delivery.transpose()?;
        let pair = match delivery.and_then(|id| self.rewinds.get(&id)) {
            Some(rewound) => {
                let pair = &self.pairs[rewound.pair as usize];
                let is_it =
                    self.rows[pair.row as usize].event == event && Some(pair.endpoint) == endpoint;
                is_it.then_some(rewound.pair)
            }
            None => {
                let row = self.by_event.get(&event).copied();
                row.zip(endpoint).and_then(|(row, endpoint)| self.pair(row, endpoint))
            }
        };
        let Some(number) = pair else {
            self.stray_finals.push(at);
            return Ok(());
        };
        if let Some(delivery) = delivery.filter(|id| self.wanted.contains(id)) {
            self.repeated.insert(delivery, number);
        }
        let pair = &mut self.pairs[number as usize];
        let is_final = |outcome| !matches!(outcome, Outcome::Held);
        if pair.outcome.is_some_and(is_final) && is_final(line.outcome) {
            // Two ends of one delivery: one of them is another's.
            self.stray_finals.push(at);
            return Ok(());
        }
        pair.outcome = Some(line.outcome);
        // Without a time it would excuse whatever went before it.
        let needs_time = matches!(line.outcome, Outcome::DeadLettered | Outcome::Discarded);
        ensure!(!needs_time || line.at_ms.is_some(), "no `at_ms`");
        pair.outcome_ns = ns_of_ms(line.at_ms.unwrap_or(0))?;
        pair.resolved = line.resolved;
        Ok(())
    }
}

impl Endpoint {
    /// A pattern is a type, `prefix.*` (everything below it) or `*`.
    fn takes(&self, event_type: &str) -> bool {
        self.patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => event_type.starts_with(prefix),
            None => pattern == event_type,
        })
    }
}

impl Pair {
    fn new(row: u32, endpoint: u16, lane: u32, before: u32) -> Self {
        Self {
            row,
            endpoint,
            outcome: None,
            resolved: false,
            promised: false,
            failed: false,
            lane,
            through: lane,
            before,
            attempt: 0,
            delivery: 0,
            outcome_ns: 0,
            last_ns: 0,
            answered_ns: 0,
            success_ns: 0,
            success_after: 0,
            success_conn: 0,
            first: Line::default(),
            last: Line::default(),
            answered: Line::default(),
        }
    }
}
