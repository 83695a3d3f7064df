//! A model's columns: what it takes and what it adds, with their SQL types.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use serde::{Deserialize, Serialize};

use crate::error::ModelError;

/// Input and output columns, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "SignatureText", into = "SignatureText")]
pub struct Signature {
    /// What the model takes, in the order of the arguments of `ml_predict`.
    pub inputs: Fields,
    /// What the model adds, in the order of the program's results. Nullable: a row with a NULL
    /// input gets NULL outputs.
    pub outputs: Fields,
}

/// The form in `model.toml` and in the catalog's files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SignatureText {
    pub(crate) input: Vec<ColumnText>,
    pub(crate) output: Vec<ColumnText>,
}

/// One column as text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnText {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) sql_type: String,
}

impl TryFrom<SignatureText> for Signature {
    type Error = ModelError;

    fn try_from(text: SignatureText) -> Result<Self, ModelError> {
        let fields = |columns: Vec<ColumnText>| -> Result<Fields, ModelError> {
            columns
                .iter()
                .map(|c| Ok(Arc::new(Field::new(&c.name, parse_type(&c.sql_type)?, true))))
                .collect()
        };
        Ok(Self { inputs: fields(text.input)?, outputs: fields(text.output)? })
    }
}

impl From<Signature> for SignatureText {
    fn from(signature: Signature) -> Self {
        let text = |field: &FieldRef| ColumnText {
            name: field.name().clone(),
            sql_type: type_name(field.data_type()),
        };
        Self {
            input: signature.inputs.iter().map(text).collect(),
            output: signature.outputs.iter().map(text).collect(),
        }
    }
}

impl Signature {
    /// Whether there is an output whose length differs from row to row.
    pub(crate) fn has_lists(&self) -> bool {
        self.outputs.iter().any(|field| list_item(field).is_some())
    }

    /// How many results the program gives: the last one says what lists hold, if there are any.
    pub(crate) fn results(&self) -> usize {
        let parts = self.outputs.iter().map(|field| parts(field).len());
        parts.sum::<usize>() + usize::from(self.has_lists())
    }
}

impl std::fmt::Display for Signature {
    /// `(text STRING) -> (embedding FLOAT[384])`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}) -> ({})", columns_text(&self.inputs), columns_text(&self.outputs))
    }
}

/// `text STRING, image BINARY`
pub(crate) fn columns_text(fields: &Fields) -> String {
    let column = |field: &FieldRef| format!("{} {}", field.name(), type_name(field.data_type()));
    fields.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// The Arrow type of a SQL type name, for example `STRING`, `FLOAT[384]` or `STRING[]`.
///
/// # Errors
/// [`ModelError::InvalidValue`] for a type that models cannot take or give.
pub fn parse_type(text: &str) -> Result<DataType, ModelError> {
    parsed(text.trim()).ok_or_else(|| ModelError::InvalidValue {
        option: "type".to_owned(),
        value: text.to_owned(),
        expected:
            "STRING, BINARY, BOOLEAN, UINT8, INT, BIGINT, FLOAT, DOUBLE, a vector such as FLOAT[384], a \
             list such as STRING[], or one such as STRUCT<token STRING, weight FLOAT>[]"
                .to_owned(),
    })
}

/// Lists and vectors are of scalars, lists of structs of them too: nothing is nested deeper, and a package
/// that says so costs no stack.
fn parsed(text: &str) -> Option<DataType> {
    let Some((item, length)) = text.strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) else {
        return parse_scalar(text);
    };
    if length.trim().is_empty() {
        let item = match parse_struct(item) {
            Some(fields) => DataType::Struct(fields?),
            None => parse_scalar(item).filter(is_item)?,
        };
        return Some(DataType::new_list(item, true));
    }
    let item = parse_scalar(item).filter(DataType::is_numeric)?;
    let length: i32 = length.trim().parse().ok().filter(|length| *length >= 1)?;
    Some(DataType::new_fixed_size_list(item, length, true))
}

fn parse_scalar(text: &str) -> Option<DataType> {
    Some(match text.trim().to_uppercase().as_str() {
        "STRING" | "TEXT" | "VARCHAR" => DataType::Utf8,
        "BINARY" | "BYTEA" | "BLOB" => DataType::Binary,
        "BOOLEAN" | "BOOL" => DataType::Boolean,
        "UINT8" | "TINYINT UNSIGNED" => DataType::UInt8,
        "INT" | "INTEGER" => DataType::Int32,
        "BIGINT" => DataType::Int64,
        "FLOAT" | "REAL" => DataType::Float32,
        "DOUBLE" | "DOUBLE PRECISION" => DataType::Float64,
        _ => return None,
    })
}

