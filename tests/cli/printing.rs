//! How rows are printed.

use std::process::Command;

use super::setup::{Home, Ran};

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

/// `FROM t` alone is a query of all columns, wherever SQL is read.
#[test]
fn from_without_select_selects_everything() {
    let home = Home::new();
    let table = home.shell(&["-c", "FROM generate_series(1,100)"]).succeeds();
    assert!(table.contains("| value |") && table.contains("| 40    |\n| ."), "{table}");
    assert!(!table.contains("| 41 "), "{table}");
    let script = "CREATE TABLE t AS FROM (VALUES (1, 'a')) AS v(n, s); CREATE VIEW w AS FROM t;
        FROM w UNION ALL FROM t LIMIT 2; SELECT (SELECT n FROM (FROM t)) AS n";
    let rows = home.shell(&["--format", "csv", "-c", script]).succeeds();
    assert_eq!(rows, "n,s\n1,a\n1,a\nn\n1\n");
}

#[test]
fn rows_without_columns_are_counted() {
    let home = Home::new();
    let sql = "SELECT FROM generate_series(1,100)";
    for (format, rows) in
        [("table", ""), ("csv", ""), ("ndjson", &*"{}\n".repeat(100)), ("tsv", "")]
    {
        assert_eq!(home.shell(&["--format", format, "-c", sql]).succeeds(), rows, "{format}");
    }
    let json = home.shell(&["--format", "json", "-c", "SELECT FROM generate_series(1,2)"]);
    assert_eq!(json.succeeds(), "[{},{}]\n");
    let counted = home.run(&["shell", "-c", sql]).succeeds();
    assert!(counted.starts_with("100 row(s) fetched."), "{counted}");
}

#[test]
fn maxrows_counts_rows_not_lines() {
    let home = Home::new();
    let sql = "SELECT E'a\\nb\\nc' AS x, value FROM generate_series(1, 4)";
    let table = home.shell(&["--maxrows", "2", "-c", sql]).succeeds();
    let row = |value| format!("| a\\nb\\nc | {value}     |\n");
    assert!(table.contains(&row(1)) && table.contains(&(row(2) + "| .")), "{table}");
    assert!(!table.contains(&row(3)), "{table}");
    // Whole values keep their lines.
    let table = home.shell(&["--whole", "--maxrows", "1", "-c", sql]).succeeds();
    assert!(table.contains("| a | 1     |\n| b |       |\n| c |       |\n| ."), "{table}");
    assert_eq!(
        home.shell(&["--maxrows", "0", "-c", "SELECT 1 AS a"]).succeeds().lines().count(),
        7
    );
}

/// What a value holds is seen, and does not steer the terminal.
#[test]
fn control_characters_are_escaped_in_tables_and_messages() {
    let home = Home::new();
    let red = "chr(27) || '[31mred'";
    let table = format!("SELECT {red} || chr(13) || chr(8238) AS x, 1 AS \"a\tb\"");
    for whole in [&["--whole"][..], &[]] {
        let table = home.shell(&[whole, &["-c", &table]].concat()).succeeds();
        assert!(table.contains("| \\u{1b}[31mred\\r\\u{202e} |"), "{table}");
        assert!(table.contains("| a\\tb |"), "{table}");
    }
    let message = home.shell(&["-c", &format!("SELECT CAST({red} AS INT)")]).fails();
    assert!(message.contains("\\u{1b}[31mred") && !message.contains('\u{1b}'), "{message}");
}

/// Vectors, images and long texts are shortened; whole values are there on request, and in the
/// formats for programs.
#[test]
fn large_values_are_shortened_in_tables() {
    let home = Home::new();
    let sql = "SELECT range(0, 150000) AS list, repeat('x', 5000) AS text, NULL::FLOAT[] AS none,
        encode(repeat('x', 100)::BYTEA, 'hex')::BYTEA AS bytes, {'a': range(0, 20)} AS s";
    let table = home.shell(&["-c", sql]).succeeds();
    for expected in [
        "| [0, 1, 2, 3, …] (150000) |",
        "xxx… | NULL | 3738373837383738… (200 bytes) |",
        "| {a: [0, 1, 2, 3, …] (20)} |",
    ] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    assert!(table.len() < 20_000, "{}", table.len());
    let list = "SELECT range(0, 150000) AS list";
    for arguments in [&["--whole"][..], &["--format", "csv"], &["--format", "json"]] {
        let whole = home.shell(&[arguments, &["-c", list]].concat()).succeeds();
        assert!(whole.replace(' ', "").contains("149998,149999]"), "{arguments:?}");
    }
    let toggled = home.shell(&["-c", "\\whole true\nSELECT range(0, 20) AS a;\n\\whole false"]);
    let toggled = toggled.succeeds();
    assert!(toggled.starts_with("Values of tables are whole.\n"), "{toggled}");
    assert!(toggled.contains(", 18, 19]") && toggled.ends_with("are shortened.\n"), "{toggled}");
}

/// Runs a command on a terminal of 60 columns, and prints what arrives there.
const ON_A_TERMINAL: &str = "
import fcntl, os, pty, struct, sys, termios
child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 60, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
try:
    while some := os.read(terminal, 65536):
        sys.stdout.buffer.write(some)
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[test]
fn tables_are_as_wide_as_the_terminal() {
    let home = Home::new();
    let sql = "SELECT 1 AS id, repeat('long ', 100) AS text, range(0, 1000) AS list,
        'short' AS word FROM range(0, 3)";
    let shell = home.command(&["shell", "-q", "-c", sql]);
    let mut terminal = Command::new("python3");
    terminal
        .args(["-c", ON_A_TERMINAL])
        .arg(shell.get_program())
        .args(shell.get_args())
        .current_dir(home.dir.path())
        .envs(shell.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let table = Ran::of(terminal.output().unwrap()).succeeds();
    let widths = table.lines().map(|line| line.trim_end_matches('\r').chars().count());
    assert_eq!(widths.collect::<Vec<_>>(), [60; 7], "{table}");
    assert!(table.contains("| short |") && table.contains("…"), "{table}");
}

#[test]
fn json_rows_have_all_columns() {
    let home = Home::new();
    let sql = "SELECT NULL AS a, 1 AS b, CAST(NULL AS VARCHAR) AS c, {'d': NULL} AS s";
    let row = r#"{"a":null,"b":1,"c":null,"s":{"d":null}}"#;
    let printed = |format| home.shell(&["--format", format, "-c", sql]).succeeds();
    assert_eq!(printed("json"), format!("[{row}]\n"));
    assert_eq!(printed("ndjson"), format!("{row}\n"));
}
