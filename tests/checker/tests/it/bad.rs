//! Histories with one fault each, refused with its number. A `//` line says what went wrong.

use crate::history::{History, TENANT, body, delivery};
use laneway_checker::{Source, check};
use serde_json::{Value, json};

/// Three rows of a user and one of another, all delivered.
fn good() -> History {
    let mut h = History::new();
    h.rows(&[1, 2, 3], "u");
    h.rows(&[4], "v");
    for (row, at) in [(1, 10), (4, 15), (2, 20), (3, 30)] {
        h.send(row, 1, 200, at);
    }
    h.assert_good();
    h
}

#[test]
fn i1_an_event_before_its_predecessor() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.send(2, 1, 200, 10);
    h.send(1, 1, 200, 20);
    let verdict = h.assert_bad_among(&["I1"]);
    assert_eq!(verdict.figures.order_violations, 1);
}

#[test]
fn i1_an_event_before_one_that_comes_through_a_retry() {
    let mut h = History::new();
    h.rows(&[1, 2, 3], "u");
    h.send(1, 1, 200, 10);
    h.send(3, 1, 200, 20);
    h.send(2, 1, 503, 30);
    h.send(2, 2, 200, 1_500);
    assert_eq!(h.verdict().broken(), ["I1", "I5"]);
}

#[test]
fn i1_a_dead_letter_that_was_dead_only_later_is_no_excuse() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.send(2, 1, 200, 10);
    h.outcome(1, "dead_lettered", 60_000);
    h.assert_bad("I1");
}

#[test]
fn i2_a_row_that_was_never_sent() {
    let mut h = good();
    h.rows(&[9], "w");
    assert_eq!(h.assert_bad("I2").figures.lost, 1);
}

#[test]
fn i2_a_row_that_one_of_its_endpoints_never_got() {
    let mut h = good();
    h.row(9, "order.paid", Some("w"), 0);
    h.request(9, 1, 1, 50);
    h.response(9, 200, 1, 51);
    assert_eq!(h.assert_bad("I2").figures.lost, 1);
}

#[test]
fn i2_a_delivery_that_only_ever_failed() {
    let mut h = good();
    h.rows(&[9], "w");
    h.send(9, 1, 503, 40);
    h.send(9, 2, 503, 1_050);
    h.assert_bad("I2");
}

#[test]
fn i2_a_delivery_recorded_as_delivered_that_nobody_answered() {
    let mut h = good();
    h.rows(&[9], "w");
    h.send(9, 1, 500, 40);
    h.outcome(9, "delivered", 60);
    h.assert_bad("I2");
}

// The way was whole again long before, or the late request is no earlier attempt.
#[test]
fn i3_and_i7_a_late_request_of_a_way_that_was_not_cut() {
    for (first, late, to) in [(2, 1, 1_000), (1, 1, 2_000)] {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.send(1, first, 200, 12_000);
        h.send(1, late, 200, 13_000);
        h.fault("cut", "link", 0, to)["endpoint"] = "/a".into();
        let verdict = h.verdict();
        assert!(verdict.broken().contains(&"I3"), "{verdict:#?}");
    }
}

// Replies of the endpoint were lost, but not this one; and those of another endpoint.
#[test]
fn i3_a_repeat_whose_answer_was_not_written_while_replies_were_lost() {
    for (endpoint, from, to) in [("/a", 2_000, 4_000), ("/b", 0, 2_000)] {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.send(1, 1, 200, 10);
        h.send(1, 1, 200, 3_000);
        h.fault("cut", "link", from, to)["endpoint"] = endpoint.into();
        h.assert_bad("I3");
    }
}

#[test]
fn i3_a_repeat_after_a_success_in_a_run_without_faults() {
    let mut h = good();
    h.send(3, 2, 200, 100);
    let figures = h.assert_bad("I3").figures;
    assert_eq!((figures.duplicates, figures.duplicates_explained), (1, 0));
}

#[test]
fn i3_a_repeat_that_a_kill_of_something_else_does_not_explain() {
    for (kind, target, from, to) in [
        ("kill", "relay-1", 50, 60),
        ("kill", "kafka", 50, 60),
        ("kill", "deliver-1", 500, 600), // after the repeat
        ("door_shut", "receiver", 50, 60),
        ("postgres_slow", "api", 50, 60),
    ] {
        let mut h = good();
        h.send(3, 2, 200, 300);
        h.fault(kind, target, from, to);
        h.assert_bad("I3");
    }
}

