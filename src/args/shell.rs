//! `forebay shell`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;

use super::cluster::TlsArgs;

#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// Run this SQL and exit; may be repeated
    #[arg(short, long, value_name = "SQL", allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
    /// Run the SQL of this file and exit; may be repeated; runs before -c
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,
    /// Submit the statements of -c and -f to the server of --connect, print the ids of their jobs, and
    /// leave: they run on. Statements that give and write no rows, such as SET, run at once
    #[arg(long)]
    pub(crate) detach: bool,
    /// How results are printed
    #[arg(long, default_value = "automatic", value_parser = formats())]
    pub(crate) format: PrintFormat,
    /// Print results and errors only
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Rows that a table shows at most: a number, or inf
    #[arg(long, default_value = "40", value_name = "ROWS")]
    pub(crate) maxrows: MaxRows,
    /// Print the values of tables whole, however long they are
    #[arg(long)]
    pub(crate) whole: bool,
    /// Highlight SQL while it is typed
    #[arg(long, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    pub(crate) color: ColorChoice,
    /// Memory that queries may hold, such as 4GB [default: no limit]
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory_limit: Option<bytesize::ByteSize>,
    /// CPU cores to use [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cpus: Option<u32>,
    /// Run native code that comes with models, with the rights of this process
    #[arg(long)]
    pub(crate) allow_native: bool,
    /// Accelerators to pretend to have, for models of the emulated runtime
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) emulated_accelerators: u16,
    /// Run queries on a server of Arrow Flight SQL, grpc://HOST:PORT or grpc+tls://HOST:PORT; or, as
    /// part of a cluster, on the workers of the scheduler at HOST:PORT, or of several that may have its
    /// state in turn, with commas between them
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["cpus", "allow_native", "emulated_accelerators"])]
    pub(crate) connect: Option<String>,
    /// Who to be for a server; its password is asked for, or FOREBAY_PASSWORD. A token instead of
    /// both is FOREBAY_TOKEN
    #[arg(long, value_name = "NAME", requires = "connect")]
    pub(crate) user: Option<String>,
    /// Certificate of the authority that a grpc+tls server must have its certificate from (PEM)
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub(crate) server_ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    Always,
    Never,
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
