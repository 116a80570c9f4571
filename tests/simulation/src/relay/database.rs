//! What the source database does: writers' transactions, snapshots, and the statements of `laneway_store::relay` on
//! cursors, history and held rows. What they decide is in [`laneway_lane::relay`].

use super::event::{Key, RowId, To};
use crate::event::Time;
use laneway_lane::relay::{Cursor, EntryAcks, HoldReason, Snapshot, Window};
use laneway_wire::LaneId;
use std::collections::BTreeMap;

/// A row of the outbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) id: RowId,
    xid: u64,
    pub(super) key: Key,
}

/// A writer's open transaction: it holds the locks of its keys.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) xid: u64,
    pub(super) rows: Vec<(RowId, Key)>,
    pub(super) ends_at: Time,
    pub(super) commits: bool,
}

/// A row of `relay_history`.
#[derive(Debug, Clone)]
struct Entry {
    s1: Option<Snapshot>,
    s2: Snapshot,
    version: u64,
    opened_at: Time,
}

/// A row of `relay_held`.
#[derive(Debug, Clone, Copy)]
struct Held {
    reason: HoldReason,
    tenant: Key,
    left_entry: Option<u64>,
}

/// A held delivery by (lane, row, endpoint).
pub(super) type HeldKey = (LaneId, RowId, To);

/// A row of `relay_cursors`, with what belongs to its shard.
#[derive(Debug)]
struct Shard {
    cursor: Cursor,
    token: u64,
    owner: Option<usize>,
    lease_until: Time,
    history: BTreeMap<u64, Entry>,
    acks: BTreeMap<(u64, u64), Vec<Option<i64>>>,
    held: BTreeMap<HeldKey, Held>,
}

/// The tables.
#[derive(Debug)]
pub(super) struct Database {
    rows: Vec<Row>,
    pub(super) open: Vec<Transaction>,
    shards: Vec<Shard>,
    next_id: RowId,
    next_xid: u64,
    /// The highest that a commit has made durable.
    durable_xid: u64,
    next_token: u64,
}

impl Database {
    pub(super) fn new(shards: usize) -> Self {
        let start = Snapshot::parse("3:3:").unwrap_or_else(|| unreachable!("a snapshot"));
        let cursor = Cursor {
            s1: None,
            s2: start,
            floor_id: 0,
            last_id: 0,
            entry: 0,
            last_entry: 0,
            generation: 0,
            subscription_version: 0,
            restored: false,
            opened: false,
        };
        let shard = || Shard {
            cursor: cursor.clone(),
            token: 0,
            owner: None,
            lease_until: 0,
            history: BTreeMap::new(),
            acks: BTreeMap::new(),
            held: BTreeMap::new(),
        };
        Self {
            rows: Vec::new(),
            open: Vec::new(),
            shards: (0..shards).map(|_| shard()).collect(),
            next_id: 1,
            next_xid: 3,
            durable_xid: 2,
            next_token: 1,
        }
    }

    /// Rows that were inserted, rolled back ones included.
    pub(super) fn inserted(&self) -> usize {
        self.next_id as usize - 1
    }

    // Writers.

    pub(super) fn begin(&mut self, ends_at: Time, commits: bool) {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.open.push(Transaction { xid, rows: Vec::new(), ends_at, commits });
    }

    /// Inserts a row under the key's lock; false: another transaction has it.
    pub(super) fn insert(&mut self, open: usize, key: Key) -> bool {
        let locked = |(place, other): (usize, &Transaction)| {
            place != open && other.rows.iter().any(|(_, held)| *held == key)
        };
        if self.open.iter().enumerate().any(locked) {
            return false;
        }
        self.open[open].rows.push((self.next_id, key));
        self.next_id += 1;
        true
    }

