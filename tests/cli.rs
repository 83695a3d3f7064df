//! The `forebay` command as users run it: real processes, their output and exit status.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::cluster::Cluster;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A home folder of its own, with a catalog and a place for packages.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env("HOME", self.dir.path())
            .env("FOREBAY_CATALOG", self.path("catalog"))
            .env("FOREBAY_CACHE", self.path("cache"))
            .env_remove("XDG_DATA_HOME")
            .env_remove("FOREBAY_PYTHON")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    fn shell(&self, arguments: &[&str]) -> Ran {
        self.run(&[&["shell", "--emulated-accelerators", "1", "-q"], arguments].concat())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The package of an emulated model from `n` to `digest`; returns its folder.
    fn package(&self, name: &str, service_ms: u64) -> String {
        self.write(&format!("{name}/labels.txt"), LABELS);
        self.write(&format!("{name}/model.toml"), &manifest(name, service_ms));
        self.path(name).display().to_string()
    }
}

/// What a process left behind.
struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its standard output, if it succeeded without a word on stderr.
    #[track_caller]
    fn succeeds(self) -> String {
        assert_eq!((self.status, self.stderr.as_str()), (Some(0), ""), "{}", self.stdout);
        self.stdout
    }

    /// Its standard error, if it failed and printed nothing else.
    #[track_caller]
    fn fails(self) -> String {
        assert_eq!((self.status, self.stdout.as_str()), (Some(1), ""), "{}", self.stderr);
        self.stderr
    }
}

const LABELS: &str = "hello\n";

fn manifest(name: &str, service_ms: u64) -> String {
    format!(
        r#"
format = 1
name = "{name}"
version = "7"
description = "a stand-in"
license = "Apache-2.0"

[[input]]
name = "n"
type = "BIGINT"

[[output]]
name = "digest"
type = "BIGINT"

[transform]
kind = "tensor"

[runtime]
kind = "emulated"
service_ms = {service_ms}

[resources]
cpus = 0
gpus = 1
memory = "1 MiB"
gpu_memory = "1 MiB"

[batch]
max_rows = 4
window_rows = 16

[files]
"labels.txt" = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
"#
    )
}

#[test]
fn without_a_command_the_help_is_printed() {
    let ran = Home::new().run(&[]);
    assert_eq!(ran.status, Some(2));
    for command in ["shell", "model", "doctor"] {
        assert!(ran.stderr.contains(command), "{}", ran.stderr);
    }
}

/// What a report of a defect needs.
#[test]
fn the_version_names_what_the_binary_was_made_of() {
    let home = Home::new();
    let short = home.run(&["-V"]);
    assert_eq!(short.stdout, format!("forebay {}\n", env!("CARGO_PKG_VERSION")));
    let long = home.run(&["--version"]).stdout;
    let doctor = home.run(&["doctor"]).stdout;
    assert!(long.starts_with(&short.stdout), "{long}");
    for line in long.lines().skip(1) {
        assert!(doctor.contains(line), "{line}: {doctor}");
    }
    for (part, version) in [
        ("DataFusion", datafusion::DATAFUSION_VERSION),
        ("Ballista", ballista_core::BALLISTA_VERSION),
        ("arrow", arrow::ARROW_VERSION),
        ("libtorch", "2.11.0"),
        ("commit", ""),
        ("profile", ""),
    ] {
        assert!(long.contains(&format!("\n{part:<12}{version}")), "{part} {version}: {long}");
    }
}

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
fn a_model_is_added_used_and_removed() {
    let home = Home::new();
    let package = home.package("echo", 1);
    let added = home.run(&["model", "add", "Echo", &package, "--option", "gpus=0.5"]).succeeds();
    assert!(added.starts_with("added model echo, version 7, from file://"), "{added}");
    let again = home.run(&["model", "add", "echo", &package]).fails();
    assert!(again.starts_with("error: model 'echo' already exists"), "{again}");
    home.run(&["model", "add", "echo", &package, "--replace", "--version", "8"]).succeeds();
    let listed = home.run(&["model", "list"]).succeeds();
    assert!(listed.contains("| echo | 8 ") && listed.contains("a stand-in"), "{listed}");
    let shown = home.run(&["model", "show", "echo"]).succeeds();
    assert!(shown.contains("BIGINT") && shown.contains("Apache-2.0"), "{shown}");
    let sql = "select count(digest) as rows from
        ml_predict((select value as n from generate_series(1, 9)), MODEL echo, DESCRIPTOR(n))";
    assert_eq!(home.shell(&["--format", "csv", "-c", sql]).succeeds(), "rows\n9\n");
    let removed = home.run(&["model", "remove", "echo"]).succeeds();
    assert!(removed.starts_with("removed model echo"), "{removed}");
    assert!(Path::new(&package).join("model.toml").exists());
    let unknown = home.run(&["model", "remove", "echo"]).fails();
    assert!(unknown.starts_with("error: model 'echo' does not exist"), "{unknown}");
}

