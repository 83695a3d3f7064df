use object_store::ObjectStoreExt;

use super::*;
use crate::fixture::{Folder, TEXT, env};

fn folder() -> Folder {
    Folder::new(TEXT, &[("model.pt", b"weights"), ("tokenizer.json", b"{}")])
}

async fn fetch(folder: &Folder, hash: &str) -> Result<Arc<Package>, String> {
    let (location, content_hash) = (&folder.url(), hash);
    let pinned = Pinned { location, content_hash, description: None };
    Package::fetch(pinned, &env()).await.map_err(|e| e.to_string())
}

#[tokio::test]
async fn a_local_package_is_used_in_place() {
    let folder = folder();
    let described = Package::read(&folder.url(), None, &env()).await.unwrap();
    let Described { manifest, content_hash: hash, .. } = described;
    let package = fetch(&folder, &hash).await.unwrap();
    assert_eq!(package.dir, folder.path());
    assert_eq!(package.manifest, manifest);
}

#[tokio::test]
async fn a_changed_file_is_named_with_both_hashes_and_a_remedy() {
    let folder = folder();
    let hash = Package::read(&folder.url(), None, &env()).await.unwrap().content_hash;
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
    let hash = Package::read(&folder.url(), None, &env()).await.unwrap().content_hash;
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let message = fetch(&folder, &hash).await.unwrap_err();
    assert!(message.contains("tokenizer.json is missing"), "{message}");
}

#[tokio::test]
async fn a_new_description_is_not_what_was_pinned() {
    let folder = folder();
    let hash = Package::read(&folder.url(), None, &env()).await.unwrap().content_hash;
    folder.describe(&TEXT.replace("max_rows = 4", "max_rows = 8"), &["model.pt", "tokenizer.json"]);
    let message = fetch(&folder, &hash).await.unwrap_err();
    assert!(message.contains("model.toml has changed"), "{message}");
}

#[test]
fn what_is_no_description_is_not_read_for_ever() {
    let folder = folder();
    let path = folder.path().join(MANIFEST);
    let problem = || match Package::open(folder.path(), None).unwrap_err() {
        ModelError::Package { problem, .. } => problem,
        other => other.to_string(),
    };
    fs::File::create(&path).unwrap().set_len(MANIFEST_BYTES_MAX + 1).unwrap();
    let said = problem();
    assert!(said.contains("it has more than 16777216 bytes"), "{said}");
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for endless in [Path::new("/dev/zero"), &pipe] {
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(endless, &path).unwrap();
        let said = problem();
        assert!(said.contains("it is not a regular file"), "{said}");
    }
    // Nor are the files that one names.
    fs::remove_file(&path).unwrap();
    folder.describe(TEXT, &["model.pt", "tokenizer.json"]);
    fs::remove_file(folder.path().join("model.pt")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("model.pt")).unwrap();
    let said = problem();
    assert!(said.contains("model.pt cannot be read: it is not a regular file"), "{said}");
}

#[test]
fn verify_reports_every_file() {
    let folder = folder();
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let (_, checks) = Package::verify(folder.path(), None).unwrap();
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
    let hash = Package::read(&location, None, &env).await.unwrap().content_hash;
    let pinned = Pinned { location: &location, content_hash: &hash, description: None };
    let package = Package::fetch_into(cache.path(), pinned, &env).await.unwrap();
    assert_eq!(package.dir, cache.path().join(&hash));

    fs::write(package.file("model.pt"), "damaged").unwrap();
    let again = Package::fetch_into(cache.path(), pinned, &env).await.unwrap();
    assert_eq!(fs::read(again.file("model.pt")).unwrap(), b"weights");

    store.delete(&"models/x/model.toml".into()).await.unwrap();
    Package::fetch_into(cache.path(), pinned, &env).await.unwrap();
    let left: Vec<_> = fs::read_dir(cache.path()).unwrap().collect();
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
    let hash = Package::read(&location, None, &env).await.unwrap().content_hash;
    let pinned = Pinned { location: &location, content_hash: &hash, description: None };
    let error = Package::fetch_into(cache.path(), pinned, &env).await.unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("model package memory://bucket/x: model.pt has changed"),
        "{message}"
    );
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_store_that_nobody_registered_is_named() {
    let location = Url::parse("s3://bucket/x").unwrap();
    let message = Package::read(&location, None, &env()).await.unwrap_err().to_string();
    assert!(message.contains("s3://bucket/x") && message.contains("no object store"), "{message}");
}
