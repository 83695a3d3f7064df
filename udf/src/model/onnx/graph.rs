//! An ONNX file as a function: named inputs and outputs with types and shapes, and the files that hold
//! its weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use super::described::Refusal;
use super::element::Element;
use super::file::{self, Unread};
use super::proto::{self, EXTERNAL, Size, Value};
use crate::model::location::is_safe_name;
use crate::model::options::Precision;

/// What an ONNX file says of itself.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    /// Files beside it that hold weights, as it names them.
    pub(super) external: BTreeSet<String>,
    /// Whether equal rows may give different results: it draws numbers, or measures the whole batch.
    pub(super) is_volatile: bool,
    /// Of most of its weights.
    pub(super) precision: Precision,
    /// Bytes of all weights.
    pub(super) weight_bytes: u64,
}

/// An input or an output.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// What kind of value it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Tensor(Element, Option<Vec<Dim>>),
    /// A kind that has no column, by its name.
    Other(&'static str),
}

/// The size of a dimension.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Dim {
    Fixed(u32),
    /// Any, under a name if it has one.
    Any(String),
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Any(name) if name.is_empty() => f.write_str("?"),
            Self::Any(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Kind {
    /// `float [N, 3]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(element, Some(shape)) => {
                let shape: Vec<String> = shape.iter().map(Dim::to_string).collect();
                write!(f, "{element} [{}]", shape.join(", "))
            }
            Self::Tensor(element, None) => write!(f, "{element} of an unknown shape"),
            Self::Other(kind) => f.write_str(kind),
        }
    }
}

/// Operators that draw random numbers, and those that quantise by the largest number of a batch.
const VOLATILE: [&str; 9] = [
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
];

/// Operators of these domains are ONNX Runtime's own.
const DOMAINS: [&str; 7] = [
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "com.microsoft",
    "com.microsoft.nchwc",
    "org.pytorch.aten",
];

impl Graph {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(super) fn read(path: &Path) -> Result<Self, Refusal> {
        let restore = || "fetch the file again".to_owned();
        let damaged = |reason: String| {
            (format!("it is not a valid ONNX model, or was cut off ({reason})"), restore())
        };
        let model = file::read(path).map_err(|unread| match unread {
            Unread::Io(error) => (format!("it cannot be read: {error}"), restore()),
            Unread::Pointer => (
                "it is a pointer of Git LFS, not the model".to_owned(),
                "run `git lfs pull` in its folder".to_owned(),
            ),
            Unread::Damaged(error) => damaged(error.to_string()),
        })?;
        if model.ir_version == 0 || model.opset_import.is_empty() {
            return Err(damaged("it names no version of ONNX".to_owned()));
        }
        let graph = model.graph.as_ref().ok_or_else(|| damaged("it holds no graph".to_owned()))?;
        check_operators(&model, graph)?;
        let mut read = Self::of(graph)?;
        let inner = model.functions.iter().flat_map(|function| nodes(&function.node));
        read.is_volatile |= inner.into_iter().any(is_volatile);
        Ok(read)
    }

    fn of(graph: &proto::Graph) -> Result<Self, Refusal> {
        // Old files list weights among the inputs.
        let weights: BTreeSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
        let inputs = graph.input.iter().filter(|input| !weights.contains(input.name.as_str()));
        let tensors = tensors(graph);
        Ok(Self {
            inputs: inputs.map(port).collect(),
            outputs: graph.output.iter().map(port).collect(),
            external: external_files(&tensors)?,
            is_volatile: nodes(&graph.node).into_iter().any(is_volatile),
            precision: precision(&tensors),
            weight_bytes: tensors
                .iter()
                .map(|tensor| bytes_of(tensor))
                .fold(0, u64::saturating_add),
        })
    }
}

/// How many weights a program of tokens multiplies for each token, and for each row: those of its matrices.
/// Products of one result with another, as in attention, are not counted; `None` if the file is not readable,
/// or has layers of other kinds, of which it does not say how often they are applied.
pub(crate) fn products(path: &Path) -> Option<(f64, f64)> {
    let graph = file::read(path).ok()?.graph?;
    let mut weights: BTreeMap<&str, f64> = BTreeMap::new();
    for tensor in graph.initializer.iter().filter(|tensor| tensor.dims.len() == 2) {
        weights.insert(&tensor.name, items_of(tensor) as f64);
    }
    let (mut token, mut row) = (0.0, 0.0);
    for node in &graph.node {
        let input = |at: usize| Some(*weights.get(node.input.get(at)?.as_str())?);
        match (node.op_type.as_str(), input(1)) {
            // A weight that was rounded, or is given in another order.
            ("DequantizeLinear" | "Transpose" | "Cast", _) => {
                if let (Some(size), Some(output)) = (input(0), node.output.first()) {
                    weights.insert(output, size);
                }
            }
            ("MatMul" | "FusedMatMul" | "MatMulInteger" | "DynamicQuantizeMatMul", Some(size)) => {
                token += size;
            }
            // Exporters write this one for what each row has once.
            ("Gemm", Some(size)) => row += size,
            ("QLinearMatMul", _) => token += input(3).unwrap_or(0.0),
            ("Conv" | "ConvInteger" | "QLinearConv" | "LSTM" | "GRU" | "RNN", _) => return None,
            ("MatMulNBits" | "Attention" | "QAttention" | "If" | "Loop" | "Scan", _) => {
                return None;
            }
            _ => {}
        }
    }
    (token > 0.0).then_some((token, row))
}

