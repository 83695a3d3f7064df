//! `forebay gc`: ends what writes have left that ended in the middle.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use datafusion::common::exec_err;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::Result;
use forebay::stores::Stores;
use forebay_engine::write::clean::{Fate, Left, OlderThan, clean};

use crate::args::gc::GcArgs;
use crate::terminal::errors;

/// Runs the command; returns the exit status.
pub(crate) async fn run(args: GcArgs) -> i32 {
    match end(&args).await {
        Ok(left) => {
            let said = left.iter().map(|left| say(left, args.dry_run));
            said.fold(0, i32::max)
        }
        Err(error) => {
            errors::print(&error);
            1
        }
    }
}

async fn end(args: &GcArgs) -> Result<Vec<Left>> {
    let location = ListingTableUrl::parse(&args.location)?;
    let runtime = Arc::new(Stores::default().runtime().build()?);
    let store = runtime.object_store(&location)?;
    let is_local = location.scheme() == "file";
    if is_local && !Path::new("/").join(location.prefix().as_ref()).is_dir() {
        return exec_err!(
            "there is no folder '{}'; give the one that was written to, or one above it",
            args.location
        );
    }
    let older_than = OlderThan {
        left: Duration::from_secs(args.older_than),
        resumable: Duration::from_secs(args.resumable_older_than),
    };
    clean(&store, location.prefix(), is_local, older_than, args.dry_run).await
}

/// Says what became of a folder; gives back the exit status for it.
fn say(left: &Left, is_dry_run: bool) -> i32 {
    match &left.fate {
        Ok(fate) => {
            println!("{}", line(left, *fate, is_dry_run));
            0
        }
        Err(error) => {
            errors::print_at(&format!("{}: ", left.folder), error);
            1
        }
    }
}

/// `removed  data/_forebay-7c0e…  3 files, 12.0 MiB, written 2 h ago`
fn line(left: &Left, fate: Fate, is_dry_run: bool) -> String {
    let done = match (fate, is_dry_run) {
        (Fate::Kept, _) => "in use",
        (Fate::Resumable, _) => "resumable",
        (Fate::Removed, false) => "removed",
        (Fate::Removed, true) => "to remove",
        (Fate::Completed, false) => "completed",
        (Fate::Completed, true) => "to complete",
    };
    let (files, bytes) = (left.files, ByteSize(left.bytes));
    let minutes = left.age.as_secs() / 60;
    format!("{done:<11}  {}  {files} files, {bytes}, last written {minutes} min ago", left.folder)
}
