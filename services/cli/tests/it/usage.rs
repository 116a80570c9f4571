//! What scripts rely on: exit codes, and which stream says what.

use super::laneway;

#[test]
fn help_is_a_result_and_names_the_exit_codes() {
    let help = laneway(&["--help"], &[]);
    let text = help.ok();
    for word in [
        "relay",
        "deliver",
        "reconciler",
        "api",
        "dev",
        "emit",
        "dead-letters",
        "64  the configuration",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert_eq!(help.err(), "");
    assert!(laneway(&["--version"], &[]).ok().starts_with("laneway 0."));
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_so_on_standard_error() {
    for args in [
        &["frobnicate"][..],
        &[],
        &["emit"],
        &["emit", "--from", "-", "--project", "shop"],
        &["lanes", "show"],
        &["lanes", "show", "xyz"],
        &["lanes", "show", "--endpoint", "ep_0000000000000000000000"],
        &["keys", "create", "--project", "prj_0000000000000000000000", "--scope", "root"],
        &["unknowns", "resolve", "dlv_0000000000000000000000", "--as", "maybe", "--reason", "x"],
        &["projects", "create", "", "--database-url", "postgres://localhost/x"],
        &["migrate", "--database-url", "not a url"],
    ] {
        let ended = laneway(args, &[]);
        assert!(!ended.fails(2).is_empty(), "{args:?}");
        assert_eq!(ended.out(), "", "{args:?}");
    }
}

#[test]
fn a_database_that_is_away_ends_with_7_and_a_hint() {
    let port = laneway_testkit::free_port();
    let url = format!("postgres://laneway:hunter2@127.0.0.1:{port}/laneway");
    let told = laneway(&["migrate", "--database-url", &url], &[]).fails(7);
    assert!(told.starts_with("error: connecting to the database: "), "{told}");
    assert!(told.contains("hint: "), "{told}");
    assert!(!told.contains("hunter2") && !told.contains("stack backtrace"), "{told}");
}
