//! All that a plan knows of a model.

use std::collections::BTreeMap;

use arrow::datatypes::FieldRef;
use serde::{Deserialize, Serialize};
use url::Url;

use super::batch_caps::BatchCaps;
use super::compiled::Compiled;
use super::emulated::{Curve, EmulatedLoss};
use super::head::Head;
use super::location::Pinned;
use super::number::Number;
use super::options::{Determinism, DeviceChoice, ModelOptions, OnError, Precision};
use super::quality::Quality;
use super::resources::Resources;
use super::row_error::error_field;
use super::signature::Signature;
use crate::error::{ModelError, message_text, nearest_hint, quoted};
pub use crate::feature::image::{Filter, Fit, Middle};

/// A named, versioned function from input columns to output columns, with what it needs.
///
/// Self-contained: an operator that holds one needs no catalog, only access to `location`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelDeclaration {
    /// Its name in SQL.
    pub name: String,
    /// As given in `CREATE MODEL` or in the package.
    pub version: String,
    /// URL of the package's folder, or of the ONNX file in it that is the program.
    pub location: Url,
    /// SHA-256 of the package's description, which holds the hashes of all other files.
    pub content_hash: String,
    /// Columns in and out, under the names that SQL shows.
    pub signature: Signature,
    /// How input columns become the program's arguments.
    pub transform: TransformKind,
    /// Texts that may be put in front of the (first) input, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
    /// Which of them is, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What executes it, and from which file of the package.
    pub runtime: RuntimeKind,
    /// What one replica leases.
    pub resources: Resources,
    /// Sizes of its batches on CPU cores.
    pub batch: BatchLimits,
    /// What options say of them, for every device.
    #[serde(default, skip_serializing_if = "BatchCaps::is_empty")]
    pub batch_caps: BatchCaps,
    /// Where it should run.
    pub device: DeviceChoice,
    /// Whether `gpus` or `device` was asked for by the user, so that falling back to CPU cores
    /// would be a silent change.
    pub needs_accelerator: bool,
    /// How many replicas a query may use; as many as fit if `None`.
    pub max_replicas: Option<u32>,
    /// Format of weights and activations.
    pub precision: Precision,
    /// The half precisions that the program holds, and how far its results are then off; `None` if
    /// nobody has tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precisions: Option<BTreeMap<String, Number>>,
    /// Of a program in fewer bits, by its precision: how far it is off.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quality: BTreeMap<String, Quality>,
    /// Whether a program of it that is native code may be loaded; as the process says if `None`. Without one, the
    /// package's TorchScript runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_native: Option<bool>,
    /// What the optimizer may assume.
    pub determinism: Determinism,
    /// What becomes of a row whose inference fails.
    pub on_error: OnError,
    /// Share of rows that may fail before the query does, when `on_error` is not `fail`.
    pub max_error_ratio: f64,
    /// Prepended to the names of the output columns.
    pub output_prefix: String,
    /// What `CREATE MODEL` made of a model's own files, in the form of the `model.toml` that they lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// How input columns become the program's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum TransformKind {
    /// One text column, or a pair of them → token ids.
    Tokenize {
        /// File in the package.
        tokenizer: String,
        /// Special tokens included; longer texts are truncated.
        max_tokens: u32,
        /// Fills a batch up to its longest row.
        pad_id: i64,
        /// How many tokens the program has embeddings for, if it is known: a text with another token
        /// is refused before the program sees it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vocabulary: Option<u32>,
        /// Of two texts, what they become as one: each input's name in braces stands for its text. Without
        /// it they are two sequences.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template: Option<String>,
        /// Where a longer text is cut.
        #[serde(default, skip_serializing_if = "Side::is_right")]
        truncation: Side,
        /// What the program takes, in order: `input_ids`, `attention_mask`, `token_type_ids`,
        /// `token_starts`, `token_ends`, `token_texts`, `token_words`.
        arguments: Vec<String>,
    },
    /// Numbers and vectors as they are.
    Tensor,
    /// One column of image files → pixels of one size. They stay bytes until they are on the
    /// model's device, which converts, normalizes and arranges them.
    Image {
        /// Pixels of the sides that are resized, before the crop.
        resize: u32,
        /// Which sides are; the shorter one if nothing is said.
        #[serde(default)]
        fit: Fit,
        /// Pixels of both sides of what the program gets, the middle.
        crop: u32,
        /// Where the middle begins.
        #[serde(default, skip_serializing_if = "Middle::is_default")]
        middle: Middle,
        /// How pixels are resampled.
        #[serde(default)]
        filter: Filter,
        /// In what order the program takes them.
        layout: Layout,
        /// By channel: what is subtracted from values of 0 to 1.
        mean: [Number; 3],
        /// By channel: what the rest is divided by.
        std: [Number; 3],
    },
}

/// An end of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Its beginning: the first tokens of a long text are dropped.
    Left,
    /// Its end: the last tokens of a long text are dropped.
    #[default]
    Right,
}

