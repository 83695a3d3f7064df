//! What can go wrong with a model, as types: callers branch on them, nobody parses messages.
//!
//! [`ModelError`] is for the author of a statement or the owner of a package, and is found before
//! rows flow. [`RuntimeError`] arises while a model loads or runs, and says whether another
//! attempt can help.

use std::borrow::Cow;

use datafusion::common::DataFusionError;

/// A model that cannot be declared, found or used as asked.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No model of this name is in the catalog.
    #[error("model '{}' does not exist{hint}; SHOW MODELS lists the models there are", quoted(.name))]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// ` (did you mean 'x'?)` or nothing.
        hint: String,
    },
    /// The name is taken.
    #[error("model '{}' already exists; use CREATE OR REPLACE MODEL, or IF NOT EXISTS", quoted(.name))]
    ModelExists {
        /// The name asked for.
        name: String,
    },
    /// An option that no model knows.
    #[error("unknown model option '{}'{hint}; the options are {known}", quoted(.option))]
    UnknownOption {
        /// The option's key as given.
        option: String,
        /// ` (did you mean 'x'?)` or nothing.
        hint: String,
        /// All keys, comma separated.
        known: String,
    },
    /// An option or package entry whose value makes no sense.
    #[error("invalid value '{}' for '{option}': expected {expected}", quoted(.value))]
    InvalidValue {
        /// The option's key, or what is said of the package's entry.
        option: String,
        /// The value as given.
        value: String,
        /// What would have been right.
        expected: String,
    },
    /// A package that is missing, damaged, changed or malformed.
    #[error("model package {location}: {problem}; {remedy}")]
    Package {
        /// Folder or URL of the package.
        location: String,
        /// What is wrong, without the location.
        problem: String,
        /// What the owner of the package can do about it.
        remedy: String,
    },
    /// A package whose store does not answer, or not now: later it may.
    #[error("model package {location}: {problem}; try again, or see what is wrong with the store")]
    Unreachable {
        /// URL of the package.
        location: String,
        /// What the store said.
        problem: String,
    },
    /// The declared signature and the package's signature differ.
    #[error("model '{}': {problem}", quoted(.name))]
    Signature {
        /// The model's name in SQL.
        name: String,
        /// What differs, or what cannot be written or read.
        problem: String,
    },
    /// The catalog's folder cannot be read or written.
    #[error("model catalog {path}: {problem}")]
    Catalog {
        /// Path of the folder, or of the file in it.
        path: String,
        /// The operating system's or parser's message.
        problem: String,
    },
}

impl From<ModelError> for DataFusionError {
    fn from(error: ModelError) -> Self {
        Self::Plan(error.to_string())
    }
}

