//! Unknown outcomes of an endpoint that wants nothing sent twice: what may follow them (I12 to I14).

use crate::history::History;
use serde_json::json;
use std::time::Duration;

/// Two rows of a user; the first was applied and got no answer, which an authority said later.
fn applied() -> History {
    let mut h = History::new();
    h.options.quiet = Some(Duration::from_secs(1));
    h.rows(&[1, 2], "u");
    h.request(1, 1, 1, 10);
    h.effect(1, 1, 10);
    h.answer(1, "in_progress", 4_000);
    h.answer(1, "applied", 6_000);
    h.outcome(1, "delivered", 6_100);
    h.finals[0]["resolved"] = true.into();
    h.request(2, 1, 2, 6_200);
    h.effect(2, 1, 6_199);
    h.response(2, 200, 2, 6_201);
    h.outcome(2, "delivered", 6_202);
    h
}

/// One row whose first request came to nothing, which was said, and that was sent once more.
fn not_applied() -> History {
    let mut h = History::new();
    h.options.quiet = Some(Duration::from_secs(1));
    h.rows(&[1], "u");
    h.request(1, 1, 1, 10);
    h.answer(1, "down", 3_000);
    h.answer(1, "not_applied", 4_000);
    h.request(1, 2, 2, 4_200);
    h.effect(1, 2, 4_199);
    h.response(1, 200, 2, 4_201);
    h.outcome(1, "delivered", 4_202);
    h
}

#[test]
fn what_was_said_is_followed() {
    let figures = applied().assert_good().figures;
    assert_eq!((figures.effects, figures.answers, figures.deliveries), (2, 2, 2));
    not_applied().assert_good();
}

#[test]
fn a_failure_that_was_answered_needs_no_word() {
    let mut h = not_applied();
    h.ledger.retain(|line| line["kind"] == "effect");
    let answer = h.response(1, 503, 1, 20).clone();
    h.journal.retain(|line| *line != answer);
    h.journal.insert(1, answer.clone());
    h.assert_good();
    h.journal[1]["status"] = 504.into();
    h.assert_bad("I12");
}

// Nobody was there any more to read it: what became of the request is as unknown as before.
#[test]
fn i12_a_failure_that_was_answered_too_late_allows_nothing() {
    let mut h = not_applied();
    h.deadline(2_000);
    h.ledger.retain(|line| line["kind"] == "effect");
    h.response(1, 503, 1, 2_020);
    h.assert_bad("I12");
    h.deadline(3_000);
    h.assert_good();
}

#[test]
fn what_a_paused_owner_had_begun_may_come_late() {
    let mut h = not_applied();
    let late = h.request(1, 1, 3, 5_000).clone();
    assert_eq!(h.verdict().broken(), ["I3", "I7", "I12"], "{late}");
    h.fault("pause", "deliver-1", 0, 4_950);
    h.assert_good();
}

// A pause of whoever holds other lanes, or of one whose lease of this one was not lost, is none of its business.
#[test]
fn i12_a_pause_elsewhere_is_no_excuse() {
    for (target, key, is_good) in
        [("deliver-2", "u", false), ("deliver-1", "v", false), ("deliver-1", "u", true)]
    {
        let mut h = not_applied();
        h.options.leases_told = true;
        h.options.lease = Duration::from_secs(3);
        h.rows(&[9], "v");
        h.request(9, 1, 8, 4_300);
        h.effect(9, 1, 4_299);
        h.response(9, 200, 8, 4_301);
        h.request(1, 1, 3, 5_000);
        h.fault("pause", "deliver-1", 0, 4_950);
        h.fault("lease_lost", target, 0, 3_200)["lanes"] = json!([["/a", key]]);
        let broken = h.verdict().broken();
        assert_eq!(broken.contains(&"I12"), !is_good, "{target} {key}: {broken:?}");
        assert_eq!(broken.is_empty(), is_good, "{target} {key}: {broken:?}");
    }
}

