//! Overrides of a model's declaration, as `CREATE MODEL … WITH` and `ml_predict` take them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::resources::{Share, parse_bytes, parse_labels};
use crate::error::{ModelError, nearest_hint};

/// Where a model should run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// An accelerator when there is one, otherwise CPU cores.
    #[default]
    Auto,
    /// CPU cores, also where there is an accelerator.
    Cpu,
    /// A CUDA device; which one, if it matters.
    Cuda(Option<u16>),
    /// An emulated accelerator: a stand-in that computes nothing.
    Emulated,
}

impl FromStr for DeviceChoice {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let lower = text.trim().to_lowercase();
        let ordinal = lower.strip_prefix("cuda:").map(str::parse);
        match (lower.as_str(), ordinal) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(None)),
            ("emulated", _) => Ok(Self::Emulated),
            (_, Some(Ok(ordinal))) => Ok(Self::Cuda(Some(ordinal))),
            _ => Err(invalid("device", text, "auto, cpu, cuda, cuda:N or emulated")),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
            Self::Emulated => f.write_str("emulated"),
        }
    }
}

/// Declares an enum whose values are words in SQL and in TOML.
macro_rules! word_enum {
    ($(#[$doc:meta])* $name:ident, $option:literal, $($(#[$value_doc:meta])* $value:ident = $word:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum $name { $($(#[$value_doc])* $value),+ }

        impl FromStr for $name {
            type Err = ModelError;

            fn from_str(text: &str) -> Result<Self, ModelError> {
                match text.trim().to_lowercase().as_str() {
                    $($word => Ok(Self::$value),)+
                    _ => Err(invalid($option, text, [$($word),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$value => $word),+ })
            }
        }
    };
}

word_enum! {
    /// Whether equal inputs give equal outputs: decides what may be shared, merged or moved. Nothing may
    /// rely on equal bits unless the model is deterministic; sharing is for those that are stable, too.
    Determinism, "determinism",
    /// Always, to the last bit, whatever else is in the batch.
    #[default]
    Deterministic = "deterministic",
    /// Up to rounding, which may depend on the batch that a row is in and on the device.
    Stable = "stable",
    /// Never promised: each call counts, and none is shared or moved.
    Volatile = "volatile"
}

word_enum! {
    /// Floating point format of the weights and activations.
    Precision, "precision",
    /// 32 bits, as models are exported.
    #[default]
    Fp32 = "fp32",
    /// 32 bits, of which GPUs use 19 when they multiply: TF32.
    Tf32 = "tf32",
    /// bfloat16: 16 bits, with the range of 32 and fewer digits.
    Bf16 = "bf16",
    /// IEEE half: 16 bits, up to 65504.
    Fp16 = "fp16",
    /// Integers of 8 bits or fewer, as a quantised ONNX program holds them.
    Int8 = "int8"
}

word_enum! {
    /// What becomes of a row whose inference fails.
    OnError, "on_error",
    /// The query fails, with the row's error.
    #[default]
    Fail = "fail",
    /// Its outputs are NULL.
    Null = "null",
    /// Its outputs are NULL and the column `_error` says why.
    Route = "route"
}

macro_rules! string_serde {
    ($($name:ident),+) => {$(
        impl TryFrom<String> for $name {
            type Error = ModelError;
            fn try_from(text: String) -> Result<Self, ModelError> { text.parse() }
        }
        impl From<$name> for String {
            fn from(value: $name) -> Self { value.to_string() }
        }
    )+};
}
string_serde!(DeviceChoice, Determinism, Precision, OnError);

/// Overrides; what is `None` stays as the package declares it.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "each field is the option of the same name, described in KEYS")]
pub struct ModelOptions {
    pub device: Option<DeviceChoice>,
    pub cpus: Option<Share>,
    pub gpus: Option<Share>,
    pub gpu_memory: Option<u64>,
    pub memory: Option<u64>,
    pub worker_labels: Option<BTreeSet<String>>,
    pub max_replicas: Option<u32>,
    pub max_batch_rows: Option<u32>,
    pub max_batch_tokens: Option<u32>,
    pub max_batch_bytes: Option<u64>,
    pub batch_window_rows: Option<u32>,
    pub precision: Option<Precision>,
    pub allow_native: Option<bool>,
    pub determinism: Option<Determinism>,
    pub on_error: Option<OnError>,
    pub max_error_ratio: Option<f64>,
    pub output_prefix: Option<String>,
    pub prompt: Option<String>,
}

impl ModelOptions {
    /// Every option: key, unit or values, and what it does. The documentation is made from it.
    pub const KEYS: [(&'static str, &'static str, &'static str); 18] = [
        ("device", "auto, cpu, cuda, cuda:N, emulated", "where the model runs"),
        ("cpus", "number", "cores that one replica leases on a CPU"),
        ("gpus", "0, a fraction up to 1, or a whole number", "share of an accelerator per replica"),
        ("gpu_memory", "bytes", "accelerator memory of one loaded model with its largest batch"),
        ("memory", "bytes", "host memory of one loaded model"),
        ("worker_labels", "key=value, …", "labels that a worker of a cluster must carry"),
        ("max_replicas", "1 or more", "how many replicas a query may use at most"),
        ("max_batch_rows", "1 or more", "rows in one batch at most"),
        ("max_batch_tokens", "1 or more", "padded tokens in one batch at most"),
        ("max_batch_bytes", "bytes", "bytes of model input in one batch at most"),
        ("batch_window_rows", "1 or more", "rows within which batches are formed by length"),
        ("precision", "fp32, tf32, bf16, fp16", "format of weights and activations"),
        (
            "allow_native",
            "true, false",
            "whether to run the package's native code; false takes its TorchScript program",
        ),
        (
            "determinism",
            "deterministic, stable, volatile",
            "what the optimizer may assume: equal inputs give equal outputs to the last bit, up to \
             rounding, or not at all",
        ),
        ("on_error", "fail, null, route", "what becomes of a row whose inference fails"),
        ("max_error_ratio", "0 to 1", "share of rows that may fail before the query does"),
        ("output_prefix", "text", "prepended to the names of the output columns"),
        (
            "prompt",
            "a name, or '' for none",
            "which of the package's prompts is put in front of texts",
        ),
    ];

    /// Sets one option from its text.
    ///
    /// # Errors
    /// [`ModelError::UnknownOption`] with the nearest key, or [`ModelError::InvalidValue`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ModelError> {
        let key = key.trim().to_lowercase();
        match key.as_str() {
            "device" => self.device = Some(value.parse()?),
            "cpus" => self.cpus = Some(share("cpus", value)?),
            "gpus" => self.gpus = Some(share("gpus", value)?.check_gpus("gpus")?),
            "gpu_memory" => self.gpu_memory = Some(parse_bytes("gpu_memory", value)?),
            "memory" => self.memory = Some(parse_bytes("memory", value)?),
            "worker_labels" => self.worker_labels = Some(parse_labels("worker_labels", value)?),
            "max_replicas" => self.max_replicas = Some(count("max_replicas", value)?),
            "max_batch_rows" => self.max_batch_rows = Some(count("max_batch_rows", value)?),
            "max_batch_tokens" => self.max_batch_tokens = Some(count("max_batch_tokens", value)?),
            "max_batch_bytes" => {
                self.max_batch_bytes = Some(parse_bytes("max_batch_bytes", value)?)
            }
            "batch_window_rows" => {
                self.batch_window_rows = Some(count("batch_window_rows", value)?)
            }
            "precision" => self.precision = Some(value.parse()?),
            "allow_native" => self.allow_native = Some(choice("allow_native", value)?),
            "determinism" => self.determinism = Some(value.parse()?),
            "on_error" => self.on_error = Some(value.parse()?),
            "max_error_ratio" => self.max_error_ratio = Some(ratio("max_error_ratio", value)?),
            "output_prefix" => self.output_prefix = Some(value.to_owned()),
            "prompt" => self.prompt = Some(value.to_owned()),
            _ => {
                let known = Self::KEYS.map(|(key, _, _)| key);
                return Err(ModelError::UnknownOption {
                    hint: nearest_hint(&key, known),
                    option: key,
                    known: known.join(", "),
                });
            }
        }
        Ok(())
    }

    /// Options from pairs of key and value.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn try_from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ModelError> {
        let mut options = Self::default();
        for (key, value) in pairs {
            options.set(key.as_ref(), value.as_ref())?;
        }
        Ok(options)
    }
}

fn invalid(option: &str, value: &str, expected: impl Into<String>) -> ModelError {
    ModelError::InvalidValue {
        option: option.to_owned(),
        value: value.to_owned(),
        expected: expected.into(),
    }
}

fn share(option: &str, value: &str) -> Result<Share, ModelError> {
    value.parse().map_err(|_| invalid(option, value, "a number from 0 to 1000, in steps of 0.001"))
}

fn count(option: &str, value: &str) -> Result<u32, ModelError> {
    match value.trim().parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(invalid(option, value, "a whole number from 1 to 4294967295")),
    }
}

