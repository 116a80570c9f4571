//! The schedule of a chaos run, drawn from a seed alone: the same seed and length give the same faults at the same
//! times, whatever the machine can do. What it cannot do is skipped by name when the run comes to it.

use std::time::Duration;

/// Deliver, relay and API processes of a run; names are `deliver-1`, …
pub(crate) const DELIVERS: u64 = 3;
pub(crate) const RELAYS: u64 = 2;
pub(crate) const RECONCILERS: u64 = 2;
/// Receivers, each with endpoints of its own.
pub(crate) const RECEIVERS: u64 = 4;
/// The first fault comes when the world has begun to work.
const QUIET: Duration = Duration::from_secs(5);

/// Places where a process stops itself and is killed (reliability.md 3.3).
const DELIVER_POINTS: [&str; 9] = ["C1", "C2", "C3", "C4", "C5", "C7", "C8", "C9", "C10"];
const RELAY_POINTS: [&str; 6] = [
    "relay.after_read",
    "relay.after_produce",
    "relay.after_ack",
    "relay.between_pages",
    "relay.after_advance",
    "relay.holding_lease",
];
const RECONCILER_POINTS: [&str; 4] =
    ["lookup.after_claim", "lookup.after_answer", "lookup.after_settle", "rewind.after_page"];
const API_POINTS: [&str; 4] = ["A1", "A2", "A3", "A4"];

/// One fault: what is done, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// After the start of the load.
    pub(crate) at: Duration,
    /// How long it lasts; what is killed stays away for it.
    pub(crate) length: Duration,
    pub(crate) act: Act,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// kill -9.
    Kill {
        who: String,
    },
    /// kill -9 at a named place, at its nth visit of a fresh process.
    KillAt {
        who: String,
        point: &'static str,
        visit: u64,
    },
    /// SIGTERM, and a fresh process when it has ended.
    Restart {
        who: String,
    },
    /// SIGSTOP, SIGCONT.
    Pause {
        who: String,
    },
    /// The cgroup freezer.
    Freeze {
        who: String,
    },
    /// A tenth of one processor.
    Throttle {
        who: String,
    },
    /// The process's wall clock is off by so many seconds, while it runs.
    Clock {
        who: String,
        seconds: i64,
    },
    /// Deliver processes join and leave, in order or by kill -9.
    Storm {
        guests: u64,
    },
    /// kill -9 of the broker.
    KafkaKill,
    KafkaPause,
    /// kill -9 of every process of the database.
    PostgresKill,
    PostgresPause,
    /// kill -9 of one session's process.
    BackendKill,
    /// `pg_terminate_backend` of every session.
    SessionsCut,
    /// The file system of the database has no room.
    DiskFull,
    Receiver {
        number: usize,
        mischief: Mischief,
    },
    /// Whoever is asked about unknown outcomes says nothing, or nothing that is a word.
    Authority {
        silence: Silence,
    },
    Link {
        link: Link,
        toxic: Toxic,
    },
    Packets {
        link: Link,
        loss: Loss,
    },
}

/// What a receiver does to its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mischief {
    /// Connections are refused, open ones reset.
    Down,
    /// Connections are accepted and reset.
    ResetAtOnce,
    /// Connections are accepted and nothing is read.
    Ignored,
    /// The request is read, then RST.
    ResetAfterRead,
    /// The request is read, then FIN.
    CloseAfterRead,
    /// The answer comes so slowly that the deadline passes.
    SlowLoris,
    /// No answer.
    Hang,
    /// 503.
    Failing,
    /// 200 after most of the deadline.
    Slow,
    /// A status line of success, then RST in the body.
    ResetInBody,
}

/// How an authority does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// 503.
    Down,
    /// It may still come.
    InProgress,
    /// The connection is cut.
    Cut,
}

/// A way between two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// From the services to the database.
    Postgres,
    /// From the services to the broker.
    Kafka,
    /// From deliver to a receiver.
    Receiver(usize),
}

/// What a proxy does to a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toxic {
    /// Connections are closed, new ones refused.
    Down,
    /// 200 ms, give or take 150.
    Latency,
    /// 50 KB/s.
    Bandwidth,
    /// Small pieces with pauses.
    Slicer,
    /// What comes back is swallowed.
    Swallow,
    /// RST when something comes back.
    Reset,
}

/// What happens to a way's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Three in ten are dropped.
    Some,
    /// All are.
    All,
    /// Each is answered by RST.
    Reset,
}

