//! The types of a tensor's elements, by their numbers in onnx.proto3.

use std::fmt;

use arrow::datatypes::DataType;

use crate::model::options::Precision;

/// `TensorProto.DataType`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element(pub(super) i32);

/// By number: the name, the bits of one, and the type of a column of them.
const NAMES: [(&str, u64); 24] = [
    ("undefined", 0),
    ("float", 32),
    ("uint8", 8),
    ("int8", 8),
    ("uint16", 16),
    ("int16", 16),
    ("int32", 32),
    ("int64", 64),
    ("string", 0),
    ("bool", 8),
    ("float16", 16),
    ("double", 64),
    ("uint32", 32),
    ("uint64", 64),
    ("complex64", 64),
    ("complex128", 128),
    ("bfloat16", 16),
    ("float8e4m3fn", 8),
    ("float8e4m3fnuz", 8),
    ("float8e5m2", 8),
    ("float8e5m2fnuz", 8),
    ("uint4", 4),
    ("int4", 4),
    ("float4e2m1", 4),
];

impl Element {
    fn known(self) -> Option<&'static (&'static str, u64)> {
        usize::try_from(self.0).ok().and_then(|at| NAMES.get(at))
    }

    pub(super) fn name(self) -> &'static str {
        self.known().map_or("unknown", |(name, _)| name)
    }

    pub(super) fn bits(self) -> u64 {
        self.known().map_or(0, |(_, bits)| *bits)
    }

    /// The column that an input of it is given.
    pub(super) fn input_type(self) -> Option<DataType> {
        match self.name() {
            "float" | "float16" | "bfloat16" => Some(DataType::Float32),
            "double" => Some(DataType::Float64),
            "int32" => Some(DataType::Int32),
            "int64" => Some(DataType::Int64),
            "bool" => Some(DataType::Boolean),
            "string" => Some(DataType::Utf8),
            _ => None,
        }
    }

    /// The column that an output of it becomes.
    pub(super) fn output_type(self) -> Option<DataType> {
        match self.name() {
            "uint8" | "int8" | "uint16" | "int16" => Some(DataType::Int32),
            "uint32" => Some(DataType::Int64),
            _ => self.input_type(),
        }
    }

    /// That of weights of it, if they are such.
    pub(super) fn precision(self) -> Option<Precision> {
        match self.name() {
            "float" => Some(Precision::Fp32),
            "float16" => Some(Precision::Fp16),
            "bfloat16" => Some(Precision::Bf16),
            "uint8" | "int8" | "uint4" | "int4" => Some(Precision::Int8),
            _ => None,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