#[test]
fn options_are_checked_when_a_model_is_added() {
    let home = Home::new();
    let package = home.package("echo", 1);
    let message = home.run(&["model", "add", "m", &package, "--option", "gpu=1"]).fails();
    assert!(message.contains("unknown model option 'gpu' (did you mean 'gpus'?)"), "{message}");
    let ran = home.run(&["model", "add", "m", &package, "--option", "gpus"]);
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
}

#[test]
fn verify_names_the_files_that_changed() {
    let home = Home::new();
    let package = home.package("echo", 1);
    home.run(&["model", "add", "echo", &package]).succeeds();
    for model in ["echo", &package] {
        let checked = home.run(&["model", "verify", model]).succeeds();
        assert_eq!(checked.matches("ok ").count(), 2, "{checked}");
    }
    home.write("echo/labels.txt", "changed\n");
    let ran = home.run(&["model", "verify", "echo"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stdout.contains("ok       model.toml"), "{}", ran.stdout);
    assert!(ran.stdout.contains("PROBLEM  labels.txt  has changed"), "{}", ran.stdout);
    fs::remove_file(home.path("echo/labels.txt")).unwrap();
    let ran = home.run(&["model", "verify", &package]);
    assert!(ran.stdout.contains("PROBLEM  labels.txt  is missing"), "{}", ran.stdout);
    home.package("echo", 2);
    let ran = home.run(&["model", "verify", "echo"]);
    assert!(ran.stdout.contains("PROBLEM  model.toml  has changed"), "{}", ran.stdout);
    assert_eq!(ran.status, Some(1));
}

/// A Python that behaves as if it ran the exporter, but makes the package of an emulated model.
fn fake_export_tool(home: &Home) -> String {
    let package = home.package("made-of.it", 1);
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2 $4\" = '-m forebay.export good' ] || {{ echo 'export: no such model' >&2; exit 1; }}\n\
         echo progress\necho \"$@\" > arguments\ncp -r '{package}' \"$6\"\necho \"$6\"\n"
    );
    let python = home.write("tool/python", &script);
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    python
}

#[test]
fn export_runs_the_tool_and_adds_the_model() {
    let home = Home::new();
    let tool = fake_export_tool(&home);
    let export = |source: &str, rest: &[&str]| {
        let arguments = [&["model", "export", source, "--output", "out"], rest].concat();
        Ran::of(home.command(&arguments).env("FOREBAY_PYTHON", &tool).output().unwrap())
    };
    let message = export("bad", &[]).fails();
    assert!(message.starts_with("export: no such model\nerror: the export failed"), "{message}");
    let printed = export("good", &["--add"]).succeeds();
    assert!(printed.starts_with("out\nadded model made_of_it, version 7"), "{printed}");
    fs::remove_dir_all(home.path("out")).unwrap();
    let options = "--task image-classification --weights w.pth --labels l.txt --normalize --force";
    export("good", &options.split(' ').collect::<Vec<_>>()).succeeds();
    let given = fs::read_to_string(home.path("arguments")).unwrap();
    assert!(given.ends_with(&format!("--output out {options}\n")), "{given}");
    let message = home.run(&["model", "export", "x", "--output", "y"]);
    // Found beside the executable if it lies in a checkout, otherwise refused with the remedy.
    assert_eq!(message.status, Some(1), "{}", message.stdout);
}

#[test]
fn an_emulated_model_needs_an_emulated_accelerator() {
    let home = Home::new();
    home.run(&["model", "add", "echo", &home.package("echo", 1)]).succeeds();
    let message = home.run(&["shell", "-c", "select ml_predict(MODEL echo, 1)"]).fails();
    assert!(message.contains("--emulated-accelerators 1"), "{message}");
}

