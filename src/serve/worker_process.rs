//! The worker of `forebay serve --worker`: a process of its own, and another one when it dies. So what
//! no limit foresees, such as memory that a library cannot get, ends a worker and not the server.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::process::ExitStatusExt;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::oneshot;

use crate::args::cluster::{ResourceArgs, TlsArgs};
use crate::args::serve::ServeArgs;

/// How long to wait before a worker that died is replaced: twice as long each time, until one has
/// worked for a while. The longest is shorter than the shortest `--worker-timeout`, after which
/// queries give up.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(800);
const A_WHILE: Duration = Duration::from_secs(60);

/// The worker of this server. It ends with this process, however that one ends, as every worker does with
/// its scheduler.
pub(super) struct OwnWorker {
    keeping: SpawnedTask<Result<()>>,
    has_worked: oneshot::Receiver<()>,
    /// Dropped to tell it to leave.
    stays: oneshot::Sender<()>,
}

impl OwnWorker {
    /// Starts one that offers what `serve` was told to, to the scheduler at this address, and is reached
    /// by this name.
    pub(super) fn start(args: &ServeArgs, scheduler: &str, host: &str) -> Self {
        let line = command_line(args, scheduler, host);
        let (works, has_worked) = oneshot::channel();
        let (stays, told_to_leave) = oneshot::channel();
        let may_leave = async { drop(told_to_leave.await) };
        Self { keeping: SpawnedTask::spawn(keep(line, works, may_leave)), has_worked, stays }
    }

    /// Waits until it works, or has ended. Says whether it works.
    ///
    /// # Errors
    /// Why it could not.
    pub(super) async fn works(&mut self) -> Result<bool> {
        tokio::select! {
            Ok(()) = &mut self.has_worked => Ok(true),
            ended = joined(&mut self.keeping) => ended.map(|()| false),
        }
    }

    /// Waits until there is none any more.
    ///
    /// # Errors
    /// If it did not leave as it was told to.
    pub(super) async fn ended(&mut self) -> Result<()> {
        joined(&mut self.keeping).await
    }

    /// Tells it to leave, and waits until it has.
    ///
    /// # Errors
    /// As [`Self::ended`].
    pub(super) async fn leave(self) -> Result<()> {
        let Self { mut keeping, stays, .. } = self;
        drop(stays);
        joined(&mut keeping).await
    }
}

async fn joined(keeping: &mut SpawnedTask<Result<()>>) -> Result<()> {
    keeping.await.map_err(|error| exec_datafusion_err!("the worker: {error}"))?
}

/// Keeps a worker of this command line running until `stop` is ready, then tells it to leave and waits
/// until it has. Says when the first one works.
///
/// # Errors
/// If no process can be started, or the first ends before it works: it has said why.
async fn keep(
    line: Vec<OsString>,
    works: oneshot::Sender<()>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let mut stop = pin!(stop);
    let (mut works, mut pause) = (Some(works), PAUSE_MIN);
    loop {
        let began = Instant::now();
        let end = match run(&line, &mut works, stop.as_mut()).await {
            Ok(None) => return Ok(()),
            Ok(Some(end)) if works.is_some() => {
                return exec_err!("the worker ended before it could work ({})", how(end));
            }
            Ok(Some(end)) => how(end),
            Err(error) if works.is_some() => return Err(error),
            // The machine may have no room for a process now, and have it soon.
            Err(error) => error.to_string(),
        };
        if began.elapsed() > A_WHILE {
            pause = PAUSE_MIN;
        }
        tracing::error!("the worker of this server ended ({end}); another starts");
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
            () = stop.as_mut() => return Ok(()),
        }
    }
}

/// How a worker ended that nobody told to.
fn how(end: ExitStatus) -> String {
    let signal = end.signal().and_then(|signal| Signal::try_from(signal).ok());
    signal.map_or_else(|| end.to_string(), |signal| signal.to_string())
}

