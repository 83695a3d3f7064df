//! A model's folder: its description, and the proof that its files are the ones described.
//!
//! `model.toml` holds the SHA-256 of every other file, and a declaration pins the SHA-256 of
//! `model.toml`: so one hash stands for the whole package, and a changed file is an error instead
//! of other results.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock};

use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use url::Url;

use super::manifest::{MANIFEST, Manifest};
use crate::error::ModelError;

/// A local folder whose files are verified against the hashes in its `model.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Package {
    /// The folder.
    pub dir: PathBuf,
    /// Its description.
    pub manifest: Manifest,
    /// SHA-256 of its `model.toml`.
    pub content_hash: String,
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
    /// Reads and checks the description of the package at `location`, without its other files.
    /// Returns it with its hash, which a declaration pins.
    ///
    /// # Errors
    /// [`ModelError::Package`] if it is missing, malformed or contradicts itself.
    pub async fn read(
        location: &Url,
        env: &Arc<RuntimeEnv>,
    ) -> Result<(Manifest, String), ModelError> {
        let bytes = match local_dir(location)? {
            Some(dir) => blocking(location, move || read_manifest_file(&dir)).await?,
            None => Remote::open(location, env)?.get(MANIFEST).await?,
        };
        Ok((Manifest::parse(&bytes, location.as_str())?, hash_bytes(&bytes)))
    }

    /// The package at `location`, verified: in place for `file://`, otherwise from the cache
    /// folder, where it is downloaded once.
    ///
    /// # Errors
    /// [`ModelError::Package`] names the file that is missing or has changed.
    pub async fn fetch(
        location: &Url,
        content_hash: &str,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Arc<Self>, ModelError> {
        Self::fetch_into(&cache_dir(), location, content_hash, env).await.map(Arc::new)
    }

    async fn fetch_into(
        cache: &Path,
        location: &Url,
        content_hash: &str,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Self, ModelError> {
        if let Some(dir) = local_dir(location)? {
            let expected = content_hash.to_owned();
            return blocking(location, move || Self::open(&dir, Some(&expected))).await;
        }
        let packages = cache.join("packages");
        let target = packages.join(content_hash);
        let (dir, expected) = (target.clone(), content_hash.to_owned());
        let cached = move || dir.exists().then(|| Self::open(&dir, Some(&expected))).transpose();
        // A damaged copy in the cache is nobody's fault: fetch it again.
        if let Ok(Some(package)) = blocking(location, cached).await {
            return Ok(package);
        }
        let remote = Remote::open(location, env)?;
        let partial = remote.download(&packages, content_hash).await?;
        let (location_text, expected) = (location.to_string(), content_hash.to_owned());
        blocking(location, move || {
            // Verified before it gets its name; the memory of hashes is by path, so once more after.
            Self::open(partial.path(), Some(&expected))
                .map_err(|e| relocated(e, &location_text))?;
            install(partial, &target).map_err(|e| io_problem(&target, "cannot be written", &e))?;
            Self::open(&target, Some(&expected))
        })
        .await
    }

    /// A local folder as a package. Blocks while files are hashed, unless this process has hashed
    /// them before and they look unchanged.
    ///
    /// # Errors
    /// [`ModelError::Package`] names the file that is missing or has changed.
    pub fn open(dir: &Path, content_hash: Option<&str>) -> Result<Self, ModelError> {
        let location = dir.display().to_string();
        let bytes = read_manifest_file(dir)?;
        let found = hash_bytes(&bytes);
        if let Some(expected) = content_hash.filter(|expected| **expected != found) {
            return Err(changed(&location, MANIFEST, expected, &found));
        }
        let manifest = Manifest::parse(&bytes, &location)?;
        for (name, expected) in &manifest.files {
            check_file(dir, &location, name, expected)?;
        }
        Ok(Self { dir: dir.to_owned(), manifest, content_hash: found })
    }

    /// Checks every file of a local folder, for a report. The description comes first.
    ///
    /// # Errors
    /// [`ModelError::Package`] if the description itself cannot be used.
    pub fn verify(dir: &Path) -> Result<(Manifest, Vec<FileCheck>), ModelError> {
        let location = dir.display().to_string();
        let bytes = read_manifest_file(dir)?;
        let manifest = Manifest::parse(&bytes, &location)?;
        let first = FileCheck {
            name: MANIFEST.to_owned(),
            size_bytes: Some(bytes.len() as u64),
            problem: None,
        };
        let others = manifest.files.iter().map(|(name, expected)| FileCheck {
            name: name.clone(),
            size_bytes: fs::metadata(dir.join(name)).ok().map(|metadata| metadata.len()),
            problem: match check_file(dir, &location, name, expected) {
                Ok(()) => None,
                Err(ModelError::Package { problem, .. }) => Some(problem),
                Err(other) => Some(other.to_string()),
            },
        });
        let checks = std::iter::once(first).chain(others).collect();
        Ok((manifest, checks))
    }

    /// The path of a file of this package.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// The URL of a package from what a user wrote: a URL, or a path, absolute or relative to the
/// current folder.
///
/// # Errors
/// [`ModelError::Package`] for a local folder that does not exist, or a malformed URL.
pub fn parse_location(text: &str) -> Result<Url, ModelError> {
    let text = text.trim();
    let problem = |problem: String, remedy: &str| ModelError::Package {
        location: text.to_owned(),
        problem,
        remedy: remedy.to_owned(),
    };
    let is_url = text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    if is_url {
        let url = Url::parse(text).map_err(|e| {
            problem(format!("not a URL: {e}"), "write a folder, or a URL such as file:///models/x")
        })?;
        if let Some(dir) = local_dir(&url)? {
            return folder_url(&dir, problem);
        }
        return Ok(url);
    }
    if text.is_empty() {
        return Err(problem(
            "the location is empty".to_owned(),
            "write the package's folder or URL",
        ));
    }
    let home = text.strip_prefix("~/").zip(std::env::var_os("HOME"));
    let path = match home {
        Some((rest, home)) => Path::new(&home).join(rest),
        None => PathBuf::from(text),
    };
    folder_url(&path, problem)
}

fn folder_url(
    path: &Path,
    problem: impl Fn(String, &str) -> ModelError,
) -> Result<Url, ModelError> {
    let remedy = "write the path of a folder that holds model.toml";
    let found = fs::canonicalize(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => problem("no such folder".to_owned(), remedy),
        _ => problem(e.to_string(), remedy),
    })?;
    if !found.is_dir() {
        return Err(problem("not a folder".to_owned(), remedy));
    }
    Url::from_file_path(&found).map_err(|()| problem("not an absolute path".to_owned(), remedy))
}

/// The folder of a `file://` URL; `None` for other URLs.
fn local_dir(location: &Url) -> Result<Option<PathBuf>, ModelError> {
    if location.scheme() != "file" {
        return Ok(None);
    }
    location.to_file_path().map(Some).map_err(|()| ModelError::Package {
        location: location.to_string(),
        problem: "a file URL must hold an absolute path of this machine".to_owned(),
        remedy: "write it as file:///folder".to_owned(),
    })
}

/// `$FOREBAY_CACHE`, `~/.cache/forebay`, or a folder for temporary files.
fn cache_dir() -> PathBuf {
    let named = std::env::var_os("FOREBAY_CACHE").filter(|value| !value.is_empty());
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/forebay"));
    named.map(PathBuf::from).or_else(home).unwrap_or_else(|| std::env::temp_dir().join("forebay"))
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
    fs::read(dir.join(MANIFEST)).map_err(|e| {
        let location = dir.display().to_string();
        if e.kind() == io::ErrorKind::NotFound {
            let problem =
                if dir.is_dir() { "it holds no model.toml" } else { "no such folder" }.to_owned();
            let remedy = "restore the package, or make one with `forebay model export`".to_owned();
            return ModelError::Package { location, problem, remedy };
        }
        io_problem(dir, "model.toml cannot be read", &e)
    })
}

fn io_problem(path: &Path, what: &str, error: &io::Error) -> ModelError {
    ModelError::Package {
        location: path.display().to_string(),
        problem: format!("{what}: {error}"),
        remedy: "check its permissions and its disk".to_owned(),
    }
}

fn changed(location: &str, name: &str, expected: &str, found: &str) -> ModelError {
    ModelError::Package {
        location: location.to_owned(),
        problem: format!(
            "{name} has changed (SHA-256 is {}, expected {})",
            short(found),
            short(expected)
        ),
        remedy: if name == MANIFEST {
            "restore it, or run CREATE OR REPLACE MODEL to accept the new package"
        } else {
            "restore the file, or export the package again and run CREATE OR REPLACE MODEL"
        }
        .to_owned(),
    }
}

/// The same error under the location that the user knows.
fn relocated(error: ModelError, location: &str) -> ModelError {
    match error {
        ModelError::Package { problem, remedy, .. } => {
            ModelError::Package { location: location.to_owned(), problem, remedy }
        }
        other => other,
    }
}

/// Enough of a hash to tell two apart.
fn short(hash: &str) -> String {
    format!("{}…", hash.get(..12).unwrap_or(hash))
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

/// What a file looks like from outside. Equal stamps mean an unchanged file.
#[derive(Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    status_changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            status_changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Hashes that this process has computed: weights are hashed once, not for every query.
static HASHED: LazyLock<Mutex<HashMap<PathBuf, (Stamp, String)>>> = LazyLock::new(Mutex::default);

fn hash_file(path: &Path) -> io::Result<String> {
    let stamp = Stamp::of(&fs::metadata(path)?);
    if let Some((known, hash)) = HASHED.lock().get(path)
        && *known == stamp
    {
        return Ok(hash.clone());
    }
    let mut file = fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    let hash = hex(&hasher.finalize());
    // Not remembered if it was written to meanwhile.
    if Stamp::of(&fs::metadata(path)?) == stamp {
        HASHED.lock().insert(path.to_owned(), (stamp, hash.clone()));
    }
    Ok(hash)
}

fn hash_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Gives a finished download its name. Another process may have been faster with the same bytes.
fn install(partial: tempfile::TempDir, target: &Path) -> io::Result<()> {
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

/// A package in an object store.
struct Remote<'a> {
    location: &'a Url,
    store: Arc<dyn ObjectStore>,
}

impl<'a> Remote<'a> {
    fn open(location: &'a Url, env: &Arc<RuntimeEnv>) -> Result<Self, ModelError> {
        let store =
            env.object_store_registry.get_store(location).map_err(|e| ModelError::Package {
                location: location.to_string(),
                problem: format!("no object store for it: {e}"),
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

    async fn get(&self, name: &str) -> Result<Vec<u8>, ModelError> {
        let failed = |e: object_store::Error| self.problem(name, &e.to_string());
        let result = self.store.get(&self.path(name)?).await.map_err(failed)?;
        Ok(result.bytes().await.map_err(failed)?.to_vec())
    }

    /// Downloads into a temporary folder within `packages`, which is removed if anything fails.
    async fn download(
        &self,
        packages: &Path,
        content_hash: &str,
    ) -> Result<tempfile::TempDir, ModelError> {
        let bytes = self.get(MANIFEST).await?;
        let found = hash_bytes(&bytes);
        if found != content_hash {
            return Err(changed(self.location.as_str(), MANIFEST, content_hash, &found));
        }
        let manifest = Manifest::parse(&bytes, self.location.as_str())?;
        let cannot_write = |e: io::Error| io_problem(packages, "cannot be written", &e);
        fs::create_dir_all(packages).map_err(cannot_write)?;
        let partial = tempfile::Builder::new()
            .prefix(".partial-")
            .tempdir_in(packages)
            .map_err(cannot_write)?;
        fs::write(partial.path().join(MANIFEST), &bytes).map_err(cannot_write)?;
        for name in manifest.files.keys() {
            let failed = |e: object_store::Error| self.problem(name, &e.to_string());
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

/// Whether a name stays within its folder.
pub(super) fn is_safe_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['\\', '\0'])
        && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Folder, TEXT, env};

    fn folder() -> Folder {
        Folder::new(TEXT, &[("model.pt", b"weights"), ("tokenizer.json", b"{}")])
    }

    async fn fetch(folder: &Folder, hash: &str) -> Result<Arc<Package>, String> {
        Package::fetch(&folder.url(), hash, &env()).await.map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn a_local_package_is_used_in_place() {
        let folder = folder();
        let (manifest, hash) = Package::read(&folder.url(), &env()).await.unwrap();
        let package = fetch(&folder, &hash).await.unwrap();
        assert_eq!(package.dir, folder.path());
        assert_eq!(package.manifest, manifest);
    }

    #[tokio::test]
    async fn a_changed_file_is_named_with_both_hashes_and_a_remedy() {
        let folder = folder();
        let (_, hash) = Package::read(&folder.url(), &env()).await.unwrap();
        fetch(&folder, &hash).await.unwrap();
        // Same size, so only the hash can tell.
        fs::write(folder.path().join("model.pt"), "weightz").unwrap();
        let message = fetch(&folder, &hash).await.unwrap_err();
        assert!(message.contains("model.pt has changed (SHA-256 is "), "{message}");
        assert!(message.contains("expected 9a129038d9a0…"), "{message}");
        assert!(message.contains("CREATE OR REPLACE MODEL"), "{message}");
        fs::write(folder.path().join("model.pt"), "weights").unwrap();
        fetch(&folder, &hash).await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_file_is_named() {
        let folder = folder();
        let (_, hash) = Package::read(&folder.url(), &env()).await.unwrap();
        fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        let message = fetch(&folder, &hash).await.unwrap_err();
        assert!(message.contains("tokenizer.json is missing"), "{message}");
    }

    #[tokio::test]
    async fn a_new_description_is_not_what_was_pinned() {
        let folder = folder();
        let (_, hash) = Package::read(&folder.url(), &env()).await.unwrap();
        folder.describe(
            &TEXT.replace("max_rows = 4", "max_rows = 8"),
            &["model.pt", "tokenizer.json"],
        );
        let message = fetch(&folder, &hash).await.unwrap_err();
        assert!(message.contains("model.toml has changed"), "{message}");
    }

    #[test]
    fn verify_reports_every_file() {
        let folder = folder();
        fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        let (_, checks) = Package::verify(folder.path()).unwrap();
        let problems: Vec<(&str, Option<&str>)> =
            checks.iter().map(|check| (check.name.as_str(), check.problem.as_deref())).collect();
        assert_eq!(
            problems,
            [
                ("model.toml", None),
                ("model.pt", None),
                ("tokenizer.json", Some("tokenizer.json is missing"))
            ]
        );
    }

    #[test]
    fn a_file_is_hashed_once_while_it_is_unchanged() {
        let folder = folder();
        let path = folder.path().join("model.pt");
        let first = hash_file(&path).unwrap();
        HASHED.lock().get_mut(&path).unwrap().1 = "remembered".to_owned();
        assert_eq!(hash_file(&path).unwrap(), "remembered");
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(&path, "weights").unwrap();
        assert_eq!(hash_file(&path).unwrap(), first);
    }

    #[tokio::test]
    async fn a_remote_package_is_fetched_once_and_mended_when_damaged() {
        let (folder, cache, env) = (folder(), tempfile::tempdir().unwrap(), env());
        let store = Arc::new(object_store::memory::InMemory::new());
        env.register_object_store(
            &Url::parse("memory://bucket").unwrap(),
            Arc::<object_store::memory::InMemory>::clone(&store),
        );
        let location = Url::parse("memory://bucket/models/x").unwrap();
        for name in ["model.toml", "model.pt", "tokenizer.json"] {
            let bytes = fs::read(folder.path().join(name)).unwrap();
            store.put(&format!("models/x/{name}").into(), bytes.into()).await.unwrap();
        }
        let (_, hash) = Package::read(&location, &env).await.unwrap();
        let package = Package::fetch_into(cache.path(), &location, &hash, &env).await.unwrap();
        assert_eq!(package.dir, cache.path().join("packages").join(&hash));

        fs::write(package.file("model.pt"), "damaged").unwrap();
        let again = Package::fetch_into(cache.path(), &location, &hash, &env).await.unwrap();
        assert_eq!(fs::read(again.file("model.pt")).unwrap(), b"weights");

        store.delete(&"models/x/model.toml".into()).await.unwrap();
        Package::fetch_into(cache.path(), &location, &hash, &env).await.unwrap();
        let left: Vec<_> = fs::read_dir(cache.path().join("packages")).unwrap().collect();
        assert_eq!(left.len(), 1, "only the package: {left:?}");
    }

    #[tokio::test]
    async fn a_remote_file_that_differs_never_gets_into_the_cache() {
        let (folder, cache, env) = (folder(), tempfile::tempdir().unwrap(), env());
        let store = Arc::new(object_store::memory::InMemory::new());
        env.register_object_store(
            &Url::parse("memory://bucket").unwrap(),
            Arc::<object_store::memory::InMemory>::clone(&store),
        );
        let location = Url::parse("memory://bucket/x").unwrap();
        let description = fs::read(folder.path().join("model.toml")).unwrap();
        store.put(&"x/model.toml".into(), description.into()).await.unwrap();
        store.put(&"x/model.pt".into(), "other".into()).await.unwrap();
        store.put(&"x/tokenizer.json".into(), "{}".into()).await.unwrap();
        let (_, hash) = Package::read(&location, &env).await.unwrap();
        let error = Package::fetch_into(cache.path(), &location, &hash, &env).await.unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with("model package memory://bucket/x: model.pt has changed"),
            "{message}"
        );
        assert_eq!(fs::read_dir(cache.path().join("packages")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_store_that_nobody_registered_is_named() {
        let location = Url::parse("s3://bucket/x").unwrap();
        let message = Package::read(&location, &env()).await.unwrap_err().to_string();
        assert!(
            message.contains("s3://bucket/x") && message.contains("no object store"),
            "{message}"
        );
    }

    #[test]
    fn locations_are_paths_or_urls() {
        let folder = folder();
        let expected = Url::from_file_path(folder.path().canonicalize().unwrap()).unwrap();
        let path = folder.path().to_str().unwrap();
        for text in [
            path.to_owned(),
            format!("{path}/"),
            format!("file://{path}"),
            format!("{path}/../{}", folder.path().file_name().unwrap().to_str().unwrap()),
        ] {
            assert_eq!(parse_location(&text).unwrap(), expected, "{text}");
        }
        assert_eq!(parse_location("s3://bucket/x").unwrap().as_str(), "s3://bucket/x");
        for (text, expected) in [
            ("", "the location is empty"),
            ("/no/such/folder", "no such folder"),
            ("file:///no/such/folder", "no such folder"),
            ("/proc/version", "not a folder"),
            ("s3://[", "not a URL"),
        ] {
            let message = parse_location(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn names_stay_within_the_package() {
        for name in ["a", "a/b.json", "ä b"] {
            assert!(is_safe_name(name), "{name}");
        }
        for name in ["", "/a", "..", "a/../b", "a//b", "./a", "a/", "a\\b", "a\0"] {
            assert!(!is_safe_name(name), "{name}");
        }
    }
}