fn choice(option: &str, value: &str) -> Result<bool, ModelError> {
    value.trim().to_lowercase().parse().map_err(|_| invalid(option, value, "true or false"))
}

fn ratio(option: &str, value: &str) -> Result<f64, ModelError> {
    match value.trim().parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(invalid(option, value, "a number from 0 to 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Folder, TEXT, open};
    use crate::model::ModelDeclaration;
    use crate::model::number::Number;

    #[test]
    fn every_documented_key_is_known() {
        for (key, _, _) in ModelOptions::KEYS {
            let error = ModelOptions::default().set(key, "\u{0}").err();
            assert!(!matches!(error, Some(ModelError::UnknownOption { .. })), "{key}");
        }
    }

    #[test]
    fn a_misspelt_option_gets_the_nearest_name() {
        let error = ModelOptions::default().set("max_bach_rows", "1").unwrap_err();
        assert!(error.to_string().contains("did you mean 'max_batch_rows'?"), "{error}");
    }

    #[test]
    fn precisions_that_a_package_does_not_hold_are_refused() {
        let (model, _) =
            open(Folder::new(TEXT, &[("model.pt", b""), ("tokenizer.json", b"{}")]).path());
        let with = |held: Option<&[&str]>, precision: Precision| {
            let held = held.map(|held| held.iter().map(|name| ((*name).to_owned(), Number(0.01))));
            let model =
                ModelDeclaration { precisions: held.map(Iterator::collect), ..model.clone() };
            let options = ModelOptions { precision: Some(precision), ..Default::default() };
            model.with_options(&options).map(|model| model.precision).map_err(|e| e.to_string())
        };
        assert_eq!(with(Some(&["bf16"]), Precision::Bf16), Ok(Precision::Bf16));
        assert_eq!(with(Some(&[]), Precision::Fp32), Ok(Precision::Fp32));
        // Packages of others, and older ones, do not say.
        assert_eq!(with(None, Precision::Fp16), Ok(Precision::Fp16));
        let expected = "invalid value 'fp16' for 'precision': expected fp32 or bf16, because the program \
                        of model 'm' failed in another when it was exported";
        assert_eq!(with(Some(&["bf16"]), Precision::Fp16), Err(expected.to_owned()));
    }

    #[test]
    fn prompts_that_a_package_does_not_hold_are_refused() {
        let model = |prompts: &[&str]| ModelDeclaration {
            prompts: prompts.iter().map(|name| ((*name).to_owned(), format!("{name}: "))).collect(),
            ..open(Folder::new(TEXT, &[("model.pt", b""), ("tokenizer.json", b"{}")]).path()).0
        };
        let with = |prompts: &[&str], prompt: &str| {
            let options = ModelOptions { prompt: Some(prompt.to_owned()), ..Default::default() };
            model(prompts).with_options(&options)
        };
        assert_eq!(with(&["passage", "query"], "query").unwrap().prompt_text(), "query: ");
        assert_eq!(with(&["passage", "query"], "").unwrap().prompt_text(), "");
        assert_eq!(
            with(&["passage", "query"], "qury").unwrap_err().to_string(),
            "invalid value 'qury' for 'prompt': expected passage, query, or '' for none (did you mean \
             'query'?)"
        );
        assert_eq!(
            with(&[], "query").unwrap_err().to_string(),
            "invalid value 'query' for 'prompt': expected none: the package of model 'm' has no prompts"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (key, value) in [
            ("gpus", "-1"),
            ("gpus", "1.5"),
            ("gpus", "NaN"),
            ("cpus", "many"),
            ("max_batch_rows", "0"),
            ("max_batch_rows", "2.5"),
            ("max_error_ratio", "1.1"),
            ("device", "tpu"),
            ("cpus", "inf"),
            ("memory", "-5"),
            ("allow_native", "yes"),
        ] {
            let message = ModelOptions::default().set(key, value).unwrap_err().to_string();
            assert!(message.contains(key) && message.contains(value), "{message}");
        }
    }
}