#[test]
fn a_shell_on_a_cluster_shows_jobs_workers_and_what_was_measured() {
    let home = Home::new();
    home.run(&["model", "add", "echo", &home.package("echo", 1)]).succeeds();
    let (metrics, worker_metrics) = (free_port(), free_port());
    let mut cluster = Cluster::start(env!("CARGO_BIN_EXE_forebay"), &["--metrics", &metrics]);
    let accelerator = ["--emulated-accelerators", "1"];
    cluster
        .add_worker(&[&["--cpus", "1", "--metrics", &worker_metrics], &accelerator[..]].concat());
    cluster.add_worker(&["--cpus", "1"]);
    let shell = |sql: &str| {
        let address = cluster.address();
        home.run(&["shell", "--connect", address, "-q", "--format", "csv", "-c", sql]).succeeds()
    };
    let query = "select sum(digest) is not null as ok from ml_predict(
        (select column1 as n from (values (1), (2), (3))), MODEL echo, DESCRIPTOR(n))";
    let analyzed = shell(&format!("explain analyze {query}"));
    for expected in [
        "Inference(echo) < StreamingExchange < BlockReader; 1 task on 1 worker; ",
        // Metrics of the operators, from the worker.
        "rows_inferred=3",
        "model 'echo'",
        " that the job took",
    ] {
        assert!(analyzed.contains(expected), "{expected}: {analyzed}");
    }
    assert!(!analyzed.contains("had no rows"), "{analyzed}");
    assert_eq!(shell(query), "ok\ntrue\n");
    let jobs = shell("Show Jobs");
    let [head, last, explained] = jobs.lines().collect::<Vec<_>>()[..] else { panic!("{jobs}") };
    assert!(head.starts_with("job_id,state,started,ended,"), "{jobs}");
    assert!(last.contains(",finished,") && last.contains("SELECT sum(digest)"), "{jobs}");
    assert!(explained.contains("EXPLAIN ANALYZE SELECT"), "{jobs}");
    let workers = shell("show workers");
    assert_eq!(workers.lines().count(), 3, "{workers}");
    let figures = get(&metrics, "/metrics");
    for expected in [
        "HTTP/1.1 200 OK",
        "content-type: text/plain; version=0.0.4",
        "forebay_jobs_ended_total{state=\"finished\"} 2\n",
        "forebay_jobs{state=\"running\"} 0\n",
        "forebay_tasks_ended_total{state=\"failed\"} 0\n",
        "forebay_workers{state=\"active\"} 2\n",
        "forebay_accelerators 1\n",
    ] {
        assert!(figures.contains(expected), "{expected}: {figures}");
    }
    let figures = get(&worker_metrics, "/metrics");
    assert!(figures.contains("forebay_worker_cpus 1\n"), "{figures}");
    assert!(figures.contains("forebay_worker_tasks 0\n"), "{figures}");
    let busy = figures.lines().find_map(|line| {
        line.strip_prefix("forebay_worker_accelerator_busy_seconds_total{device=\"emulated:0\"} ")
    });
    assert!(busy.unwrap_or("0").parse::<f64>().unwrap() > 0.0, "{figures}");
    assert!(workers.contains(cluster.worker(0).name()), "{workers}");
}

/// An address that nobody listens on.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

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
fn doctor_reports_what_is_there_and_what_is_wrong() {
    let home = Home::new();
    home.run(&["model", "add", "echo", &home.package("echo", 1)]).succeeds();
    // What `tools/setup libtorch` made, in the cache that the command looks into.
    let libtorch = fs::canonicalize(".forebay/libtorch").unwrap();
    let kept = libtorch.ancestors().nth(3).unwrap();
    fs::create_dir_all(home.path("cache")).unwrap();
    symlink(kept, home.path("cache").join(kept.file_name().unwrap())).unwrap();
    let healthy = home.run(&["doctor"]);
    assert_eq!(healthy.status, Some(0), "{}{}", healthy.stdout, healthy.stderr);
    for expected in ["libtorch", "2.11.0", "cores", "memory", "echo", "no problems found"] {
        assert!(healthy.stdout.contains(expected), "{expected}: {}", healthy.stdout);
    }
    home.write("echo/labels.txt", "changed\n");
    home.write("catalog/broken.toml", "this is no model");
    let report = home.run(&["doctor"]);
    assert_eq!(report.status, Some(1));
    assert!(report.stdout.contains("labels.txt has changed"), "{}", report.stdout);
    assert!(report.stdout.contains("broken.toml"), "{}", report.stdout);
    assert_eq!(report.stdout.matches("fix: ").count(), 2, "{}", report.stdout);
    assert!(report.stdout.contains("2 problems found"), "{}", report.stdout);
    let report = Ran::of(
        home.command(&["doctor"]).env("FOREBAY_CATALOG", "echo/labels.txt").output().unwrap(),
    );
    assert!(report.stdout.contains("not a folder"), "{}", report.stdout);
}

