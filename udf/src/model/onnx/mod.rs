//! Describes an ONNX model by its own files, in the form of the `model.toml` that it lacks.
//!
//! - `proto.rs`, `file.rs`, `graph.rs`, `element.rs`: what an ONNX file says of itself
//! - `described.rs`: what is made of it: a description in parts, or a refusal
//! - `variants.rs`: which of a folder's programs
//! - `columns.rs`: inputs and outputs that are columns: tabular models, pixels
//! - `image.rs`, `processor.rs`: models of images, whose folder says how pixels are made of them
//! - `text.rs`: models of texts, whose other files say how they are fed and what is made of the result
//! - `tokenizer.rs`, `head.rs`, `json.rs`: those files
//!
//! Nothing here runs a program: ONNX Runtime is loaded when a query needs it.

mod columns;
mod described;
mod element;
mod file;
mod graph;
mod head;
mod image;
mod json;
mod processor;
mod proto;
#[cfg(test)]
mod tests;
mod text;
mod tokenizer;
mod variants;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use bytesize::MIB;
use url::Url;

use self::described::{Described, Refusal};
use self::graph::Graph;
pub(crate) use self::graph::products;
use super::declaration::RuntimeKind;
use super::hashes::hash_file;
use super::manifest::{FORMAT, InputText, MANIFEST, ManifestText, OutputText};
use super::options::{Determinism, Precision};
use super::resources::{Resources, Share};
use crate::error::ModelError;

/// Whether a folder holds ONNX programs and no description.
pub(super) fn is_undescribed(dir: &Path) -> bool {
    !dir.join(MANIFEST).exists() && !variants::programs(dir).is_empty()
}

/// A description of the model in a folder. `program` names its file there; without it, the one of the
/// precision is chosen.
///
/// # Errors
/// [`ModelError::Package`] names the file, what is wrong and what to do.
pub(super) fn describe(
    dir: &Path,
    program: Option<&str>,
    precision: Option<Precision>,
) -> Result<String, ModelError> {
    let chosen = match program {
        Some(name) => Ok((name.to_owned(), None)),
        None => variants::choose(dir, precision.unwrap_or_default()),
    };
    let (program, stated) = chosen.map_err(|refusal| refused(dir, refusal))?;
    let path = dir.join(&program);
    let refuse = |refusal| refused(&path, refusal);
    let graph = Graph::read(&path).map_err(refuse)?;
    let held = stated.unwrap_or(graph.precision);
    if let Some(asked) = precision.filter(|asked| *asked != held) {
        let problem = format!("it holds {held}, and precision = '{asked}' was asked for");
        let remedy = "name the file that holds it, or leave the option out".to_owned();
        return Err(refuse((problem, remedy)));
    }
    let described = if text::is_one(&graph) {
        text::describe(dir, &graph)
    } else if image::is_one(dir, &graph) {
        image::describe(dir, &graph)
    } else {
        columns::describe(&graph)
    };
    write(dir, &program, held, &graph, described.map_err(refuse)?)
}

/// The error of an ONNX file in an object store, of which nothing says which other files it has.
pub(super) fn only_local(location: &Url) -> ModelError {
    ModelError::Package {
        location: location.to_string(),
        problem: "a model without model.toml is read from folders of this machine only".to_owned(),
        remedy: "copy it to one; on a cluster, to one that all workers see".to_owned(),
    }
}

fn refused(path: &Path, (problem, remedy): Refusal) -> ModelError {
    ModelError::Package { location: path.display().to_string(), problem, remedy }
}

fn write(
    dir: &Path,
    program: &str,
    precision: Precision,
    graph: &Graph,
    described: Described,
) -> Result<String, ModelError> {
    let files = hashed(dir, program, graph, described.files)?;
    let text = ManifestText {
        format: FORMAT,
        name: name_of(dir, program),
        version: "1".to_owned(),
        description: described.about,
        license: None,
        source: None,
        determinism: if graph.is_volatile { Determinism::Volatile } else { Determinism::Stable },
        prompt: described.prompt,
        input: described
            .inputs
            .into_iter()
            .map(|(name, sql_type)| InputText { name, sql_type, shape: None })
            .collect(),
        output: described
            .outputs
            .into_iter()
            .map(|(name, sql_type)| OutputText { name, sql_type, labels: None })
            .collect(),
        transform: described.transform,
        prompts: described.prompts,
        runtime: RuntimeKind::Onnx {
            program: program.to_owned(),
            precision,
            results: described.results,
            one_row: described.one_row,
            head: described.head,
        },
        precisions: None,
        quality: Default::default(),
        resources: resources(graph.weight_bytes, described.activation_bytes),
        batch: described.batch,
        files,
    };
    toml::to_string(&text).map_err(|error| {
        let remedy = "report this, with the model's name".to_owned();
        refused(&dir.join(program), (format!("its description cannot be written: {error}"), remedy))
    })
}

/// The hashes of the program, of the files that it names and of these.
fn hashed(
    dir: &Path,
    program: &str,
    graph: &Graph,
    mut files: Vec<String>,
) -> Result<BTreeMap<String, String>, ModelError> {
    files.push(program.to_owned());
    // Weights are named from where the program is.
    let folder = program.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    files.extend(graph.external.iter().map(|name| format!("{folder}{name}")));
    let hash = |name: String| match hash_file(&dir.join(&name)) {
        Ok(hash) => Ok((name, hash)),
        Err(error) => Err(refused(&dir.join(program), unreadable(&name, error.kind(), &error))),
    };
    files.into_iter().map(hash).collect()
}

/// Room for the weights twice, as while they are loaded, in steps of 50 MiB.
fn resources(weight_bytes: u64, activation_bytes: u64) -> Resources {
    let memory = (2 * weight_bytes).saturating_add(activation_bytes + 128 * MIB);
    let memory = memory.div_ceil(50 * MIB).saturating_mul(50 * MIB);
    Resources {
        cpus: Share::ONE,
        gpus: Share::ZERO,
        memory,
        gpu_memory: memory,
        worker_labels: Default::default(),
    }
}

fn unreadable(name: &str, kind: ErrorKind, error: &std::io::Error) -> Refusal {
    let problem = match kind {
        ErrorKind::NotFound => format!("it needs {name}, which is missing"),
        _ => format!("it needs {name}, which cannot be read: {error}"),
    };
    (problem, "fetch all files of the model, and leave them under their names".to_owned())
}

/// Of the file if it says something, or else of the folder.
fn name_of(dir: &Path, program: &str) -> String {
    let stem = Path::new(program).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = dir.file_name().and_then(|name| name.to_str());
    match folder.filter(|_| stem.starts_with("model")) {
        Some(folder) => folder.to_owned(),
        None => stem.to_owned(),
    }
}
