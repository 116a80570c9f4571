//! Which test checks which row. A row that a feature to come has to add is in [`PENDING`].

/// A row and the test that injects, heals, drains and judges it.
pub(crate) struct Case {
    /// Its id in the matrix.
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) package: &'static str,
    /// The test's name with its module.
    pub(crate) test: &'static str,
}

const fn case(
    id: &'static str,
    what: &'static str,
    package: &'static str,
    test: &'static str,
) -> Case {
    Case { id, what, package, test }
}

const SYSTEM: &str = "laneway-system";
const DELIVER: &str = "laneway-deliver";
const COURIER: &str = "laneway-courier";

/// Rows that are checked.
pub(crate) const CASES: &[Case] = &[
    case(
        "K1",
        "broker kill -9 and restart",
        SYSTEM,
        "restarts::a_broker_that_is_killed_and_restarted_loses_nothing",
    ),
    case(
        "K6",
        "topic deleted and made again",
        SYSTEM,
        "topic_loss::a_topic_deleted_and_recreated_under_load_is_published_again_from_the_outbox",
    ),
    case(
        "K6t",
        "log truncated below acknowledged offsets",
        SYSTEM,
        "log_loss::a_log_truncated_below_acknowledged_offsets_is_published_again",
    ),
    case(
        "K7",
        "partitions increased under load",
        SYSTEM,
        "faults::k7_partitions_that_were_added_under_load_are_left_alone",
    ),
    case(
        "K8",
        "retention passed an unread record",
        SYSTEM,
        "log_loss::records_that_retention_took_unread_are_published_again",
    ),
    case(
        "K9",
        "rebalance storm",
        SYSTEM,
        "storm::consumers_joining_and_leaving_under_load_lose_and_reorder_nothing",
    ),
    case(
        "K11",
        "zombie that comes back in the middle of a send",
        SYSTEM,
        "zombie::a_paused_owner_that_comes_back_changes_nothing_and_is_counted",
    ),
    case(
        "K12",
        "poison records",
        DELIVER,
        "records::what_cannot_be_delivered_goes_to_quarantine_with_a_reason",
    ),
    case(
        "P1",
        "database crash, whole group",
        SYSTEM,
        "restarts::a_database_that_crashes_and_recovers_loses_nothing",
    ),
    case(
        "P4",
        "database paused",
        SYSTEM,
        "faults::p4_a_database_that_stands_still_costs_time_only",
    ),
    case(
        "P8",
        "commit whose reply was lost",
        SYSTEM,
        "faults::p8_a_commit_whose_reply_was_lost_is_found_again",
    ),
    case("T1", "wall clocks that jump", SYSTEM, "faults::t1_wall_clocks_that_jump_decide_nothing"),
    case("T4", "rolling restarts", SYSTEM, "faults::t4_rolling_restarts_repeat_nothing"),
    case(
        "kill points",
        "A1-A4, R1-R5, C1-C4, C7-C10: kill -9 exactly there",
        SYSTEM,
        "faults::kill_points_lose_and_reorder_nothing",
    ),
    case(
        "C8",
        "answered, not recorded: exactly the head is repeated",
        SYSTEM,
        "crash::killed_between_answer_and_settle_each_lane_repeats_exactly_its_head",
    ),
    case(
        "chaos",
        "faults drawn from a seed",
        SYSTEM,
        "chaos::faults_drawn_from_a_fixed_seed_lose_and_reorder_nothing",
    ),
    case(
        "D1",
        "a name without an address was not sent",
        COURIER,
        "faults::d1_a_name_without_an_address_was_not_sent",
    ),
    case(
        "D2",
        "a refused connection was not sent",
        COURIER,
        "faults::d2_a_refused_connection_was_not_sent",
    ),
    case(
        "D3",
        "a handshake that ends or stalls was not sent",
        COURIER,
        "faults::d3_a_handshake_that_ends_or_stalls_was_not_sent",
    ),
    case(
        "D4",
        "closed before it was read is unknown",
        COURIER,
        "faults::d4_closed_before_it_was_read_is_unknown",
    ),
    case(
        "D5",
        "read and then reset or closed is unknown",
        COURIER,
        "faults::d5_and_d6_read_and_then_reset_or_closed_is_unknown",
    ),
    case(
        "D6",
        "read and then reset or closed is unknown",
        COURIER,
        "faults::d5_and_d6_read_and_then_reset_or_closed_is_unknown",
    ),
    case(
        "D7",
        "no answer is unknown at the deadline",
        COURIER,
        "faults::d7_no_answer_is_unknown_at_the_deadline",
    ),
    case(
        "D8",
        "a head that drips is unknown at the deadline and the connection is closed",
        COURIER,
        "faults::d8_a_head_that_drips_is_unknown_at_the_deadline_and_the_connection_is_closed",
    ),
    case(
        "D9",
        "a status line counts though the body breaks off",
        COURIER,
        "faults::d9_a_status_line_counts_though_the_body_breaks_off",
    ),
    case(
        "D10",
        "an endless body is cut by time and by size",
        COURIER,
        "faults::d10_an_endless_body_is_cut_by_time_and_by_size",
    ),
    case(
        "D11",
        "what is no http answer is unknown",
        COURIER,
        "faults::d11_what_is_no_http_answer_is_unknown",
    ),
    case(
        "D12",
        "any status is given as it is",
        COURIER,
        "faults::d12_d13_and_d25_any_status_is_given_as_it_is",
    ),
    case(
        "D13",
        "any status is given as it is",
        COURIER,
        "faults::d12_d13_and_d25_any_status_is_given_as_it_is",
    ),
    case(
        "D15",
        "a protocol switch is a status and the connection is not used again",
        COURIER,
        "faults::d15_a_protocol_switch_is_a_status_and_the_connection_is_not_used_again",
    ),
    case(
        "D16",
        "a head without end is unknown and bounded",
        COURIER,
        "faults::d16_a_head_without_end_is_unknown_and_bounded",
    ),
    case(
        "D18",
        "a compressed body is kept as it came",
        COURIER,
        "faults::d18_a_compressed_body_is_kept_as_it_came",
    ),
    case(
        "D19",
        "an answer before the body was read counts",
        COURIER,
        "faults::d19_an_answer_before_the_body_was_read_counts",
    ),
    case(
        "D20",
        "a receiver that closes after each answer gets each request once",
        COURIER,
        "faults::d20_a_receiver_that_closes_after_each_answer_gets_each_request_once",
    ),
    case(
        "D21",
        "a kept connection that ends on its second request is unknown and not tried again",
        COURIER,
        "faults::d21_a_kept_connection_that_ends_on_its_second_request_is_unknown_and_not_tried_again",
    ),
    case(
        "D23",
        "redirects are a status and are never followed",
        COURIER,
        "faults::d23_redirects_are_a_status_and_are_never_followed",
    ),
    case(
        "D28",
        "a receiver that reads nothing is cut while the body is being sent",
        COURIER,
        "faults::d28_a_receiver_that_reads_nothing_is_cut_while_the_body_is_being_sent",
    ),
];

