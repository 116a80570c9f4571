//! Named places where a test can stop a process for good and kill it exactly there (reliability.md 3.3).
//!
//! Compiled in only with feature `failpoints`. With `LANEWAY_FAILPOINT=settle.before_commit:3` the third time that
//! the process comes to that place it appends one line to the file named by `LANEWAY_FAILPOINT_FILE` and stops itself,
//! all threads at once (`SIGSTOP`); the harness waits for the line and kills the process (or lets it go on with
//! `SIGCONT`). Several places are separated by commas: the first one that is reached counts.

/// Says that the process has come to the place `name` (`part.before_or_after_what`).
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit(_name: &str) {}

/// Says that the process has come to the place `name` (`part.before_or_after_what`).
#[cfg(feature = "failpoints")]
pub fn hit(name: &str) {
    use std::sync::OnceLock;
    static POINTS: OnceLock<Vec<armed::Point>> = OnceLock::new();
    let points = POINTS.get_or_init(armed::from_environment);
    if let Some(point) = points.iter().find(|point| point.reached(name)) {
        point.report();
        // To this thread: of a signal to the process another thread would learn first, and this one would meanwhile
        // do what comes after the place.
        if let Err(error) = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP) {
            tracing::error!(%error, "the process could not be stopped");
        }
    }
}

#[cfg(any(feature = "failpoints", test))]
mod armed {
    //! Reading the request and counting to it.

    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The place to stop at, and at which visit.
    #[derive(Debug)]
    pub(super) struct Point {
        name: String,
        nth: u64,
        file: Option<PathBuf>,
        visits: AtomicU64,
    }

    #[cfg(feature = "failpoints")]
    pub(super) fn from_environment() -> Vec<Point> {
        let text = crate::env::var("LANEWAY_FAILPOINT").unwrap_or_default();
        let file = crate::env::var("LANEWAY_FAILPOINT_FILE").map(PathBuf::from);
        let places = text.split(',').filter(|place| !place.is_empty());
        places.map(|place| parse(place, file.clone())).collect()
    }

    pub(super) fn parse(text: &str, file: Option<PathBuf>) -> Point {
        let (name, nth) = match text.rsplit_once(':') {
            Some((name, nth)) => (name, nth.parse().unwrap_or(1)),
            None => (text, 1),
        };
        Point { name: name.to_owned(), nth, file, visits: AtomicU64::new(0) }
    }

    impl Point {
        pub(super) fn reached(&self, name: &str) -> bool {
            name == self.name && self.visits.fetch_add(1, Ordering::Relaxed) + 1 == self.nth
        }

        pub(super) fn report(&self) {
            let Some(file) = &self.file else { return };
            let line = format!("{} {} {}\n", self.name, self.nth, std::process::id());
            let written = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(file)
                .and_then(|mut file| file.write_all(line.as_bytes()));
            if let Err(error) = written {
                tracing::error!(%error, file = %file.display(), "the failpoint could not be reported");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::armed::parse;

    #[test]
    fn the_nth_visit_of_the_named_place_is_the_one() {
        let point = parse("settle.before_commit:3", None);
        let visits: Vec<bool> = ["settle.before_commit", "other", "settle.before_commit"]
            .into_iter()
            .chain(["settle.before_commit", "settle.before_commit"])
            .map(|name| point.reached(name))
            .collect();
        assert_eq!(visits, [false, false, false, true, false]);
        assert!(parse("relay.after_ack", None).reached("relay.after_ack"));
    }

    #[test]
    fn the_report_names_the_place_and_the_process() {
        let file = std::env::temp_dir().join(format!("laneway-failpoint-{}", std::process::id()));
        parse("a.b", Some(file.clone())).report();
        let written = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(written, format!("a.b 1 {}\n", std::process::id()));
    }
}
