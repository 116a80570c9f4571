//! The lines of all journals in the order of time.

use crate::input::{JournalLine, Line, Source};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::io::BufRead;

struct Reader<'a> {
    source: &'a Source,
    lines: Box<dyn BufRead + 'a>,
    text: String,
    number: u64,
    /// Time of the line in `text`; none at the end.
    ns: Option<i64>,
    /// Time of the line before it.
    before: i64,
}

#[derive(Deserialize)]
struct Time {
    ns: i64,
}

impl Reader<'_> {
    /// Goes to the next line. A last line that was cut off by the end of its writer is left out.
    fn advance(&mut self) -> Result<()> {
        loop {
            self.text.clear();
            let at = |number| format!("{} line {number}", self.source.name());
            let read = self.lines.read_line(&mut self.text).with_context(|| at(self.number + 1))?;
            self.number += 1;
            if read == 0 {
                self.ns = None;
                return Ok(());
            }
            if self.text.trim().is_empty() {
                continue;
            }
            match serde_json::from_str::<Time>(&self.text) {
                Ok(time) => {
                    ensure!(
                        time.ns >= self.before,
                        "{}: earlier than the line before",
                        at(self.number)
                    );
                    (self.ns, self.before) = (Some(time.ns), time.ns);
                }
                Err(_) if !self.text.ends_with('\n') => self.ns = None,
                Err(error) => return Err(error).with_context(|| at(self.number)),
            }
            return Ok(());
        }
    }
}

/// Calls `each` with every line of all journals, earliest first.
pub(crate) fn each(
    journals: &[Source],
    mut each: impl FnMut(usize, Line, &JournalLine<'_>) -> Result<()>,
) -> Result<()> {
    let mut readers = Vec::with_capacity(journals.len());
    for source in journals {
        let (lines, text) = (source.open()?, String::new());
        let mut reader = Reader { source, lines, text, number: 0, ns: None, before: i64::MIN };
        reader.advance()?;
        readers.push(reader);
    }
    loop {
        let heads =
            readers.iter().enumerate().filter_map(|(file, reader)| Some((reader.ns?, file)));
        let Some((_, file)) = heads.min() else { return Ok(()) };
        let reader = &mut readers[file];
        let at = || format!("{} line {}", reader.source.name(), reader.number);
        let line: JournalLine<'_> = serde_json::from_str(&reader.text).with_context(at)?;
        each(file, Line::new(file, reader.number), &line).with_context(at)?;
        reader.advance()?;
    }
}
