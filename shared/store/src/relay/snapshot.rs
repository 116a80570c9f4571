//! A `pg_snapshot` as the relay handles it: which transactions are visible to it.

use crate::Error;

/// `xmin:xmax:xip,…`: transactions below `xmax` are visible unless they are in `xip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    text: String,
    xmax: u64,
    running: Vec<u64>,
}

impl Snapshot {
    /// Reads PostgreSQL's text form.
    pub fn parse(text: String) -> Result<Self, Error> {
        let bad = || Error::Stored { what: "snapshot", value: text.chars().take(60).collect() };
        let mut parts = text.split(':');
        let _xmin: u64 = parts.next().and_then(|part| part.parse().ok()).ok_or_else(bad)?;
        let xmax = parts.next().and_then(|part| part.parse().ok()).ok_or_else(bad)?;
        let running = parts
            .next()
            .ok_or_else(bad)?
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().map_err(|_| bad()))
            .collect::<Result<_, _>>()?;
        Ok(Self { xmax, running, text })
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_says_what_was_under_way() {
        let snapshot = Snapshot::parse("10:20:10,14,15".to_owned()).unwrap();
        assert_eq!((snapshot.xmax(), snapshot.running()), (20, &[10, 14, 15][..]));
        assert_eq!(Snapshot::parse("10:10:".to_owned()).unwrap().running(), &[] as &[u64]);
        assert!(Snapshot::parse("10".to_owned()).is_err());
        assert!(Snapshot::parse("a:b:c".to_owned()).is_err());
    }
}
