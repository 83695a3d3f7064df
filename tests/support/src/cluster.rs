//! A cluster of real processes: a scheduler and workers, which can be killed and paused.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// What processes say of what they do.
const LOG: &str = "warn,forebay_scheduler=info,ballista_scheduler::state::executor_manager=info,\
                   ballista_executor::executor_server=info";

/// Processes of one cluster, killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    /// Where the scheduler listens.
    first: String,
    /// Where else one may listen.
    other: Option<String>,
    /// Where workers and sessions look for one.
    addresses: String,
    /// What the scheduler was started with.
    arguments: Vec<String>,
    scheduler: Process,
    schedulers: usize,
    workers: Vec<Process>,
    folder: TempDir,
}

/// A process, killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// What it said when it was ready.
    ready: String,
    log: PathBuf,
}

impl Cluster {
    /// A scheduler without workers, on a free port. `binary` is `forebay`.
    pub fn start(binary: &str, arguments: &[&str]) -> Self {
        let binary = PathBuf::from(binary);
        let arguments: Vec<_> = arguments.iter().map(|one| (*one).to_owned()).collect();
        let folder = TempDir::new().expect("a folder for temporary files");
        let command = serve(&binary, "127.0.0.1:0", &arguments);
        let scheduler = Process::start(command, folder.path().join("scheduler.log"));
        let first = scheduler.ready.rsplit(' ').next().unwrap_or_default().to_owned();
        let (workers, other, addresses) = (vec![], None, first.clone());
        Self {
            binary,
            first,
            other,
            addresses,
            arguments,
            scheduler,
            schedulers: 1,
            workers,
            folder,
        }
    }

    /// The same, with another address at which a scheduler may be.
    pub fn start_of_two(binary: &str, arguments: &[&str]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr());
        let other = free.expect("a port is free").to_string();
        let cluster = Self::start(binary, arguments);
        let addresses = format!("{},{other}", cluster.first);
        Self { other: Some(other), addresses, ..cluster }
    }

    /// Starts another scheduler with the same arguments, at the other address; the answer is ready when it listens
    /// there.
    pub fn rival(&mut self) -> JoinHandle<Process> {
        let other = self.other.clone().expect("there is another address");
        self.start_scheduler(&other)
    }

    /// Starts another scheduler with the same arguments, at the same address; the answer is ready when it
    /// listens there.
    pub fn successor(&mut self) -> JoinHandle<Process> {
        let address = self.first.clone();
        self.start_scheduler(&address)
    }

    fn start_scheduler(&mut self, address: &str) -> JoinHandle<Process> {
        let command = serve(&self.binary, address, &self.arguments);
        let log = self.folder.path().join(format!("scheduler{}.log", self.schedulers));
        self.schedulers += 1;
        thread::spawn(move || Process::start(command, log))
    }

    /// From now on this is the scheduler; the one before it is killed if it runs.
    pub fn takes_over(&mut self, successor: JoinHandle<Process>) {
        self.takes_place(successor);
    }

    /// From now on this is the scheduler; gives back the one before it.
    pub fn takes_place(&mut self, successor: JoinHandle<Process>) -> Process {
        let successor = successor.join().expect("the successor starts");
        std::mem::replace(&mut self.scheduler, successor)
    }

    /// Where workers and sessions look for the scheduler.
    pub fn address(&self) -> &str {
        &self.addresses
    }

    /// Starts a worker and waits until it is ready; returns its place among the workers. Unless its arguments say how it is
    /// reached, every second one has another name than the others: these do not take it for a neighbour, so that blocks come
    /// from files and over the network.
    pub fn add_worker(&mut self, arguments: &[&str]) -> usize {
        self.add_worker_in(&[], arguments)
    }

    /// The same with variables in its environment.
    pub fn add_worker_in(&mut self, environment: &[(&str, &str)], arguments: &[&str]) -> usize {
        let mut command = Command::new(&self.binary);
        command.args(["worker", "--scheduler", &self.addresses, "--work-dir"]);
        command.arg(self.work_dir()).args(arguments).envs(environment.iter().copied());
        let at = self.workers.len();
        if at % 2 == 1 && !arguments.contains(&"--host") {
            command.args(["--host", "localhost"]);
        }
        let log = self.folder.path().join(format!("worker{at}.log"));
        self.workers.push(Process::start(command, log));
        at
    }

    /// The scheduler's process: the last one.
    pub fn scheduler(&self) -> &Process {
        &self.scheduler
    }

    /// The same, to be waited for.
    pub fn scheduler_mut(&mut self) -> &mut Process {
        &mut self.scheduler
    }

    /// A worker's process.
    pub fn worker(&mut self, at: usize) -> &mut Process {
        &mut self.workers[at]
    }

    /// The folder in which each worker has one of its own.
    pub fn work_dir(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The block files that a worker has, those that are being written included.
    pub fn blocks(&self, at: usize) -> Vec<PathBuf> {
        files(&self.work_dir().join(self.workers[at].name()), "arrow")
    }

    /// How many tasks all workers together have begun.
    pub fn tasks_begun(&self) -> usize {
        let begun = |worker: &Process| worker.log().matches("Execute task").count();
        self.workers.iter().map(begun).sum()
    }

    /// How many tasks a worker has begun.
    pub fn tasks_begun_by(&self, at: usize) -> usize {
        self.workers[at].log().matches("Execute task").count()
    }

    /// How many tasks run, on workers that live.
    pub fn tasks_running(&mut self) -> usize {
        let workers = self.workers.iter_mut();
        let running = workers.filter_map(|worker| {
            let log = worker.runs().then(|| worker.log())?;
            let ended = log.matches("Finished task").count();
            Some(log.matches("Execute task").count().saturating_sub(ended))
        });
        running.sum()
    }

    /// What all processes said last: for a test that cannot go on.
    pub fn said(&self) -> String {
        let mut said = String::new();
        for process in std::iter::once(&self.scheduler).chain(&self.workers) {
            let log = process.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines.len().saturating_sub(LINES_SAID);
            said += &format!("--- {}\n{}\n", process.name(), lines[last..].join("\n"));
        }
        said
    }
}