// What a paused owner had begun comes before its successor's, each with a word of its own; a third one has none.
#[test]
fn i12_a_pause_allows_nothing_but_what_was_begun() {
    let mut h = History::new();
    h.rows(&[1], "u");
    h.request(1, 1, 1, 10);
    h.answer(1, "not_applied", 1_000);
    h.answer(1, "not_applied", 8_000); // of the second attempt, which was still to come
    h.request(1, 2, 2, 9_000);
    h.request(1, 3, 3, 9_100);
    h.effect(1, 3, 9_099);
    h.response(1, 200, 3, 9_101);
    h.outcome(1, "delivered", 9_102);
    h.fault("pause", "deliver-1", 1_050, 8_950);
    h.assert_good();
    h.finals.clear();
    h.request(1, 4, 4, 9_500);
    h.ledger.retain(|line| line["kind"] != "effect");
    h.journal.retain(|line| line["kind"] == "request");
    h.effect(1, 4, 9_499);
    h.response(1, 200, 4, 9_501);
    h.assert_bad("I12");
}

#[test]
fn i12_sent_again_without_a_word() {
    let mut h = not_applied();
    h.ledger.retain(|line| line["said"] != "not_applied");
    h.assert_bad("I12");
}

#[test]
fn i12_sent_twice_by_one_word() {
    let mut h = not_applied();
    h.journal.pop();
    h.ledger.retain(|line| line["kind"] != "effect");
    h.request(1, 3, 2, 9_000);
    h.effect(1, 3, 8_999);
    h.response(1, 200, 2, 9_001);
    h.assert_bad("I12");
}

#[test]
fn i12_two_effects() {
    let mut h = not_applied();
    h.effect(1, 2, 4_200);
    h.assert_bad("I12");
}

#[test]
fn i12_two_effects_under_two_keys() {
    let mut h = not_applied();
    h.effect(1, 2, 4_200);
    let second = h.ledger.last_mut().unwrap();
    (second["event"], second["key"]) = (second["key"].clone(), "evt_00000000000000000000ZZ".into());
    second["kind"] = "worked".into();
    h.assert_bad("I12");
    h.ledger.last_mut().unwrap()["kind"] = "effect".into();
    h.assert_bad("I12");
}

// Its own idempotency kept the provider from a second effect; the sender did all for it.
#[test]
fn i12_done_once_before_and_once_behind_a_word() {
    let mut h = not_applied();
    h.effect(1, 1, 2_000);
    h.ledger.last_mut().unwrap()["kind"] = "worked".into();
    h.assert_bad("I12");
    // The same request twice, as a provider may work on it, is none.
    h.ledger.last_mut().unwrap()["attempt"] = 2.into();
    h.ledger.last_mut().unwrap()["ns"] = h.journal[1]["ns"].clone();
    h.assert_good();
}

#[test]
fn i12_the_next_event_before_the_word() {
    let mut h = applied();
    h.ledger.iter_mut().find(|line| line["said"] == "applied").unwrap()["ns"] =
        h.journal.last().unwrap()["ns"].clone();
    h.assert_bad("I12");
}

#[test]
fn i12_delivered_without_an_effect() {
    let mut h = not_applied();
    h.ledger.retain(|line| line["kind"] != "effect");
    h.assert_bad("I12");
}

#[test]
fn i13_asked_while_the_request_was_under_way() {
    let mut h = not_applied();
    h.answer(1, "in_progress", 800);
    h.assert_bad("I13");
}

#[test]
fn i13_done_after_it_was_said_that_it_would_not_be() {
    let mut h = not_applied();
    h.ledger.retain(|line| line["kind"] != "effect");
    h.effect(1, 1, 4_100);
    h.assert_bad("I13");
}

#[test]
fn i14_sent_again_after_it_was_said_to_be_done() {
    let mut h = not_applied();
    h.ledger.iter_mut().find(|line| line["said"] == "not_applied").unwrap()["said"] =
        "applied".into();
    h.assert_bad("I14");
}

#[test]
fn i14_delivered_by_nobodys_word() {
    let mut h = applied();
    h.rows(&[3], "v");
    h.request(3, 1, 5, 7_000);
    h.effect(3, 1, 7_000);
    h.answer(3, "in_progress", 9_000);
    h.outcome(3, "delivered", 9_100);
    h.finals[2]["resolved"] = true.into();
    h.assert_bad("I14");
}

#[test]
fn i4_an_effect_of_nothing_that_was_committed() {
    let mut h = applied();
    h.effect(99, 1, 5_000);
    h.assert_bad("I4");
}
