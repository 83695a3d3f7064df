//! A package in an object store, and the folder that downloads are kept in.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::execution::runtime_env::RuntimeEnv;
use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use url::Url;

use super::cache::PARTIAL;
use super::problem::{MANIFEST_BYTES_MAX, changed, io_problem, too_long};
use crate::error::ModelError;
use crate::folders;
use crate::model::hashes::hash_bytes;
use crate::model::manifest::{MANIFEST, Manifest};

/// Where downloaded packages are kept: `packages` in `$FOREBAY_CACHE`, in `~/.cache/forebay`, or in
/// the folder for temporary files.
pub fn packages_dir() -> PathBuf {
    folders::cache().unwrap_or_else(|| std::env::temp_dir().join("forebay")).join("packages")
}

/// A package in an object store.
pub(super) struct Remote<'a> {
    location: &'a Url,
    store: Arc<dyn ObjectStore>,
}

impl<'a> Remote<'a> {
    pub(super) fn open(location: &'a Url, env: &Arc<RuntimeEnv>) -> Result<Self, ModelError> {
        let store =
            env.object_store_registry.get_store(location).map_err(|e| ModelError::Package {
                location: location.to_string(),
                problem: format!("no object store for it: {}", e.message()),
                remedy: "register the store, or copy the package to a local folder".to_owned(),
            })?;
        Ok(Self { location, store })
    }

    fn path(&self, name: &str) -> Result<object_store::path::Path, ModelError> {
        let base = self.location.path().trim_end_matches('/');
        let base = object_store::path::Path::from_url_path(base)
            .map_err(|e| self.problem(MANIFEST, &e.to_string()))?;
        Ok(name.split('/').fold(base, |path, part| path.join(part)))
    }

    fn problem(&self, name: &str, problem: &str) -> ModelError {
        ModelError::Package {
            location: self.location.to_string(),
            problem: format!("{name} cannot be fetched: {problem}"),
            remedy: "check the URL and the credentials".to_owned(),
        }
    }

    /// What a store says when it does not answer, or answers that it cannot, may pass.
    fn failed(&self, name: &str, error: &object_store::Error) -> ModelError {
        // What it comes from says more than its kind, which stands in front of it.
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        match error {
            object_store::Error::Generic { .. } | object_store::Error::JoinError { .. } => {
                ModelError::Unreachable {
                    location: self.location.to_string(),
                    problem: format!("{name} cannot be fetched: {reason}"),
                }
            }
            _ => self.problem(name, &reason),
        }
    }

    /// The bytes of the package's description.
    pub(super) async fn description(&self) -> Result<Vec<u8>, ModelError> {
        let failed = |e: object_store::Error| self.failed(MANIFEST, &e);
        let result = self.store.get(&self.path(MANIFEST)?).await.map_err(failed)?;
        let (mut bytes, mut chunks) = (vec![], result.into_stream());
        while let Some(chunk) = chunks.try_next().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > MANIFEST_BYTES_MAX {
                return Err(self.problem(MANIFEST, &too_long()));
            }
        }
        Ok(bytes)
    }

    /// Downloads into a temporary folder within `packages`, which is removed if anything fails.
    pub(super) async fn download(
        &self,
        packages: &Path,
        content_hash: &str,
    ) -> Result<tempfile::TempDir, ModelError> {
        let bytes = self.description().await?;
        let found = hash_bytes(&bytes);
        if found != content_hash {
            return Err(changed(self.location.as_str(), MANIFEST, content_hash, &found));
        }
        let manifest = Manifest::parse(&bytes, self.location.as_str())?;
        let cannot_write = |e: io::Error| io_problem(packages, "cannot be written", &e);
        fs::create_dir_all(packages).map_err(cannot_write)?;
        let partial =
            tempfile::Builder::new().prefix(PARTIAL).tempdir_in(packages).map_err(cannot_write)?;
        fs::write(partial.path().join(MANIFEST), &bytes).map_err(cannot_write)?;
        for name in manifest.files.keys() {
            let failed = |e: object_store::Error| self.failed(name, &e);
            let target = partial.path().join(name);
            fs::create_dir_all(target.parent().unwrap_or(packages)).map_err(cannot_write)?;
            // Written between two network reads: the page cache takes it without waiting.
            let mut file = fs::File::create(&target).map_err(cannot_write)?;
            let result = self.store.get(&self.path(name)?).await.map_err(failed)?;
            let mut chunks = result.into_stream();
            while let Some(chunk) = chunks.try_next().await.map_err(failed)? {
                file.write_all(&chunk).map_err(cannot_write)?;
            }
            file.sync_all().map_err(cannot_write)?;
        }
        Ok(partial)
    }
}

/// Gives a finished download its name. Another process may have been faster with the same bytes.
pub(super) fn install(partial: tempfile::TempDir, target: &Path) -> io::Result<()> {
    let partial = partial.keep();
    match fs::rename(&partial, target) {
        Ok(()) => Ok(()),
        Err(_) if target.exists() => {
            // Damaged, or else fetch would have taken it; or just finished by another process.
            let old = tempfile::tempdir_in(target.parent().unwrap_or(target))?;
            fs::rename(target, old.path().join("old"))?;
            fs::rename(&partial, target)
        }
        Err(e) => {
            fs::remove_dir_all(&partial).ok();
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_answer_may_answer_later() {
        let location = Url::parse("http://models.example/x").unwrap();
        let store = Arc::new(object_store::memory::InMemory::new());
        let remote = Remote { location: &location, store };
        let source = || "503".to_owned().into();
        let busy = object_store::Error::Generic { store: "HTTP", source: source() };
        let error = remote.failed("model.pt", &busy);
        assert!(matches!(error, ModelError::Unreachable { .. }), "{error}");
        assert!(error.to_string().starts_with("model package http://models.example/x: model.pt "));
        let gone = object_store::Error::NotFound { path: "x".to_owned(), source: source() };
        let error = remote.failed("model.pt", &gone);
        assert!(matches!(error, ModelError::Package { .. }), "{error}");
    }
}
