//! Messages for people.

use super::setup::Home;

#[test]
fn errors_are_readable_and_end_the_run() {
    let home = Home::new();
    let add = home.run(&["model", "add", "echo", &home.package("echo", 1)]);
    assert_eq!(add.status, Some(0), "{}", add.stderr);
    for (sql, expected) in [
        ("select * from nowhere", "error: table 'nowhere' not found"),
        ("selec 1", "error: syntax error: expected: an SQL statement, found: selec"),
        ("select 'a", "error: syntax error: unterminated string literal"),
        (
            "select ml_predict(MODEL eco, 1)",
            "error: model 'eco' does not exist (did you mean 'echo'?)",
        ),
        ("select sum('a')", "error: no function matches the given name and argument types"),
        ("select image_decode()", "error: image_decode has 0 arguments, expected image_decode("),
        ("select image_info('a')", "error: image_info: bytes is of type utf8, expected binary"),
        ("select cosine_distance(1)", "error: cosine_distance function requires 2 arguments"),
        ("select cast('x' as int)", "error: cannot cast string 'x'"),
        ("create model m location 'none'", "error: model package none: no such folder"),
    ] {
        let message = home.shell(&["-c", sql, "-c", "select 'not reached'"]).fails();
        assert!(message.to_lowercase().starts_with(&expected.to_lowercase()), "{sql}: {message}");
        assert!(!message.contains("Error"), "{sql}: {message}");
    }
}

#[test]
fn an_emulated_model_needs_an_emulated_accelerator() {
    let home = Home::new();
    home.run(&["model", "add", "echo", &home.package("echo", 1)]).succeeds();
    let message = home.run(&["shell", "-c", "select ml_predict(MODEL echo, 1)"]).fails();
    assert!(message.contains("--emulated-accelerators 1"), "{message}");
}