#[test]
fn doctor_names_the_commands_on_the_path_if_they_are_of_several_versions() {
    let home = Home::new();
    for (folder, version) in [("new", "0.2.0"), ("same", "0.2.0"), ("old", "0.1.0")] {
        let text = format!("#!/bin/sh\necho forebay {version}\n");
        let command = home.write(&format!("{folder}/forebay"), &text);
        fs::set_permissions(command, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let doctor = |folders: &[&str]| {
        let path = std::env::join_paths(folders.iter().map(|folder| home.path(folder))).unwrap();
        Ran::of(home.command(&["doctor"]).env("PATH", path).output().unwrap()).stdout
    };
    let report = doctor(&["nothing", "new", "new", "same"]);
    assert!(!report.contains("several"), "{report}");
    let report = doctor(&["new", "old"]);
    let (new, old) = (home.path("new/forebay"), home.path("old/forebay"));
    let (new, old) = (new.display(), old.display());
    let problem = format!("on the path: {new} (forebay 0.2.0), {old} (forebay 0.1.0)\n");
    assert!(report.contains(&problem), "{report}");
    assert!(report.contains("fix: remove all but one"), "{report}");
}

/// Rows that grow a thousandfold in front of a slow accelerator: 1 KB of text for each of 300,000
/// rows, none of which is in the table.
const EXPANDING: &str = "SELECT count(digest) FROM ml_predict(
    (SELECT repeat(CAST(n AS VARCHAR), 200) AS text
     FROM (SELECT value, unnest(range(0, 1000)) AS n FROM range(0, 300))),
    MODEL slow, DESCRIPTOR(text))";

/// Runs the shell; its answer and the most memory that it had resident, in bytes.
fn with_peak(home: &Home, arguments: &[&str]) -> (String, u64) {
    let options = ["shell", "--emulated-accelerators", "1", "-q", "--format", "csv"];
    let command = home.command(&[&options[..], arguments].concat());
    // The kernel knows the peak of a process until it is reaped; the shell's own child is not.
    let mut timed = Command::new("python3");
    timed
        .args(["-c", PEAK])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(home.dir.path())
        .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = timed.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let peak_kb: u64 = stderr.trim().lines().last().unwrap().parse().unwrap();
    (String::from_utf8(output.stdout).unwrap(), peak_kb * 1024)
}

const PEAK: &str = "
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
";

#[test]
fn a_fast_producer_in_front_of_a_slow_model_stays_within_its_memory_limit() {
    const LIMIT: u64 = 256 << 20;
    let home = Home::new();
    let manifest = manifest("slow", 1)
        .replace("\"n\"\ntype = \"BIGINT\"", "\"text\"\ntype = \"STRING\"")
        .replace("max_rows = 4\nwindow_rows = 16", "max_rows = 1024\nwindow_rows = 4096")
        .replace("gpus = 1", "gpus = 0.5");
    let manifest = manifest.split("[files]").next().unwrap();
    let package = home.write("slow/model.toml", manifest);
    let package = Path::new(&package).parent().unwrap().display().to_string();
    let create = format!("CREATE MODEL slow LOCATION '{package}'");
    home.shell(&["-c", &create]).succeeds();
    let limit = ["--memory-limit", "256MB"];
    let (_, baseline) = with_peak(&home, &[&limit[..], &["-c", "select 1"]].concat());

    let (answer, peak) = with_peak(&home, &[&limit[..], &["-c", EXPANDING]].concat());
    assert!(answer.contains("300000"), "{answer}");
    assert!(peak - baseline < 2 * LIMIT, "{} MiB", (peak - baseline) >> 20);

    // Two such queries at once, as two branches of one statement.
    let twice = format!("({EXPANDING}) UNION ALL ({EXPANDING})").replace("count(digest)", "sum(1)");
    let twice = twice.replacen("sum(1)", "count(digest)", 2);
    let (answer, peak) = with_peak(&home, &[&limit[..], &["-c", &twice]].concat());
    assert_eq!(answer.matches("300000").count(), 2, "{answer}");
    assert!(peak - baseline < 2 * LIMIT, "{} MiB", (peak - baseline) >> 20);
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
