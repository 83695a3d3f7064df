//! How a run ends: cancelled, without a reader, without a disk.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::setup::{Home, Ran};

#[test]
fn ctrl_c_cancels_a_batch_run() {
    let home = Home::new();
    // 10,000 batches of four rows, 50 ms each.
    home.run(&["model", "add", "slow", &home.package("slow", 50)]).succeeds();
    let sql = "select * from ml_predict((select value as n from generate_series(1, 40000)),
        MODEL slow, DESCRIPTOR(n))";
    let shell = ["shell", "--cpus", "1", "--emulated-accelerators", "1", "--format", "csv"];
    let mut command = home.command(&[&shell[..], &["-c", sql]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "n,digest");
    // The first row: the model is at work.
    assert!(lines.next().unwrap().unwrap().contains(','));
    let cancelled = Instant::now();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let status = child.wait().unwrap();
    assert!(cancelled.elapsed() < Duration::from_secs(20), "{:?}", cancelled.elapsed());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(130), "cancelled\n"));
}

/// Nobody reads the rows: the pipe is full, and writing to it waits for ever.
#[test]
fn ctrl_c_is_heard_while_rows_are_printed() {
    let home = Home::new();
    for arguments in [&["--format", "csv"][..], &["--format", "json"], &["--whole"]] {
        let sql = match arguments {
            ["--whole"] => "select repeat('x', 10000000) as text from range(0, 40)",
            _ => "select repeat('x', 100) as text from range(0, 1000000000)",
        };
        let mut command = home.command(&[&["shell", "-q", "-c", sql], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 6]).unwrap();
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        let status = child.wait().unwrap();
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(130), "cancelled\n"), "{arguments:?}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let home = Home::new();
    let sql = "select value from generate_series(1, 1000000)";
    let mut command = home.command(&["shell", "-q", "--format", "csv", "-c", sql]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = Ran::of(child.wait_with_output().unwrap());
    assert_eq!((output.status, output.stderr.as_str()), (Some(141), ""));
}

#[test]
fn a_result_that_cannot_be_written_is_an_error_and_leaves_no_file() {
    let home = Home::new();
    let package = home.package("echo", 0);
    home.shell(&["-c", &format!("CREATE MODEL echo LOCATION '{package}'")]).succeeds();
    let sql = "COPY (SELECT * FROM ml_predict((SELECT value AS n FROM range(0, 100000)), \
               MODEL echo, DESCRIPTOR(n), max_batch_rows => 10000, batch_window_rows => 20000)) \
               TO 'out.parquet'";
    let shell = home.command(&["shell", "--emulated-accelerators", "1", "-q", "-c", sql]);
    // A limit on the size of files stands for a full disk: writing fails, at once and for ever.
    let mut limited = Command::new("bash");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""])
        .arg(shell.get_program())
        .args(shell.get_args())
        .current_dir(home.dir.path())
        .envs(shell.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let error = Ran::of(limited.output().unwrap()).fails();
    assert!(error.contains("out.parquet") && error.contains("File too large"), "{error}");
    let left: Vec<_> = fs::read_dir(home.dir.path()).unwrap().flatten().collect();
    let left: Vec<String> =
        left.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.starts_with("out")), "{left:?}");
}
