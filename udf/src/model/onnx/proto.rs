//! What is read of an ONNX file: the parts of its messages (onnx.proto3, by their numbers) that say
//! what a model takes, gives and needs. Weights are not among them.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(int64, tag = "1")]
    pub(super) ir_version: i64,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "25")]
    pub(super) functions: Vec<Function>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperatorSet {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(int64, tag = "2")]
    pub(super) version: i64,
}

/// Operators that the model itself defines.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Function {
    #[prost(message, repeated, tag = "7")]
    pub(super) node: Vec<Node>,
    #[prost(string, tag = "10")]
    pub(super) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, tag = "4")]
    pub(super) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub(super) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<Tensor>,
    #[prost(message, optional, tag = "6")]
    pub(super) g: Option<Graph>,
    #[prost(message, repeated, tag = "10")]
    pub(super) tensors: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(super) graphs: Vec<Graph>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(super) data_type: i32,
    #[prost(string, tag = "8")]
    pub(super) name: String,
    /// Where its values are, if not here.
    #[prost(message, repeated, tag = "13")]
    pub(super) external_data: Vec<Entry>,
    #[prost(int32, tag = "14")]
    pub(super) data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Type {
    #[prost(oneof = "Value", tags = "1, 4, 5, 8, 9")]
    pub(super) value: Option<Value>,
}

/// The kinds of values. Of those that are no tensors nothing but the kind matters.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(message, tag = "1")]
    Tensor(TensorType),
    #[prost(message, tag = "4")]
    Sequence(Nothing),
    #[prost(message, tag = "5")]
    Map(Nothing),
    #[prost(message, tag = "8")]
    SparseTensor(Nothing),
    #[prost(message, tag = "9")]
    Optional(Nothing),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorType {
    #[prost(int32, tag = "1")]
    pub(super) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dimension {
    #[prost(oneof = "Size", tags = "1, 2")]
    pub(super) value: Option<Size>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Size {
    #[prost(int64, tag = "1")]
    Fixed(i64),
    #[prost(string, tag = "2")]
    Named(String),
}

/// `TensorProto.DataLocation.EXTERNAL`
pub(super) const EXTERNAL: i32 = 1;
