//! A web server for one folder, which can be told to fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    let (mut first, mut line) = (String::new(), String::new());
    client.read_line(&mut first).await.ok();
    while client.read_line(&mut line).await.is_ok_and(|bytes| bytes > 2) {
        line.clear();
    }
    let fails = |left: usize| left.checked_sub(1);
    let (status, body) =
        match state.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails) {
            Ok(_) => {
                state.failed.fetch_add(1, Ordering::SeqCst);
                ("503 Service Unavailable", vec![])
            }
            Err(_) => file(&first, &state),
        };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.ok();
    client.write_all(&body).await.ok();
    client.shutdown().await.ok();
}

/// What `GET /path HTTP/1.1` asks for.
fn file(request: &str, state: &State) -> (&'static str, Vec<u8>) {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().trim_start_matches('/');
    match std::fs::read(state.folder.join(path)) {
        Ok(body) => {
            state.served.fetch_add(1, Ordering::SeqCst);
            ("200 OK", body)
        }
        Err(_) => ("404 Not Found", vec![]),
    }
}
