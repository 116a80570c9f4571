//! What a person sees while the demo runs: bars on a terminal, plain lines elsewhere; all of it on standard error.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Without a terminal a line comes this often at most.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The numbers of one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Numbers {
    pub(crate) emitted: u64,
    pub(crate) delivered: u64,
    pub(crate) requests: u64,
    pub(crate) parked: i64,
    pub(crate) degraded: i64,
}

/// The live view.
pub(crate) struct View {
    bars: Option<(MultiProgress, ProgressBar, ProgressBar, ProgressBar)>,
    last_line: Mutex<Option<Instant>>,
    events: u64,
    deliveries: u64,
}

impl View {
    pub(crate) fn new(events: u64, deliveries: u64) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let style =
                |template| ProgressStyle::with_template(template).expect("the templates are fixed");
            let bar = "{prefix:>10} {bar:40} {pos}/{len} {per_sec}";
            let emitted =
                all.add(ProgressBar::new(events).with_prefix("committed").with_style(style(bar)));
            let delivered = all
                .add(ProgressBar::new(deliveries).with_prefix("delivered").with_style(style(bar)));
            let state = all.add(
                ProgressBar::new(0).with_style(style("{prefix:>10} {msg}")).with_prefix("waiting"),
            );
            (all, emitted, delivered, state)
        });
        Self { bars, last_line: Mutex::new(None), events, deliveries }
    }

    /// Something happened that people should see.
    pub(crate) fn say(&self, text: &str) {
        match &self.bars {
            Some((all, ..)) => drop(all.println(text)),
            None => line(text),
        }
    }

    /// New numbers.
    pub(crate) fn show(&self, numbers: Numbers) {
        let waiting =
            format!("{} lanes parked, {} endpoints degraded", numbers.parked, numbers.degraded);
        match &self.bars {
            Some((_, emitted, delivered, state)) => {
                emitted.set_position(numbers.emitted);
                delivered.set_position(numbers.delivered);
                state.set_message(waiting);
            }
            None => {
                let mut last = self.last_line.lock().expect("no printer panicked");
                if last.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
                    *last = Some(Instant::now());
                    line(&format!(
                        "committed {}/{}  delivered {}/{}  requests {}  {waiting}",
                        numbers.emitted,
                        self.events,
                        numbers.delivered,
                        self.deliveries,
                        numbers.requests
                    ));
                }
            }
        }
    }

    /// The bars stay as they are.
    pub(crate) fn end(&self) {
        if let Some((_, emitted, delivered, state)) = &self.bars {
            for bar in [emitted, delivered, state] {
                bar.abandon();
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "the view of a program that people watch")]
fn line(text: &str) {
    eprintln!("{text}");
}