// The leases of other lanes; one that was lost only after the repeat; one that began long after the answer.
#[test]
fn i3_a_repeat_that_a_lost_lease_does_not_explain() {
    for (endpoint, key, from, to) in [
        ("/a", "v", 0, 3_000),
        ("/b", "u", 0, 3_000),
        ("/a", "u", 0, 9_000),
        ("/a", "u", 2_000, 5_000),
    ] {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.rows(&[2], "v");
        h.deadline(2_000);
        h.send(1, 1, 200, 10);
        h.send(2, 1, 200, 20);
        h.send(1, 1, 200, 8_000);
        h.fault("lease_lost", "deliver-1", from, to)["lanes"] = json!([[endpoint, key]]);
        h.assert_bad("I3");
    }
}

// A successor waits until the requests of a lost lease have ended: nothing arrives late, and never two at once.
#[test]
fn i5_a_lost_lease_is_no_excuse_for_a_late_request() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.deadline(2_000);
    h.send(1, 1, 200, 10);
    h.send(1, 1, 200, 7_000);
    h.send(2, 1, 200, 7_100);
    h.send(1, 1, 200, 7_200);
    h.fault("lease_lost", "deliver-1", 0, 3_000)["lanes"] = json!([["/a", "u"]]);
    // It lost the first answer, not the second.
    h.assert_bad_among(&["I3", "I5"]);
}

#[test]
fn i3_a_second_repeat_needs_a_second_kill() {
    let mut h = good();
    h.fault("kill", "deliver-1", 50, 60);
    h.request(3, 1, 2, 5_000);
    h.response(3, 200, 2, 5_001);
    h.request(3, 1, 3, 9_000);
    h.response(3, 200, 3, 9_001);
    let figures = h.assert_bad("I3").figures;
    assert_eq!((figures.duplicates, figures.duplicates_explained), (2, 1));
    // A second one before the second answer lost the first answer, not that one.
    h.fault("kill", "deliver-3", 4_000, 4_100);
    h.assert_bad("I3");
    h.fault("kill", "deliver-2", 8_000, 8_100);
    h.assert_good();
}

#[test]
fn i3_a_kill_of_a_process_that_lives_on_explains_nothing() {
    let mut h = good();
    h.fault("kill", "deliver-2", 50, 60);
    h.rows(&[9], "w");
    h.send(9, 1, 200, 1_000); // on the connection of the answer: its process was not the one killed
    h.request(3, 1, 2, 5_000);
    h.assert_bad("I3");
}

#[test]
fn i3_a_send_after_the_dead_letter() {
    let mut h = good();
    h.rows(&[9], "w");
    h.send(9, 1, 503, 40);
    h.outcome(9, "dead_lettered", 1_000);
    h.send(9, 2, 503, 2_000);
    h.assert_bad("I3");
}

#[test]
fn i4_an_event_that_was_never_committed() {
    let mut h = good();
    h.request(77, 1, 1, 50);
    h.assert_bad("I4");
}

#[test]
fn i4_an_event_at_an_endpoint_that_did_not_subscribe_to_it() {
    let mut h = good();
    h.request_to("/b", 1, 1, 1, 50);
    h.assert_bad("I4");
    let mut h = good();
    h.request_to("/nowhere", 1, 1, 1, 50);
    h.assert_bad("I4");
}

#[test]
fn i4_an_event_of_another_tenant() {
    let mut h = good();
    h.rows(&[9], "w");
    h.rows[4]["tenant"] = TENANT.replace('A', "B").into();
    h.request(9, 1, 1, 50);
    h.assert_bad("I4");
}

#[test]
fn i4_a_final_state_of_what_never_was() {
    let mut h = good();
    h.outcome(77, "delivered", 50);
    h.assert_bad("I4");
}

#[test]
fn i5_two_events_of_a_lane_on_their_way_at_once() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.request(1, 1, 1, 10);
    h.request(2, 1, 2, 12);
    h.response(2, 200, 2, 14);
    h.response(1, 200, 1, 200);
    assert_eq!(h.assert_bad("I5").figures.order_violations, 1);
}

