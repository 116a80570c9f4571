//! What was measured and why something was not; the last line of standard output.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Progress, for people: standard error.
pub(crate) fn say(line: impl AsRef<str>) {
    eprintln!("bench: {}", line.as_ref());
}

/// Figures and notes by field; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    figures: BTreeMap<&'static str, f64>,
    notes: BTreeMap<String, String>,
}

impl Report {
    pub(crate) fn set(&self, field: &'static str, figure: f64) {
        say(format!("{field} = {}", rounded(figure)));
        self.lock().figures.insert(field, figure);
    }

    /// Why a field is null, or what has to be known of it. The first note stands.
    pub(crate) fn note(&self, field: &str, why: impl Into<String>) {
        let why = why.into();
        say(format!("{field}: {why}"));
        self.lock().notes.entry(field.to_owned()).or_insert(why);
    }

    /// Notes `why` for those of `fields` that have neither figure nor note.
    pub(crate) fn skipped(&self, fields: &[&'static str], why: &str) {
        for &field in fields {
            let known = {
                let inner = self.lock();
                inner.figures.contains_key(field) || inner.notes.contains_key(field)
            };
            if !known {
                self.note(field, why);
            }
        }
    }

    /// One JSON object with every one of `fields`.
    pub(crate) fn json<'a>(
        &self,
        fields: impl Iterator<Item = &'a &'static str>,
        quick: bool,
    ) -> Value {
        let inner = self.lock();
        let mut all = Map::new();
        for &field in fields {
            let figure = inner.figures.get(field).map_or(Value::Null, |&figure| rounded(figure));
            all.insert(field.to_owned(), figure);
        }
        let mut notes = inner.notes.clone();
        if quick {
            notes.insert("quick".to_owned(), "a tenth of every size: no figures".to_owned());
        }
        all.insert("notes".to_owned(), json!(notes));
        Value::Object(all)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole numbers above 1,000, else two decimals.
fn rounded(figure: f64) -> Value {
    if figure.abs() >= 1_000.0 {
        json!(figure.round() as i64)
    } else {
        json!((figure * 100.0).round() / 100.0)
    }
}

/// The median; NaN of nothing.
pub(crate) fn median(figures: &[f64]) -> f64 {
    percentile(figures, 50.0)
}

/// The figure that `percent` of `figures` do not exceed; NaN of nothing.
pub(crate) fn percentile(figures: &[f64], percent: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
