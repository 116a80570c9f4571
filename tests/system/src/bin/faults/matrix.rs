//! Which tests check which row. What a feature to come has to add is in [`PENDING`].

/// A row and what injects, heals, drains and judges it.
pub(crate) struct Case {
    /// Its id in the matrix.
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    /// Whose integration tests they are.
    pub(crate) package: &'static str,
    /// Their names, with their modules.
    pub(crate) tests: &'static [&'static str],
}

/// A row that nothing checks yet.
pub(crate) struct Pending {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    /// What it waits for.
    pub(crate) why: &'static str,
}

const fn case(
    id: &'static str,
    what: &'static str,
    package: &'static str,
    tests: &'static [&'static str],
) -> Case {
    Case { id, what, package, tests }
}

const fn pending(why: &'static str, id: &'static str, what: &'static str) -> Pending {
    Pending { id, what, why }
}

const SYSTEM: &str = "laneway-system";
const DELIVER: &str = "laneway-deliver";
const COURIER: &str = "laneway-courier";
const RECONCILER: &str = "laneway-reconciler";
const STORE: &str = "laneway-store";

/// The kill points of one process are one test: they share its world.
const API: &[&str] = &["kill_points::an_api_killed_at_any_point_makes_one_event_for_each_key"];
const RELAY: &[&str] = &["kill_points::a_relay_killed_at_any_point_repeats_nothing_at_a_receiver"];
const POINTS: &[&str] = &["kill_points::a_deliver_killed_at_any_point_loses_and_reorders_nothing"];

const ASKING: &[&str] = &[
    "reconciler_kills::a_reconciler_killed_at_any_point_settles_each_unknown_once",
    "lookups::reconcilers_that_die_settle_every_unknown_once",
];