fn port(value: &proto::ValueInfo) -> Port {
    let kind = match value.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(Value::Tensor(tensor)) => {
            let dims = |shape: &proto::Shape| shape.dim.iter().map(dim).collect();
            Kind::Tensor(Element(tensor.elem_type), tensor.shape.as_ref().map(dims))
        }
        Some(Value::Sequence(_)) => Kind::Other("a sequence"),
        Some(Value::Map(_)) => Kind::Other("a map"),
        Some(Value::SparseTensor(_)) => Kind::Other("a sparse tensor"),
        Some(Value::Optional(_)) => Kind::Other("an optional value"),
        None => Kind::Other("of no type"),
    };
    Port { name: value.name.clone(), kind }
}

fn dim(dimension: &proto::Dimension) -> Dim {
    match &dimension.value {
        // Exporters write 0 and -1 for what they do not know.
        Some(Size::Fixed(size)) => match u32::try_from(*size) {
            Ok(size) if size > 0 => Dim::Fixed(size),
            _ => Dim::Any(String::new()),
        },
        Some(Size::Named(name)) => Dim::Any(name.clone()),
        None => Dim::Any(String::new()),
    }
}

/// Refuses operators that ONNX Runtime does not have by itself.
fn check_operators(model: &proto::Model, graph: &proto::Graph) -> Result<(), Refusal> {
    let own: BTreeSet<&str> = model.functions.iter().map(|f| f.domain.as_str()).collect();
    let known = |node: &&proto::Node| {
        DOMAINS.contains(&node.domain.as_str()) || own.contains(node.domain.as_str())
    };
    let mut nodes = nodes(&graph.node);
    for function in &model.functions {
        nodes.extend(self::nodes(&function.node));
    }
    match nodes.iter().find(|node| !known(node)) {
        Some(node) => Err((
            format!(
                "operator '{}' of domain '{}' is a custom one, which ONNX Runtime does not have",
                node.op_type, node.domain
            ),
            "export the model without it (what it does with texts, Forebay's tokenizers do)"
                .to_owned(),
        )),
        None => Ok(()),
    }
}

fn is_volatile(node: &proto::Node) -> bool {
    VOLATILE.contains(&node.op_type.as_str())
}

/// All of them, those of branches and loops too.
fn nodes(top: &[proto::Node]) -> Vec<&proto::Node> {
    let mut found: Vec<&proto::Node> = top.iter().collect();
    let mut at = 0;
    while let Some(node) = found.get(at) {
        let inner = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
        let inner: Vec<_> = inner.flat_map(|graph| &graph.node).collect();
        found.extend(inner);
        at += 1;
    }
    found
}

/// All weights, those of branches and constants too.
fn tensors(graph: &proto::Graph) -> Vec<&proto::Tensor> {
    let attributes = nodes(&graph.node).into_iter().flat_map(|node| &node.attribute);
    let inner = attributes.flat_map(|attribute| {
        let graphs = attribute.g.iter().chain(&attribute.graphs);
        let weights = graphs.flat_map(|graph| &graph.initializer);
        attribute.t.iter().chain(&attribute.tensors).chain(weights)
    });
    graph.initializer.iter().chain(inner).collect()
}

fn external_files(tensors: &[&proto::Tensor]) -> Result<BTreeSet<String>, Refusal> {
    let mut files = BTreeSet::new();
    for tensor in tensors.iter().filter(|tensor| tensor.data_location == EXTERNAL) {
        let location = tensor.external_data.iter().find(|entry| entry.key == "location");
        let location = location.map(|entry| entry.value.as_str()).unwrap_or_default();
        let location = location.strip_prefix("./").unwrap_or(location);
        if !is_safe_name(location) {
            return Err((
                format!(
                    "weights '{}' are in the file '{location}', expected one in its folder",
                    tensor.name
                ),
                "export the model with its weights beside it, or in it".to_owned(),
            ));
        }
        files.insert(location.to_owned());
    }
    Ok(files)
}

fn bytes_of(tensor: &proto::Tensor) -> u64 {
    items_of(tensor).saturating_mul(Element(tensor.data_type).bits()).div_ceil(8)
}

fn items_of(tensor: &proto::Tensor) -> u64 {
    let sizes = tensor.dims.iter().map(|size| u64::try_from(*size).unwrap_or(0));
    sizes.fold(1, u64::saturating_mul)
}

/// That of most values: a quantised program keeps some weights as they were.
fn precision(tensors: &[&proto::Tensor]) -> Precision {
    let items = |wanted: Precision| -> u64 {
        let of_it = tensors.iter().filter(|t| Element(t.data_type).precision() == Some(wanted));
        of_it.map(|tensor| items_of(tensor)).fold(0, u64::saturating_add)
    };
    let all = [Precision::Fp32, Precision::Fp16, Precision::Bf16, Precision::Int8];
    all.into_iter().rev().max_by_key(|precision| items(*precision)).unwrap_or_default()
}