    pub(super) fn end(&mut self, open: usize) -> Transaction {
        let ended = self.open.remove(open);
        if ended.commits {
            self.durable_xid = self.durable_xid.max(ended.xid);
            let rows = ended.rows.iter().map(|&(id, key)| Row { id, xid: ended.xid, key });
            self.rows.extend(rows);
        }
        ended
    }

    /// The server is killed: what is open is gone, and transaction ids that no commit has made durable are used again.
    pub(super) fn crash(&mut self) {
        self.open.clear();
        self.next_xid = self.durable_xid + 1;
    }

    // Statements.

    pub(super) fn snapshot(&self) -> Snapshot {
        let running: Vec<String> = self.open.iter().map(|open| open.xid.to_string()).collect();
        let xmin = self.open.iter().map(|open| open.xid).min().unwrap_or(self.next_xid);
        let text = format!("{xmin}:{}:{}", self.next_xid, running.join(","));
        Snapshot::parse(&text).unwrap_or_else(|| unreachable!("{text} is a snapshot"))
    }

    /// A statement of the relay that writes: it has a transaction of its own.
    fn write(&mut self) {
        self.durable_xid = self.durable_xid.max(self.next_xid);
        self.next_xid += 1;
    }

    fn shard_of(&self, key: Key) -> usize {
        usize::from(key) % self.shards.len()
    }

    /// `leases_acquire` of one shard.
    pub(super) fn lease_acquire(
        &mut self,
        instance: usize,
        own: &[u64],
        now: Time,
        lease: Time,
    ) -> Option<(usize, u64)> {
        let free = |shard: &Shard| {
            shard.token == 0
                || shard.lease_until < now
                || shard.owner == Some(instance) && !own.contains(&shard.token)
        };
        let at = self.shards.iter().position(free)?;
        let token = self.next_token;
        self.next_token += 1;
        self.write();
        let shard = &mut self.shards[at];
        (shard.token, shard.owner, shard.lease_until) = (token, Some(instance), now + lease);
        Some((at, token))
    }

    /// `leases_renew` of one lease.
    pub(super) fn lease_renew(&mut self, shard: usize, token: u64, until: Time) -> bool {
        let shard = &mut self.shards[shard];
        if shard.token == token {
            shard.lease_until = until;
        }
        shard.token == token
    }

    /// `leases_release` of one lease.
    pub(super) fn lease_release(&mut self, shard: usize, token: u64) -> bool {
        let shard = &mut self.shards[shard];
        let own = shard.token == token;
        if own {
            (shard.token, shard.owner) = (0, None);
        }
        own
    }

    /// The shard, if it is the token's; `unfenced` is a planted fault.
    fn fenced(&mut self, shard: usize, token: u64, unfenced: bool) -> Option<&mut Shard> {
        self.write();
        Some(&mut self.shards[shard]).filter(|shard| shard.token == token || unfenced)
    }

    pub(super) fn cursor_load(&self, shard: usize, token: u64) -> Option<Cursor> {
        let shard = &self.shards[shard];
        let last = shard.history.keys().next_back().copied().unwrap_or(0);
        let last_entry = shard.cursor.entry.max(last);
        (shard.token == token).then(|| Cursor { last_entry, ..shard.cursor.clone() })
    }

    /// `poll` of one shard: the snapshot, and whether there are rows beyond the batch.
    pub(super) fn poll(&self, shard: usize) -> (Snapshot, bool) {
        let s2 = &self.shards[shard].cursor.s2;
        let fresh =
            self.rows.iter().any(|row| self.shard_of(row.key) == shard && !s2.sees(row.xid));
        (self.snapshot(), fresh)
    }

