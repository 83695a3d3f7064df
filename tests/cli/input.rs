//! Where statements come from: arguments, files, standard input.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use super::setup::Home;

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