/// Rows that are checked; most of them by every `make test` too.
pub(crate) const CASES: &[Case] = &[
    case(
        "K1",
        "broker kill -9 and restart",
        SYSTEM,
        &["restarts::a_broker_that_is_killed_and_restarted_loses_nothing"],
    ),
    case(
        "K6",
        "topic deleted and made again",
        SYSTEM,
        &[
            "topic_loss::a_topic_deleted_and_recreated_under_load_is_published_again_from_the_outbox",
        ],
    ),
    case(
        "K6t",
        "log truncated below acknowledged offsets",
        SYSTEM,
        &["log_loss::a_log_truncated_below_acknowledged_offsets_is_published_again"],
    ),
    case(
        "K7",
        "partitions increased under load",
        SYSTEM,
        &["faults::k7_partitions_that_were_added_under_load_are_left_alone"],
    ),
    case(
        "K8",
        "retention passed an unread record",
        SYSTEM,
        &["log_loss::records_that_retention_took_unread_are_published_again"],
    ),
    case(
        "K9",
        "rebalance storm",
        SYSTEM,
        &["storm::consumers_joining_and_leaving_under_load_lose_and_reorder_nothing"],
    ),
    case(
        "K11",
        "zombie that comes back in the middle of its requests",
        SYSTEM,
        &["zombie::a_paused_owner_that_comes_back_changes_nothing_and_is_counted"],
    ),
    case(
        "K12",
        "poison records, and repeats of old ones",
        DELIVER,
        &[
            "records::what_cannot_be_delivered_goes_to_quarantine_with_a_reason",
            "records::repeats_and_records_of_endpoints_that_do_not_exist_complete_unsent",
            "poison::k12_what_anybody_with_the_brokers_rights_can_write_harms_nothing",
        ],
    ),
    case(
        "P1",
        "database crash, whole group",
        SYSTEM,
        &["restarts::a_database_that_crashes_and_recovers_loses_nothing"],
    ),
    case(
        "P4",
        "database paused, shorter and longer than a lease",
        SYSTEM,
        &["faults::p4_a_database_that_stands_still_costs_time_only"],
    ),
    case(
        "P8",
        "commit whose reply was lost",
        SYSTEM,
        &["lost_commits::p8_commits_whose_replies_are_lost_are_found_again_and_done_once"],
    ),
    case(
        "T1",
        "wall clocks that jump",
        SYSTEM,
        &["faults::t1_wall_clocks_that_jump_decide_nothing"],
    ),
    case(
        "T4",
        "ten rolling restarts of everything",
        SYSTEM,
        &["faults::t4_rolling_restarts_repeat_nothing"],
    ),
    case("A1", "API killed before BEGIN", SYSTEM, API),
    case("A2", "API killed after the advisory lock", SYSTEM, API),
    case("A3", "API killed after INSERT, before COMMIT", SYSTEM, API),
    case("A4", "API killed after COMMIT, before its answer", SYSTEM, API),
    case("A5", "API killed in the middle of its answer", SYSTEM, API),
    case("R1", "relay killed after reading a batch", SYSTEM, RELAY),
    case("R2", "relay killed after producing, before the acknowledgement", SYSTEM, RELAY),
    case("R3", "relay killed after the acknowledgement, before the cursor is saved", SYSTEM, RELAY),
    case("R4", "relay killed in the middle of a batch", SYSTEM, RELAY),
    case("R5", "relay killed holding a shard lease", SYSTEM, RELAY),
    case("C1", "deliver killed after poll", SYSTEM, POINTS),
    case("C2", "deliver killed before COMMIT of a settle transaction", SYSTEM, POINTS),
    case("C3", "deliver killed after COMMIT of a settle transaction", SYSTEM, POINTS),
    case("C4", "deliver killed in a rebalance", SYSTEM, POINTS),
    case(
        "C5",
        "deliver killed after the intent, before connecting",
        SYSTEM,
        &["kill_points::killed_around_a_request_of_a_hold_endpoint_its_outcome_is_unknown"],
    ),
    case(
        "C6",
        "deliver killed while the receiver has the request",
        SYSTEM,
        &[
            "kill_points::killed_while_a_request_is_under_way_it_is_sent_once_more",
            "kill_points::killed_around_a_request_of_a_hold_endpoint_its_outcome_is_unknown",
        ],
    ),
    case("C7", "deliver killed after the response's head", SYSTEM, POINTS),
    case(
        "C8",
        "deliver killed after the response, before the record",
        SYSTEM,
        &[
            "kill_points::a_deliver_killed_at_any_point_loses_and_reorders_nothing",
            "crash::killed_between_answer_and_settle_each_lane_repeats_exactly_its_head",
        ],
    ),
    case("C9", "deliver killed after the record, before the next head", SYSTEM, POINTS),
    case("C10", "deliver killed while dead-lettering", SYSTEM, POINTS),
    case(
        "D1",
        "a name without an address",
        COURIER,
        &["faults::d1_a_name_without_an_address_was_not_sent"],
    ),
    case("D2", "connection refused", COURIER, &["faults::d2_a_refused_connection_was_not_sent"]),
    case(
        "D3",
        "reset while connecting",
        COURIER,
        &["faults::d3_a_handshake_that_ends_or_stalls_was_not_sent"],
    ),
    case(
        "D4",
        "closed before reading",
        COURIER,
        &["faults::d4_closed_before_it_was_read_is_unknown"],
    ),
    case(
        "D5",
        "read, then RST",
        COURIER,
        &["faults::d5_and_d6_read_and_then_reset_or_closed_is_unknown"],
    ),
    case(
        "D6",
        "read, then FIN",
        COURIER,
        &["faults::d5_and_d6_read_and_then_reset_or_closed_is_unknown"],
    ),
    case("D7", "never answers", COURIER, &["faults::d7_no_answer_is_unknown_at_the_deadline"]),
    case(
        "D8",
        "a head that drips",
        COURIER,
        &["faults::d8_a_head_that_drips_is_unknown_at_the_deadline_and_the_connection_is_closed"],
    ),
    case(
        "D9",
        "200, then RST or FIN in the body",
        COURIER,
        &["faults::d9_a_status_line_counts_though_the_body_breaks_off"],
    ),
    case(
        "D10",
        "200, then a body without end",
        COURIER,
        &["faults::d10_an_endless_body_is_cut_by_time_and_by_size"],
    ),
    case("D11", "no HTTP", COURIER, &["faults::d11_what_is_no_http_answer_is_unknown"]),
    case("D12", "status 999", COURIER, &["faults::d12_d13_and_d25_any_status_is_given_as_it_is"]),
    case(
        "D13",
        "HTTP/1.0 without a length",
        COURIER,
        &["faults::d12_d13_and_d25_any_status_is_given_as_it_is"],
    ),
    case(
        "D15",
        "101 Switching Protocols",
        COURIER,
        &["faults::d15_a_protocol_switch_is_a_status_and_the_connection_is_not_used_again"],
    ),
    case(
        "D16",
        "a head that is too large",
        COURIER,
        &["faults::d16_a_head_without_end_is_unknown_and_bounded"],
    ),
    case("D18", "gzip bomb", COURIER, &["faults::d18_a_compressed_body_is_kept_as_it_came"]),
    case(
        "D19",
        "200 before the body was read",
        COURIER,
        &["faults::d19_an_answer_before_the_body_was_read_counts"],
    ),
    case(
        "D20",
        "closed after each answer",
        COURIER,
        &["faults::d20_a_receiver_that_closes_after_each_answer_gets_each_request_once"],
    ),
    case(
        "D21",
        "RST or FIN on a connection's second request",
        COURIER,
        &[
            "faults::d21_a_kept_connection_that_ends_on_its_second_request_is_unknown_and_not_tried_again",
        ],
    ),
    case(
        "D23",
        "redirects",
        COURIER,
        &["faults::d23_redirects_are_a_status_and_are_never_followed"],
    ),
    case(
        "D26",
        "408, 499, 502 and 504: a gateway's word",
        DELIVER,
        &["unknowns::d26_a_gateways_answer_is_unknown_unless_the_endpoint_takes_a_resend"],
    ),
    case(
        "D27",
        "TLS that does not come about",
        COURIER,
        &[
            "tls::d27_a_certificate_that_is_not_accepted_was_not_sent",
            "tls::d27_a_receiver_that_wants_a_certificate_was_not_sent",
            "tls::d27_a_handshake_that_comes_to_nothing_was_not_sent",
        ],
    ),
    case(
        "D28",
        "a receiver that reads nothing",
        COURIER,
        &["faults::d28_a_receiver_that_reads_nothing_is_cut_while_the_body_is_being_sent"],
    ),
    case(
        "D30",
        "a failure is answered and it was processed",
        DELIVER,
        &["unknowns::d30_a_failure_that_was_processed_is_sent_again_under_the_same_key"],
    ),
    case("Q1", "reconciler killed after asking", SYSTEM, ASKING),
    case("Q2", "reconciler killed after recording", SYSTEM, ASKING),
    case(
        "Q3",
        "reconciler killed half-way through a rewind",
        SYSTEM,
        &[
            "reconciler_kills::a_reconciler_killed_half_way_through_a_rewind_makes_one_series",
            "rewinds::a_rewind_under_kills_makes_one_series_in_order",
        ],
    ),
    case(
        "I12",
        "unknown is not failure, over the reconciler",
        SYSTEM,
        &[
            "kill_points::killed_around_a_request_of_a_hold_endpoint_its_outcome_is_unknown",
            "reconciler_kills::a_reconciler_killed_at_any_point_settles_each_unknown_once",
        ],
    ),
    case(
        "I13",
        "quiet period",
        RECONCILER,
        &["lookups::nobody_asks_before_the_request_can_have_ended"],
    ),
    case(
        "I14",
        "verdicts",
        RECONCILER,
        &[
            "lookups::only_a_definite_answer_settles_an_unknown",
            "lookups::an_answer_that_comes_too_late_counts_for_nothing",
            "reconciler_kills::a_reconciler_killed_at_any_point_settles_each_unknown_once",
        ],
    ),
    case(
        "I30",
        "a dead letter unblocks",
        STORE,
        &[
            "rules::a_rejected_payload_is_a_dead_letter_and_its_lane_goes_on",
            "rewinds::a_rewind_sends_every_dead_letter_once_more_in_the_order_of_its_lane",
        ],
    ),
    case(
        "I31",
        "rewind order",
        RECONCILER,
        &[
            "rewinds::a_rewind_under_kills_makes_one_series_in_order",
            "reconciler_kills::a_reconciler_killed_half_way_through_a_rewind_makes_one_series",
        ],
    ),
    case(
        "I32",
        "rewind identity",
        STORE,
        &[
            "rewinds::commands_at_once_make_one_series",
            "rewinds::a_rewind_that_dies_again_is_rewound_with_the_next_number",
        ],
    ),
    case("I33", "discard", STORE, &["rewinds::what_is_discarded_is_never_sent"]),
    case(
        "audit",
        "outbox and inbox compared, also after unknown outcomes",
        RECONCILER,
        &[
            "audit::a_row_that_is_deleted_is_found_and_named",
            "audit::each_broken_promise_has_its_name",
            "traffic::under_live_traffic_nothing_sound_is_found_and_what_is_broken_is",
            "traffic::what_is_missing_is_published_again_once_and_ends",
            "reconciler_kills::a_reconciler_killed_at_any_point_settles_each_unknown_once",
        ],
    ),
    // Those that follow take too long for every `make test`.
    case(
        "K2",
        "broker stopped, for less and for more than a session",
        SYSTEM,
        &["rows::kafka::k2_a_broker_that_stands_still_costs_time_only"],
    ),
    case(
        "K3",
        "slow broker",
        SYSTEM,
        &["rows::kafka::k3_a_slow_broker_makes_deliveries_late_and_nothing_else"],
    ),
    case(
        "K4",
        "broker unreachable for one side, or both",
        SYSTEM,
        &["rows::kafka::k4_what_does_not_reach_the_broker_catches_up"],
    ),
    case(
        "K5",
        "broker's disk full",
        SYSTEM,
        &["rows::kafka::k5_a_broker_whose_disk_is_full_loses_nothing"],
    ),
    case(
        "K10",
        "throttled consumer",
        SYSTEM,
        &["rows::kafka::k10_a_throttled_consumer_holds_nobody_up_for_good"],
    ),
    case(
        "P2",
        "one backend killed",
        SYSTEM,
        &["rows::postgres::p2_p3_sessions_that_end_are_opened_again"],
    ),
    case(
        "P3",
        "every session terminated, twice",
        SYSTEM,
        &["rows::postgres::p2_p3_sessions_that_end_are_opened_again"],
    ),
    case(
        "P5",
        "slow database, a hot row locked",
        SYSTEM,
        &["rows::postgres::p5_a_slow_database_and_a_locked_row_hold_up_what_needs_them"],
    ),
    case(
        "P9",
        "database's disk full",
        SYSTEM,
        &["rows::postgres::p9_a_database_whose_disk_is_full_loses_nothing"],
    ),
    case(
        "P11",
        "long transaction while the outbox grows",
        SYSTEM,
        &["rows::postgres::p11_a_long_transaction_makes_no_delivery_late"],
    ),
    case("L4", "one hot lane", SYSTEM, &["rows::load::l4_a_hot_lane_holds_up_nobody_else"]),
];

