//! Histories that keep every promise.

use crate::history::{History, delivery, event};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_lane_delivered_in_order_is_good() {
    let mut h = History::new();
    h.rows(&[1, 2, 3], "u");
    for (row, at) in [(1, 10), (2, 20), (3, 30)] {
        h.send(row, 1, 200, at);
    }
    let figures = h.assert_good().figures;
    assert_eq!((figures.events, figures.deliveries, figures.lost), (3, 3, 0));
    assert_eq!((figures.order_violations, figures.duplicates, figures.dead_letters), (0, 0, 0));
    assert_eq!(
        (figures.p50_ms, figures.p99_ms, figures.p99_all_ms),
        (Some(22.0), Some(32.0), Some(32.0))
    );
}

#[test]
fn a_failing_head_that_makes_its_lane_wait_is_good() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.rows(&[3], "v");
    h.send(1, 1, 503, 10);
    h.send(3, 1, 200, 11);
    h.send(1, 2, 503, 1_010);
    h.request(1, 3, 2, 3_010); // no answer: unknown, sent again
    h.send(1, 4, 204, 9_000);
    h.send(2, 1, 200, 9_010);
    assert_eq!(h.assert_good().figures.deliveries, 3);
}

#[test]
fn different_lanes_and_endpoints_overlap_as_they_like() {
    let mut h = History::new();
    h.row(1, "order.paid", Some("u"), 0);
    h.row(2, "order.paid", Some("v"), 0);
    h.row(3, "order.paid", None, 0);
    h.row(4, "order.paid", None, 0);
    for (conn, (path, row)) in
        [("/b", 2), ("/a", 4), ("/a", 1), ("/b", 1), ("/a", 3), ("/b", 4), ("/a", 2), ("/b", 3)]
            .into_iter()
            .enumerate()
    {
        h.request_to(path, row, 1, conn as u64, 10 + conn as i64);
    }
    for path in ["/a", "/b"] {
        for row in 1..=4 {
            h.response_to(path, row, 200, 1, 30);
        }
    }
    assert_eq!(h.assert_good().figures.deliveries, 8);
}

#[test]
fn a_repeat_after_its_owner_was_killed_is_explained() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.send(1, 1, 200, 10);
    h.fault("kill", "deliver-1", 15, 2_000);
    h.request(1, 1, 7, 6_000);
    h.response(1, 200, 7, 6_001);
    h.request(2, 1, 7, 6_010);
    h.response(2, 200, 7, 6_011);
    let figures = h.assert_good().figures;
    assert_eq!((figures.duplicates, figures.duplicates_explained), (1, 1));
    assert_eq!((figures.deliveries, figures.lost), (2, 0));
}

// Between the answer and the record: what the database says came of the second one.
#[test]
fn a_crash_between_answer_and_record_is_explained() {
    for (kind, lanes) in [("kill", false), ("lease_lost", true)] {
        let mut h = History::new();
        h.rows(&[1, 2], "u");
        h.deadline(2_000);
        h.options.lease = Duration::from_secs(3);
        h.options.leases_told = true;
        h.request(1, 1, 5, 1_000);
        h.response(1, 200, 5, 1_002);
        let fault = h.fault(kind, "deliver-1", 1_005, 4_000);
        if lanes {
            (fault["start_ms"], fault["lanes"]) =
                ((1_796_000_000_000_i64).into(), json!([["/a", "u"]]));
        }
        h.request(1, 1, 2, 7_000);
        h.response(1, 200, 2, 7_002);
        h.outcome(1, "delivered", 7_004);
        h.send(2, 1, 200, 7_100);
        h.outcome(2, "delivered", 7_104);
        let figures = h.assert_good().figures;
        assert_eq!((figures.duplicates, figures.duplicates_explained), (1, 1), "{kind}");
    }
}

/// Seen by `make chaos`: a cut way held the first attempt back until the second one had been refused for good.
#[test]
fn a_late_request_may_come_behind_its_dead_letter() {
    for (late, cut, is_good) in [(1, true, true), (1, false, false), (2, true, false)] {
        let mut h = History::new();
        h.rows(&[1], "u");
        if cut {
            h.fault("cut", "link", 1_000, 4_000)["endpoint"] = "/a".into();
        }
        h.send(1, 2, 400, 4_500);
        h.outcome(1, "dead_lettered", 4_510);
        h.send(1, late, 400, 5_000);
        if is_good {
            h.assert_good();
        } else {
            assert!(h.verdict().broken().contains(&"I3"));
        }
    }
}

#[test]
fn a_dead_lettered_head_lets_the_next_one_go() {
    let mut h = History::new();
    h.rows(&[1, 2, 3, 4], "u");
    h.send(1, 1, 400, 10);
    h.outcome(1, "dead_lettered", 13);
    h.outcome(2, "discarded", 14);
    h.send(3, 1, 200, 20);
    h.request(4, 1, 1, 30);
    h.outcome(4, "held", 40);
    let figures = h.assert_good().figures;
    assert_eq!(
        (figures.deliveries, figures.dead_letters, figures.held, figures.lost),
        (1, 1, 1, 0)
    );
}

