//! Reading by snapshot difference (PgQ's algorithm): which rows the batch between two snapshots has.

use super::mutant::{Mutant, broken};

/// A `pg_snapshot`: which transactions are visible to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    text: String,
    xmax: u64,
    running: Vec<u64>,
}

impl Snapshot {
    /// Reads PostgreSQL's text form, `xmin:xmax:xip,…`: transactions below `xmax` are visible unless they are in `xip`.
    /// None: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let _xmin: u64 = parts.next()?.parse().ok()?;
        let xmax = parts.next()?.parse().ok()?;
        let running = parts.next()?.split(',').filter(|part| !part.is_empty());
        let running = running.map(|part| part.parse().ok()).collect::<Option<_>>()?;
        Some(Self { text: text.to_owned(), xmax, running })
    }

    /// As PostgreSQL reads it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first transaction that had not begun.
    pub fn xmax(&self) -> u64 {
        self.xmax
    }

    /// Transactions that were under way: their rows come later.
    pub fn running(&self) -> &[u64] {
        &self.running
    }

    /// Whether a transaction, if it committed, is visible (`pg_visible_in_snapshot`).
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.xmax && !self.running.contains(&xid)
    }
}

/// Transactions whose rows `s2` sees and `s1` does not: those of `from..until` and of `late` that `s2` sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The first that had not begun at `s1`.
    pub from: u64,
    /// The first that had not begun at `s2`.
    pub until: u64,
    /// Those under way at `s1`.
    pub late: Vec<u64>,
}

impl Window {
    /// The batch between two snapshots.
    pub fn between(s1: &Snapshot, s2: &Snapshot) -> Self {
        let mut late = s1.running.clone();
        if broken(Mutant::OpenTransactionPassed) {
            late.clear();
        }
        Self { from: s1.xmax, until: s2.xmax, late }
    }

    /// Whether a transaction's rows are in the batch that ends with `s2`.
    pub fn has(&self, xid: u64, s2: &Snapshot) -> bool {
        let new = xid >= self.from && xid < self.until;
        (new || self.late.contains(&xid)) && s2.sees(xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_snapshot_says_what_was_under_way() {
        let snapshot = Snapshot::parse("10:20:10,14,15").unwrap();
        assert_eq!((snapshot.xmax(), snapshot.running()), (20, &[10, 14, 15][..]));
        assert_eq!(Snapshot::parse("10:10:").unwrap().running(), &[] as &[u64]);
        assert!(Snapshot::parse("10").is_none());
        assert!(Snapshot::parse("a:b:c").is_none());
    }

    proptest! {
        /// I8: successive windows have each transaction exactly once, when it has become visible.
        #[test]
        fn every_transaction_is_in_the_one_batch_in_which_it_becomes_visible(
            ends in proptest::collection::vec((0u64..40, 1u64..30), 1..30),
            looks in proptest::collection::vec(0u64..80, 1..12),
        ) {
            // Transaction n begins at begins[n] and ends at ends[n]; ids are given in the order of the begins.
            let mut spans: Vec<_> = ends.iter().map(|(begin, length)| (*begin, begin + length)).collect();
            spans.sort_unstable();
            let mut looks = looks;
            looks.sort_unstable();
            let at = |time: u64| {
                let xmax = spans.iter().filter(|(begin, _)| *begin <= time).count() as u64;
                let running: Vec<_> = (0..xmax)
                    .filter(|xid| spans[*xid as usize].1 > time)
                    .map(|xid| xid.to_string())
                    .collect();
                let xmin = running.first().cloned().unwrap_or_else(|| xmax.to_string());
                Snapshot::parse(&format!("{xmin}:{xmax}:{}", running.join(","))).unwrap()
            };
            let snapshots: Vec<_> =
                std::iter::once(Snapshot::parse("0:0:").unwrap()).chain(looks.iter().map(|time| at(*time))).collect();
            for xid in 0..spans.len() as u64 {
                let within = snapshots
                    .windows(2)
                    .filter(|pair| Window::between(&pair[0], &pair[1]).has(xid, &pair[1]))
                    .count();
                let visible = snapshots.last().unwrap().sees(xid);
                prop_assert_eq!(within, usize::from(visible), "{}", xid);
            }
        }
    }
}
