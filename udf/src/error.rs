//! What can go wrong with a model, as types: callers branch on them, nobody parses messages.
//!
//! [`ModelError`] is for the author of a statement or the owner of a package, and is found before
//! rows flow. [`RuntimeError`] arises while a model loads or runs, and says whether another
//! attempt can help.

use datafusion::common::DataFusionError;

/// A model that cannot be declared, found or used as asked.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No model of this name is in the catalog.
    #[error("model '{name}' does not exist{hint}; SHOW MODELS lists the models there are")]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// ` (did you mean 'x'?)` or nothing.
        hint: String,
    },
    /// The name is taken.
    #[error("model '{name}' already exists; use CREATE OR REPLACE MODEL, or IF NOT EXISTS")]
    ModelExists {
        /// The name asked for.
        name: String,
    },
    /// An option that no model knows.
    #[error("unknown model option '{option}'{hint}; the options are {known}")]
    UnknownOption {
        /// The option's key as given.
        option: String,
        /// ` (did you mean 'x'?)` or nothing.
        hint: String,
        /// All keys, comma separated.
        known: String,
    },
    /// An option or package entry whose value makes no sense.
    #[error("invalid value '{value}' for '{option}': expected {expected}")]
    InvalidValue {
        /// The key.
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
        /// What is wrong.
        problem: String,
        /// What to do.
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
    #[error("model '{name}': {problem}")]
    Signature {
        /// The model's name.
        name: String,
        /// What differs.
        problem: String,
    },
    /// The catalog's folder cannot be read or written.
    #[error("model catalog {path}: {problem}")]
    Catalog {
        /// File or folder.
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
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// libtorch, ONNX Runtime or one of their device libraries cannot be loaded.
    #[error("{library} cannot be loaded: {problem}; run `forebay doctor`")]
    Library {
        /// File name of the library.
        library: String,
        /// The loader's message.
        problem: String,
    },
    /// The device asked for does not exist or does not work.
    #[error("device '{device}' cannot be used: {problem}; run `forebay doctor`")]
    Device {
        /// Device as asked for.
        device: String,
        /// The reason.
        problem: String,
    },
    /// The program or a file of the package cannot be loaded.
    #[error("model '{model}': {file} cannot be loaded: {problem}")]
    Load {
        /// Model name.
        model: String,
        /// File within the package.
        file: String,
        /// The reason.
        problem: String,
    },
    /// A batch does not fit into memory; a smaller one may.
    #[error("model '{model}': out of memory with a batch of {rows} rows: {problem}")]
    OutOfMemory {
        /// Model name.
        model: String,
        /// Rows of the batch that failed.
        rows: usize,
        /// The runtime's message.
        problem: String,
    },
    /// The program failed on a batch.
    #[error("model '{model}' failed on a batch of {rows} rows: {problem}")]
    Program {
        /// Model name.
        model: String,
        /// Rows of the batch that failed.
        rows: usize,
        /// The runtime's message.
        problem: String,
    },
    /// The program fails on every batch, also on rows that were made up: no row is at fault.
    #[error(
        "model '{model}' fails whatever its rows hold: {problem}; its program does not fit model.toml, or \
         cannot run with this precision: try precision = 'fp32', or export it again"
    )]
    Broken {
        /// Model name.
        model: String,
        /// The runtime's message.
        problem: String,
    },
    /// The program's results are not what the package declares.
    #[error(
        "model '{model}': output '{output}' is declared as {expected} but the program returned \
         {found}; correct [[output]] in model.toml and create the model again"
    )]
    Output {
        /// Model name.
        model: String,
        /// Declared output column.
        output: String,
        /// Declared type and rows.
        expected: String,
        /// Shape and type that came back.
        found: String,
    },
    /// A transform cannot turn a value into model inputs.
    #[error("model '{model}': input '{input}': {problem}")]
    Transform {
        /// Model name.
        model: String,
        /// Declared input column.
        input: String,
        /// The reason.
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
            | Self::Broken { .. }
            | Self::Output { .. } => ErrorClass::Model,
            Self::Program { .. } | Self::Transform { .. } => ErrorClass::Data,
            Self::OutOfMemory { .. } => ErrorClass::Passing,
            Self::Device { .. } => ErrorClass::Device,
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
            Self::Load { .. } => "load",
            Self::OutOfMemory { .. } => "out_of_memory",
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
            | Self::Load { problem, .. }
            | Self::OutOfMemory { problem, .. }
            | Self::Program { problem, .. }
            | Self::Broken { problem, .. }
            | Self::Transform { problem, .. } => problem,
            Self::Output { found, .. } => found,
        }
    }
}

impl From<RuntimeError> for DataFusionError {
    fn from(error: RuntimeError) -> Self {
        Self::External(Box::new(error))
    }
}

/// ` (did you mean 'x'?)` for the candidate nearest to `given`, or an empty string.
pub fn nearest_hint<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let given = given.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            (strsim::damerau_levenshtein(&given, &candidate.to_lowercase()), candidate)
        })
        .filter(|(distance, candidate)| *distance <= candidate.len().max(given.len()) / 3 + 1)
        .min()
        .map(|(_, candidate)| format!(" (did you mean '{candidate}'?)"))
        .unwrap_or_default()
}