/// What lists may hold, and the fields of their structs.
fn is_item(scalar: &DataType) -> bool {
    scalar.is_numeric() || *scalar == DataType::Utf8
}

/// Of `STRUCT<token STRING, weight FLOAT>` the fields: `None` if it is no struct, and `Some(None)` if its
/// fields are not numbers and texts of different names.
fn parse_struct(text: &str) -> Option<Option<Fields>> {
    let (name, rest) = text.split_once('<')?;
    if !name.trim().eq_ignore_ascii_case("STRUCT") {
        return None;
    }
    let field = |column: &str| -> Option<FieldRef> {
        let (name, sql_type) = column.trim().split_once(char::is_whitespace)?;
        let item = parse_scalar(sql_type).filter(is_item)?;
        Some(Arc::new(Field::new(name, item, true)))
    };
    let fields = || -> Option<Fields> {
        let columns = rest.trim().strip_suffix('>')?.split(',');
        let fields: Vec<FieldRef> = columns.map(field).collect::<Option<_>>()?;
        let names: BTreeSet<&String> = fields.iter().map(|field| field.name()).collect();
        (names.len() == fields.len()).then(|| fields.into())
    };
    Some(fields())
}

/// The SQL name of a type, the inverse of [`parse_type`]; Arrow's own name for other types.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "STRING".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BINARY".to_owned(),
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::UInt8 => "UINT8".to_owned(),
        DataType::Int32 => "INT".to_owned(),
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::Float32 => "FLOAT".to_owned(),
        DataType::Float64 => "DOUBLE".to_owned(),
        DataType::FixedSizeList(item, length) => {
            format!("{}[{length}]", type_name(item.data_type()))
        }
        DataType::List(item) => format!("{}[]", type_name(item.data_type())),
        DataType::Struct(fields) => format!("STRUCT<{}>", columns_text(fields)),
        other => other.to_string(),
    }
}

/// The field of a list's items, if it is one.
pub(crate) fn list_item(field: &Field) -> Option<&FieldRef> {
    match field.data_type() {
        DataType::List(item) => Some(item),
        _ => None,
    }
}

/// What a program gives for an output, one result each: values of its type, of its items if it is a list,
/// and of each of their fields if these are structs.
pub(crate) fn parts(field: &FieldRef) -> &[FieldRef] {
    let values = list_item(field).unwrap_or(field);
    match values.data_type() {
        DataType::Struct(fields) => fields,
        _ => std::slice::from_ref(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_survive_a_round_trip() {
        for text in [
            "STRING",
            "BINARY",
            "BOOLEAN",
            "UINT8",
            "UINT8[150528]",
            "INT",
            "BIGINT",
            "FLOAT",
            "DOUBLE",
            "FLOAT[384]",
            "STRING[]",
            "INT[]",
            "STRUCT<token STRING, weight FLOAT>[]",
        ] {
            assert_eq!(type_name(&parse_type(text).unwrap()), text);
        }
    }

    #[test]
    fn a_type_that_is_nested_deeply_costs_no_stack() {
        let deep = |part: &str| format!("FLOAT{}", part.repeat(1_000_000));
        for text in [deep("[1]"), deep("[]"), format!("STRUCT<a {}>[]", deep("[1]"))] {
            assert!(parse_type(&text).is_err());
        }
    }

    #[test]
    fn types_that_models_cannot_take_are_refused() {
        for text in [
            "",
            "VECTOR",
            "BINARY[]",
            "FLOAT[][]",
            "FLOAT[0]",
            "FLOAT[-1]",
            "STRING[3]",
            "FLOAT[99999999999]",
            "FLOAT[3][]",
            "STRUCT<token STRING>",
            "STRUCT<token STRING>[3]",
            "STRUCT<>[]",
            "STRUCT<token>[]",
            "STRUCT<token STRING[]>[]",
            "STRUCT<token STRING, token FLOAT>[]",
            "STRUCT<token STRING",
        ] {
            let message = parse_type(text).unwrap_err().to_string();
            assert!(message.contains(&format!("'{text}'")), "{message}");
        }
    }
}
