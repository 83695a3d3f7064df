//! `model.toml`: what a package says about itself. The format is in `docs/model-packages.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use url::Url;

use super::batch_caps::BatchCaps;
use super::declaration::{BatchLimits, ModelDeclaration, RuntimeKind, TransformKind};
use super::number::Number;
use super::options::{Determinism, DeviceChoice, OnError, Precision};
use super::quality::Quality;
use super::resources::Resources;
use super::signature::{ColumnText, Signature, SignatureText};
use crate::error::{ModelError, message_text, quoted};

mod check;

/// Name of the description within a package.
pub(super) const MANIFEST: &str = "model.toml";
pub(super) const FORMAT: u32 = 1;
/// The description of a package.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The package's own name; SQL may know it under another.
    pub name: String,
    /// As the author counts.
    pub version: String,
    /// One sentence, or nothing.
    pub description: String,
    /// SPDX expression of the weights.
    pub license: Option<String>,
    /// Where the weights come from.
    pub source: Option<String>,
    /// What the optimizer may assume.
    pub determinism: Determinism,
    /// Columns in and out.
    pub signature: Signature,
    /// By input: the shape in which the program takes one row of a vector, if not as a vector.
    pub shapes: Vec<Option<Vec<u32>>>,
    /// By output: the file of the texts that the program's numbers stand for, if they do.
    pub labels: Vec<Option<String>>,
    /// How input columns become the program's arguments.
    pub transform: TransformKind,
    /// Texts that may be put in front of the (first) input, by name.
    pub prompts: BTreeMap<String, String>,
    /// Which of them is, unless a call chooses another.
    pub prompt: Option<String>,
    /// What executes it, and from which file of the package.
    pub runtime: RuntimeKind,
    /// The half precisions that the program holds, and how far its results are then off; `None` if
    /// nobody has tried.
    pub precisions: Option<BTreeMap<String, Number>>,
    /// Of a program in fewer bits, by its precision: how far it is off.
    pub quality: BTreeMap<String, Quality>,
    /// What one replica leases.
    pub resources: Resources,
    /// Sizes of its batches.
    pub batch: BatchLimits,
    /// SHA-256 of every file but `model.toml`, by name.
    pub files: BTreeMap<String, String>,
}

/// The file as it is written.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ManifestText {
    pub(super) format: u32,
    pub(super) name: String,
    pub(super) version: String,
    #[serde(default)]
    pub(super) description: String,
    pub(super) license: Option<String>,
    pub(super) source: Option<String>,
    #[serde(default)]
    pub(super) determinism: Determinism,
    pub(super) prompt: Option<String>,
    pub(super) input: Vec<InputText>,
    pub(super) output: Vec<OutputText>,
    pub(super) transform: TransformKind,
    #[serde(default)]
    pub(super) prompts: BTreeMap<String, String>,
    pub(super) runtime: RuntimeKind,
    pub(super) precisions: Option<BTreeMap<String, Number>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) quality: BTreeMap<String, Quality>,
    pub(super) resources: Resources,
    pub(super) batch: BatchLimits,
    #[serde(default)]
    pub(super) files: BTreeMap<String, String>,
}

/// An `[[input]]`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InputText {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) sql_type: String,
    pub(super) shape: Option<Vec<u32>>,
}

/// An `[[output]]`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputText {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) sql_type: String,
    pub(super) labels: Option<String>,
}

/// Read first, so that a newer format is called that and not an unknown field.
#[derive(Deserialize)]
struct FormatOnly {
    format: Option<toml::Value>,
}

impl Manifest {
    /// Parses and checks the bytes of a `model.toml`.
    ///
    /// # Errors
    /// [`ModelError::Package`] names `location`, the entry and what is wrong with it.
    pub fn parse(bytes: &[u8], location: &str) -> Result<Self, ModelError> {
        let problem = |problem: String| ModelError::Package {
            location: location.to_owned(),
            problem: format!("{MANIFEST}: {problem}"),
            remedy: "correct it (docs/model-packages.md), or export the package again".to_owned(),
        };
        let text = std::str::from_utf8(bytes).map_err(|_| problem("not UTF-8".to_owned()))?;
        let parse_error = |e: toml::de::Error| problem(located(text, &e));
        let format = toml::from_str::<FormatOnly>(text).map_err(parse_error)?.format;
        if format != Some(toml::Value::Integer(i64::from(FORMAT))) {
            let found = format.map_or("missing".to_owned(), |format| format.to_string());
            let found = quoted(&found);
            return Err(problem(format!("format is {found}, this version reads format {FORMAT}")));
        }
        let parsed: ManifestText = toml::from_str(text).map_err(parse_error)?;
        debug_assert_eq!(parsed.format, FORMAT, "checked above");
        let (input, shapes): (Vec<_>, Vec<_>) = parsed
            .input
            .into_iter()
            .map(|c| (ColumnText { name: c.name, sql_type: c.sql_type }, c.shape))
            .unzip();
        let (output, labels): (Vec<_>, Vec<_>) = parsed
            .output
            .into_iter()
            .map(|c| (ColumnText { name: c.name, sql_type: c.sql_type }, c.labels))
            .unzip();
        let columns = SignatureText { input, output };
        let manifest = Self {
            name: parsed.name,
            version: parsed.version,
            description: parsed.description,
            license: parsed.license,
            source: parsed.source,
            determinism: parsed.determinism,
            signature: Signature::try_from(columns).map_err(|e| problem(e.to_string()))?,
            shapes,
            labels,
            transform: parsed.transform,
            prompts: parsed.prompts,
            prompt: parsed.prompt,
            runtime: parsed.runtime,
            precisions: parsed.precisions,
            quality: parsed.quality,
            resources: parsed.resources,
            batch: parsed.batch,
            files: parsed.files,
        };
        manifest.check().map_err(problem)?;
        Ok(manifest)
    }

    /// The declaration of a model of this package, before any option.
    pub fn declaration(&self, name: &str, location: Url, content_hash: String) -> ModelDeclaration {
        let precision = match &self.runtime {
            RuntimeKind::Onnx { precision, .. } => *precision,
            RuntimeKind::Torch { .. } | RuntimeKind::Aoti { .. } | RuntimeKind::Emulated { .. } => {
                Precision::Fp32
            }
        };
        let emulated = matches!(self.runtime, RuntimeKind::Emulated { .. });
        ModelDeclaration {
            name: name.to_owned(),
            version: self.version.clone(),
            location,
            content_hash,
            signature: self.signature.clone(),
            transform: self.transform.clone(),
            prompts: self.prompts.clone(),
            prompt: self.prompt.clone(),
            runtime: self.runtime.clone(),
            resources: self.resources.clone(),
            batch: self.batch.clone(),
            batch_caps: BatchCaps::default(),
            device: if emulated { DeviceChoice::Emulated } else { DeviceChoice::Auto },
            needs_accelerator: emulated,
            max_replicas: None,
            precision,
            precisions: self.precisions.clone(),
            quality: self.quality.clone(),
            allow_native: None,
            determinism: self.determinism,
            on_error: OnError::Fail,
            max_error_ratio: 1.0,
            output_prefix: String::new(),
            description: None,
        }
    }
}

/// `line 3: unknown field …`, on one line.
fn located(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().trim().replace('\n', ", ");
    let message = message_text(&message);
    match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or_default();
            format!("line {}: {message}", before.matches('\n').count() + 1)
        }
        None => message.into_owned(),
    }
}

#[cfg(test)]
mod tests;