fn serve(binary: &Path, address: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(binary);
    command.args(["serve", "--bind", address, "--flight-sql", "127.0.0.1:0"]).args(arguments);
    command
}

/// Lines of each log in [`Cluster::said`].
const LINES_SAID: usize = 25;

/// Files below a folder. What goes while it is looked at is not there.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The most memory that a process had resident so far, in bytes: the kernel knows, as long as it runs.
pub fn peak_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

impl Process {
    /// Starts a process and waits for the first line it prints.
    fn start(mut command: Command, log: PathBuf) -> Self {
        let errors = File::create(&log).expect("a file for its log");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        if !command.get_envs().any(|(name, _)| name == "RUST_LOG") {
            command.env("RUST_LOG", LOG);
        }
        let mut child = command.spawn().expect("the binary starts");
        let out = child.stdout.take().expect("its output is piped");
        let mut ready = String::new();
        BufReader::new(out).read_line(&mut ready).expect("its output is text");
        let said = || fs::read_to_string(&log).unwrap_or_default();
        assert!(!ready.is_empty(), "{command:?} ended before it was ready: {}", said());
        Self { child, ready: ready.trim().to_owned(), log }
    }

    /// What it has said so far of what it does.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last word of what it said when it was ready: its address or its name.
    pub fn name(&self) -> &str {
        self.ready.rsplit(' ').next().unwrap_or_default()
    }

    /// Where a worker listens for those who read its blocks, whatever it tells them.
    pub fn blocks_port(&self) -> u16 {
        let log = self.log();
        let port =
            log.split("listens on port ").nth(1).and_then(|rest| rest.split_whitespace().next());
        port.and_then(|port| port.parse().ok()).expect("a worker says where it listens")
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process has a small number");
        kill(Pid::from_raw(id), signal).expect("the process is there");
    }

    /// Waits until it ends; returns its exit status.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("the process can be waited for").code()
    }

    /// The most memory that it had resident so far, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        peak_bytes(self.id()).expect("the process is there")
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
