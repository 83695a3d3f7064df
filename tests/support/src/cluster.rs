//! A cluster of real processes: a scheduler and workers, which can be killed and paused.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Processes of one cluster, killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    address: String,
    scheduler: Process,
    workers: Vec<Process>,
    folder: TempDir,
}

/// A process, killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// What it said when it was ready.
    ready: String,
}

impl Cluster {
    /// A scheduler without workers, on a free port. `binary` is `forebay`.
    pub fn start(binary: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary);
        command.args(["serve", "--bind", "127.0.0.1:0"]).args(arguments);
        let scheduler = Process::start(command);
        let address = scheduler.ready.rsplit(' ').next().unwrap_or_default().to_owned();
        Self {
            binary: PathBuf::from(binary),
            address,
            scheduler,
            workers: vec![],
            folder: TempDir::new().expect("a folder for temporary files"),
        }
    }

    /// Where the scheduler listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts a worker and waits until it is ready; returns its place among the workers.
    pub fn add_worker(&mut self, arguments: &[&str]) -> usize {
        let mut command = Command::new(&self.binary);
        command.args(["worker", "--scheduler", &self.address, "--work-dir"]);
        command.arg(self.folder.path()).args(arguments);
        self.workers.push(Process::start(command));
        self.workers.len() - 1
    }

    /// The scheduler's process.
    pub fn scheduler(&self) -> &Process {
        &self.scheduler
    }

    /// A worker's process.
    pub fn worker(&mut self, at: usize) -> &mut Process {
        &mut self.workers[at]
    }

    /// The folder in which each worker has one of its own.
    pub fn work_dir(&self) -> &std::path::Path {
        self.folder.path()
    }
}

impl Process {
    /// Starts a process and waits for the first line it prints.
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let out = child.stdout.take().expect("its output is piped");
        let mut ready = String::new();
        BufReader::new(out).read_line(&mut ready).expect("its output is text");
        assert!(!ready.is_empty(), "{command:?} ended before it was ready");
        Self { child, ready: ready.trim().to_owned() }
    }

    /// The last word of what it said when it was ready: its address or its name.
    pub fn name(&self) -> &str {
        self.ready.rsplit(' ').next().unwrap_or_default()
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
