//! Planted faults: each rule of the core broken on purpose, and which checker sees it how soon.

use crate::{relay, run};
use laneway_lane::{Core, Limits};
use std::fmt::Write;

pub use laneway_lane::Mutant;

/// A mistake of the shell: each breaks one line of the contract between core and shell, or of design 5.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slip {
    /// A successor does not watch for lease and longest deadline before it takes over (5.3).
    TakeOverAtOnce,
    /// The lease is not looked at before a request (I10).
    LeaseUnchecked,
    /// Transactions do not prove their epoch (P13).
    FenceUnchecked,
    /// Facts of an intake are read when it is fetched, not in the settle queue (5.2).
    FactsReadEarly,
    /// A group is not one transaction: the second half is lost and all of it acknowledged.
    TornGroup,
    /// A transaction repeated after an unknown commit is applied again.
    RepeatAppliedTwice,
    /// The position is stored as far as was fetched (I9).
    PositionAhead,
    /// Lanes are told to be parked no more though rows are left.
    UnparkedTooEarly,
    /// Ids of parked lanes are not loaded at take-over (5.2).
    ParkedLanesForgotten,
    /// A request cut in a release counts as over at once.
    CutIsOver,
    /// Undecodable records are dropped instead of handed in.
    GarbageDropped,
    /// The first attempt of a parked head does not store where its horizon begins (I22).
    HorizonNotFixed,
    /// Enabling an endpoint again is not remembered: the time for which it was disabled counts (I22).
    StandstillForgotten,
    /// An authority is asked as soon as its unknown is seen (I13).
    AskedAtOnce,
    /// An authority that cannot say is taken to have said "not applied" (I14).
    GuessedWhenDown,
    /// An answer counts whoever has the claim and whatever has become of the unknown meanwhile (5.8).
    StaleAnswerCounts,
    /// What a later generation began by losing is taken in like any record (section 4, "Loss of the log").
    LossNotFenced,
    /// A position before the log's beginning is read on from there, without a word.
    SilentJump,
    /// An owner reads on when a settle tells of a new generation.
    GenerationUnseen,
    /// What was read before that is taken in all the same.
    RaisedBatchTaken,
    /// A record's stamp does not have the owner look which generation it is.
    LaterStampUnseen,
    /// A position of before the loss is stored after it.
    PositionOfOldTopic,
    /// A relay publishes nothing again after a loss.
    NotPublishedAgain,
    /// Leases run on a clock that stands still while the machine sleeps (5.3).
    LeaseSleeps,
    /// The database's time is carried on by such a clock (5.6).
    DatabaseTimeSleeps,
    /// It is carried on by the wall clock (5.6).
    WallClockDecides,
    /// A commit of which nothing is known counts as done.
    CutMeansDone,
    /// What is left of an erased row is published again without a mark (C17).
    ErasedNotMarked,
    /// Copies are committed before their dead letters are marked.
    CopiesBeforeMark,
    /// A command's position is stored before its page.
    PagePassedFirst,
    /// A page takes the latest dead letter first.
    PageBackwards,
    /// A dead letter is not looked at again under its lock.
    NotLookedAtAgain,
    /// A command takes what died after it was given.
    LaterDeadTaken,
    /// What may have been applied is sent again by who does not name it.
    UnknownsTaken,
    /// A copy has the id of the delivery that it repeats.
    CopyKeepsItsId,
    /// A copy is in no lane.
    CopyOutsideItsLane,
    /// Erasures and rewinds do not keep each other out.
    RewindUnderErasure,
    /// Dead letters of an endpoint that has enough on its way are passed over.
    FullPassedOver,
    /// A command can be ended in the middle of its page.
    CancelledInAPage,
}

