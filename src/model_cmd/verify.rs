//! `forebay model verify`: every file of a package against its hash.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use datafusion::error::Result;
use forebay::{CatalogEntry, ForebayContext};
use forebay_udf::ModelError;
use forebay_udf::model::Package;

use super::folded;

/// Checks a model of the catalog, or a folder; returns the exit status.
pub(super) async fn verify(context: &ForebayContext, model: &str) -> Result<i32> {
    let folder = Path::new(model);
    if model.contains('/') || folder.is_dir() && context.catalog().get(&folded(model)).is_err() {
        return Ok(report(model, check_folder(folder, None)?));
    }
    let entry = context.catalog().get(&folded(model))?;
    match folder_of(&entry) {
        Some(folder) => Ok(report(model, check_entry(&entry, &folder)?)),
        None => fetch(context, &entry).await,
    }
}

/// What is wrong with a model's package, file by file; for `forebay doctor`.
///
/// # Errors
/// If the package cannot be read at all.
pub(crate) fn problems(entry: &CatalogEntry) -> Result<Vec<String>, ModelError> {
    let Some(folder) = folder_of(entry) else { return Ok(vec![]) };
    let problem = |line: Line| line.problem.map(|problem| format!("{}: {problem}", line.name));
    Ok(check_entry(entry, &folder)?.into_iter().filter_map(problem).collect())
}

/// One file.
struct Line {
    name: String,
    size_bytes: Option<u64>,
    problem: Option<String>,
}

/// The folder of a package on this machine.
fn folder_of(entry: &CatalogEntry) -> Option<PathBuf> {
    entry.declaration.pinned().local_folder()
}

fn check_folder(folder: &Path, description: Option<&str>) -> Result<Vec<Line>, ModelError> {
    let (_, files) = Package::verify(folder, description)?;
    let line = |file: forebay_udf::model::FileCheck| Line {
        name: file.name,
        size_bytes: file.size_bytes,
        problem: file.problem,
    };
    Ok(files.into_iter().map(line).collect())
}

/// The description's own hash is the one that the catalog pinned.
fn check_entry(entry: &CatalogEntry, folder: &Path) -> Result<Vec<Line>, ModelError> {
    let mut lines = check_folder(folder, entry.declaration.description.as_deref())?;
    if entry.declaration.description.is_some() {
        return Ok(lines);
    }
    let pinned = Package::open(folder, Some(&entry.declaration.content_hash));
    if let (Some(description), Err(error)) = (lines.first_mut(), pinned)
        && let ModelError::Package { problem, .. } = error
        && problem.starts_with(&description.name)
    {
        description.problem = Some(problem);
    }
    Ok(lines)
}

fn report(model: &str, lines: Vec<Line>) -> i32 {
    let mut failed = 0;
    for Line { name, size_bytes, problem } in &lines {
        let size = size_bytes.map(|bytes| ByteSize(bytes).to_string()).unwrap_or_default();
        match problem {
            None => println!("ok       {name}  {size}"),
            Some(problem) => {
                failed += 1;
                // The problem may begin with the name itself.
                let problem = problem.strip_prefix(name.as_str()).unwrap_or(problem).trim_start();
                println!("PROBLEM  {name}  {problem}");
            }
        }
    }
    if failed > 0 {
        eprintln!(
            "error: {model}: {failed} of {} files are not what they were; restore them, or export \
             the package again and add it with --replace",
            lines.len()
        );
        return 1;
    }
    0
}

/// A remote package is verified as it is fetched into the cache.
async fn fetch(context: &ForebayContext, entry: &CatalogEntry) -> Result<i32> {
    let model = &entry.declaration;
    let env = context.session().runtime_env();
    let package = Package::fetch(model.pinned(), &env).await?;
    println!("ok       {} in {}", model.location, package.dir.display());
    Ok(0)
}
