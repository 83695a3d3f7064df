//! `model.toml`: what a package says about itself. The format is in `docs/model-packages.md`.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::{DataType, FieldRef, Fields};
use serde::{Deserialize, Serialize};
use url::Url;

use super::declaration::{BatchLimits, ModelDeclaration, Number, RuntimeKind, TransformKind};
use super::options::{Determinism, DeviceChoice, OnError, Precision};
use super::package::is_safe_name;
use super::quality::Quality;
use super::resources::Resources;
use super::signature::{ColumnText, Signature, SignatureText, type_name};
use super::template::Template;
use crate::error::{ModelError, nearest_hint};
use crate::feature::image::Recipe;

/// Name of the description within a package.
pub(super) const MANIFEST: &str = "model.toml";
pub(super) const FORMAT: u32 = 1;
const ARGUMENTS: [&str; 7] = [
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "token_starts",
    "token_ends",
    "token_texts",
    "token_words",
];
/// Those that say where in its text a token is.
const OFFSETS: [&str; 2] = ["token_starts", "token_ends"];

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
    /// What executes it.
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
            RuntimeKind::Torch { .. } | RuntimeKind::Emulated { .. } => Precision::Fp32,
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
            device: if emulated { DeviceChoice::Emulated } else { DeviceChoice::Auto },
            needs_accelerator: emulated,
            max_replicas: None,
            precision,
            precisions: self.precisions.clone(),
            quality: self.quality.clone(),
            determinism: self.determinism,
            on_error: OnError::Fail,
            max_error_ratio: 1.0,
            output_prefix: String::new(),
            description: None,
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.name.trim().is_empty() {
            return Err("name is empty".to_owned());
        }
        check_columns("input", &self.signature.inputs)?;
        check_columns("output", &self.signature.outputs)?;
        self.check_transform()?;
        self.check_prompts()?;
        self.check_shapes()?;
        self.check_runtime()?;
        self.check_precisions()?;
        self.resources.gpus.check_gpus("resources.gpus").map_err(|e| e.to_string())?;
        let BatchLimits { max_rows, max_tokens, max_bytes, window_rows } = self.batch;
        let limits = [
            ("max_rows", Some(u64::from(max_rows))),
            ("max_tokens", max_tokens.map(u64::from)),
            ("max_bytes", max_bytes),
            ("window_rows", Some(u64::from(window_rows))),
        ];
        if let Some((key, _)) = limits.iter().find(|(_, limit)| *limit == Some(0)) {
            return Err(format!("batch.{key} is 0, expected at least 1"));
        }
        self.check_files()
    }

    fn check_transform(&self) -> Result<(), String> {
        let inputs = &self.signature.inputs;
        match &self.transform {
            TransformKind::Tokenize { max_tokens, arguments, vocabulary, template, .. } => {
                if inputs.len() > 2 || inputs.iter().any(|i| i.data_type() != &DataType::Utf8) {
                    return Err("transform 'tokenize' takes one [[input]] of type STRING, or two"
                        .to_owned());
                }
                if *max_tokens == 0 {
                    return Err("transform.max_tokens is 0, expected at least 1".to_owned());
                }
                if arguments.is_empty() {
                    return Err("transform.arguments is empty".to_owned());
                }
                let unknown = |name: &&String| !ARGUMENTS.contains(&name.as_str());
                if let Some(name) = arguments.iter().find(unknown) {
                    return Err(format!(
                        "transform.arguments holds '{name}', expected {}{}",
                        ARGUMENTS.join(", "),
                        nearest_hint(name, ARGUMENTS)
                    ));
                }
                if *vocabulary == Some(0) {
                    return Err("transform.vocabulary is 0, expected at least 1".to_owned());
                }
                match template {
                    Some(template) => Template::parse(template, inputs).map(drop),
                    None => Ok(()),
                }
            }
            TransformKind::Image { resize, crop, mean, std, .. } => {
                if inputs.len() != 1 || inputs[0].data_type() != &DataType::Binary {
                    return Err("transform 'image' takes one [[input]] of type BINARY".to_owned());
                }
                Recipe::try_new(*resize, *crop)
                    .map_err(|problem| format!("transform: {problem}"))?;
                let is_usable = |number: &Number| number.0.is_finite();
                if !mean.iter().all(is_usable) || !std.iter().all(|s| is_usable(s) && s.0 > 0.0) {
                    return Err(format!(
                        "transform.mean is {:?} and transform.std is {:?}, expected numbers, and of \
                         std those above 0",
                        mean.map(|number| number.0),
                        std.map(|number| number.0)
                    ));
                }
                Ok(())
            }
            // What is no tensor is passed on to a runtime that needs none.
            TransformKind::Tensor if matches!(self.runtime, RuntimeKind::Emulated { .. }) => Ok(()),
            TransformKind::Tensor => {
                let takes_text = matches!(self.runtime, RuntimeKind::Onnx { .. });
                let is_possible = |data_type: &DataType| {
                    is_tensor_type(data_type) || takes_text && data_type == &DataType::Utf8
                };
                match inputs.iter().find(|field| !is_possible(field.data_type())) {
                    Some(field) => Err(format!(
                        "transform 'tensor' takes numbers and vectors, but input '{}' is {}",
                        field.name(),
                        type_name(field.data_type())
                    )),
                    None => Ok(()),
                }
            }
        }
    }

    fn check_prompts(&self) -> Result<(), String> {
        let offsets = match &self.transform {
            TransformKind::Tokenize { arguments, .. } => {
                arguments.iter().any(|argument| OFFSETS.contains(&argument.as_str()))
            }
            TransformKind::Tensor | TransformKind::Image { .. } => true,
        };
        if offsets && !self.prompts.is_empty() {
            return Err("[prompts] is for transform 'tokenize', and not with token_starts or \
                        token_ends, which would count them"
                .to_owned());
        }
        if self.prompts.contains_key("") {
            return Err("[prompts] holds one without a name".to_owned());
        }
        match self.prompt.as_ref().filter(|name| !self.prompts.contains_key(*name)) {
            Some(name) => Err(format!("prompt is '{name}', which [prompts] does not hold")),
            None => Ok(()),
        }
    }

    fn check_shapes(&self) -> Result<(), String> {
        for (field, shape) in self.signature.inputs.iter().zip(&self.shapes) {
            let Some(shape) = shape else { continue };
            let items = shape.iter().try_fold(1_u32, |items, size| items.checked_mul(*size));
            let fits = match field.data_type() {
                DataType::FixedSizeList(_, length) => items == u32::try_from(*length).ok(),
                _ => false,
            };
            if !fits || self.transform != TransformKind::Tensor {
                return Err(format!(
                    "input '{}' of type {} cannot have the shape {shape:?}, which is for a vector \
                     of as many numbers with transform 'tensor'",
                    field.name(),
                    type_name(field.data_type())
                ));
            }
        }
        Ok(())
    }

    fn check_runtime(&self) -> Result<(), String> {
        if let RuntimeKind::Onnx { results, head, .. } = &self.runtime {
            let (found, outputs) = (results.len(), &self.signature.outputs);
            let is_list = |field: &FieldRef| matches!(field.data_type(), DataType::List(_));
            let has_lists = outputs.iter().any(is_list);
            let expected = if head.is_some() { 1 } else { outputs.len() + usize::from(has_lists) };
            if !results.is_empty() && found != expected {
                return Err(format!(
                    "runtime.results names {found} of the program's results, expected {expected}"
                ));
            }
            head.iter().try_for_each(|head| head.check(&self.signature.outputs))?;
        }
        let is_torch = matches!(self.runtime, RuntimeKind::Torch { .. });
        let is_emulated = matches!(self.runtime, RuntimeKind::Emulated { .. });
        let has_head = matches!(self.runtime, RuntimeKind::Onnx { head: Some(_), .. });
        let tokenizes = matches!(self.transform, TransformKind::Tokenize { .. });
        for (field, labels) in self.signature.outputs.iter().zip(&self.labels) {
            let (name, sql_type) = (field.name(), type_name(field.data_type()));
            let (item, is_possible) = match field.data_type() {
                DataType::List(item) => (item.data_type(), !is_emulated && tokenizes),
                other => (other, true),
            };
            let is_text = item == &DataType::Utf8;
            if !is_possible || !is_text && !is_tensor_type(item) {
                return Err(format!(
                    "runtime '{}' cannot give output '{name}' of type {sql_type}",
                    self.runtime.name(),
                ));
            }
            if is_torch && is_text && labels.is_none() {
                return Err(format!(
                    "runtime 'torch' cannot give output '{name}' of type {sql_type} without \
                     labels: a JSON file of the texts that the program's numbers stand for"
                ));
            }
            if labels.is_some() && (is_emulated || has_head || !is_text) {
                return Err(format!(
                    "output '{name}' of type {sql_type} has labels, which are for STRING and \
                     STRING[] of the runtimes torch and onnx, and not beside a [runtime.head]"
                ));
            }
        }
        Ok(())
    }

    fn check_precisions(&self) -> Result<(), String> {
        for (name, off) in self.precisions.iter().flatten() {
            let is_half = matches!(name.parse(), Ok(Precision::Bf16 | Precision::Fp16));
            if !(is_half && off.0 >= 0.0 && off.0.is_finite()) {
                return Err(format!(
                    "[precisions] holds '{name}' = {}, expected bf16 or fp16 and how far results are \
                     off",
                    off.0
                ));
            }
        }
        for (name, quality) in &self.quality {
            name.parse::<Precision>()
                .map_err(|error| format!("[quality] is of '{name}': {error}"))
                .and_then(|_| quality.check().map_err(|why| format!("[quality.{name}] {why}")))?;
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), String> {
        for (name, hash) in &self.files {
            if !is_safe_name(name) {
                return Err(format!(
                    "[files] holds '{name}', expected the name of a file within the package"
                ));
            }
            if name == MANIFEST {
                return Err(format!("[files] holds {MANIFEST}, which cannot hold its own hash"));
            }
            if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(format!("[files] '{name}' is not a SHA-256 in hexadecimal"));
            }
        }
        let tokenizer = match &self.transform {
            TransformKind::Tokenize { tokenizer, .. } => Some(("transform.tokenizer", tokenizer)),
            TransformKind::Tensor | TransformKind::Image { .. } => None,
        };
        let program = match &self.runtime {
            RuntimeKind::Torch { program } | RuntimeKind::Onnx { program, .. } => {
                Some(("runtime.program", program))
            }
            RuntimeKind::Emulated { .. } => None,
        };
        let labels = self.labels.iter().flatten().map(|name| ("labels", name));
        let head = match &self.runtime {
            RuntimeKind::Onnx { head: Some(head), .. } => head.dense(),
            _ => &[],
        };
        let dense = head.iter().map(|dense| ("runtime.head.dense.weights", &dense.weights));
        let missing = [tokenizer, program]
            .into_iter()
            .flatten()
            .chain(labels)
            .chain(dense)
            .find(|(_, name)| !self.files.contains_key(*name));
        match missing {
            Some((key, name)) => Err(format!("{key} is '{name}', which [files] does not list")),
            None => Ok(()),
        }
    }
}

