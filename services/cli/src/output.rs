//! Results on standard output, as a table or as JSON; talk on standard error.

use crate::failure::{Failure, Result};
use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use laneway_wire::Timestamp;
use serde_json::{Map, Value};
use std::io::{IsTerminal, Write};

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One JSON document.
    Json,
}

/// Where a command writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) format: Format,
    pub(crate) headers: bool,
    pub(crate) quiet: bool,
}

impl Output {
    /// A list: one object for each row in JSON. Column names are in camelCase.
    pub(crate) fn list(self, columns: &[&str], rows: Vec<Vec<Value>>) -> Result {
        match self.format {
            Format::Json => self.json(&Value::Array(
                rows.into_iter().map(|row| object(columns.iter().copied().zip(row))).collect(),
            )),
            Format::Table => {
                let mut table = table();
                if self.headers {
                    table.set_header(columns.iter().map(|column| heading(column)));
                }
                for row in &rows {
                    table.add_row(row.iter().map(text));
                }
                self.lines(table)
            }
        }
    }

    /// One thing: a field a line in a table. Field names are in camelCase.
    pub(crate) fn one(self, fields: Vec<(&str, Value)>) -> Result {
        match self.format {
            Format::Json => self.json(&object(fields)),
            Format::Table => {
                let mut table = table();
                for (name, value) in &fields {
                    table.add_row([heading(name), text(value)]);
                }
                self.lines(table)
            }
        }
    }

    /// Something made: in a table only what scripts want of it, else all fields.
    pub(crate) fn made(self, bare: &str, fields: Vec<(&str, Value)>) -> Result {
        match self.format {
            Format::Json => self.json(&object(fields)),
            Format::Table => self.line(bare),
        }
    }

    /// A line of text on standard output.
    pub(crate) fn line(self, line: &str) -> Result {
        writeln!(std::io::stdout().lock(), "{line}").map_err(Failure::from)
    }

    /// A JSON document on standard output.
    pub(crate) fn json(self, value: &Value) -> Result {
        self.line(&format!("{value:#}"))
    }

    /// A line of talk on standard error; lost if that is closed.
    pub(crate) fn say(self, line: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        }
    }

    /// A line of talk that `--quiet` does not silence.
    pub(crate) fn warn(self, line: &str) {
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    fn lines(self, mut table: Table) -> Result {
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let mut out = std::io::stdout().lock();
        for line in table.lines() {
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A point of time for a result: RFC 3339 in UTC, to the millisecond.
pub(crate) fn time(at: Timestamp) -> Value {
    chrono::DateTime::from_timestamp_millis(at.as_millis()).map_or(Value::Null, |at| {
        Value::String(at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
    })
}

/// Like [`time`], for one that need not be there.
pub(crate) fn maybe_time(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, time)
}

/// Anything with a text form.
pub(crate) fn shown(value: impl std::fmt::Display) -> Value {
    Value::String(value.to_string())
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    // Without a terminal every row is one line, whatever its length: scripts cut columns.
    if !std::io::stdout().is_terminal() {
        table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    }
    table
}

fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Object(
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>(),
    )
}

/// `nextTry` as `NEXT TRY`.
fn heading(name: &str) -> String {
    name.chars().fold(String::new(), |mut heading, letter| {
        if letter.is_ascii_uppercase() {
            heading.push(' ');
        }
        heading.push(letter.to_ascii_uppercase());
        heading
    })
}

/// A value in a cell. Control characters are escaped: a user key must not drive a terminal.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text
            .chars()
            .flat_map(|letter| {
                let escaped = letter.is_control().then(|| letter.escape_default());
                let plain = escaped.is_none().then_some(letter);
                escaped.into_iter().flatten().chain(plain)
            })
            .collect(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_words() {
        assert_eq!(heading("nextTry"), "NEXT TRY");
        assert_eq!(heading("id"), "ID");
    }

    #[test]
    fn a_cell_cannot_drive_the_terminal() {
        assert_eq!(text(&Value::from("a\u{1b}[2Jb\n")), "a\\u{1b}[2Jb\\n");
        assert_eq!(text(&Value::Null), "-");
        assert_eq!(text(&serde_json::json!(["a", "b"])), "a,b");
    }

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(time(Timestamp(0)), Value::from("1970-01-01T00:00:00.000Z"));
        assert_eq!(maybe_time(None), Value::Null);
    }
}