/// A model that failed to load or to run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RuntimeError {
    /// libtorch, ONNX Runtime or one of their device libraries cannot be loaded.
    #[error("{library} cannot be loaded: {problem}; run `forebay doctor`")]
    Library {
        /// File name of the library.
        library: String,
        /// What the system's loader says, or where the file was looked for.
        problem: String,
    },
    /// The device asked for does not exist or does not work.
    #[error("device '{device}' cannot be used: {problem}; run `forebay doctor`")]
    Device {
        /// Device as asked for.
        device: String,
        /// What is wrong, without the names above.
        problem: String,
    },
    /// The device failed, and every later call of this process on it would.
    #[error(
        "device '{device}' has failed and is lost to this process: {problem}; start the process again (a \
         worker ends by itself, for its supervisor to start it); if the same rows bring it back, run them \
         with device = 'cpu', where the fault is named; else see the device's errors in `nvidia-smi -q` \
         and the kernel's log"
    )]
    DeviceLost {
        /// Device as asked for.
        device: String,
        /// What it said when it failed.
        problem: String,
        /// Whether it was lost to another batch: this one has done nothing yet.
        by_others: bool,
    },
    /// There is no memory to load the model into.
    #[error(
        "model '{model}': out of memory while it was loaded on {device}: {problem}; other models, queries \
         and processes hold the rest: end some, or run it on a larger device (`gpu_memory`, or `memory` \
         on a CPU, tells Forebay how much it takes)"
    )]
    NoRoom {
        /// The model's name in SQL.
        model: String,
        /// Device that it was to be loaded on.
        device: String,
        /// The runtime's message, on one line and without its stack trace.
        problem: String,
    },
    /// The program or a file of the package cannot be loaded.
    #[error("model '{model}': {file} cannot be loaded: {problem}")]
    Load {
        /// The model's name in SQL.
        model: String,
        /// File within the package.
        file: String,
        /// What is wrong, without the names above.
        problem: String,
    },
    /// The program that fits the device is native code, which nobody has allowed.
    #[error(
        "model '{model}': its program for this device, {file}, is native code, which runs with the rights of \
         this process: if you trust who made the package, allow it by allow_native = true (ALTER MODEL {model} \
         SET ('allow_native' = 'true')) or by --allow-native where the process is started; \
         allow_native = false runs {script} instead"
    )]
    Native {
        /// The model's name in SQL.
        model: String,
        /// File within the package.
        file: String,
        /// The TorchScript file beside it.
        script: String,
    },
    /// A batch does not fit into memory; a smaller one may.
    #[error("model '{model}': out of memory with a batch of {rows} rows: {problem}")]
    OutOfMemory {
        /// The model's name in SQL.
        model: String,
        /// Rows of the batch that failed.
        rows: usize,
        /// The runtime's message, on one line and without its stack trace.
        problem: String,
    },
    /// The program failed on a batch.
    #[error("model '{model}' failed on a batch of {rows} rows: {problem}")]
    Program {
        /// The model's name in SQL.
        model: String,
        /// Rows of the batch that failed.
        rows: usize,
        /// The runtime's message, on one line and without its stack trace.
        problem: String,
    },
    /// The program fails on every batch, also on rows that were made up: no row is at fault.
    #[error(
        "model '{model}' fails whatever its rows hold: {problem}; its program does not fit model.toml, or \
         cannot run with this precision: try precision = 'fp32', or export it again"
    )]
    Broken {
        /// The model's name in SQL.
        model: String,
        /// The runtime's message, on one line and without its stack trace.
        problem: String,
    },
    /// The program's results are not what the package declares.
    #[error(
        "model '{model}': output '{output}' is declared as {expected} but the program returned \
         {found}; correct [[output]] in model.toml and create the model again"
    )]
    Output {
        /// The model's name in SQL.
        model: String,
        /// Name of the output in the package, without the prefix that SQL shows.
        output: String,
        /// Declared type and rows.
        expected: String,
        /// Shape and type that came back.
        found: String,
    },
    /// A transform cannot turn a value into model inputs.
    #[error("model '{model}': input '{input}': {problem}")]
    Transform {
        /// The model's name in SQL.
        model: String,
        /// Name of the input in the package.
        input: String,
        /// What is wrong, without the names above.
        problem: String,
    },
}

/// Who can do something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The owner of the model: package and declaration disagree, or cannot be loaded.
    Model,
    /// The owner of the data: another row would have worked.
    Data,
    /// Time: the same work may succeed later, in smaller pieces or elsewhere.
    Passing,
    /// The operator of the machine: this device runs nothing any more.
    Device,
}

impl RuntimeError {
    /// Who can do something about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Library { .. }
            | Self::Load { .. }
            | Self::Native { .. }
            | Self::Broken { .. }
            | Self::Output { .. } => ErrorClass::Model,
            Self::Program { .. } | Self::Transform { .. } => ErrorClass::Data,
            Self::OutOfMemory { .. } | Self::NoRoom { .. } => ErrorClass::Passing,
            Self::Device { .. } | Self::DeviceLost { .. } => ErrorClass::Device,
        }
    }

    /// Whether the same work may succeed when it is tried again, perhaps elsewhere.
    pub fn is_retryable(&self) -> bool {
        matches!(self.class(), ErrorClass::Passing | ErrorClass::Device)
    }

    /// One word for the column `_error`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Library { .. } => "library",
            Self::Device { .. } => "device",
            Self::DeviceLost { .. } => "device_lost",
            Self::Load { .. } => "load",
            Self::Native { .. } => "native",
            Self::OutOfMemory { .. } | Self::NoRoom { .. } => "out_of_memory",
            Self::Program { .. } => "program",
            Self::Broken { .. } => "broken",
            Self::Output { .. } => "output",
            Self::Transform { .. } => "transform",
        }
    }

    /// What happened, without the model and the batch that it happened to.
    pub fn problem(&self) -> &str {
        match self {
            Self::Library { problem, .. }
            | Self::Device { problem, .. }
            | Self::DeviceLost { problem, .. }
            | Self::NoRoom { problem, .. }
            | Self::Load { problem, .. }
            | Self::OutOfMemory { problem, .. }
            | Self::Program { problem, .. }
            | Self::Broken { problem, .. }
            | Self::Transform { problem, .. } => problem,
            Self::Output { found, .. } => found,
            Self::Native { file, .. } => file,
        }
    }
}