fn check_columns(kind: &str, fields: &Fields) -> Result<(), String> {
    if fields.is_empty() {
        return Err(format!("there is no [[{kind}]]"));
    }
    let mut names = BTreeSet::new();
    for field in fields {
        if field.name().trim().is_empty() {
            return Err(format!("an [[{kind}]] has an empty name"));
        }
        if !names.insert(field.name()) {
            return Err(format!("[[{kind}]] '{}' is there twice", field.name()));
        }
    }
    Ok(())
}

fn is_tensor_type(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64 => true,
        DataType::FixedSizeList(item, _) => item.data_type().is_numeric(),
        _ => false,
    }
}

/// `line 3: unknown field …`, on one line.
fn located(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().trim().replace('\n', ", ");
    match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or_default();
            format!("line {}: {message}", before.matches('\n').count() + 1)
        }
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{TEXT, tensors};

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn text() -> String {
        format!("{TEXT}\n[files]\n\"model.pt\" = \"{HASH}\"\n\"tokenizer.json\" = \"{HASH}\"\n")
    }

    fn error(text: &str) -> String {
        Manifest::parse(text.as_bytes(), "/models/x").unwrap_err().to_string()
    }

    #[test]
    fn a_declaration_has_the_values_of_its_package() {
        let manifest = Manifest::parse(text().as_bytes(), "/models/x").unwrap();
        let url = Url::parse("file:///models/x").unwrap();
        let model = manifest.declaration("minilm", url, HASH.to_owned());
        assert_eq!(model.name, "minilm");
        assert_eq!(model.signature.to_string(), "(text STRING) -> (embedding FLOAT[3])");
        assert_eq!(model.device, DeviceChoice::Auto);
        assert!(!model.needs_accelerator);
        assert_eq!(model.resources_text(), "cpus=1, gpus=1, memory=1.0 MiB");
    }

    #[test]
    fn an_emulated_model_needs_its_accelerator() {
        let text =
            tensors(&[("t", "STRING")], &[("d", "STRING")], "kind = \"emulated\"\nservice_ms = 1");
        let manifest = Manifest::parse(text.as_bytes(), "/models/x").unwrap();
        let url = Url::parse("file:///models/x").unwrap();
        let model = manifest.declaration("m", url, HASH.to_owned());
        assert_eq!(model.device, DeviceChoice::Emulated);
        assert!(model.needs_accelerator);
    }

    #[test]
    fn mistakes_are_named() {
        let cases: [(&str, &str, &str); 30] = [
            ("format = 1", "format = 2", "format is 2, this version reads format 1"),
            ("format = 1", "", "format is missing"),
            ("format = 1", "format = ", "line 2:"),
            ("version = \"1\"", "version = \"1\"\nweights = 3", "line 5: unknown field `weights`"),
            ("name = \"test\"", "name = \" \"", "name is empty"),
            ("STRING", "TEXTS", "'TEXTS'"),
            ("STRING", "BIGINT", "one [[input]] of type STRING"),
            (
                "version = \"1\"",
                "version = \"1\"\nprompt = \"query\"",
                "prompt is 'query', which [prompts] does not hold",
            ),
            (
                "version = \"1\"",
                "version = \"1\"\nprecisions = { fp8 = 0.1 }",
                "[precisions] holds 'fp8' = 0.1",
            ),
            (
                "version = \"1\"",
                "version = \"1\"\nprecisions = { bf16 = nan }",
                "[precisions] holds 'bf16' = NaN",
            ),
            (
                "version = \"1\"",
                "version = \"1\"\nprompts = { \"\" = \"x\" }",
                "[prompts] holds one without a name",
            ),
            ("FLOAT[3]", "STRING", "cannot give output 'embedding' of type STRING without labels"),
            ("FLOAT[3]", "BINARY", "runtime 'torch' cannot give output 'embedding' of type BINARY"),
            (
                "\"FLOAT[3]\"",
                "\"FLOAT[3]\"\nlabels = \"l.json\"",
                "output 'embedding' of type FLOAT[3] has labels",
            ),
            (
                "\"FLOAT[3]\"",
                "\"STRING\"\nlabels = \"l.json\"",
                "labels is 'l.json', which [files] does not list",
            ),
            ("\"STRING\"", "\"STRING\"\nshape = [2, 2]", "cannot have the shape [2, 2]"),
            ("kind = \"tokenize\"", "kind = \"tokenise\"", "unknown variant `tokenise`"),
            ("max_tokens = 8", "max_tokens = 0", "transform.max_tokens is 0"),
            (
                "pad_id = 0",
                "pad_id = 0\ntemplate = \"{text} {other}\"",
                "transform.template is '{text} {other}'",
            ),
            ("pad_id = 0", "pad_id = 0\nvocabulary = 0", "transform.vocabulary is 0"),
            ("\"attention_mask\"", "\"mask\"", "holds 'mask'"),
            ("gpus = 1", "gpus = 1.5", "resources.gpus"),
            ("memory = \"1 MiB\"", "memory = \"big\"", "line 28:"),
            ("max_rows = 4", "max_rows = 0", "batch.max_rows is 0, expected at least 1"),
            (
                "\"model.pt\" = \"",
                "\"other.pt\" = \"",
                "runtime.program is 'model.pt', which [files]",
            ),
            (
                "\"tokenizer.json\" = \"",
                "\"t.json\" = \"",
                "transform.tokenizer is 'tokenizer.json'",
            ),
            ("\"model.pt\" = \"", "\"../model.pt\" = \"", "'../model.pt'"),
            ("\"model.pt\" = \"", "\"/model.pt\" = \"", "'/model.pt'"),
            ("\"model.pt\" = \"", "\"a/./model.pt\" = \"", "'a/./model.pt'"),
            (&format!("\"{HASH}\"\n\"tok"), "\"abc\"\n\"tok", "not a SHA-256"),
        ];
        for (right, wrong, expected) in cases {
            let message = error(&text().replacen(right, wrong, 1));
            assert!(message.contains(expected), "{message} lacks {expected}");
            assert!(message.starts_with("model package /models/x: model.toml"), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn columns_need_distinct_names() {
        let text = tensors(
            &[("a", "FLOAT"), ("a", "FLOAT")],
            &[("b", "FLOAT")],
            "kind = \"emulated\"\nservice_ms = 1",
        );
        assert!(error(&text).contains("[[input]] 'a' is there twice"));
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let message = Manifest::parse(&[0xff, 0xfe], "x").unwrap_err().to_string();
        assert!(message.contains("not UTF-8"), "{message}");
    }
}
