//! Histories with one fault each, refused with its number. A `//` line says what went wrong.

use crate::history::{History, TENANT, body, delivery};
use laneway_checker::{Source, check};
use serde_json::{Value, json};
use std::time::Duration;

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
    // Nor one long after it: it was recorded by then.
    h.fault("kill", "deliver-2", 8_000, 8_100);
    h.assert_bad("I3");
    h.fault("kill", "deliver-2", 5_900, 8_100);
    h.assert_good();
}

#[test]
fn i3_a_kill_long_after_the_answer_explains_it_only_if_the_record_was_held_up() {
    let mut h = good();
    h.fault("kill", "deliver-1", 4_000, 4_100);
    h.request(3, 1, 2, 9_000);
    h.response(3, 200, 2, 9_001);
    h.assert_bad("I3");
    h.fault("throttle", "deliver-1", 500, 2_000);
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

// It was recorded long before anything happened; nothing that comes later can have lost it.
#[test]
fn i3_a_repeat_of_what_was_recorded_before_the_fault() {
    for (kind, target) in
        [("pause", "deliver-1"), ("cut", "deliver-1"), ("kill", "deliver-1"), ("crash", "postgres")]
    {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.send(1, 1, 200, 10);
        h.outcome(1, "delivered", 15);
        h.send(1, 1, 200, 22_000);
        h.fault(kind, target, 20_000, 24_000);
        h.assert_bad("I3");
        // Nor if nobody says when it was recorded: it was due long before.
        h.finals.clear();
        h.faults.clear();
        h.fault(kind, target, 60_000, 64_000);
        h.send(1, 1, 200, 62_000);
        h.journal.drain(2..4);
        h.assert_bad("I3");
    }
}

// What lost the first answer is over, the second one was recorded: whoever sends again now has forgotten that.
#[test]
fn i3_a_repeat_of_what_was_recorded_after_the_fault() {
    for (kind, target, lanes) in [
        ("kill", "deliver-1", false),
        ("crash", "postgres", false),
        ("lease_lost", "deliver-1", true),
        ("pause", "deliver-1", false),
    ] {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.request(1, 1, 7, 10);
        h.response(1, 200, 7, 12);
        let fault = h.fault(kind, target, 15, 3_000);
        if lanes {
            fault["lanes"] = json!([["/a", "u"]]);
        }
        h.send(1, 1, 200, 9_000);
        h.outcome(1, "delivered", 9_005);
        h.assert_good();
        h.send(1, 1, 200, 12_000);
        assert!(h.verdict().broken().contains(&"I3"), "{kind}");
    }
}

// The process whose answer it was carried on while another one stood still.
#[test]
fn i3_a_repeat_that_a_pause_of_another_process_does_not_explain() {
    let mut h = History::new();
    h.rows(&[1], "u");
    h.rows(&[2], "v");
    h.deadline(2_000);
    h.send(1, 1, 200, 1_000);
    h.send(2, 1, 200, 4_000);
    h.request(1, 1, 2, 6_000);
    h.response(1, 200, 2, 6_002);
    h.fault("pause", "deliver-2", 900, 5_000);
    h.assert_bad("I3");
    // A throttled one runs in pieces.
    h.faults[0]["kind"] = "throttle".into();
    h.assert_good();
}

// Only an owner that was replaced has stragglers; its lease of another lane is no excuse.
#[test]
fn i5_a_straggler_of_a_lane_whose_lease_was_not_lost() {
    for (target, key, is_good) in
        [("deliver-1", "v", false), ("deliver-2", "u", false), ("deliver-1", "u", true)]
    {
        let mut h = History::new();
        h.options.leases_told = true;
        h.options.lease = Duration::from_secs(3);
        h.rows(&[1, 2], "u");
        h.rows(&[3], "v");
        h.deadline(2_000);
        h.send(1, 1, 200, 10);
        h.send(3, 1, 200, 20);
        h.send(1, 1, 200, 7_000);
        h.outcome(1, "delivered", 7_003);
        h.send(2, 1, 200, 7_100);
        h.request(1, 1, 2, 9_001);
        h.fault("pause", "deliver-1", 5, 9_000);
        h.fault("lease_lost", target, 0, 3_500)["lanes"] = json!([["/a", key]]);
        // What was answered first was in the lease of its own lane.
        h.fault("lease_lost", "deliver-3", 0, 3_500)["lanes"] = json!([["/a", "u"]]);
        if is_good {
            h.assert_good();
        } else {
            h.assert_bad_among(&["I3", "I5"]);
        }
    }
}

#[test]
fn i7_an_attempt_number_that_falls_back_long_after_a_fault() {
    let mut h = History::new();
    h.rows(&[1], "u");
    h.send(1, 2, 503, 10);
    h.send(1, 1, 200, 90_000);
    h.fault("pause", "deliver-1", 30_000, 40_000);
    h.assert_bad("I7");
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

/// Two dead letters of a user, sent again by one command, and one event between.
fn rewound() -> History {
    let mut h = History::new();
    h.rows(&[1, 2, 3], "u");
    for (row, at) in [(1, 10), (2, 20)] {
        h.send(row, 1, 400, at);
        h.outcome_of(row, row, "dead_lettered", at + 4);
    }
    h.send(3, 1, 200, 30);
    h.rewind(11, 1, "u", 7, 1_000);
    h.rewind(12, 2, "u", 7, 1_000);
    h.send_again(11, 1, 1, 200, 1_010);
    h.send_again(12, 2, 1, 400, 1_020);
    h.outcome_of(11, 1, "delivered", 1_014);
    h.outcome_of(12, 2, "dead_lettered", 1_024);
    h
}

#[test]
fn i31_what_is_sent_again_out_of_its_order() {
    let h = rewound();
    let figures = h.assert_good().figures;
    assert_eq!((figures.events, figures.rewinds, figures.deliveries), (3, 2, 2));
    assert_eq!((figures.dead_letters, figures.lost, figures.duplicates), (3, 0, 0));
    // The rows are in another order.
    let mut rows = rewound();
    let ids = [rows.rows[3]["id"].clone(), rows.rows[4]["id"].clone()];
    [rows.rows[4]["id"], rows.rows[3]["id"]] = ids;
    assert!(rows.verdict().broken().contains(&"I31"));
    // The requests are: as in any lane.
    let mut sent = rewound();
    let (first, second) = (sent.journal[6..8].to_vec(), sent.journal[8..].to_vec());
    sent.journal.truncate(6);
    for (lines, at) in [(second, 1_010), (first, 1_020)] {
        for (mut line, at) in lines.into_iter().zip([at, at + 2]) {
            line["ns"] = (5_000_000_000 + at * 1_000_000_i64).into();
            sent.journal.push(line);
        }
    }
    assert!(sent.verdict().broken().contains(&"I1"));
}

#[test]
fn i31_what_is_sent_again_before_it_was_given_up() {
    let mut h = rewound();
    h.finals[0]["at_ms"] = (1_796_000_000_000_i64 + 5_000).into();
    assert!(h.verdict().broken().contains(&"I31"));
    // Nor of what a person gave up for good.
    let mut h = rewound();
    h.finals[0]["outcome"] = "discarded".into();
    h.assert_bad("I31");
}

#[test]
fn i32_a_dead_letter_that_is_sent_again_by_two_commands() {
    let mut h = rewound();
    h.rewind(13, 1, "u", 8, 2_000);
    h.send_again(13, 1, 1, 200, 2_010);
    h.outcome_of(13, 1, "delivered", 2_014);
    h.assert_bad("I32");
    // The second series repeats the first one's dead letter.
    let mut h = rewound();
    h.rewind(13, 2, "u", 8, 2_000);
    h.rows[5]["rewind"]["of"] = delivery(12, "/a").into();
    h.send_again(13, 2, 1, 200, 2_010);
    h.outcome_of(13, 2, "delivered", 2_014);
    h.assert_good();
}

#[test]
fn i2_i3_and_i4_hold_for_what_is_sent_again() {
    let mut lost = rewound();
    lost.finals.truncate(3);
    lost.assert_bad("I2");
    let mut twice = rewound();
    twice.send_again(11, 1, 1, 200, 1_500);
    twice.assert_bad_among(&["I3", "I5"]);
    // A delivery that no row makes is the event's own, whose end has come.
    let mut ghost = rewound();
    ghost.send_again(14, 1, 1, 200, 1_500);
    assert!(ghost.verdict().broken().contains(&"I7"));
    let mut end = rewound();
    end.outcome_of(14, 1, "delivered", 1_500);
    end.assert_bad("I4");
}

#[test]
fn i2_what_was_answered_and_is_in_no_final_state_where_all_are_told() {
    let mut h = good();
    h.options.finals_whole = true;
    for row in [1, 2, 4] {
        h.outcome(row, "delivered", 40);
    }
    assert_eq!(h.assert_bad("I2").figures.lost, 1);
    h.outcome(3, "delivered", 40);
    h.assert_good();
}

#[test]
fn i7_an_attempt_number_that_stays_after_a_failure_that_was_answered() {
    let mut h = History::new();
    h.rows(&[1], "u");
    h.send(1, 1, 503, 10);
    h.send(1, 1, 200, 1_500);
    h.assert_bad("I7");
    h.fault("kill", "deliver-1", 12, 12);
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
    let mut h = good();
    h.rows[0]["created_ms"] = i64::MAX.into();
    let too_far = h.rows[0].to_string();
    h.outcome(1, "dead_lettered", 0);
    h.finals[0].as_object_mut().unwrap().remove("at_ms");
    let undated = h.finals[0].to_string();
    for (input, text) in [
        ("rows", "{\"id\": 1}\n"),
        ("rows", "nonsense\n"),
        (
            "subscriptions",
            "{\"endpoint\": \"x\", \"tenant\": \"y\", \"path\": \"/\", \"patterns\": []}\n",
        ),
        ("rows", &too_far),
        ("finals", &undated),
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

#[test]
fn a_journal_that_goes_back_in_time_is_an_error_with_file_and_line() {
    let h = good();
    let mut inputs = h.inputs();
    let lines = [&h.journal[2], &h.journal[0]].map(|line| format!("{line}\n"));
    inputs.journals = vec![Source::Text(lines.concat())];
    let error = format!("{:#}", check(&inputs, &h.options).unwrap_err());
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn the_command_refuses_what_it_does_not_understand_and_a_run_without_rows() {
    let dir = std::env::temp_dir().join(format!("laneway-check-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let h = good();
    let lines = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    for (name, text) in [
        ("journal", lines(&h.journal)),
        ("rows", lines(&h.rows)),
        ("subscriptions", lines(&h.subscriptions)),
        ("none", String::new()),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let code = |rows: &str, more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_laneway-check"));
        command
            .current_dir(&dir)
            .args(["--journal", if rows == "none" { "none" } else { "journal" }]);
        command.args(["--rows", rows, "--subscriptions", "subscriptions"]).args(more);
        command.output().unwrap().status.code()
    };
    assert_eq!(code("rows", &[]), Some(0));
    assert_eq!(code("rows", &["--finals-whole", "yes"]), Some(1));
    for more in [
        &["--leases-told", "maybe"][..],
        &["--deadline-ms", "18446744073709551615"],
        &["--deadline-ms", "-1"],
        &["--deadline-ms"],
        &["--colour", "red"],
    ] {
        assert_eq!(code("rows", more), Some(2), "{more:?}");
    }
    assert_eq!(code("none", &[]), Some(2));
    std::fs::remove_dir_all(&dir).unwrap();
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