impl Side {
    fn is_right(&self) -> bool {
        *self == Self::Right
    }
}

/// The order of an image's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// `[channels, height, width]`
    Chw,
    /// `[height, width, channels]`
    Hwc,
}

/// What executes a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum RuntimeKind {
    /// libtorch, from a TorchScript file in the package.
    Torch {
        /// File in the package.
        program: String,
    },
    /// libtorch, from native code of PyTorch's AOTInductor where one fits the device, else from TorchScript.
    Aoti {
        /// The TorchScript file in the package.
        #[serde(default)]
        program: String,
        /// The same program as native code, for some devices.
        #[serde(default)]
        compiled: Vec<Compiled>,
    },
    /// ONNX Runtime, from an ONNX file in the package.
    Onnx {
        /// File in the package.
        program: String,
        /// What the program holds; there is no other.
        #[serde(default)]
        precision: Precision,
        /// The program's results that become the outputs, in their order; its first ones if none is
        /// named.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        results: Vec<String>,
        /// Whether the program takes one row at a time.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        one_row: bool,
        /// What is made of the result before it is an output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<Head>,
    },
    /// A stand-in with a fixed service time; no real model.
    Emulated {
        /// Milliseconds for which one batch holds its accelerator.
        service_ms: u64,
        /// Fails on rows whose first input, as text, is this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fail_on: Option<String>,
        /// Runs out of memory with more rows than this in one batch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_rows: Option<u32>,
        /// What larger batches take, as on a device on which their size is learned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        curve: Option<Curve>,
        /// Loses a device after some batches.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loses: Option<EmulatedLoss>,
    },
}

impl RuntimeKind {
    /// The name that `SHOW MODELS` prints.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Torch { .. } => "torch",
            Self::Aoti { .. } => "aoti",
            Self::Onnx { .. } => "onnx",
            Self::Emulated { .. } => "emulated",
        }
    }

    /// Whether libtorch executes it.
    pub fn is_torch(&self) -> bool {
        matches!(self, Self::Torch { .. } | Self::Aoti { .. })
    }
}

/// Sizes of a model's batches. A batch has at least one row, whatever its size.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchLimits {
    /// Rows at most, from 1.
    pub max_rows: u32,
    /// Padded tokens at most: rows times the longest row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Bytes of model input at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Rows within which batches are formed by length.
    pub window_rows: u32,
}

impl ModelDeclaration {
    /// The columns that running it appends: the signature's outputs, then
    /// [`ERROR_COLUMN`](super::ERROR_COLUMN) if failed rows are routed.
    pub fn output_columns(&self) -> Vec<FieldRef> {
        let error = (self.on_error == OnError::Route).then(error_field);
        self.signature.outputs.iter().cloned().chain(error).collect()
    }

    /// Whether the set of rows that reach the model must stay as the query says: another set could
    /// change what a volatile model returns, or whether too many rows fail.
    pub fn needs_its_rows(&self) -> bool {
        self.determinism == Determinism::Volatile || self.counts_its_failures()
    }

    /// Whether the query fails if too many of the rows do.
    pub fn counts_its_failures(&self) -> bool {
        self.on_error != OnError::Fail && self.max_error_ratio < 1.0
    }

    /// The text that is put in front of the (first) input.
    pub fn prompt_text(&self) -> &str {
        let text = self.prompt.as_ref().and_then(|name| self.prompts.get(name));
        text.map_or("", String::as_str)
    }

