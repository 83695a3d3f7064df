//! A model's folder: its description, and the proof that its files are the ones described.
//!
//! - `cache.rs`: the folder of downloaded packages, and what stays in it
//! - `remote.rs`: a package in an object store → the cache folder
//! - `problem.rs`: what is wrong with a package, and what to do
//!
//! `model.toml` holds the SHA-256 of every other file, and a declaration pins the SHA-256 of
//! `model.toml`: so one hash stands for the whole package, and a changed file is an error instead
//! of other results. An ONNX model comes without one. It is described when the model is created, and
//! the declaration carries the description.

mod cache;
mod problem;
mod remote;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::runtime_env::RuntimeEnv;
use url::Url;

use self::cache::Hold;
use self::problem::{MANIFEST_BYTES_MAX, changed, io_problem, relocated, too_long};
use self::remote::Remote;
use super::hashes::{hash_bytes, hash_file, open_regular};
use super::location::{Pinned, Place, local_dir};
use super::manifest::{MANIFEST, Manifest};
use super::onnx;
use super::options::Precision;
use crate::error::ModelError;

pub use self::remote::packages_dir;

/// A local folder whose files are verified against the hashes in its `model.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Package {
    /// The folder on this machine; in the cache if it was downloaded.
    pub dir: PathBuf,
    /// Its description, which has been checked.
    pub manifest: Manifest,
    /// SHA-256 of its `model.toml`.
    pub content_hash: String,
    /// Keeps it in the cache, if it is there.
    hold: Option<Hold>,
}

/// What a package says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// Its description, which has been checked.
    pub manifest: Manifest,
    /// SHA-256 of the description, which a declaration pins.
    pub content_hash: String,
    /// The description as text, if it has no `model.toml`.
    pub description: Option<String>,
}

impl Described {
    fn by_manifest_file(bytes: &[u8], location: &str) -> Result<Self, ModelError> {
        let manifest = Manifest::parse(bytes, location)?;
        Ok(Self { manifest, content_hash: hash_bytes(bytes), description: None })
    }

    /// From the files of a model that has no `model.toml`.
    fn by_own_files(
        dir: &Path,
        program: Option<&str>,
        precision: Option<Precision>,
    ) -> Result<Self, ModelError> {
        let text = onnx::describe(dir, program, precision)?;
        let manifest = Manifest::parse(text.as_bytes(), &dir.display().to_string())?;
        Ok(Self { manifest, content_hash: hash_bytes(text.as_bytes()), description: Some(text) })
    }
}

/// What became of one file when a package was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCheck {
    /// Name within the package.
    pub name: String,
    /// Size if it could be read.
    pub size_bytes: Option<u64>,
    /// What is wrong, if anything.
    pub problem: Option<String>,
}

