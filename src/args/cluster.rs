//! `forebay worker`, and what other commands have in common with it.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use forebay::Ports;

use super::pairs::key_value;

/// Memory of one emulated accelerator, in bytes.
pub(crate) const EMULATED_MEMORY_BYTES: u64 = 16 << 30;

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The scheduler to work for; of several that may have its state in turn, all, with commas between them
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) scheduler: String,
    /// Address to listen on, for the scheduler and other workers
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) bind: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 0, value_name = "PORT", hide_default_value = true)]
    pub(crate) port: u16,
    /// Name or address by which they reach this machine [default: --bind]
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Ports by which they reach it, if they are not --port: behind NAT, or a proxy. One for other
    /// workers and sessions, which read blocks, and one for the scheduler, which sends tasks; 0 for
    /// one that is --port
    #[arg(long, default_value = "0,0", value_name = "BLOCKS,TASKS", value_parser = ports,
          hide_default_value = true)]
    pub(crate) advertised_ports: Ports,
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// End with the scheduler, even if it may have a successor: for whoever starts both together
    #[arg(long, hide = true)]
    pub(crate) ends_with_scheduler: bool,
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) resources: ResourceArgs,
}

/// Who a process is to the others of its cluster: all three or none.
#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption within a cluster")]
pub(crate) struct TlsArgs {
    /// Encrypt connections within the cluster, and show others this certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_ca"])]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificate of the authority that others must have theirs from (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub(crate) tls_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ListenArgs {
    /// Listen beyond this machine without encryption, to anyone who calls
    #[arg(long, conflicts_with = "tls_cert")]
    pub(crate) insecure: bool,
}

/// What a worker offers.
#[derive(Debug, Args)]
#[command(next_help_heading = "What a worker offers")]
pub(crate) struct ResourceArgs {
    /// CPU cores to offer [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cpus: Option<u32>,
    /// GPUs to offer: auto for all, a number, or none
    #[arg(long, default_value = "auto", value_name = "GPUS")]
    pub(crate) gpus: GpuChoice,
    /// Memory of each GPU to offer, such as 40GB [default: all]
    #[arg(long, value_name = "BYTES")]
    pub(crate) gpu_memory: Option<bytesize::ByteSize>,
    /// Run native code that comes with models, with the rights of this process
    #[arg(long)]
    pub(crate) allow_native: bool,
    /// Accelerators to pretend to have, for models of the emulated runtime
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) emulated_accelerators: u16,
    /// Memory that all tasks together may hold, such as 4GB [default: no limit]
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory_limit: Option<bytesize::ByteSize>,
    /// A label, for people and for models that ask for it; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,
    /// Folder for what tasks write [default: a folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Bytes of blocks that --work-dir may hold at a time, such as 100GB
    /// [default: no limit]
    #[arg(long, value_name = "BYTES")]
    pub(crate) work_limit: Option<bytesize::ByteSize>,
    /// Seconds that a process which is told to end (SIGTERM) gives what runs, and those who read; told
    /// twice, it gives none
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) drain_limit: u64,
}

/// Which GPUs a worker offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuChoice {
    Auto,
    None,
    Count(u16),
}

impl Display for GpuChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for GpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            text => match text.parse() {
                Ok(count) => Ok(Self::Count(count)),
                Err(_) => Err("expected auto, none or a number".to_owned()),
            },
        }
    }
}

fn ports(text: &str) -> Result<Ports, String> {
    let parsed = text.split_once(',').and_then(|(blocks, tasks)| {
        Some(Ports { blocks: blocks.trim().parse().ok()?, tasks: tasks.trim().parse().ok()? })
    });
    parsed.ok_or_else(|| "expected two ports, such as 50060,50061".to_owned())
}