/// Rows that no test checks alone yet.
pub(crate) const PENDING: &[(&str, &str)] = &[
    ("K2", "broker stopped beyond the session timeout (drawn in chaos)"),
    ("K3", "slow broker (drawn in chaos)"),
    ("K4", "broker unreachable for one side (drawn in chaos)"),
    ("K10", "throttled consumer (drawn in chaos)"),
    ("P2", "one backend killed (drawn in chaos)"),
    ("P3", "all sessions terminated (drawn in chaos)"),
    ("P5", "slow database"),
    ("P6", "out of connections"),
    ("P7", "serialization failures"),
    ("P10", "failover that lost commits"),
    ("P11", "long transaction"),
    ("P12", "clock of the database's host"),
    ("T2", "a million waiting events in 512 MiB"),
    ("T6", "two versions"),
    ("C5", "intent stored, request not begun"),
    ("C6", "request under way"),
    ("D24", "Retry-After"),
    ("D25", "410"),
    ("D26", "a gateway's answer"),
    ("D27", "TLS"),
    ("D30", "answers that lie"),
    ("L1", "one endpoint blocked"),
    ("L2", "all endpoints flap"),
    ("L3", "recovery of a destination"),
    ("L4", "one hot lane"),
    ("L5", "5,000 endpoints time out"),
    ("L6", "1 MB payloads"),
    ("Q1", "reconciler"),
    ("Q2", "reconciler"),
    ("Q3", "reconciler"),
    ("H1", "probe token held"),
    ("H2", "holder of a probe claim dies"),
];