impl Package {
    /// Reads and checks the description of the package at `location`; of a folder with an ONNX model,
    /// or of a single ONNX file, makes one. Where several programs are, `precision` chooses.
    ///
    /// # Errors
    /// [`ModelError::Package`] if it is missing, malformed or contradicts itself.
    pub async fn read(
        location: &Url,
        precision: Option<Precision>,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Described, ModelError> {
        let place = Place::of(location);
        let Some(dir) = local_dir(&place.folder)? else {
            if place.program.is_some() {
                return Err(onnx::only_local(location));
            }
            let bytes = Remote::open(location, env)?.description().await?;
            return Described::by_manifest_file(&bytes, location.as_str());
        };
        blocking(location, move || match place.program {
            Some(program) => Described::by_own_files(&dir, Some(&program), precision),
            None if onnx::is_undescribed(&dir) => Described::by_own_files(&dir, None, precision),
            None => {
                Described::by_manifest_file(&read_manifest_file(&dir)?, &dir.display().to_string())
            }
        })
        .await
    }

    /// The package at its location, verified: in place for `file://`, otherwise from the cache
    /// folder, where it is downloaded once.
    ///
    /// # Errors
    /// [`ModelError::Package`] names the file that is missing or has changed.
    pub async fn fetch(pinned: Pinned<'_>, env: &Arc<RuntimeEnv>) -> Result<Arc<Self>, ModelError> {
        Self::fetch_into(&packages_dir(), pinned, env).await.map(Arc::new)
    }

    async fn fetch_into(
        packages: &Path,
        pinned: Pinned<'_>,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Self, ModelError> {
        let Pinned { location, content_hash, description } = pinned;
        if let Some(dir) = local_dir(&Place::of(location).folder)? {
            let expected = content_hash.to_owned();
            let description = description.map(|text| text.as_bytes().to_owned());
            return blocking(location, move || {
                let bytes = description.map_or_else(|| read_manifest_file(&dir), Ok)?;
                Self::with_description(&dir, &bytes, Some(&expected))
            })
            .await;
        }
        let target = packages.join(content_hash);
        let (dir, expected) = (target.clone(), content_hash.to_owned());
        let cached = move || Self::open_held(&dir, &expected);
        // A damaged copy in the cache is nobody's fault: fetch it again.
        if let Ok(Some(package)) = blocking(location, cached).await {
            return Ok(package);
        }
        let limit = cache::limit()?;
        let remote = Remote::open(location, env)?;
        let partial = remote.download(packages, content_hash).await?;
        let packages = packages.to_owned();
        let (location_text, expected) = (location.to_string(), content_hash.to_owned());
        blocking(location, move || {
            // Verified before it gets its name; the memory of hashes is by path, so once more after.
            Self::open(partial.path(), Some(&expected))
                .map_err(|e| relocated(e, &location_text))?;
            remote::install(partial, &target)
                .map_err(|e| io_problem(&target, "cannot be written", &e))?;
            let found = Self::open_held(&target, &expected)?;
            cache::make_room(&packages, limit)
                .map_err(|e| io_problem(&packages, "cannot be tidied up", &e))?;
            // Another process may have wanted the room meanwhile, and will not a second time.
            found.map_or_else(|| Self::open(&target, Some(&expected)), Ok)
        })
        .await
    }

    /// A package in the cache, which stays there as long as anybody has it.
    fn open_held(dir: &Path, content_hash: &str) -> Result<Option<Self>, ModelError> {
        let hold = cache::hold(dir).map_err(|e| io_problem(dir, "cannot be locked", &e))?;
        let Some(hold) = hold else { return Ok(None) };
        Ok(Some(Self { hold: Some(hold), ..Self::open(dir, Some(content_hash))? }))
    }

    /// A local folder as a package. Blocks while files are hashed, unless this process has hashed
    /// them before and they look unchanged.
    ///
    /// # Errors
    /// [`ModelError::Package`] names the file that is missing or has changed.
    pub fn open(dir: &Path, content_hash: Option<&str>) -> Result<Self, ModelError> {
        Self::with_description(dir, &read_manifest_file(dir)?, content_hash)
    }

    fn with_description(
        dir: &Path,
        bytes: &[u8],
        content_hash: Option<&str>,
    ) -> Result<Self, ModelError> {
        let location = dir.display().to_string();
        let found = hash_bytes(bytes);
        if let Some(expected) = content_hash.filter(|expected| **expected != found) {
            return Err(changed(&location, MANIFEST, expected, &found));
        }
        let manifest = Manifest::parse(bytes, &location)?;
        for (name, expected) in &manifest.files {
            check_file(dir, &location, name, expected)?;
        }
        Ok(Self { dir: dir.to_owned(), manifest, content_hash: found, hold: None })
    }

    /// Checks every file of a local package, for a report. The description comes first; it is the
    /// given one, if there is no `model.toml`.
    ///
    /// # Errors
    /// [`ModelError::Package`] if the description itself cannot be used.
    pub fn verify(
        dir: &Path,
        description: Option<&str>,
    ) -> Result<(Manifest, Vec<FileCheck>), ModelError> {
        let location = dir.display().to_string();
        let is_undescribed = description.is_none() && onnx::is_undescribed(dir);
        let bytes = match description {
            Some(text) => text.as_bytes().to_owned(),
            None if is_undescribed => onnx::describe(dir, None, None)?.into_bytes(),
            None => read_manifest_file(dir)?,
        };
        let manifest = Manifest::parse(&bytes, &location)?;
        let first = FileCheck {
            name: MANIFEST.to_owned(),
            size_bytes: Some(bytes.len() as u64),
            problem: None,
        };
        let first = Some(first).filter(|_| description.is_none() && !is_undescribed);
        let others = manifest.files.iter().map(|(name, expected)| FileCheck {
            name: name.clone(),
            size_bytes: fs::metadata(dir.join(name)).ok().map(|metadata| metadata.len()),
            problem: match check_file(dir, &location, name, expected) {
                Ok(()) => None,
                Err(ModelError::Package { problem, .. }) => Some(problem),
                Err(other) => Some(other.to_string()),
            },
        });
        let checks = first.into_iter().chain(others).collect();
        Ok((manifest, checks))
    }

    /// The path of a file of this package.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

async fn blocking<T: Send + 'static>(
    location: &Url,
    work: impl FnOnce() -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ModelError> {
    SpawnedTask::spawn_blocking(work).await.map_err(|e| ModelError::Package {
        location: location.to_string(),
        problem: format!("reading it was interrupted: {e}"),
        remedy: "try again".to_owned(),
    })?
}

fn read_manifest_file(dir: &Path) -> Result<Vec<u8>, ModelError> {
    let read = || {
        let mut bytes = vec![];
        let file = open_regular(&dir.join(MANIFEST))?;
        file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            Err(io::Error::other(too_long()))
        } else {
            Ok(bytes)
        }
    };
    read().map_err(|e| {
        let location = dir.display().to_string();
        if e.kind() == io::ErrorKind::NotFound {
            let problem = if dir.is_dir() {
                "it holds neither model.toml nor an ONNX model".to_owned()
            } else {
                "no such folder".to_owned()
            };
            let remedy = "restore the package, or make one with `forebay model export`".to_owned();
            return ModelError::Package { location, problem, remedy };
        }
        io_problem(dir, "model.toml cannot be read", &e)
    })
}

fn check_file(dir: &Path, location: &str, name: &str, expected: &str) -> Result<(), ModelError> {
    let found = hash_file(&dir.join(name)).map_err(|e| ModelError::Package {
        location: location.to_owned(),
        problem: match e.kind() {
            io::ErrorKind::NotFound => format!("{name} is missing"),
            _ => format!("{name} cannot be read: {e}"),
        },
        remedy: "restore the file, or export the package again".to_owned(),
    })?;
    if !found.eq_ignore_ascii_case(expected) {
        return Err(changed(location, name, expected, &found));
    }
    Ok(())
}