#[test]
fn i5_the_next_event_while_the_head_is_between_two_retries() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.send(1, 1, 503, 10);
    h.send(2, 1, 200, 500);
    h.send(1, 2, 200, 1_100);
    let verdict = h.assert_bad("I5");
    assert_eq!(verdict.violations[0].count, 2, "when it went ahead, and when the head came again");
}

#[test]
fn i5_an_event_again_after_the_next_one_was_sent() {
    let mut h = good();
    h.fault("kill", "deliver-1", 25, 28);
    h.request(1, 1, 2, 5_000); // at most the head may repeat
    assert!(h.verdict().broken().contains(&"I5"));
}

#[test]
fn i7_requests_that_do_not_say_the_same() {
    let other_hash = Value::from(body(8));
    for (field, value) in [
        ("delivery_id", json!("dlv_0000000000000000000099")),
        ("delivery_id", json!(delivery(1, "/a"))),
        ("delivery_id", Value::Null),
        ("idempotency_key", json!("evt_0000000000000000000008")),
        ("idempotency_key", Value::Null),
        ("body_sha256", other_hash),
        ("body_sha256", Value::Null),
        ("event_type", json!("user.removed")),
        ("event_type", Value::Null),
        ("attempt", json!(0)),
        ("attempt", Value::Null),
    ] {
        let mut h = History::new();
        h.rows(&[1, 9], "u");
        h.send(1, 1, 200, 10);
        h.send(9, 1, 503, 20);
        h.send(9, 2, 200, 1_100);
        let last = h.journal.len() - 2;
        h.journal[last][field] = value.clone();
        h.assert_bad("I7");
        assert!(field == "delivery_id" || !h.verdict().violations[0].witness.is_empty(), "{value}");
    }
}

#[test]
fn i7_a_request_that_names_no_event() {
    let mut h = good();
    h.request(1, 1, 1, 50)["webhook_id"] = Value::Null;
    h.assert_bad("I7");
}

#[test]
fn i7_an_attempt_number_that_falls_back() {
    let mut h = History::new();
    h.rows(&[1], "u");
    h.send(1, 2, 503, 10);
    h.send(1, 1, 200, 2_100);
    h.assert_bad("I7");
    h.fault("kill", "deliver-1", 20, 30);
    h.assert_good();
}

#[test]
fn i25_a_sequence_number_where_there_is_no_order_to_number() {
    for value in [json!(7), Value::Null] {
        let mut h = good();
        h.journal[0]["sequence"] = value;
        h.assert_bad("I25");
    }
    let mut h = good();
    h.subscriptions[0]["order"] = "total".into();
    assert!(h.verdict().broken().contains(&"I25"), "nor a zero where there is");
}

#[test]
fn inputs_that_are_not_in_their_format_are_errors_with_file_and_line() {
    for (input, text) in [
        ("rows", "{\"id\": 1}\n"),
        ("rows", "nonsense\n"),
        (
            "subscriptions",
            "{\"endpoint\": \"x\", \"tenant\": \"y\", \"path\": \"/\", \"patterns\": []}\n",
        ),
        ("finals", "{\"event\": \"evt_1\", \"endpoint\": \"1\", \"outcome\": \"delivered\"}\n"),
        ("faults", "{\"kind\": \"kill\"}\n"),
        ("journal", "{\"kind\": \"request\", \"ns\": 1}\n"),
        ("journal", "nonsense\n"),
    ] {
        let h = good();
        let mut inputs = h.inputs();
        let source = Source::Text(text.to_owned());
        match input {
            "rows" => inputs.rows = source,
            "subscriptions" => inputs.subscriptions = source,
            "finals" => inputs.finals = source,
            "faults" => inputs.faults = source,
            _ => inputs.journals = vec![source],
        }
        let error = format!("{:#}", check(&inputs, &h.options).unwrap_err());
        assert!(input == "faults" || error.contains("line 1"), "{input}: {error}");
    }
}

impl History {
    /// Fails unless these checks, and no others, are broken.
    #[track_caller]
    fn assert_bad_among(&self, checks: &[&str]) -> laneway_checker::Verdict {
        let verdict = self.verdict();
        assert_eq!(verdict.broken(), checks, "{verdict:#?}");
        verdict
    }
}
