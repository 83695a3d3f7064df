//! What comes of reading a model's files: what its description says of them, or a refusal.

use std::collections::BTreeMap;

use crate::model::declaration::{BatchLimits, TransformKind};
use crate::model::head::Head;

/// A problem, and what to do about it.
pub(super) type Refusal = (String, String);

/// What is made of an ONNX model's files, short of what all descriptions have.
pub(super) struct Described {
    pub(super) about: String,
    pub(super) inputs: Vec<(String, String)>,
    pub(super) outputs: Vec<(String, String)>,
    pub(super) transform: TransformKind,
    pub(super) results: Vec<String>,
    pub(super) one_row: bool,
    pub(super) head: Option<Head>,
    pub(super) prompts: BTreeMap<String, String>,
    pub(super) prompt: Option<String>,
    pub(super) batch: BatchLimits,
    /// Of a batch's intermediate results.
    pub(super) activation_bytes: u64,
    /// What the program needs beside itself and its weights.
    pub(super) files: Vec<String>,
}
