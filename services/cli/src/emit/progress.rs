//! How far `emit` is: a bar on standard error if that is a terminal, else a line now and then.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressStyle};
use laneway_platform::clock;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

/// Without a terminal there is a line no more often than this.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows progress in the way that fits.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    output: Output,
    last_line: Mutex<Duration>,
}

impl Progress {
    /// For an input of `size` bytes, if it is known.
    pub(super) fn new(size: Option<u64>, output: Output) -> Self {
        let bar = (std::io::stderr().is_terminal() && !output.quiet).then(|| {
            let (bar, template) = match size {
                Some(size) => (
                    ProgressBar::new(size),
                    "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta} · {msg}",
                ),
                None => (ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec} · {msg}"),
            };
            // The templates are fixed and tested; without a style the bar is plainer.
            match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { bar, output, last_line: Mutex::new(clock::monotonic()) }
    }

    /// `bytes` more of the input are done; so many events are emitted and lines were bad in all.
    pub(super) fn advance(&self, bytes: u64, emitted: u64, bad: u64) {
        let told = format!("ok {emitted} · bad {bad}");
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
            bar.set_message(told);
            return;
        }
        let now = clock::monotonic();
        if let Ok(mut last) = self.last_line.lock()
            && now.saturating_sub(*last) >= LINE_EVERY
        {
            *last = now;
            self.output.say(&told);
        }
    }

    /// A line above the bar.
    pub(super) fn warn(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.warn(line)),
            None => self.output.warn(line),
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_understood() {
        for template in [
            "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} eta {eta} · {msg}",
            "{spinner} {bytes} {bytes_per_sec} · {msg}",
        ] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
