//! What is wrong with a configuration: all of it, each problem with its key and the origin of the value.

use super::Tree;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: the default in code, or the lack of a value.
    Default,
    /// The file of this path.
    File(String),
    /// The environment variable of this name.
    Variable(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File(path) => write!(f, "file {path}"),
            Self::Variable(name) => write!(f, "environment {name}"),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key's path, as in `kafka.partitions` or `sources[1].name`; empty if the whole source cannot be read.
    pub path: String,
    /// Where the value came from.
    pub origin: Origin,
    /// What is wrong and what would be right; never the value of a secret.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.message)?;
        match &self.origin {
            Origin::Default => Ok(()),
            origin => write!(f, " ({origin})"),
        }
    }
}

/// Every problem of a configuration; at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    problems: Vec<Problem>,
}

impl ConfigErrors {
    pub(super) fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// The problems, in the order of finding.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Joins the problems of another configuration; what both report stands once.
    pub fn merge(mut self, other: Self) -> Self {
        for problem in other.problems {
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
        self
    }
}

impl fmt::Display for ConfigErrors {
    /// A heading and one line for each problem.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.problems.len() == 1 { "" } else { "s" };
        write!(f, "configuration has {} problem{plural}:", self.problems.len())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Settings that can say what is wrong with them.
pub trait Validate {
    /// Reports every problem, not only the first; keys are relative to the settings themselves.
    fn validate(&self, problems: &mut Problems);
}

/// Collects what [`Validate::validate`] finds, with the path of the section it is in.
#[derive(Debug, Default)]
pub struct Problems {
    within: String,
    found: Vec<(String, String)>,
}

impl Problems {
    /// Validates the section at `key`.
    pub fn section(&mut self, key: &str, section: &(impl Validate + ?Sized)) {
        self.at(key, |problems| section.validate(problems));
    }

    /// Validates each element of the list at `key`.
    pub fn list<'a, S: Validate + 'a>(&mut self, key: &str, list: impl IntoIterator<Item = &'a S>) {
        for (index, element) in list.into_iter().enumerate() {
            self.section(&format!("{key}[{index}]"), element);
        }
    }

    /// Runs `check` with all its keys under `key`.
    pub fn at(&mut self, key: &str, check: impl FnOnce(&mut Self)) {
        let path = self.path(key);
        let outer = std::mem::replace(&mut self.within, path);
        check(self);
        self.within = outer;
    }

    /// Reports a problem with the value at `key`; say what would be right, and never a secret's value.
    pub fn report(&mut self, key: &str, message: impl Into<String>) {
        let path = self.path(key);
        self.found.push((path, message.into()));
    }

    /// Reports the value at `key` unless it is within `range`.
    pub fn range<T: PartialOrd + fmt::Display>(
        &mut self,
        key: &str,
        value: T,
        range: RangeInclusive<T>,
    ) {
        if !range.contains(&value) {
            let (from, to) = range.into_inner();
            self.report(key, format!("{value} is out of range: {from} to {to}"));
        }
    }

    /// Reports the duration at `key` unless it is within `range`.
    pub fn duration(&mut self, key: &str, value: Duration, range: RangeInclusive<Duration>) {
        if !range.contains(&value) {
            let text = humantime::format_duration;
            let (value, from, to) = (text(value), text(*range.start()), text(*range.end()));
            self.report(key, format!("{value} is out of range: {from} to {to}"));
        }
    }

    /// Reports the text at `key` if it is empty.
    pub fn required(&mut self, key: &str, text: &str) {
        if text.trim().is_empty() {
            self.report(key, "is required");
        }
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// What was reported: pairs of path and message.
    pub fn found(&self) -> &[(String, String)] {
        &self.found
    }

    fn path(&self, key: &str) -> String {
        match (self.within.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.within.clone(),
            (false, false) => format!("{}.{key}", self.within),
        }
    }
}

/// Adds what validation found, but for what only follows from a problem that is known already: a value that could not
/// be read was replaced by its default, and the default's fault is nobody's.
pub(super) fn add_new(found: Problems, tree: &Tree, problems: &mut Vec<Problem>) {
    let known: Vec<String> = problems.iter().map(|problem| problem.path.clone()).collect();
    let covers = |a: &str, b: &str| {
        b.strip_prefix(a).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    for (path, message) in found.found {
        if !known
            .iter()
            .any(|known| !known.is_empty() && (covers(known, &path) || covers(&path, known)))
        {
            let origin = tree.origin(&path);
            problems.push(Problem { path, origin, message });
        }
    }
}
