//! Lines of a file or of standard input, each bounded, handed over in batches from a thread that may block.

use super::line::{self, Event, MAX_LINE};
use std::io::{BufRead, Read};
use tokio::sync::mpsc;

/// Batches that are read ahead.
const AHEAD: usize = 2;
/// A batch is handed over when its payloads have so many bytes, however few lines it has.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Lines that were read together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The good ones.
    pub(super) events: Vec<Event>,
    /// The bad ones: number and what is wrong.
    pub(super) bad: Vec<(u64, String)>,
    /// Bytes of the input that it took, bad lines included.
    pub(super) bytes: u64,
    payload_bytes: usize,
}

impl Batch {
    fn is_full(&self, lines: usize) -> bool {
        self.events.len() + self.bad.len() >= lines || self.payload_bytes >= BATCH_BYTES
    }
}

/// Reads `input` in the background, up to `lines` lines in a batch. With `strict` nothing is read after a bad line.
pub(super) fn in_background(
    input: impl Read + Send + 'static,
    lines: usize,
    strict: bool,
) -> mpsc::Receiver<std::io::Result<Batch>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        let mut input = std::io::BufReader::with_capacity(256 * 1024, input);
        let mut number = 0;
        loop {
            let batch = batch(&mut input, &mut number, lines, strict);
            let last = match &batch {
                Ok(batch) => !batch.is_full(lines) || (strict && !batch.bad.is_empty()),
                Err(_) => true,
            };
            // Nobody listens any more, or there is no more.
            if sender.blocking_send(batch).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// The next batch; one that is not full is the last.
fn batch(
    input: &mut impl BufRead,
    number: &mut u64,
    lines: usize,
    strict: bool,
) -> std::io::Result<Batch> {
    let mut batch = Batch::default();
    let mut text = Vec::new();
    while !batch.is_full(lines) {
        text.clear();
        let taken = input.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut text)?;
        if taken == 0 {
            break;
        }
        *number += 1;
        batch.bytes += taken as u64;
        let read = if taken > MAX_LINE {
            batch.bytes += skip_line(input)?;
            Err(format!("line is longer than {MAX_LINE} bytes"))
        } else {
            line::parse(*number, &text)
        };
        match read {
            Ok(None) => {}
            Ok(Some(event)) => {
                batch.payload_bytes += event.payload.len();
                batch.events.push(event);
            }
            Err(problem) => {
                batch.bad.push((*number, problem));
                if strict {
                    break;
                }
            }
        }
    }
    Ok(batch)
}

/// Passes over the rest of a line that is too long; how many bytes that were.
fn skip_line(input: &mut impl BufRead) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = input.fill_buf()?;
        let (end, length) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (true, at + 1),
            None => (buffer.is_empty(), buffer.len()),
        };
        input.consume(length);
        skipped += length as u64;
        if end {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &str, lines: usize, strict: bool) -> Vec<Batch> {
        let mut receiver = in_background(std::io::Cursor::new(input.to_owned()), lines, strict);
        let mut batches = Vec::new();
        while let Some(batch) = receiver.blocking_recv() {
            batches.push(batch.unwrap());
        }
        batches
    }

    #[test]
    fn lines_come_in_batches_and_bad_ones_with_their_numbers() {
        let good = r#"{"type":"a","payload":1}"#;
        let batches = all(&format!("{good}\nbad\n\n{good}\n{good}"), 2, false);
        let shape: Vec<(usize, usize)> =
            batches.iter().map(|batch| (batch.events.len(), batch.bad.len())).collect();
        assert_eq!(shape, [(1, 1), (2, 0), (0, 0)]);
        assert_eq!(batches[0].bad[0].0, 2);
        let numbers: Vec<u64> =
            batches.iter().flat_map(|batch| &batch.events).map(|event| event.line).collect();
        assert_eq!(numbers, [1, 4, 5]);
        assert_eq!(batches.iter().map(|batch| batch.bytes).sum::<u64>(), 79);
    }

    #[test]
    fn a_line_that_is_too_long_is_one_bad_line() {
        let long = "x".repeat(MAX_LINE + 300_000);
        let batches = all(&format!("{long}\n{{\"type\":\"a\",\"payload\":1}}\n"), 10, false);
        assert_eq!(batches[0].bad.len(), 1);
        assert_eq!(batches[0].events[0].line, 2);
        assert_eq!(batches[0].bytes, long.len() as u64 + 26);
    }

    #[test]
    fn strict_reads_nothing_after_a_bad_line() {
        let good = r#"{"type":"a","payload":1}"#;
        let batches = all(&format!("{good}\nbad\n{good}\n"), 10, true);
        assert_eq!(batches.len(), 1);
        assert_eq!((batches[0].events.len(), batches[0].bad.len()), (1, 1));
    }
}