#[test]
fn a_response_line_written_down_just_after_the_next_request_is_no_overlap() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.request(1, 1, 1, 10);
    h.request(2, 1, 2, 12);
    h.response(1, 200, 1, 13);
    h.response(2, 200, 2, 14);
    h.assert_good();
}

#[test]
fn a_success_that_broke_off_after_its_status_counts_as_the_database_says() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    let line = h.request(1, 1, 1, 10);
    line["behaviour"] = "reset_mid_body".into();
    line["status"] = 200.into();
    h.outcome(1, "delivered", 15);
    h.send(2, 1, 200, 20);
    assert_eq!(h.assert_good().figures.deliveries, 2);
}

#[test]
fn a_delivery_that_a_person_resolved_needs_no_answer() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.request(1, 1, 1, 10);
    h.outcome(1, "delivered", 5_000);
    h.finals[0]["resolved"] = true.into();
    h.send(2, 1, 200, 6_000);
    assert_eq!(h.assert_good().figures.deliveries, 2);
}

#[test]
fn lost_replies_are_explained_by_what_lost_them() {
    // Each: what happened, when; then the repeat.
    for (kind, target, from, to, endpoint) in [
        ("door_shut", "receiver", 12, 20_000, Some("/a")),
        ("pause", "deliver-2", 11, 4_000, None),
        ("cut", "deliver-2", 5, 4_000, None),
        ("restart", "postgres", 11, 3_000, None),
    ] {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.send(1, 1, 200, 10);
        h.send(1, 2, 200, 25_000);
        let fault = h.fault(kind, target, from, to);
        if let Some(endpoint) = endpoint {
            fault["endpoint"] = endpoint.into();
        }
        let figures = h.assert_good().figures;
        assert_eq!((figures.duplicates, figures.duplicates_explained), (1, 1), "{kind}");
    }
    let mut late = History::new();
    late.rows(&[1], "u");
    late.request(1, 1, 1, 10);
    late.response(1, 200, 1, 2_020);
    late.send(1, 2, 200, 3_100);
    late.assert_bad("I3");
    late.deadline(2_000);
    late.assert_good();
}

#[test]
fn a_straggler_of_a_paused_owner_is_explained() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.request(1, 1, 1, 10); // stopped before it read the answer
    h.response(1, 200, 1, 11);
    h.fault("pause", "deliver-1", 10, 9_000);
    h.send(1, 1, 200, 7_000);
    h.send(2, 1, 200, 7_100);
    h.fault("pause", "deliver-1", 7_050, 9_000);
    h.request(1, 1, 2, 9_001);
    h.assert_good();
}

#[test]
fn what_an_owner_could_not_record_before_its_lease_was_lost_is_sent_again() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.rows(&[3], "v");
    h.deadline(2_000);
    h.send(1, 1, 200, 10);
    h.request(3, 2, 3, 2_900); // begun within the lease, answered after it
    h.response(3, 200, 3, 4_500);
    let lanes = json!([["/a", "u"], ["/a", "v"], ["/a", "nobody"]]);
    h.fault("lease_lost", "deliver-1", 0, 3_000)["lanes"] = lanes;
    h.send(1, 1, 200, 7_000);
    h.send(3, 1, 200, 7_000); // of the second attempt nothing was recorded either
    h.send(2, 1, 200, 7_100);
    let figures = h.assert_good().figures;
    assert_eq!((figures.duplicates, figures.duplicates_explained), (2, 2));
}

#[test]
fn a_request_that_the_network_held_back_arrives_late() {
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.fault("cut", "link", 1_000, 4_000)["endpoint"] = "/a".into();
    h.send(1, 2, 200, 4_100); // the first attempt was given up at its deadline
    h.send(2, 1, 200, 4_150);
    h.send(1, 1, 200, 4_200);
    h.assert_good();
}

#[test]
fn a_reply_that_was_lost_on_its_way_is_repeated() {
    let mut h = History::new();
    h.rows(&[1], "u");
    h.request(1, 1, 1, 1_500)["status"] = 200.into();
    h.response(1, 200, 1, 1_502);
    h.send(1, 1, 200, 3_000);
    h.fault("cut", "link", 1_000, 2_000)["endpoint"] = "/a".into();
    let verdict = h.assert_good();
    assert_eq!((verdict.figures.duplicates, verdict.figures.max_in_flight_per_lane), (1, 1));
}

