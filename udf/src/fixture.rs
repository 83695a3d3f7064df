//! What this crate's tests share: packages on disk and declarations of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::execution::runtime_env::RuntimeEnv;
use sha2::{Digest, Sha256};
use url::Url;

use crate::model::{ModelDeclaration, Package};

/// A package in a temporary folder.
pub(crate) struct Folder {
    pub(crate) dir: tempfile::TempDir,
}

impl Folder {
    /// Writes `model.toml`, completed by the hashes of `files`.
    pub(crate) fn new(description: &str, files: &[(&str, &[u8])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let folder = Self { dir };
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        folder.describe(description, &names);
        folder
    }

    /// Writes `model.toml` with the hashes that `files` have now.
    pub(crate) fn describe(&self, description: &str, files: &[&str]) {
        let mut text = format!("{description}\n[files]\n");
        for name in files {
            let digest = Sha256::digest(fs::read(self.path().join(name)).unwrap());
            let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("\"{name}\" = \"{hash}\"\n");
        }
        fs::write(self.path().join("model.toml"), text).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn url(&self) -> Url {
        Url::from_file_path(self.path()).unwrap()
    }
}

/// A verified package and the declaration of a model of it.
pub(crate) fn open(dir: &Path) -> (ModelDeclaration, Package) {
    let package = Package::open(dir, None).unwrap();
    let url = Url::from_file_path(dir).unwrap();
    let declaration = package.manifest.declaration("m", url, package.content_hash.clone());
    (declaration, package)
}

pub(crate) fn env() -> Arc<RuntimeEnv> {
    Arc::new(RuntimeEnv::default())
}

/// A folder that `make setup` prepares.
pub(crate) fn prepared(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let path = root.join(".forebay").join(path);
    assert!(path.exists(), "{} is missing: run `make setup`", path.display());
    path
}

/// A description with one STRING input and a tokenizer.
pub(crate) const TEXT: &str = r#"
format = 1
name = "test"
version = "1"

[[input]]
name = "text"
type = "STRING"

[[output]]
name = "embedding"
type = "FLOAT[3]"

[transform]
kind = "tokenize"
tokenizer = "tokenizer.json"
max_tokens = 8
pad_id = 0
arguments = ["input_ids", "attention_mask"]

[runtime]
kind = "torch"
program = "model.pt"

[resources]
cpus = 1
gpus = 1
memory = "1 MiB"

[batch]
max_rows = 4
window_rows = 16
"#;

/// A description of columns that are passed as they are.
pub(crate) fn tensors(inputs: &[(&str, &str)], outputs: &[(&str, &str)], runtime: &str) -> String {
    let columns = |kind: &str, columns: &[(&str, &str)]| -> String {
        let column = |(name, sql_type): &(&str, &str)| {
            format!("[[{kind}]]\nname = \"{name}\"\ntype = \"{sql_type}\"\n")
        };
        columns.iter().map(column).collect()
    };
    format!(
        "format = 1\nname = \"test\"\nversion = \"1\"\n{}{}\
         [transform]\nkind = \"tensor\"\n[runtime]\n{runtime}\n\
         [resources]\ncpus = 1\ngpus = 0\nmemory = \"1 MiB\"\n\
         [batch]\nmax_rows = 4\nwindow_rows = 16\n",
        columns("input", inputs),
        columns("output", outputs),
    )
}
