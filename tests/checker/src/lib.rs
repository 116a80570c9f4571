//! The independent judge: what receivers wrote down, the source rows, the final states and the faults in, a verdict
//! out (reliability.md, "Judging").
//!
//! It shares no code with the product; what it knows of ids, lanes and order stands in its README as the public
//! format. It reads the journals once, in about linear time, and again only to show a witness.

mod faults;
mod flights;
mod ids;
mod input;
mod journal;
mod judge;
mod unknown;
mod verdict;
mod world;

pub use input::{Inputs, Source};
pub use verdict::{Figures, Verdict, Violation};

use std::time::Duration;

/// What the judge is lenient about.
#[derive(Debug, Clone)]
pub struct Options {
    /// A response may be written down this much after its last byte left: the receiver's task can be held up between
    /// the two, and the sender be faster.
    pub late_lines: Duration,
    /// Times in the fault journal are this exact.
    pub fault_times: Duration,
    /// The endpoints' request deadline: an answer written later than that after its request was read was read by
    /// nobody, and explains the next repeat. None: no answer is that late.
    pub deadline: Option<Duration>,
    /// How long an owner's lease of its lanes lasts.
    pub lease: Duration,
    /// The fault journal has every lease that was lost: a paused owner whose lease of a lane is not among them was not
    /// replaced there, and excuses nothing late in it.
    pub leases_told: bool,
    /// The finals have the end of every delivery, or that it waits: one that is answered and has none is lost.
    pub finals_whole: bool,
    /// Nobody is asked about a request before this much after it was read (I13). None: that is not judged.
    pub quiet: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            late_lines: Duration::from_millis(50),
            fault_times: Duration::from_millis(100),
            deadline: None,
            lease: Duration::from_secs(10),
            leases_told: false,
            finals_whole: false,
            quiet: None,
        }
    }
}

/// Judges a run.
///
/// # Errors
/// When an input cannot be read or is not in its format; the message names file and line. A bad history is no error.
pub fn check(inputs: &Inputs, options: &Options) -> anyhow::Result<Verdict> {
    let world = world::World::load(inputs)?;
    judge::judge(inputs, world, options)
}