    pub(super) fn batch_open(
        &mut self,
        shard: usize,
        token: u64,
        s2: &Snapshot,
        version: u64,
        now: Time,
        entry_age: Time,
    ) -> Option<Cursor> {
        let row = self.fenced(shard, token, false)?;
        let cursor = &mut row.cursor;
        if cursor.s2.xmax() > s2.xmax() {
            return None;
        }
        let joins = row.history.get(&cursor.entry).is_some_and(|entry| {
            entry.version == version && entry.s1.is_some() && entry.opened_at > now - entry_age
        });
        cursor.s1 = Some(std::mem::replace(&mut cursor.s2, s2.clone()));
        cursor.last_id = 0;
        cursor.entry += u64::from(!joins);
        cursor.last_entry = cursor.entry;
        cursor.subscription_version = version;
        let entry = || Entry { s1: cursor.s1.clone(), s2: s2.clone(), version, opened_at: now };
        let entry = row.history.entry(cursor.entry).or_insert_with(entry);
        entry.s2 = s2.clone();
        Some(Cursor { opened: true, ..cursor.clone() })
    }

    /// A planted fault: the present batch ends where the database is now.
    pub(super) fn resume_to_now(&mut self, shard: usize, token: u64) {
        let s2 = self.snapshot();
        if let Some(row) = self.fenced(shard, token, false) {
            row.cursor.s2 = s2.clone();
            if let Some(entry) = row.history.get_mut(&row.cursor.entry) {
                entry.s2 = s2;
            }
        }
    }

    pub(super) fn batch_reopen(&mut self, shard: usize, token: u64, entry: u64) -> bool {
        self.fenced(shard, token, false).is_some_and(|shard| shard.reopen(entry))
    }

    /// `batch_page`: the batch's rows after `after`, in id order, and whether the batch ends with them.
    pub(super) fn batch_page(
        &self,
        shard: usize,
        cursor: &Cursor,
        after: RowId,
        max_rows: usize,
    ) -> (Vec<Row>, bool) {
        let Some(s1) = &cursor.s1 else { return (Vec::new(), true) };
        let window = Window::between(s1, &cursor.s2);
        let wanted = |row: &&Row| {
            self.shard_of(row.key) == shard && row.id > after && window.has(row.xid, &cursor.s2)
        };
        let mut rows: Vec<Row> = self.rows.iter().filter(wanted).copied().collect();
        rows.sort_unstable_by_key(|row| row.id);
        rows.truncate(max_rows);
        let last = rows.len() < max_rows;
        (rows, last)
    }

    pub(super) fn batch_advance(
        &mut self,
        shard: usize,
        token: u64,
        last_id: RowId,
        acks: &EntryAcks,
        held: &[(HeldKey, Key, HoldReason)],
        unfenced: bool,
    ) -> bool {
        let Some(shard) = self.fenced(shard, token, unfenced) else { return false };
        if shard.cursor.entry != acks.entry {
            return false;
        }
        shard.cursor.last_id = last_id;
        shard.acks.insert((acks.entry, acks.generation), acks.acked.clone());
        for &(key, tenant, reason) in held {
            shard.held.entry(key).or_insert(Held { reason, tenant, left_entry: None });
        }
        true
    }

    pub(super) fn acks_of(
        &self,
        shard: usize,
        entry: u64,
        generation: u64,
        partitions: u32,
    ) -> EntryAcks {
        let stored = self.shards[shard].acks.get(&(entry, generation)).cloned();
        let acked = stored.unwrap_or_else(|| vec![None; partitions as usize]);
        EntryAcks { entry, generation, acked }
    }

    pub(super) fn acks_all(&self, shard: usize) -> Vec<EntryAcks> {
        let acks = self.shards[shard].acks.iter();
        acks.map(|(&(entry, generation), acked)| EntryAcks {
            entry,
            generation,
            acked: acked.clone(),
        })
        .collect()
    }

    /// `cursor_go_back`; `left_stays` is a planted fault.
    pub(super) fn cursor_go_back(
        &mut self,
        shard: usize,
        token: u64,
        generation: u64,
        to: Option<u64>,
        left_stays: bool,
    ) -> bool {
        let Some(shard) = self.fenced(shard, token, false) else { return false };
        shard.cursor.generation = generation;
        if let Some(to) = to {
            shard.reopen(to);
            for held in shard.held.values_mut() {
                if held.left_entry.is_some_and(|left| left >= to) && !left_stays {
                    held.left_entry = None;
                }
            }
        }
        true
    }