const LONG: &str = "not of the rows for every make test: comes with the whole proof";
const HEALTH: &str = "comes with endpoint health";
const TOTAL: &str = "comes with total order";
const UPGRADE: &str = "comes with deployment on Kubernetes";
const TRACES: &str = "comes with traces";
const INGEST: &str = "comes with the ingest";

/// Rows that no test checks alone yet; chaos draws some of their faults.
pub(crate) const PENDING: &[Pending] = &[
    pending(LONG, "P6", "out of connections"),
    pending(LONG, "P7", "serialization failures and deadlocks"),
    pending(LONG, "P10", "failover to a standby that lost commits"),
    pending(LONG, "P12", "clock of the database's host"),
    pending(LONG, "T2", "a million waiting events in 512 MiB"),
    pending(LONG, "L1", "one endpoint blocked, a million events"),
    pending(LONG, "L6", "large payloads"),
    pending(HEALTH, "D24", "Retry-After"),
    pending(HEALTH, "D25", "410"),
    pending(HEALTH, "L2", "all endpoints flap"),
    pending(HEALTH, "L3", "recovery with 50,000 waiting lanes"),
    pending(HEALTH, "L5", "5,000 endpoints time out"),
    pending(HEALTH, "H1", "killed while holding a probe"),
    pending(HEALTH, "H2", "holder of a probe claim dies"),
    pending(HEALTH, "I17", "backoff floor"),
    pending(HEALTH, "I18", "one probe"),
    pending(HEALTH, "I19", "monotone budget"),
    pending(HEALTH, "I20", "no flood"),
    pending(HEALTH, "I23", "Retry-After"),
    pending(HEALTH, "I24", "410 and disabled"),
    pending(TOTAL, "I25", "sequence"),
    pending(TOTAL, "I26", "whole range"),
    pending(TOTAL, "I27", "waiting is free"),
    pending(TOTAL, "I28", "gap release"),
    pending(TOTAL, "I29", "yields"),
    pending(UPGRADE, "T6", "two versions"),
    pending(UPGRADE, "I54", "upgrade"),
    pending(TRACES, "I51", "trace continuity"),
    pending(INGEST, "K12m", "poison records with a forged MAC"),
];
