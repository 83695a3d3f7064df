//! Stands in front of a port, and cuts the line to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datafusion::common::runtime::SpawnedTask;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::io::InspectReader;

/// What becomes of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// It arrives.
    Open,
    /// Nobody listens any more: connections break, others are refused. For good.
    Refused,
    /// Nothing arrives, in either direction, and nobody is told.
    Silent,
}

/// A port that passes everything on to another one, until it is told otherwise.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    target: watch::Sender<Option<u16>>,
    line: watch::Sender<Line>,
    cut: Arc<AtomicUsize>,
    passed: Arc<AtomicU64>,
    _accepts: SpawnedTask<()>,
}

impl Proxy {
    /// Listens on a free port of this machine. Connections wait until it knows where to pass to.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it has a port").port();
        let (target, line) = (watch::Sender::new(None), watch::Sender::new(Line::Open));
        let (cut, passed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let wires = Wires {
            target: target.subscribe(),
            line: line.subscribe(),
            cut: Arc::clone(&cut),
            passed: Arc::clone(&passed),
        };
        let accepts = SpawnedTask::spawn(accept(listener, wires));
        Self { port, target, line, cut, passed, _accepts: accepts }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Passes on to this port of this machine.
    pub fn forward_to(&self, port: u16) {
        self.target.send_replace(Some(port));
    }

    /// Cuts the line, or mends it.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// How many connections it has cut, and not answered while it was silent.
    pub fn cut(&self) -> usize {
        self.cut.load(Ordering::SeqCst)
    }

    /// Bytes that it has passed on to those who called.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct Wires {
    target: watch::Receiver<Option<u16>>,
    line: watch::Receiver<Line>,
    cut: Arc<AtomicUsize>,
    passed: Arc<AtomicU64>,
}

async fn accept(listener: TcpListener, wires: Wires) {
    let mut connections = vec![];
    let mut line = wires.line.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                connections.push(SpawnedTask::spawn(pass(client, wires.clone())));
            }
            _ = line.wait_for(|line| *line == Line::Refused) => break,
        }
    }
    drop(listener);
    for connection in connections {
        connection.join().await.ok();
    }
}

/// One connection: closed at once when the line is refused, held without a word while it is silent.
async fn pass(mut client: TcpStream, mut wires: Wires) {
    let mut line = wires.line.clone();
    let passes = async {
        let Ok(target) = wires.target.wait_for(Option::is_some).await.map(|target| *target) else {
            return;
        };
        let Ok(server) = TcpStream::connect(("127.0.0.1", target.unwrap_or(0))).await else {
            return;
        };
        let passed = &wires.passed;
        let mut server = InspectReader::new(server, |bytes| {
            passed.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        });
        copy_bidirectional(&mut client, &mut server).await.ok();
    };
    tokio::select! {
        _ = line.wait_for(|line| *line != Line::Open) => {}
        () = passes => return,
    }
    wires.cut.fetch_add(1, Ordering::SeqCst);
    line.wait_for(|line| *line != Line::Silent).await.ok();
}