    /// Whether nothing is left to do: no row beyond the batch, nothing held, losses up to `generation` looked at.
    pub(super) fn is_passed(&self, shard: usize, generation: u64) -> bool {
        let of = &self.shards[shard];
        let again = of.history.keys().next_back().is_some_and(|last| *last > of.cursor.entry);
        let (rest, _) = self.batch_page(shard, &of.cursor, of.cursor.last_id, 1);
        of.cursor.generation == generation
            && !again
            && rest.is_empty()
            && !self.poll(shard).1
            && !self.held_any(shard)
    }

    pub(super) fn held_any(&self, shard: usize) -> bool {
        self.shards[shard].held.values().any(|held| held.left_entry.is_none())
    }

    pub(super) fn held_has(&self, shard: usize, lane: LaneId) -> bool {
        let mut held = self.shards[shard].held.iter();
        held.any(|((of, _, _), held)| *of == lane && held.left_entry.is_none())
    }

    /// `held_sendable`, with `rows_by_id`.
    pub(super) fn held_sendable(&self, shard: usize, per_lane: usize) -> Vec<(HeldKey, Row)> {
        let mut lanes: BTreeMap<LaneId, (usize, bool)> = BTreeMap::new();
        let mut found = Vec::new();
        let waiting = |(_, held): &(&HeldKey, &Held)| held.left_entry.is_none();
        for (key, held) in self.shards[shard].held.iter().filter(waiting) {
            let (taken, stopped) = lanes.entry(key.0).or_default();
            *stopped |= !matches!(held.reason, HoldReason::Hot | HoldReason::Behind);
            if !*stopped && *taken < per_lane {
                *taken += 1;
                let row = self.rows.iter().find(|row| row.id == key.1);
                found.extend(row.map(|row| (*key, *row)));
            }
        }
        found
    }

    pub(super) fn held_leave(
        &mut self,
        shard: usize,
        token: u64,
        left: &[HeldKey],
        acks: &EntryAcks,
    ) -> bool {
        let Some(shard) = self.fenced(shard, token, false) else { return false };
        if shard.cursor.entry != acks.entry {
            return false;
        }
        shard.acks.insert((acks.entry, acks.generation), acks.acked.clone());
        for key in left {
            if let Some(held) = shard.held.get_mut(key) {
                held.left_entry = Some(acks.entry);
            }
        }
        true
    }

    pub(super) fn held_refuse(&mut self, shard: usize, token: u64, key: HeldKey) {
        let Some(shard) = self.fenced(shard, token, false) else { return };
        if let Some(held) = shard.held.get_mut(&key) {
            held.reason = HoldReason::Size;
        }
    }

    /// `held_reconsider`: `allowed` are the tenants that the source may speak for.
    pub(super) fn held_reconsider(&mut self, shard: usize, token: u64, refused: Option<Key>) {
        let Some(shard) = self.fenced(shard, token, false) else { return };
        for held in shard.held.values_mut().filter(|held| held.left_entry.is_none()) {
            let again = match held.reason {
                HoldReason::Size => true,
                HoldReason::Tenant => refused != Some(held.tenant),
                _ => false,
            };
            if again {
                held.reason = HoldReason::Behind;
            }
        }
    }
}

impl Shard {
    fn reopen(&mut self, entry: u64) -> bool {
        let Some(found) = self.history.get(&entry) else { return false };
        let cursor = &mut self.cursor;
        (cursor.s1, cursor.s2) = (found.s1.clone(), found.s2.clone());
        (cursor.last_id, cursor.entry) = (0, entry);
        cursor.subscription_version = found.version;
        true
    }
}