    /// This declaration with the options' overrides.
    ///
    /// # Errors
    /// [`ModelError::InvalidValue`] for a prompt or a precision that the package does not hold.
    pub fn with_options(mut self, options: &ModelOptions) -> Result<Self, ModelError> {
        if let Some(precision) = options.precision {
            self.check_precision(precision)?;
        }
        if let Some(name) = &options.prompt {
            self.prompt = self.known_prompt(name)?;
        }
        let asks_gpus = options.gpus.is_some_and(|gpus| !gpus.is_zero());
        let asks_device = options
            .device
            .is_some_and(|device| matches!(device, DeviceChoice::Cuda(_) | DeviceChoice::Emulated));
        let refuses = matches!(options.device, Some(DeviceChoice::Cpu | DeviceChoice::Auto))
            || options.gpus.is_some_and(|gpus| gpus.is_zero());
        self.needs_accelerator = asks_gpus || asks_device || (self.needs_accelerator && !refuses);
        fn set<T: Clone>(target: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                target.clone_from(value);
            }
        }
        set(&mut self.device, &options.device);
        set(&mut self.resources.cpus, &options.cpus);
        set(&mut self.resources.gpus, &options.gpus);
        set(&mut self.resources.memory, &options.memory);
        set(&mut self.resources.worker_labels, &options.worker_labels);
        set(&mut self.resources.gpu_memory, &options.gpu_memory);
        self.batch_caps.add(options);
        set(&mut self.batch.max_rows, &options.max_batch_rows);
        set(&mut self.batch.window_rows, &options.batch_window_rows);
        self.batch.max_tokens = options.max_batch_tokens.or(self.batch.max_tokens);
        self.batch.max_bytes = options.max_batch_bytes.or(self.batch.max_bytes);
        self.max_replicas = options.max_replicas.or(self.max_replicas);
        set(&mut self.precision, &options.precision);
        self.allow_native = options.allow_native.or(self.allow_native);
        set(&mut self.determinism, &options.determinism);
        set(&mut self.on_error, &options.on_error);
        set(&mut self.max_error_ratio, &options.max_error_ratio);
        set(&mut self.output_prefix, &options.output_prefix);
        Ok(self)
    }

    /// What names and pins the package.
    pub fn pinned(&self) -> Pinned<'_> {
        Pinned {
            location: &self.location,
            content_hash: &self.content_hash,
            description: self.description.as_deref(),
        }
    }

    fn check_precision(&self, precision: Precision) -> Result<(), ModelError> {
        let refuse = |expected: String| {
            let (option, value) = ("precision".to_owned(), precision.to_string());
            Err(ModelError::InvalidValue { option, value, expected })
        };
        match &self.runtime {
            RuntimeKind::Onnx { precision: held, .. } if *held == precision => return Ok(()),
            RuntimeKind::Onnx { program, precision: held, .. } => {
                return refuse(format!(
                    "{held}, which the program {program} of model '{}' holds; for another one, create \
                     a model of the folder WITH (precision = '{precision}'), or of the file that \
                     holds it",
                    self.name
                ));
            }
            runtime if runtime.is_torch() && precision == Precision::Int8 => {
                return refuse(format!(
                    "fp32, tf32, bf16 or fp16, because model '{}' is of the runtime {}; int8 is for \
                     quantised ONNX programs",
                    self.name,
                    runtime.name()
                ));
            }
            _ => {}
        }
        let Some(held) = &self.precisions else { return Ok(()) };
        // Its weights are those of fp32.
        let is_whole = matches!(precision, Precision::Fp32 | Precision::Tf32);
        if is_whole || held.contains_key(&precision.to_string()) {
            return Ok(());
        }
        let known: Vec<&str> =
            ["fp32"].into_iter().chain(held.keys().map(String::as_str)).collect();
        refuse(format!(
            "{}, because the program of model '{}' failed in another when it was exported",
            known.join(" or "),
            self.name
        ))
    }

    /// The prompt of this name, which must be one of the package's; no name is no prompt.
    fn known_prompt(&self, name: &str) -> Result<Option<String>, ModelError> {
        if name.is_empty() || self.prompts.contains_key(name) {
            return Ok(Some(name.to_owned()).filter(|name| !name.is_empty()));
        }
        let names = self.prompts.keys().map(String::as_str);
        let expected = match names.len() {
            0 => format!("none: the package of model '{}' has no prompts", self.name),
            _ => {
                let known = names.clone().collect::<Vec<_>>().join(", ");
                format!("{}, or '' for none{}", quoted(&known), nearest_hint(name, names))
            }
        };
        let option = "prompt".to_owned();
        Err(ModelError::InvalidValue { option, value: name.to_owned(), expected })
    }

    /// As text, in the form of the catalog's files: what a plan that is sent elsewhere carries.
    ///
    /// # Errors
    /// If the text would not read as this declaration again, which would be ours to mend.
    pub fn to_text(&self) -> Result<String, ModelError> {
        let unfit = |problem: String| ModelError::Signature { name: self.name.clone(), problem };
        let text = toml::to_string(self)
            .map_err(|error| unfit(format!("its declaration cannot be written: {error}")))?;
        match Self::from_text(&text) {
            Ok(same) if same == *self => Ok(text),
            Ok(_) => Err(unfit("its declaration does not survive being written".to_owned())),
            Err(error) => Err(error),
        }
    }

    /// The declaration of [`Self::to_text`].
    ///
    /// # Errors
    /// If the text is none.
    pub fn from_text(text: &str) -> Result<Self, ModelError> {
        toml::from_str(text).map_err(|error| ModelError::InvalidValue {
            option: "declaration".to_owned(),
            value: text.to_owned(),
            expected: format!("a model's declaration: {}", message_text(error.message())),
        })
    }

    /// `cpus=1, gpus=0.5, memory=400.0 MiB`: what `EXPLAIN` and `SHOW MODELS` print.
    pub fn resources_text(&self) -> String {
        let Resources { cpus, gpus, memory, gpu_memory, worker_labels } = &self.resources;
        let mut text = format!("cpus={cpus}, gpus={gpus}, memory={}", bytesize::ByteSize(*memory));
        if !gpus.is_zero() && *gpu_memory > 0 {
            text += &format!(", gpu_memory={}", bytesize::ByteSize(*gpu_memory));
        }
        for label in worker_labels {
            text += &format!(", label {label}");
        }
        text
    }
}