impl Slip {
    /// All of them.
    pub const ALL: [Self; 39] = [
        Self::TakeOverAtOnce,
        Self::LeaseUnchecked,
        Self::FenceUnchecked,
        Self::FactsReadEarly,
        Self::TornGroup,
        Self::RepeatAppliedTwice,
        Self::PositionAhead,
        Self::UnparkedTooEarly,
        Self::ParkedLanesForgotten,
        Self::CutIsOver,
        Self::GarbageDropped,
        Self::HorizonNotFixed,
        Self::StandstillForgotten,
        Self::AskedAtOnce,
        Self::GuessedWhenDown,
        Self::StaleAnswerCounts,
        Self::LossNotFenced,
        Self::SilentJump,
        Self::GenerationUnseen,
        Self::RaisedBatchTaken,
        Self::LaterStampUnseen,
        Self::PositionOfOldTopic,
        Self::NotPublishedAgain,
        Self::LeaseSleeps,
        Self::DatabaseTimeSleeps,
        Self::WallClockDecides,
        Self::CutMeansDone,
        Self::ErasedNotMarked,
        Self::CopiesBeforeMark,
        Self::PagePassedFirst,
        Self::PageBackwards,
        Self::NotLookedAtAgain,
        Self::LaterDeadTaken,
        Self::UnknownsTaken,
        Self::CopyKeepsItsId,
        Self::CopyOutsideItsLane,
        Self::RewindUnderErasure,
        Self::FullPassedOver,
        Self::CancelledInAPage,
    ];
}

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// In the core.
    Core(Mutant),
    /// In the shell.
    Shell(Slip),
    /// In the relay.
    Relay(relay::Planted),
}

impl Planted {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let core = Mutant::ALL.into_iter().map(Self::Core);
        let shell = Slip::ALL.into_iter().map(Self::Shell);
        core.chain(shell).chain(relay::Planted::all().map(Self::Relay))
    }

    /// Its name alone.
    pub fn name(self) -> String {
        match self {
            Self::Core(mutant) => format!("{mutant:?}"),
            Self::Shell(slip) => format!("{slip:?}"),
            Self::Relay(relay::Planted::Rule(mutant)) => format!("{mutant:?}"),
            Self::Relay(relay::Planted::Shell(slip)) => format!("{slip:?}"),
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone)]
pub struct Kill {
    /// The fault.
    pub planted: Planted,
    /// Schedules up to and including the first that broke something, and the checker that saw it.
    pub first: Option<(u64, &'static str, String)>,
}

/// A core, with a planted fault or without.
pub fn core(limits: Limits, planted: Option<Planted>) -> Core {
    match planted {
        Some(Planted::Core(mutant)) => Core::with_mutant(limits, mutant),
        _ => Core::new(limits),
    }
}

/// Runs schedules with each planted fault, or the one called `only`, until a checker sees it, `most` at most, from seed
/// `from`.
pub fn hunt(from: u64, most: u64, only: Option<&str>) -> Vec<Kill> {
    Planted::all()
        .filter(|planted| only.is_none_or(|only| planted.name() == only))
        .map(|planted| {
            // An assertion inside the core does not count: it is not there in production.
            let first = (0..most).find_map(|n| {
                let breach = match planted {
                    Planted::Relay(planted) => relay::one(from + n, false, Some(planted)).breach,
                    _ => run::one(crate::plan::Spec::of(from + n), false, Some(planted)).breach,
                };
                let breach = breach.filter(|breach| breach.checker != "panic")?;
                Some((n + 1, breach.checker, breach.what))
            });
            Kill { planted, first }
        })
        .collect()
}

/// Characters of what a checker said that are shown.
const SEEN: usize = 120;

/// The table for docs/mutants.md.
pub fn table(kills: &[Kill]) -> String {
    let mut text = String::from(
        "# Planted faults\n\nRules of the core, of the shell and of the relay broken on purpose, one at a time; the checker of the simulator that saw it first, and how many schedules that\ntook. Written by `cargo run -p laneway-simulation --release -- mutants --write docs/mutants.md`; `cargo test -p\nlaneway-simulation` holds that each is caught.\n\n| in | fault | checker | schedules | what it saw |\n|---|---|---|---|---|\n",
    );
    for Kill { planted, first } in kills {
        let (place, name) = match planted {
            Planted::Core(_) => ("core", planted.name()),
            Planted::Shell(_) => ("shell", planted.name()),
            Planted::Relay(_) => ("relay", planted.name()),
        };
        let row = match first {
            Some((schedules, checker, what)) => {
                let what: String = what.replace('|', "/").chars().take(SEEN).collect();
                writeln!(text, "| {place} | {name} | {checker} | {schedules} | {what} |")
            }
            None => writeln!(text, "| {place} | {name} | **none** | | |"),
        };
        row.expect("writing to a string cannot fail");
    }
    text
}