/// Runs one worker to its end; nothing if it was told to.
async fn run(
    line: &[OsString],
    works: &mut Option<oneshot::Sender<()>>,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<ExitStatus>> {
    let mut worker = start(line)?;
    let mut output = pin!(ready(worker.stdout.take()));
    loop {
        tokio::select! {
            status = worker.wait() => return Ok(Some(status?)),
            () = stop.as_mut() => break,
            () = output.as_mut(), if works.is_some() => {
                works.take().and_then(|works| works.send(()).ok());
            }
        }
    }
    tell_to_leave(&worker);
    worker.wait().await?;
    Ok(None)
}

/// This program, also if its file was replaced by another version meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

fn start(line: &[OsString]) -> Result<Child> {
    Command::new(THIS_PROGRAM)
        .arg0("forebay")
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Ctrl-C is for the server, which tells its worker when the time has come.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| exec_datafusion_err!("the worker cannot be started: {error}"))
}

/// Waits for the line that a worker prints when it works; for ever if there is none.
async fn ready(output: Option<ChildStdout>) {
    if let Some(output) = output
        && let Ok(Some(_)) = BufReader::new(output).lines().next_line().await
    {
        return;
    }
    std::future::pending().await
}

fn tell_to_leave(worker: &Child) {
    if let Some(id) = worker.id().and_then(|id| i32::try_from(id).ok()) {
        kill(Pid::from_raw(id), Signal::SIGTERM).ok();
    }
}

/// What starts a worker that offers what `serve` was told to, to the scheduler at this address, and is
/// reached by this name.
fn command_line(args: &ServeArgs, scheduler: &str, host: &str) -> Vec<OsString> {
    let mut line = Line(vec!["worker".into()]);
    line.add("--scheduler", Some(scheduler));
    line.add("--bind", Some(args.bind.ip()));
    line.add("--host", Some(host));
    // The next server has a worker of its own.
    line.0.push("--ends-with-scheduler".into());
    if args.listen.insecure {
        line.0.push("--insecure".into());
    }
    line.add_tls(&args.tls);
    line.add_resources(&args.resources);
    line.0
}

struct Line(Vec<OsString>);

impl Line {
    fn add(&mut self, option: &str, value: Option<impl Display>) {
        self.add_text(option, value.map(|value| value.to_string()));
    }

    /// In one argument, so that a value may begin with a dash.
    fn add_text(&mut self, option: &str, value: Option<impl Into<OsString>>) {
        if let Some(value) = value {
            let mut argument = OsString::from(format!("{option}="));
            argument.push(value.into());
            self.0.push(argument);
        }
    }

    fn add_tls(&mut self, TlsArgs { tls_cert, tls_key, tls_ca }: &TlsArgs) {
        let files = [("--tls-cert", tls_cert), ("--tls-key", tls_key), ("--tls-ca", tls_ca)];
        files.into_iter().for_each(|(option, file)| self.add_text(option, file.clone()));
    }

    /// Named one by one, so that an option that is new cannot be forgotten.
    fn add_resources(&mut self, resources: &ResourceArgs) {
        let ResourceArgs {
            cpus,
            gpus,
            gpu_memory,
            allow_native,
            emulated_accelerators,
            memory_limit,
            labels,
            work_dir,
            work_limit,
            drain_limit,
        } = resources;
        self.add("--cpus", *cpus);
        self.add("--gpus", Some(gpus));
        self.add("--gpu-memory", gpu_memory.map(|bytes| bytes.as_u64()));
        if *allow_native {
            self.0.push("--allow-native".into());
        }
        self.add("--emulated-accelerators", Some(emulated_accelerators));
        self.add("--memory-limit", memory_limit.map(|bytes| bytes.as_u64()));
        for (key, value) in labels {
            self.add("--label", Some(format!("{key}={value}")));
        }
        self.add_text("--work-dir", work_dir.clone());
        self.add("--work-limit", work_limit.map(|bytes| bytes.as_u64()));
        self.add("--drain-limit", Some(drain_limit));
    }
}