/// The faults of a run in tracks: those of one track follow each other, the tracks run side by side.
pub(crate) fn plan(seed: u64, length: Duration) -> Vec<Vec<Step>> {
    // Pauses between two faults, ms, and what is drawn.
    type Track = (u64, u64, fn(&mut Draw) -> Act);
    let tracks: [Track; 5] = [
        (1_000, 6_000, Draw::deliver),
        (1_000, 6_000, Draw::relay_or_api),
        (6_000, 26_000, Draw::server),
        (2_000, 9_000, Draw::surroundings),
        (2_000, 9_000, Draw::reconciler),
    ];
    let mut tracks: Vec<Vec<Step>> = (1u64..)
        .zip(tracks)
        .map(|(number, (least, most, act))| {
            let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number));
            let mut steps = Vec::new();
            let mut at = QUIET;
            loop {
                at += Duration::from_millis(draw.between(least, most));
                let act = act(&mut draw);
                let step = Step { at, length: draw.length(&act), act };
                if step.at + step.length > length {
                    return steps;
                }
                at += step.length;
                steps.push(step);
            }
        })
        .collect();
    // The longer a run, the rarer a storm would be by chance: one is certain.
    let storm = Step { at: QUIET, length: Duration::from_secs(1), act: Act::Storm { guests: 3 } };
    if let Some(first) = tracks.first_mut() {
        first.insert(0, storm);
    }
    tracks
}

/// What an operator has sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// All dead letters.
    All,
    /// Those of a receiver that gives some up.
    Refused {
        /// One of its endpoints.
        endpoint: usize,
    },
    /// Those of a user key that has some, by its number.
    Key(u64),
    /// What an endpoint was delivered of the last seconds' events.
    Replay { receiver: usize, endpoint: usize, seconds: u64 },
}

