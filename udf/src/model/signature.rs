//! A model's columns: what it takes and what it adds, with their SQL types.

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
    let unknown = || ModelError::InvalidValue {
        option: "type".to_owned(),
        value: text.to_owned(),
        expected:
            "STRING, BINARY, BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, a vector such as FLOAT[384], or \
             a list such as STRING[]"
                .to_owned(),
    };
    let upper = text.trim().to_uppercase();
    if let Some((item, length)) = upper.strip_suffix(']').and_then(|rest| rest.split_once('[')) {
        let item = parse_type(item)?;
        if length.trim().is_empty() {
            return match item.is_numeric() || item == DataType::Utf8 {
                true => Ok(DataType::new_list(item, true)),
                false => Err(unknown()),
            };
        }
        let length: i32 = length.trim().parse().map_err(|_| unknown())?;
        if length < 1 || !item.is_numeric() {
            return Err(unknown());
        }
        return Ok(DataType::new_fixed_size_list(item, length, true));
    }
    match upper.as_str() {
        "STRING" | "TEXT" | "VARCHAR" => Ok(DataType::Utf8),
        "BINARY" | "BYTEA" | "BLOB" => Ok(DataType::Binary),
        "BOOLEAN" | "BOOL" => Ok(DataType::Boolean),
        "INT" | "INTEGER" => Ok(DataType::Int32),
        "BIGINT" => Ok(DataType::Int64),
        "FLOAT" | "REAL" => Ok(DataType::Float32),
        "DOUBLE" | "DOUBLE PRECISION" => Ok(DataType::Float64),
        _ => Err(unknown()),
    }
}

/// The SQL name of a type, the inverse of [`parse_type`]; Arrow's own name for other types.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "STRING".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BINARY".to_owned(),
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::Int32 => "INT".to_owned(),
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::Float32 => "FLOAT".to_owned(),
        DataType::Float64 => "DOUBLE".to_owned(),
        DataType::FixedSizeList(item, length) => {
            format!("{}[{length}]", type_name(item.data_type()))
        }
        DataType::List(item) => format!("{}[]", type_name(item.data_type())),
        other => other.to_string(),
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
            "INT",
            "BIGINT",
            "FLOAT",
            "DOUBLE",
            "FLOAT[384]",
            "STRING[]",
            "INT[]",
        ] {
            assert_eq!(type_name(&parse_type(text).unwrap()), text);
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
        ] {
            let message = parse_type(text).unwrap_err().to_string();
            assert!(message.contains(&format!("'{text}'")), "{message}");
        }
    }
}