/// Seen by `make chaos` on a busy machine: what the cut way held was read half a second after it was whole again, by when
/// its sender had given it up.
#[test]
fn a_request_that_was_held_is_answered_in_vain_until_a_deadline_after_the_cut() {
    for (read, is_good) in [(3_900, true), (4_500, false)] {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.deadline(2_000);
        h.send(1, 1, 200, read);
        h.send(1, 2, 200, read + 240);
        h.fault("cut", "link", 1_000, 2_000)["endpoint"] = "/a".into();
        if is_good {
            h.assert_good();
        } else {
            h.assert_bad("I3");
        }
    }
}

/// Seen by `make chaos`: the receiver took a second for its answer, and the sender died in it.
#[test]
fn an_owner_that_dies_before_the_answer_is_written_has_not_recorded_it() {
    for (killed, is_good) in [(500, true), (150, false)] {
        let mut h = History::new();
        h.rows(&[1], "u");
        h.request(1, 1, 7, 300)["status"] = 200.into();
        h.response(1, 200, 7, 1_300);
        h.send(1, 1, 200, 7_000);
        h.fault("kill", "deliver-1", killed, killed);
        if is_good {
            h.assert_good();
        } else {
            h.assert_bad("I3"); // it never had the request
        }
    }
}

#[test]
fn a_way_that_stays_cut_loses_one_reply_after_the_other() {
    let mut h = History::new();
    h.rows(&[1], "u");
    for at in [1_500, 4_000, 9_000] {
        h.send(1, 1, 200, at);
    }
    h.fault("cut", "link", 1_000, 6_000)["endpoint"] = "/a".into();
    assert_eq!(h.assert_good().figures.duplicates, 2);
    h.send(1, 1, 200, 12_000);
    h.assert_bad("I3");
}

#[test]
fn untouched_times_leave_out_what_a_fault_was_aimed_at() {
    let mut h = History::new();
    for (row, key) in [(1, "u"), (2, "v"), (3, "w")] {
        h.rows(&[row], key);
    }
    h.send(1, 1, 200, 10);
    h.send(2, 1, 503, 10);
    h.send(2, 2, 200, 15_000);
    h.send(3, 1, 200, 18_000);
    let fault = h.fault("key_failing", "receiver", 5, 15_000);
    (fault["endpoint"], fault["key"]) = ("/a".into(), "v".into());
    h.journal.sort_by_key(|line| line["ns"].as_i64());
    let figures = h.assert_good().figures;
    assert_eq!((figures.p50_ms, figures.p99_ms), (Some(12.0), Some(18_002.0)));
    h.faults[0]["key"] = json!("w");
    let figures = h.assert_good().figures;
    assert_eq!((figures.p99_ms, figures.p99_all_ms), (Some(15_002.0), Some(18_002.0)));
    h.faults[0].as_object_mut().unwrap().remove("key");
    assert_eq!(h.assert_good().figures.p99_ms, None);
}

#[test]
fn several_journals_are_one_history_and_a_line_cut_off_at_the_end_is_none() {
    let mut h = History::new();
    h.row(1, "order.paid", Some("u"), 0);
    h.row(2, "order.paid", Some("u"), 0);
    for (path, row, at) in [("/a", 1, 10), ("/b", 1, 11), ("/b", 2, 20), ("/a", 2, 21)] {
        h.request_to(path, row, 1, 1, at);
        h.response_to(path, row, 200, 1, at + 2);
    }
    h.assert_good();
    let mut inputs = h.inputs();
    let of = |path: &str| {
        let lines = h.journal.iter().filter(|line| line["path"] == path);
        let text = lines.map(|line| format!("{line}\n")).collect::<String>();
        laneway_checker::Source::Text(text + "{\"kind\":\"requ")
    };
    inputs.journals = vec![of("/a"), of("/b")];
    let verdict = laneway_checker::check(&inputs, &h.options).unwrap();
    assert!(verdict.holds(), "{verdict:#?}");
    assert_eq!(verdict.figures.deliveries, 4);
}

#[test]
fn an_endpoint_without_order_and_rows_without_a_lock_have_no_order_to_keep() {
    let mut h = History::new();
    h.subscriptions[0]["order"] = "none".into();
    h.rows(&[1, 2], "u");
    h.send(2, 1, 200, 10);
    h.send(1, 1, 200, 20);
    h.assert_good();
    let mut h = History::new();
    h.rows(&[1, 2], "u");
    h.rows[0]["ordered"] = false.into();
    h.send(2, 1, 200, 10);
    h.send(1, 1, 200, 20);
    h.assert_good();
}

#[test]
fn ids_are_read_in_both_forms() {
    let mut h = History::new();
    h.rows(&[62], "u");
    h.rows[0]["event"] = format!("{:032x}", 6 * 62 + 2).into();
    assert_eq!((event(62).as_str(), delivery(62, "/a").len()), ("evt_0000000000000000000062", 26));
    h.send(62, 1, 200, 10);
    h.assert_good();
}
