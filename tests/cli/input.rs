//! Where statements come from: arguments, files, standard input.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use super::setup::{Home, Ran};

#[test]
fn a_file_holds_many_statements() {
    let home = Home::new();
    let file = home.write(
        "a.sql",
        "-- one; two\ncreate view v as select 'a;b' as t;\nselect t from v; select 2 /* ; */ as two",
    );
    let printed = home.shell(&["--format", "csv", "-f", &file, "-c", "select 3 as three;"]);
    assert_eq!(printed.succeeds(), "t\na;b\ntwo\n2\nthree\n3\n");
}

#[test]
fn standard_input_is_run_when_it_is_no_terminal() {
    let home = Home::new();
    let mut command = home.command(&["shell", "-q", "--format", "csv"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(b"select 1\nas one;\n").unwrap();
    let mut answer = String::new();
    // A statement runs as soon as it is there.
    stdout.read_line(&mut answer).unwrap();
    stdout.read_line(&mut answer).unwrap();
    assert_eq!(answer, "one\n1\n");
    stdin.write_all(b"\\pset format json\nselect 2 as two").unwrap();
    drop(stdin);
    stdout.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "one\n1\nOutput format is Json.\n[{\"two\":2}]\n");
    assert!(child.wait().unwrap().success());
}

/// They are as deep as the text is long, and a stack that overflows ends the process without a word.
#[test]
fn statements_that_are_too_deep_are_refused() {
    let home = Home::new();
    let sum = |terms: usize| format!("select 1{} as n", " + 1".repeat(terms));
    for (text, said) in [
        (format!("{}select 1", "explain ".repeat(1288)), "more than 100 EXPLAIN"),
        (format!("select {}'1'", "interval ".repeat(1500)), "more than 100 EXPLAIN"),
        (format!("select 1{}", " union all select 1".repeat(2390)), "more than 1000 UNION"),
        (format!("select 1{}", " cross join (select 1)".repeat(2390)), "more than 300 JOIN"),
        (sum(2600), "more than 1000 operators"),
        (format!("select {}1{}", "(".repeat(20_000), ")".repeat(20_000)), "nested too deeply"),
    ] {
        let file = home.write("deep.sql", &text);
        let error = home.shell(&["-f", &file]).fails();
        assert!(error.contains(said), "{said}: {error}");
    }
    // Each statement is judged by itself.
    let file = home.write("many.sql", &format!("{};\n{};", sum(600), sum(600)));
    assert_eq!(home.shell(&["--format", "csv", "-f", &file]).succeeds(), "n\n601\nn\n601\n");
}

#[test]
fn errors_in_files_name_the_place() {
    let home = Home::new();
    let file = home.write("b.sql", "create view v as select 1;\n\nselect * from\n  nowhere;\n");
    let message = home.shell(&["-f", &file]).fails();
    assert!(message.starts_with(&format!("error: {file}:3: table")), "{message}");
    let file = home.write("c.sql", "select 1;\nselect * fro t;\n");
    let message = home.shell(&["-f", &file]).fails();
    assert!(message.starts_with(&format!("error: {file}: syntax error")), "{message}");
    assert!(message.contains("Line: 2"), "{message}");
    let message = home.shell(&["-f", "missing.sql"]).fails();
    assert!(message.starts_with("error: missing.sql: No such file"), "{message}");
}

#[test]
fn a_text_may_begin_with_a_comment() {
    let home = Home::new();
    let printed = home.shell(&["--format", "csv", "-c", "-- note\nselect 1 as one"]).succeeds();
    assert_eq!(printed, "one\n1\n");
    assert_eq!(home.shell(&["-c", "-- only a note"]).succeeds(), "");
}

/// Editors of some systems begin a file with a mark that says how it is encoded.
#[test]
fn a_text_may_begin_with_a_byte_order_mark() {
    let home = Home::new();
    let (text, printed) = ("\u{feff}\\pset format csv\nselect 1 as one;", "one\n1\n");
    let file = home.write("a.sql", text);
    let bare = "\u{feff}select 1 as one";
    let bare_file = home.write("b.sql", bare);
    for ran in [
        home.shell(&["--format", "csv", "-f", &bare_file]),
        home.shell(&["--format", "csv", "-c", bare]),
        home.shell(&["-f", &file, "-f", &bare_file]),
    ] {
        assert!(ran.succeeds().ends_with(printed));
    }
    let mut command = home.command(&["shell", "-q", "--format", "csv"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bare.as_bytes()).unwrap();
    assert_eq!(Ran::of(child.wait_with_output().unwrap()).stdout, printed);
}

/// Commands stand between statements, wherever these come from.
#[test]
fn commands_and_statements_are_mixed() {
    let home = Home::new();
    let inner = home.write("inner.sql", "select 'inner' as x;\n\\q\nselect 'not reached';");
    let text = format!(
        "\\pset format csv\nselect 1 as one;\n  \\i {inner}\n-- \\no\nselect '\\\\q' as q;\n\\q\nselect 2"
    );
    let expected = "Output format is Csv.\none\n1\nx\ninner\nq\n\\\\q\n";
    let file = home.write("outer.sql", &text);
    assert_eq!(home.shell(&["-f", &file]).succeeds(), expected);
    assert_eq!(home.shell(&["-c", &text]).succeeds(), expected);
    let mut command = home.command(&["shell", "-q"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert_eq!(Ran::of(child.wait_with_output().unwrap()).stdout, expected);
}

#[test]
fn errors_of_commands_name_the_place_and_files_do_not_include_each_other_for_ever() {
    let home = Home::new();
    let file = home.write("a.sql", "select 1;\n\n\\nonsense\n");
    let ran = home.shell(&["--format", "csv", "-f", &file]);
    assert!(
        ran.stderr.starts_with(&format!("error: {file}:3: there is no command")),
        "{}",
        ran.stderr
    );
    let file = home.write("b.sql", "\\d\nselect 1;\nselect * fro t;");
    let ran = home.shell(&["-f", &file]).fails();
    assert!(ran.contains("b.sql: syntax error") && ran.contains("Line: 3"), "{ran}");
    let file = home.write("c.sql", "\\i c.sql\n");
    let message = home.shell(&["-f", &file]).fails();
    assert!(message.contains("16 files include each other"), "{message}");
}

/// Patterns are understood behind a scheme too, and stores are opened by whatever names them.
#[test]
fn files_are_read_by_url() {
    let home = Home::new();
    for name in ["files/a.txt", "files/b.txt", "files/more/c.txt", "files/d.csv"] {
        home.write(name, "text");
    }
    let folder = format!("file://{}", home.path("files").display());
    for (pattern, count) in [("*.txt", 2), ("**/*.txt", 3), ("a.txt", 1), ("more/*", 1)] {
        let sql = format!("SELECT count(bytes) AS n FROM read_files('{folder}/{pattern}')");
        let rows = home.shell(&["--format", "csv", "-c", &sql]).succeeds();
        assert_eq!(rows, format!("n\n{count}\n"), "{pattern}");
    }
    for (url, expected) in [
        ("az://bucket/a", "error: az://bucket/a: 'az' is not a kind of store that is read or "),
        ("http://127.0.0.1:9/*", "error: http://127.0.0.1:9/: no answer: Connection refused"),
        ("s3://*/a", "error: 's3://*/a': the name of a bucket or of a server cannot have"),
    ] {
        let message = home.shell(&["-c", &format!("FROM read_files('{url}')")]).fails();
        assert!(message.starts_with(expected), "{message}");
    }
}
