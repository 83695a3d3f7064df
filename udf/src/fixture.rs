//! What this crate's tests share: packages on disk and declarations of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::datatypes::{DataType, FieldRef, Fields, Float32Type, Schema};
use arrow::json::ReaderBuilder;
use datafusion::execution::runtime_env::RuntimeEnv;
use sha2::{Digest, Sha256};
use url::Url;

use crate::error::ModelError;
use crate::model::{Described, ModelDeclaration, Package, Precision, parse_location};

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
            let hash = hex::encode(digest);
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

pub(crate) fn floats(column: &ArrayRef) -> Vec<f32> {
    let items = column.as_fixed_size_list_opt().map_or(column, |list| list.values());
    items.as_primitive::<Float32Type>().values().to_vec()
}

pub(crate) fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, f32::max);
    assert!(worst <= tolerance, "differs by {worst}");
}

/// The columns of a fixture's reference.json, of the types that its package declares.
pub(crate) fn reference(folder: &Path, kind: &str, fields: &Fields) -> Vec<ArrayRef> {
    let text = fs::read_to_string(folder.join("reference.json")).unwrap();
    let reference: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = reference[kind][fields[0].name()].as_array().unwrap().len();
    let row = |row: usize| -> serde_json::Value {
        let value = |field: &FieldRef| {
            let name = field.name().clone();
            let value = reference[kind][&name][row].clone();
            (name, value)
        };
        serde_json::Value::Object(fields.iter().map(value).collect())
    };
    let rows: Vec<serde_json::Value> = (0..rows).map(row).collect();
    let schema = Arc::new(Schema::new(fields.clone()));
    let mut decoder =
        ReaderBuilder::new(schema).with_batch_size(rows.len()).build_decoder().unwrap();
    decoder.serialize(&rows).unwrap();
    decoder.flush().unwrap().unwrap().columns().to_vec()
}

/// Equal in all but floats, and these within 1e-5; 2e-3 for models of image files.
pub(crate) fn assert_same(found: &ArrayRef, expected: &ArrayRef, what: &str) {
    assert_eq!(found.data_type(), expected.data_type(), "{what}");
    assert_eq!(found.len(), expected.len(), "{what}");
    if let (Some(found), Some(expected)) =
        (found.as_list_opt::<i32>(), expected.as_list_opt::<i32>())
    {
        assert!(found.offsets().lengths().eq(expected.offsets().lengths()), "{what}");
        // A slice's values are those of the whole.
        let values = |list: &ListArray| {
            let start = list.value_offsets()[0] as usize;
            list.values().slice(start, list.offsets().lengths().sum())
        };
        return assert_same(&values(found), &values(expected), what);
    }
    if let (Some(found), Some(expected)) =
        (found.as_fixed_size_list_opt(), expected.as_fixed_size_list_opt())
    {
        return assert_same(found.values(), expected.values(), what);
    }
    if let (Some(found), Some(expected)) = (found.as_struct_opt(), expected.as_struct_opt()) {
        for (found, expected) in found.columns().iter().zip(expected.columns()) {
            assert_same(found, expected, what);
        }
        return;
    }
    match found.data_type() {
        DataType::Float32 => {
            // A resized pixel may be rounded otherwise than torchvision rounds it.
            let tolerance = match what {
                // This filter rounds more of them otherwise. Another filter would differ by 0.05.
                "clip-image-files" => 0.015,
                // These weigh pixels otherwise: another filter would differ by 0.011, 0.07 and 0.0015.
                "image-vit-files" => 5e-3,
                "image-embedding-files" => 0.02,
                "image-convnext-files" => 1.2e-3,
                _ if what.ends_with("-files") => 2e-3,
                _ => 1e-5,
            };
            let (found, expected) = (floats(found), floats(expected));
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(found.len() == expected.len() && worst <= tolerance, "{what}: off by {worst}");
        }
        _ => assert_eq!(found, expected, "{what}"),
    }
}

/// A model without `model.toml`, and the declaration of it.
pub(crate) fn created(
    location: &Path,
    precision: Option<Precision>,
) -> Result<Created, ModelError> {
    let location = parse_location(location.to_str().unwrap())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let described = Package::read(&location, precision, &env()).await?;
        let Described { manifest, content_hash, description } = described;
        let mut model = manifest.declaration("m", location, content_hash);
        model.description = description;
        let package = Package::fetch(model.pinned(), &env()).await?;
        Ok((model, package))
    })
}

pub(crate) type Created = (ModelDeclaration, Arc<Package>);
