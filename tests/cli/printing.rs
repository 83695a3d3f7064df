//! How rows are printed.

use super::setup::Home;

#[test]
fn each_format_prints_the_rows() {
    let home = Home::new();
    for (format, expected) in [
        ("table", "+-----+\n| one |\n+-----+\n| 1   |\n+-----+\n"),
        ("automatic", "+-----+\n| one |\n+-----+\n| 1   |\n+-----+\n"),
        ("csv", "one\n1\n"),
        ("tsv", "one\n1\n"),
        ("json", "[{\"one\":1}]\n"),
        ("ndjson", "{\"one\":1}\n"),
    ] {
        let printed = home.shell(&["--format", format, "-c", "select 1 as one"]).succeeds();
        assert_eq!(printed, expected, "{format}");
    }
}

#[test]
fn row_formats_are_not_cut_at_maxrows_and_tables_are() {
    let home = Home::new();
    let sql = "select value from generate_series(1, 100)";
    assert_eq!(home.shell(&["--format", "csv", "-c", sql]).succeeds().lines().count(), 101);
    let table = home.shell(&["--maxrows", "2", "-c", sql]).succeeds();
    assert!(table.contains("| 2     |\n| .") && !table.contains("| 3 "), "{table}");
}

#[test]
fn timing_is_printed_unless_quiet() {
    let home = Home::new();
    let ran = home.run(&["shell", "-c", "select 1"]).succeeds();
    assert!(ran.contains("1 row(s) fetched.") && ran.contains("Elapsed 0."), "{ran}");
    let ran = home.run(&["shell", "--format", "csv", "-c", "select 1 as one"]);
    assert_eq!(ran.stdout, "one\n1\n");
    assert!(ran.stderr.contains("Elapsed 0."), "{}", ran.stderr);
}