/// When an operator has something sent again, after the start of the load. One is certain: the first fault has dead
/// letters behind it.
pub(crate) fn again(seed: u64, length: Duration, endpoints: u64) -> Vec<(Duration, Again)> {
    let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(100));
    let number = |n: u64| usize::try_from(n).expect("few");
    let mut all = Vec::new();
    let mut at = QUIET;
    while at < length {
        let what = match draw.below(10) {
            _ if all.is_empty() => Again::All,
            0..4 => Again::All,
            4..6 => Again::Refused { endpoint: number(draw.below(endpoints)) },
            6..8 => Again::Key(draw.below(1 << 16) * super::load::REFUSED_EVERY),
            _ => Again::Replay {
                receiver: number(draw.below(RECEIVERS)),
                endpoint: number(draw.below(endpoints)),
                seconds: draw.between(1, 5),
            },
        };
        all.push((at, what));
        at += Duration::from_millis(draw.between(1_500, 6_000));
    }
    all
}

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        let count = u64::try_from(all.len()).expect("few");
        all[usize::try_from(self.below(count)).expect("few")]
    }

    fn deliver(&mut self) -> Act {
        let who = format!("deliver-{}", self.between(1, DELIVERS));
        match self.below(20) {
            0..7 => Act::Kill { who },
            7..12 => {
                let point = self.of(&DELIVER_POINTS);
                // A revocation or a dead letter comes rarely: its first visit has to do.
                let visit = if matches!(point, "C4" | "C10") { 1 } else { self.between(1, 20) };
                Act::KillAt { who, point, visit }
            }
            12 => Act::Restart { who },
            13 | 14 => Act::Pause { who },
            15 => Act::Freeze { who },
            16 => Act::Throttle { who },
            17 => Act::Clock { who, seconds: self.jump() },
            _ => Act::Storm { guests: self.between(1, 3) },
        }
    }

    fn relay_or_api(&mut self) -> Act {
        let relay = format!("relay-{}", self.between(1, RELAYS));
        match self.below(20) {
            0..6 => Act::Kill { who: relay },
            6..10 => {
                let point = self.of(&RELAY_POINTS);
                // Pages are many only when a backlog is large.
                let visit = if point == "relay.between_pages" { 1 } else { self.between(1, 12) };
                Act::KillAt { who: relay, point, visit }
            }
            10 | 11 => Act::Pause { who: relay },
            12 => Act::Freeze { who: relay },
            13 => Act::Clock { who: relay, seconds: self.jump() },
            14 => Act::Restart { who: relay },
            15 => Act::Kill { who: "api".to_owned() },
            16 => Act::Pause { who: "api".to_owned() },
            17 => Act::Clock { who: "api".to_owned(), seconds: self.jump() },
            _ => {
                let (point, visit) = (self.of(&API_POINTS), self.between(1, 4));
                Act::KillAt { who: "api".to_owned(), point, visit }
            }
        }
    }

    fn reconciler(&mut self) -> Act {
        let who = format!("reconciler-{}", self.between(1, RECONCILERS));
        match self.below(20) {
            0..5 => Act::Kill { who },
            5..11 => {
                let point = self.of(&RECONCILER_POINTS);
                // Somebody has to give a command first.
                let visit = if point == "rewind.after_page" { 1 } else { self.between(1, 8) };
                Act::KillAt { who, point, visit }
            }
            11..14 => Act::Pause { who },
            14 => Act::Freeze { who },
            15 => Act::Throttle { who },
            16 => Act::Clock { who, seconds: self.jump() },
            17 => Act::Restart { who },
            _ => {
                let silence = self.of(&[Silence::Down, Silence::InProgress, Silence::Cut]);
                Act::Authority { silence }
            }
        }
    }

    fn server(&mut self) -> Act {
        match self.below(12) {
            0..3 => Act::KafkaKill,
            3 => Act::KafkaPause,
            4..8 => Act::PostgresKill,
            8 => Act::PostgresPause,
            9 => Act::BackendKill,
            10 => Act::SessionsCut,
            _ => Act::DiskFull,
        }
    }

    fn surroundings(&mut self) -> Act {
        let number = usize::try_from(self.below(RECEIVERS)).expect("few");
        let link = match self.below(5) {
            0 => Link::Postgres,
            1 => Link::Kafka,
            _ => Link::Receiver(number),
        };
        match self.below(10) {
            0..5 => {
                let mischief = self.of(&[
                    Mischief::Down,
                    Mischief::ResetAtOnce,
                    Mischief::Ignored,
                    Mischief::ResetAfterRead,
                    Mischief::CloseAfterRead,
                    Mischief::SlowLoris,
                    Mischief::Hang,
                    Mischief::Failing,
                    Mischief::Slow,
                    Mischief::ResetInBody,
                ]);
                Act::Receiver { number, mischief }
            }
            5..8 => {
                let toxic = self.of(&[
                    Toxic::Down,
                    Toxic::Latency,
                    Toxic::Bandwidth,
                    Toxic::Slicer,
                    Toxic::Swallow,
                    Toxic::Reset,
                ]);
                Act::Link { link, toxic }
            }
            _ => Act::Packets { link, loss: self.of(&[Loss::Some, Loss::All, Loss::Reset]) },
        }
    }

    /// Seconds: three days on, an hour back, half a second to either side.
    fn jump(&mut self) -> i64 {
        self.of(&[3 * 86_400, -3_600, 1, -1])
    }

    fn length(&mut self, act: &Act) -> Duration {
        let (least, most) = match act {
            // Some within the lease of 3 s, some beyond it, some beyond Kafka's session of 6 s.
            Act::Pause { .. } | Act::Freeze { .. } => (500, 9_000),
            Act::Kill { .. } | Act::KillAt { .. } | Act::KafkaKill | Act::PostgresKill => {
                (0, 2_500)
            }
            Act::KafkaPause | Act::PostgresPause => (1_000, 9_000),
            Act::Throttle { .. } | Act::Clock { .. } => (2_000, 6_000),
            Act::Storm { .. } => (500, 2_000),
            Act::Restart { .. } | Act::BackendKill | Act::SessionsCut => (0, 0),
            Act::DiskFull => (2_000, 5_000),
            Act::Receiver { .. } | Act::Authority { .. } | Act::Link { .. } => (1_000, 8_000),
            Act::Packets { .. } => (1_000, 4_000),
        };
        Duration::from_millis(self.between(least, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const TEN_MINUTES: Duration = Duration::from_secs(600);

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_one_others() {
        assert_eq!(plan(7, TEN_MINUTES), plan(7, TEN_MINUTES));
        assert_ne!(plan(7, TEN_MINUTES), plan(8, TEN_MINUTES));
    }

    #[test]
    fn what_is_sent_again_is_drawn_from_the_seed_too() {
        assert_eq!(again(7, TEN_MINUTES, 2), again(7, TEN_MINUTES, 2));
        for seed in 0..50 {
            let all = again(seed, TEN_MINUTES, 2);
            assert_ne!(all, again(seed + 1, TEN_MINUTES, 2));
            assert_eq!(all[0].1, Again::All);
            for wanted in [
                |one: &Again| matches!(one, Again::All),
                |one: &Again| matches!(one, Again::Refused { .. }),
                |one: &Again| matches!(one, Again::Key(_)),
                |one: &Again| matches!(one, Again::Replay { .. }),
            ] {
                assert!(all.iter().any(|(_, one)| wanted(one)), "seed {seed}");
            }
        }
    }

    #[test]
    fn faults_of_a_track_follow_each_other_and_all_end_in_time() {
        for seed in 0..50 {
            for track in plan(seed, TEN_MINUTES) {
                assert!(track.len() > 10, "seed {seed}: {} faults", track.len());
                for pair in track.windows(2) {
                    assert!(pair[0].at + pair[0].length <= pair[1].at, "{pair:?}");
                }
                assert!(track.iter().all(|step| step.at + step.length <= TEN_MINUTES));
            }
        }
    }

    #[test]
    fn ten_minutes_have_kills_of_every_service_and_server_restarts() {
        for seed in 0..50 {
            let steps: Vec<Step> = plan(seed, TEN_MINUTES).into_iter().flatten().collect();
            let killed: HashSet<&str> = steps
                .iter()
                .filter_map(|step| match &step.act {
                    Act::Kill { who } | Act::KillAt { who, .. } => Some(who.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(killed.len(), 8, "seed {seed}: {killed:?}");
            let restarts = |step: &&Step| matches!(step.act, Act::KafkaKill | Act::PostgresKill);
            let restarts = steps.iter().filter(restarts).count();
            assert!(restarts >= 7, "seed {seed}: {restarts} restarts of servers");
        }
    }
}
