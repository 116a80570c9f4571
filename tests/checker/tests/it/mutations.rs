//! A good history, made at random; one mutation; refused with the number that belongs to it.

use crate::history::History;
use proptest::prelude::*;
use serde_json::{Value, json};

/// (user, attempts that fail before the one that succeeds) for each row, and the time between two rows of a user.
fn good() -> impl Strategy<Value = History> {
    let rows = proptest::collection::vec((0u8..4, 0u8..3, any::<bool>()), 4..24);
    rows.prop_map(|rows| {
        let mut h = History::new();
        let mut free_at = [10i64; 4];
        let mut lines = Vec::new();
        for (number, (user, failures, no_answer)) in rows.into_iter().enumerate() {
            let row = number as i64 + 1;
            h.row(row, "user.changed", Some(&format!("u{user}")), 0);
            let at = &mut free_at[usize::from(user)];
            for attempt in 1..=u32::from(failures) + 1 {
                let is_last = attempt > u32::from(failures);
                lines.push((*at, row, attempt, None));
                if is_last || !no_answer {
                    lines.push((*at + 3, row, attempt, Some(if is_last { 200 } else { 503 })));
                }
                *at += if is_last { 200 } else { 1_000 };
            }
        }
        lines.sort_by_key(|line| line.0);
        for (at, row, attempt, status) in lines {
            match status {
                None => h.request(row, attempt, row as u64, at),
                Some(status) => h.response(row, status, row as u64, at),
            };
        }
        h
    })
}

#[derive(Debug, Clone, Copy)]
enum Mutation {
    DropSuccess,
    DropRow,
    DropDelivery,
    RepeatSuccess,
    SwapNeighbours,
    Overlap,
    AlterBody,
    AlterKey,
    AlterDelivery,
    AlterSequence,
    AlterEvent,
    AttemptBack,
}

use Mutation::*;

fn field<'a>(line: &'a Value, name: &str) -> &'a str {
    line[name].as_str().unwrap_or_default()
}

/// Applies it somewhere; gives the check that must break, or none if there is nothing to apply it to.
fn mutate(h: &mut History, mutation: Mutation, pick: usize) -> Option<&'static str> {
    let requests: Vec<usize> =
        (0..h.journal.len()).filter(|&at| h.journal[at]["kind"] == "request").collect();
    let successes: Vec<usize> =
        (0..h.journal.len()).filter(|&at| h.journal[at]["status"] == 200).collect();
    let request = requests[pick % requests.len()];
    let success = successes[pick % successes.len()];
    let event = field(&h.journal[success], "webhook_id").to_owned();
    Some(match mutation {
        DropSuccess => {
            h.journal.remove(success);
            // With a later event of the lane, that one was not to be sent.
            "I2"
        }
        DropRow => {
            let row = pick % h.rows.len();
            h.rows.remove(row);
            "I4"
        }
        DropDelivery => {
            h.journal.retain(|line| field(line, "webhook_id") != event);
            "I2"
        }
        RepeatSuccess => {
            let request =
                requests.iter().rfind(|&&at| field(&h.journal[at], "webhook_id") == event)?;
            let mut again = h.journal[*request].clone();
            let last = h.journal.iter().filter_map(|line| line["ns"].as_i64()).max()?;
            again["ns"] = json!(last + 1_000_000_000);
            h.journal.push(again);
            "I3"
        }
        SwapNeighbours => {
            // The rows of two events of a user that follow each other trade their places.
            let (first, second) = neighbours(h, pick)?;
            let id = h.rows[first]["id"].clone();
            h.rows[first]["id"] = h.rows[second]["id"].clone();
            h.rows[second]["id"] = id;
            "I1"
        }
        Overlap => {
            let (first, second) = neighbours(h, pick)?;
            let event = h.rows[first]["event"].clone();
            let success = successes.iter().find(|&&at| h.journal[at]["webhook_id"] == event)?;
            let next = h.rows[second]["event"].clone();
            let begins = h.journal.iter().find(|line| line["webhook_id"] == next)?;
            let late = begins["ns"].as_i64()? + 60_000_000;
            h.journal[*success]["ns"] = json!(late);
            h.journal.sort_by_key(|line| line["ns"].as_i64());
            "I5"
        }
        AlterBody => {
            h.journal[request]["body_sha256"] = "ff".repeat(32).into();
            "I7"
        }
        AlterKey => {
            h.journal[request]["idempotency_key"] = "evt_00000000000000000000ZZ".into();
            "I7"
        }
        AlterDelivery => {
            let other = requests.iter().find(|&&at| {
                field(&h.journal[at], "webhook_id") != field(&h.journal[request], "webhook_id")
            })?;
            h.journal[request]["delivery_id"] = h.journal[*other]["delivery_id"].clone();
            "I7"
        }
        AlterSequence => {
            h.journal[request]["sequence"] = 3.into();
            "I25"
        }
        AlterEvent => {
            h.journal[request]["webhook_id"] = "evt_00000000000000000000ZZ".into();
            "I4"
        }
        AttemptBack => {
            let second = requests.iter().find(|&&at| h.journal[at]["attempt"] == 2)?;
            let event = field(&h.journal[*second], "webhook_id").to_owned();
            let first =
                requests.iter().find(|&&at| field(&h.journal[at], "webhook_id") == event)?;
            h.journal[*first]["attempt"] = 9.into();
            "I7"
        }
    })
}

/// Places of two rows of one user that follow each other, both with the same user key.
fn neighbours(h: &History, pick: usize) -> Option<(usize, usize)> {
    let next = |first: usize| {
        (first + 1..h.rows.len()).find(|&second| h.rows[second]["key"] == h.rows[first]["key"])
    };
    let all: Vec<_> = (0..h.rows.len()).filter_map(|first| Some((first, next(first)?))).collect();
    (!all.is_empty()).then(|| all[pick % all.len()])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_mutation_of_a_good_history_is_refused_with_its_number(
        history in good(),
        mutation in proptest::sample::select(vec![
            DropSuccess, DropRow, DropDelivery, RepeatSuccess, SwapNeighbours, Overlap, AlterBody, AlterKey,
            AlterDelivery, AlterSequence, AlterEvent, AttemptBack,
        ]),
        pick: usize,
    ) {
        let verdict = history.verdict();
        prop_assert!(verdict.holds(), "{:#?}", verdict);
        prop_assert_eq!(verdict.figures.deliveries as usize, history.rows.len());
        let mut mutated = history.clone();
        if let Some(check) = mutate(&mut mutated, mutation, pick) {
            let verdict = mutated.verdict();
            prop_assert!(verdict.broken().contains(&check), "{:?}: {:#?}", mutation, verdict);
            prop_assert!(verdict.violations.iter().all(|one| (1..=6).contains(&one.witness.len())));
        }
    }
}
