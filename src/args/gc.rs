//! `forebay gc`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// A folder or a URL: what is in it, and in its folders
    pub(crate) location: String,
    /// Leave alone what was written to less than so many seconds ago: a write that is at work says so
    /// every minute
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub(crate) older_than: u64,
    /// The same of what jobs have left that can be resumed (RESUME JOB): after it they cannot be any more
    #[arg(long, default_value_t = 604_800, value_name = "SECONDS")]
    pub(crate) resumable_older_than: u64,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
