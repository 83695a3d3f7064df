//! `forebay serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use url::Url;

use super::cluster::{ListenArgs, ResourceArgs, TlsArgs};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:50050", value_name = "ADDRESS:PORT")]
    pub(crate) bind: SocketAddr,
    /// Name or address by which workers reach this machine [default: --bind, or if that is all
    /// addresses, the machine's name]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Also run a worker, in a process of its own, and another one should it die
    #[arg(long)]
    pub(crate) worker: bool,
    /// Run queries in this process, without a scheduler and workers
    #[arg(long, conflicts_with_all = ["worker", "host", "bind", "metrics", "tls_cert"])]
    pub(crate) embedded: bool,
    /// For the program that started this server, and no other: clients show the token that
    /// FOREBAY_TOKEN has, and the server ends with its standard input, or when told to
    #[arg(long, requires = "embedded", conflicts_with = "users")]
    pub(crate) private: bool,
    /// Seconds without a sign of life after which a worker is lost; queries wait as long for one when
    /// there is none
    #[arg(long, default_value_t = 10, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) worker_timeout: u64,
    /// Folder, or folder of an object store, for a journal of what runs: a server that starts with it after
    /// this one was killed goes on with the jobs of other processes, and can resume its own; one that
    /// starts earlier waits until this one is gone
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) state: Option<StatePlace>,
    /// Seconds for which a server that has --state may be silent, though it is there, before this one takes
    /// over; or never. Of both servers the longer time counts
    #[arg(long, default_value = "30", value_name = "SECONDS", requires = "state")]
    pub(crate) takeover_after: Silence,
    /// Seconds that workers keep what they have, and clients wait, for a server to go on with --state
    #[arg(long, default_value_t = 60, value_name = "SECONDS", requires = "state")]
    pub(crate) scheduler_timeout: u64,
    /// Bytes from which on the journal in --state is copied without what is not needed: for tests, in which it has few
    #[arg(long, value_name = "BYTES", requires = "state", hide = true)]
    pub(crate) journal_copied_from: Option<u64>,
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) flight: FlightArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) resources: ResourceArgs,
}

/// Where a server's state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatePlace {
    Folder(PathBuf),
    Store(Url),
}

impl FromStr for StatePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains("://") {
            return Ok(Self::Folder(text.into()));
        }
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        match url.scheme() {
            "file" => url
                .to_file_path()
                .map(Self::Folder)
                .map_err(|()| "a file:// URL is file:///FOLDER".to_owned()),
            "http" | "https" => Err("nothing can be written to a web server".to_owned()),
            _ if url.host_str().is_none_or(str::is_empty)
                || url.query().is_some()
                || url.fragment().is_some() =>
            {
                Err("expected SCHEME://BUCKET/FOLDER, without ? and #".to_owned())
            }
            _ => Ok(Self::Store(url)),
        }
    }
}

/// A silence that is not borne for ever, unless it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silence(pub(crate) Option<Duration>);

/// A busy machine is silent for as long.
const SILENCE_MIN_S: u64 = 2;

impl FromStr for Silence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        match text.parse() {
            Ok(seconds) if seconds >= SILENCE_MIN_S => Ok(Self(Some(Duration::from_secs(seconds)))),
            _ => Err(format!("expected a number of seconds from {SILENCE_MIN_S} on, or never")),
        }
    }
}

/// The door for Arrow Flight SQL clients.
#[derive(Debug, Args)]
#[command(next_help_heading = "Arrow Flight SQL")]
pub(crate) struct FlightArgs {
    /// Where to listen for clients of Arrow Flight SQL; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:50051", value_name = "ADDRESS:PORT")]
    pub(crate) flight_sql: SocketAddr,
    /// Run this SQL at the start: tables and models that clients will find
    #[arg(long, value_name = "FILE")]
    pub(crate) init: Option<PathBuf>,
    /// Who may connect, as `forebay user` writes it; read again when it changes [default: everyone
    /// who can reach the port]
    #[arg(long, value_name = "FILE")]
    pub(crate) users: Option<PathBuf>,
    /// Folder or URL below which clients may name files and packages; may be repeated [default:
    /// everything, or with --users nothing]
    #[arg(long = "root", value_name = "FOLDER|URL")]
    pub(crate) roots: Vec<String>,
    /// Encrypt connections, and show clients this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "flight_tls_key")]
    pub(crate) flight_tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "flight_tls_cert")]
    pub(crate) flight_tls_key: Option<PathBuf>,
    /// Only clients with a certificate of this authority may connect (PEM)
    #[arg(long, value_name = "FILE", requires = "flight_tls_cert")]
    pub(crate) flight_tls_client_ca: Option<PathBuf>,
    /// Sessions at a time; then of whoever has most the one that was not used for longest ends
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub(crate) max_sessions: usize,
    /// Queries of all clients at a time
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(crate) max_queries: usize,
    /// Queries of one user at a time, in all its sessions, and never all of --max-queries; without
    /// --users, of one session
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub(crate) max_queries_per_client: usize,
    /// Bytes that one result may have, such as 10GB [default: no limit]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_result: Option<bytesize::ByteSize>,
    /// Detached jobs of all clients at a time
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub(crate) max_jobs: usize,
    /// Detached jobs of one user at a time, and never all of --max-jobs; without --users, only that
    /// counts
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) max_jobs_per_user: usize,
    /// Bytes of temporary files in which results of one user's detached jobs are kept, such as 500MB;
    /// without --users, those of all
    #[arg(long, default_value = "10GB", value_name = "BYTES")]
    pub(crate) job_results_limit: bytesize::ByteSize,
    /// Seconds for which a detached job that is over is known, and its result kept
    #[arg(long, default_value_t = 86_400, value_name = "SECONDS")]
    pub(crate) keep_jobs: u64,
    /// Seconds after which a query ends of which the client has taken no rows
    #[arg(long, default_value_t = 300, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) read_timeout: u64,
    /// Seconds without a call after which a session ends
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    pub(crate) session_timeout: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_a_folder_or_in_a_store() {
        let parse = |text: &str| text.parse::<StatePlace>();
        for folder in ["/var/lib/forebay", "file:///var/lib/forebay"] {
            assert_eq!(parse(folder), Ok(StatePlace::Folder("/var/lib/forebay".into())));
        }
        assert_eq!(parse("here"), Ok(StatePlace::Folder("here".into())));
        let store = Url::parse("s3://bucket/forebay/").unwrap();
        assert_eq!(parse("s3://bucket/forebay/"), Ok(StatePlace::Store(store)));
        for (wrong, said) in [
            ("http://host/x", "web server"),
            ("s3://bucket/x?y", "without ?"),
            ("s3://", "SCHEME://BUCKET/FOLDER"),
            ("file://host/x", "file:///FOLDER"),
        ] {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.contains(said), "{wrong}: {refused}");
        }
    }

    #[test]
    fn a_silence_is_long_enough() {
        assert_eq!("never".parse(), Ok(Silence(None)));
        assert_eq!("2".parse(), Ok(Silence(Some(Duration::from_secs(2)))));
        for wrong in ["", "1", "0", "-3", "2.5", "forever"] {
            assert!(wrong.parse::<Silence>().unwrap_err().contains("from 2 on, or never"));
        }
    }
}