impl From<RuntimeError> for DataFusionError {
    fn from(error: RuntimeError) -> Self {
        Self::External(Box::new(error))
    }
}

/// Characters of a value that a message quotes, at most.
const QUOTED_MAX: usize = 200;
/// Characters of another library's message, which may quote a value, at most.
const MESSAGE_MAX: usize = 1000;

/// A value of a user's as messages quote it: of a long one the beginning, and how many characters it has.
pub(crate) fn quoted(value: &str) -> Cow<'_, str> {
    shortened(value, QUOTED_MAX)
}

/// A message of another library's, which nobody says how long it is.
pub(crate) fn message_text(message: &str) -> Cow<'_, str> {
    shortened(message, MESSAGE_MAX)
}

fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => {
            Cow::Owned(format!("{}… ({} characters)", &text[..end], text.chars().count()))
        }
        None => Cow::Borrowed(text),
    }
}

/// Bytes of a name that is compared with others: the time that takes grows with the product of both.
const COMPARED_MAX: usize = 256;

/// ` (did you mean 'x'?)` for the candidate nearest to `given`, or an empty string.
pub fn nearest_hint<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    if given.len() > COMPARED_MAX {
        return String::new();
    }
    let given = given.to_lowercase();
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= COMPARED_MAX)
        .map(|candidate| {
            (strsim::damerau_levenshtein(&given, &candidate.to_lowercase()), candidate)
        })
        .filter(|(distance, candidate)| *distance <= candidate.len().max(given.len()) / 3 + 1)
        .min()
        .map(|(_, candidate)| format!(" (did you mean '{candidate}'?)"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TEXT;
    use crate::model::{Manifest, ModelOptions, parse_type};

    #[test]
    fn a_value_of_a_million_characters_is_not_quoted_whole() {
        let long = "ä".repeat(1_000_000);
        assert_eq!(quoted("ä"), "ä");
        assert_eq!(quoted(&long), format!("{}… (1000000 characters)", "ä".repeat(QUOTED_MAX)));
        let check = |message: String, what: &str| {
            assert!(message.chars().count() < 2 * MESSAGE_MAX, "{what}: {}", message.len());
            assert!(message.contains("… (1"), "{what}: {message}");
        };
        let deep = format!("FLOAT{}", "[1]".repeat(333_334));
        check(parse_type(&deep).unwrap_err().to_string(), "type");
        let mut options = ModelOptions::default();
        check(options.set(&long, "1").unwrap_err().to_string(), "key");
        for key in ["device", "gpus", "memory", "worker_labels", "max_batch_rows", "on_error"] {
            check(options.set(key, &long).unwrap_err().to_string(), key);
        }
        for (part, with) in [
            ("\"text\"", format!("\"{long}\"\nshape = [2]")),
            ("\"STRING\"", format!("\"{deep}\"")),
            ("\"attention_mask\"", format!("\"{long}\"")),
            ("\"tokenizer.json\"", format!("\"{long}\"")),
            ("\"torch\"", format!("\"{long}\"")),
            ("= 1\nname", format!("= \"{long}\"\nname")),
            ("version =", format!("prompt = \"{long}\"\nversion =")),
            ("version =", format!("\"{long}\" = 1\nversion =")),
            ("version =", format!("quality = {{ \"{long}\" = {{ rows = 1 }} }}\nversion =")),
            ("version =", format!("precisions = {{ \"{long}\" = 1.0 }}\nversion =")),
            ("version =", format!("files = {{ \"../{long}\" = \"\" }}\nversion =")),
        ] {
            let description = TEXT.replacen(part, &with, 1);
            let error = Manifest::parse(description.as_bytes(), "/m").unwrap_err().to_string();
            check(error, &with.chars().take(40).collect::<String>());
        }
    }

    #[test]
    fn the_nearest_name_is_looked_for_among_names_of_a_sensible_length() {
        let long = "x".repeat(1_000_000);
        assert_eq!(nearest_hint(&long, [long.as_str()]), "");
        assert_eq!(nearest_hint("minlm", [long.as_str(), "minilm"]), " (did you mean 'minilm'?)");
    }
}
