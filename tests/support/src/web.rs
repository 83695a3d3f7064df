//! A web server for one folder, which can be told to fail.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use datafusion::common::runtime::SpawnedTask;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Serves the files of a folder, one request per connection.
#[derive(Debug)]
pub struct Web {
    address: String,
    state: Arc<State>,
    _serves: SpawnedTask<()>,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    failures: AtomicUsize,
    failed: AtomicUsize,
    served: AtomicUsize,
    ignores_ranges: AtomicBool,
    bytes_left: AtomicU64,
    asked: Mutex<Vec<String>>,
}

impl Web {
    /// Serves `folder` on a free port of this machine.
    pub async fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has an address").to_string();
        let state = Arc::new(State {
            folder: folder.to_owned(),
            failures: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            ignores_ranges: AtomicBool::new(false),
            bytes_left: AtomicU64::new(u64::MAX),
            asked: Mutex::default(),
        });
        let serves = SpawnedTask::spawn(serve(listener, Arc::clone(&state)));
        Self { address, state, _serves: serves }
    }

    /// `http://…`, without a slash at its end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers the next requests that it is out of service.
    pub fn fail(&self, times: usize) {
        self.state.failures.store(times, Ordering::SeqCst);
    }

    /// Requests that it answered so.
    pub fn failed(&self) -> usize {
        self.state.failed.load(Ordering::SeqCst)
    }

    /// Sends files from their beginning, whatever part of them is asked for.
    pub fn ignore_ranges(&self) {
        self.state.ignores_ranges.store(true, Ordering::SeqCst);
    }

    /// Closes connections, in the middle of a file if need be, when it has sent so many bytes of files.
    pub fn send_at_most(&self, bytes: u64) {
        self.state.bytes_left.store(bytes, Ordering::SeqCst);
    }

    /// What it was asked for so far: `/path`, or `/path bytes=3-`.
    pub fn asked(&self) -> Vec<String> {
        self.state.asked.lock().expect("no test has panicked here").clone()
    }

    /// Files that it has sent.
    pub fn served(&self) -> usize {
        self.state.served.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    let mut connections = vec![];
    while let Ok((client, _)) = listener.accept().await {
        connections.push(SpawnedTask::spawn(answer(client, Arc::clone(&state))));
    }
}

async fn answer(client: TcpStream, state: Arc<State>) {
    let mut client = BufReader::new(client);
    let (mut first, mut line, mut range) = (String::new(), String::new(), None);
    client.read_line(&mut first).await.ok();
    while client.read_line(&mut line).await.is_ok_and(|bytes| bytes > 2) {
        if let Some(("range", value)) = line.to_lowercase().trim().split_once(": ") {
            range = Some(value.to_owned());
        }
        line.clear();
    }
    // What `GET /path HTTP/1.1` asks for.
    let path = first.split(' ').nth(1).unwrap_or_default();
    let asked = [Some(path.to_owned()), range.clone()].into_iter().flatten().collect::<Vec<_>>();
    state.asked.lock().expect("no test has panicked here").push(asked.join(" "));
    let fails = |left: usize| left.checked_sub(1);
    let (status, body) =
        match state.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails) {
            Ok(_) => {
                state.failed.fetch_add(1, Ordering::SeqCst);
                ("503 Service Unavailable".to_owned(), vec![])
            }
            Err(_) => file(path, range.as_deref(), &state),
        };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.ok();
    let spend = |left: u64| Some(left.saturating_sub(body.len() as u64));
    let left = state.bytes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend);
    let left = usize::try_from(left.unwrap_or_default()).unwrap_or(usize::MAX);
    client.write_all(&body[..left.min(body.len())]).await.ok();
    client.shutdown().await.ok();
}

/// The status and what follows it, and the body.
fn file(path: &str, range: Option<&str>, state: &State) -> (String, Vec<u8>) {
    let path = path.split('?').next().unwrap_or_default().trim_start_matches('/');
    let path = state.folder.join(path);
    let path = if path.is_dir() { path.join("index.html") } else { path };
    let Ok(mut body) = std::fs::read(path) else { return ("404 Not Found".to_owned(), vec![]) };
    state.served.fetch_add(1, Ordering::SeqCst);
    let begin =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match begin.filter(|_| !state.ignores_ranges.load(Ordering::SeqCst)) {
        None => ("200 OK".to_owned(), body),
        Some(begin) if begin < body.len() => {
            let whole = body.len();
            let range = format!("Content-Range: bytes {begin}-{}/{whole}", whole - 1);
            (format!("206 Partial Content\r\n{range}"), body.split_off(begin))
        }
        Some(_) => ("416 Range Not Satisfiable".to_owned(), vec![]),
    }
}
