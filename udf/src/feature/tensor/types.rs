//! The types, and fields that carry them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use arrow::error::ArrowError;
use arrow_schema::extension::{ExtensionType, FixedShapeTensor, VariableShapeTensor};
use datafusion::common::{Result, plan_datafusion_err, plan_err};

use crate::model::type_name;

/// A column of tensors of one shape.
///
/// # Errors
/// If the shape has more elements than a list can have.
pub(crate) fn fixed_shape_field(name: &str, item: DataType, shape: &[usize]) -> Result<FieldRef> {
    let elements = shape.iter().try_fold(1usize, |all, side| all.checked_mul(*side));
    let Some(elements) = elements.and_then(|all| i32::try_from(all).ok()).filter(|all| *all > 0)
    else {
        return plan_err!(
            "{name}: a tensor of shape {shape:?} cannot be a column, expected 1 to {} elements",
            i32::MAX
        );
    };
    let tensor = FixedShapeTensor::try_new(item.clone(), shape.iter().copied(), None, None);
    let data_type = DataType::new_fixed_size_list(item, elements, false);
    with_type(Field::new(name, data_type, true), tensor)
}

/// A column of tensors that have as many dimensions, each of its own shape.
pub(crate) fn variable_shape_field(
    name: &str,
    item: DataType,
    dimensions: usize,
) -> Result<FieldRef> {
    let tensor = VariableShapeTensor::try_new(item.clone(), dimensions, None, None, None);
    let data_type = DataType::Struct(variable_shape_fields(item, dimensions)?);
    with_type(Field::new(name, data_type, true), tensor)
}

pub(super) fn variable_shape_fields(item: DataType, dimensions: usize) -> Result<Fields> {
    let dimensions = i32::try_from(dimensions)
        .map_err(|_| plan_datafusion_err!("a tensor has no {dimensions} dimensions"))?;
    Ok(Fields::from(vec![
        Field::new("data", DataType::new_list(item, false), false),
        Field::new(
            "shape",
            DataType::new_fixed_size_list(DataType::Int32, dimensions, false),
            false,
        ),
    ]))
}

fn with_type<T: ExtensionType>(
    mut field: Field,
    tensor: std::result::Result<T, ArrowError>,
) -> Result<FieldRef> {
    field.try_with_extension_type(tensor?)?;
    Ok(Arc::new(field))
}

/// What a column of tensors holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TensorType {
    /// All of one shape.
    Fixed { item: DataType, shape: Vec<usize> },
    /// Each of its own.
    Variable { item: DataType, dimensions: usize },
}

impl TensorType {
    /// What a column holds, by its extension type, or else by its type alone. `None` if no tensors.
    ///
    /// # Errors
    /// If its extension type is one of tensors that Forebay cannot read.
    pub(crate) fn of(field: &Field) -> Result<Option<Self>> {
        Ok(Self::declared(field)?.or_else(|| Self::of_storage(field.data_type())))
    }

    /// By the column's extension type. `None` if it has none of tensors.
    ///
    /// # Errors
    /// If Forebay cannot read it: elements would be taken for others.
    fn declared(field: &Field) -> Result<Option<Self>> {
        let tensor = match field.extension_type_name() {
            Some(FixedShapeTensor::NAME) => Self::declared_fixed(field),
            Some(VariableShapeTensor::NAME) => Self::declared_variable(field),
            _ => return Ok(None),
        };
        tensor.map(Some).or_else(|problem| unusable(field, &problem))
    }

    fn declared_fixed(field: &Field) -> std::result::Result<Self, String> {
        let metadata = Metadata::of(field)?;
        metadata.check_order()?;
        let shape = metadata.shape()?;
        let DataType::FixedSizeList(item, length) = field.data_type() else {
            return Err(format!("it is stored as {}", type_name(field.data_type())));
        };
        let elements = shape.iter().try_fold(1usize, |all, side| all.checked_mul(*side));
        if elements.is_some() && elements == usize::try_from(*length).ok() {
            Ok(Self::Fixed { item: item.data_type().clone(), shape })
        } else {
            Err(format!("its shape {shape:?} is not of {length} elements"))
        }
    }

    fn declared_variable(field: &Field) -> std::result::Result<Self, String> {
        Metadata::of(field)?.check_order()?;
        Self::of_struct(field.data_type())
            .ok_or_else(|| format!("it is stored as {}", type_name(field.data_type())))
    }

    /// By the type alone: a vector has one dimension, and `STRUCT<data, shape>` is as Arrow defines it.
    pub(crate) fn of_storage(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::FixedSizeList(item, elements) => {
                let shape = vec![usize::try_from(*elements).ok()?];
                Some(Self::Fixed { item: item.data_type().clone(), shape })
            }
            other => Self::of_struct(other),
        }
    }

    fn of_struct(data_type: &DataType) -> Option<Self> {
        let DataType::Struct(fields) = data_type else { return None };
        let [data, shape] = fields.as_ref() else { return None };
        match (data.name().as_str(), data.data_type(), shape.name().as_str(), shape.data_type()) {
            ("data", DataType::List(item), "shape", DataType::FixedSizeList(side, dimensions))
                if side.data_type() == &DataType::Int32 =>
            {
                let dimensions = usize::try_from(*dimensions).ok()?;
                Some(Self::Variable { item: item.data_type().clone(), dimensions })
            }
            _ => None,
        }
    }
}

fn unusable<T>(field: &Field, problem: &str) -> Result<T> {
    plan_err!(
        "column '{}' has the type {}, but {problem}; expected a shape of as many elements as are \
         stored, in row-major order. Write it in this order, or without the extension type",
        field.name(),
        field.extension_type_name().unwrap_or_default()
    )
}

/// What the extension type of a column says beyond its name.
struct Metadata(serde_json::Value);

impl Metadata {
    fn of(field: &Field) -> std::result::Result<Self, String> {
        match field.extension_type_metadata() {
            None | Some("") => Ok(Self(serde_json::Value::Null)),
            Some(text) => serde_json::from_str(text)
                .map(Self)
                .map_err(|error| format!("its metadata '{text}' cannot be read ({error})")),
        }
    }

    fn shape(&self) -> std::result::Result<Vec<usize>, String> {
        let shape = self.0.get("shape").ok_or("its metadata have no shape")?;
        numbers(shape).ok_or_else(|| format!("its shape is {shape}"))
    }

    /// Arrow's specification says `permutation`, and its Rust library writes `permutations`.
    fn check_order(&self) -> std::result::Result<(), String> {
        let named = ["permutation", "permutations"].map(|name| self.0.get(name));
        for order in named.into_iter().flatten().filter(|order| !order.is_null()) {
            let is_identity = |order: Vec<usize>| order.iter().copied().eq(0..order.len());
            if !numbers(order).is_some_and(is_identity) {
                return Err(format!("its dimensions are in the order {order}"));
            }
        }
        Ok(())
    }
}

fn numbers(value: &serde_json::Value) -> Option<Vec<usize>> {
    let numbers = value.as_array()?.iter();
    numbers.map(|number| usize::try_from(number.as_u64()?).ok()).collect()
}

/// Refuses a column whose extension type is one of tensors that Forebay cannot read.
///
/// # Errors
/// If it is.
pub fn check_tensor(field: &Field) -> Result<()> {
    TensorType::declared(field).map(drop)
}

/// Refuses a tensor whose elements are in another order than they are stored in, whatever it is stored
/// as by now.
pub(super) fn check_order(field: &Field) -> Result<()> {
    match field.extension_type_name() {
        Some(FixedShapeTensor::NAME | VariableShapeTensor::NAME) => Metadata::of(field)
            .and_then(|metadata| metadata.check_order())
            .or_else(|problem| unusable(field, &problem)),
        _ => Ok(()),
    }
}

impl std::fmt::Display for TensorType {
    /// `fixed_shape_tensor(UINT8, [224, 224, 3])`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed { item, shape } => {
                write!(f, "fixed_shape_tensor({}, {shape:?})", type_name(item))
            }
            Self::Variable { item, dimensions } => {
                write!(f, "variable_shape_tensor({}, {dimensions} dimensions)", type_name(item))
            }
        }
    }
}

/// The type of a column of tensors with its shape, as users should read it. `None` for other columns,
/// and for tensors that Forebay cannot read.
pub fn tensor_type_name(field: &Field) -> Option<String> {
    TensorType::declared(field).ok().flatten().map(|tensor| tensor.to_string())
}

/// The name of a column's type: a tensor's with its shape, SQL's for every other.
pub fn column_type_name(field: &Field) -> String {
    tensor_type_name(field).unwrap_or_else(|| type_name(field.data_type()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn column(data_type: DataType, name: &str, metadata: &str) -> Field {
        let entries = [("ARROW:extension:name", name), ("ARROW:extension:metadata", metadata)];
        let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Field::new("t", data_type, true).with_metadata(HashMap::from(entries))
    }

    #[test]
    fn a_tensor_that_cannot_be_understood_is_refused_and_none_of_another_shape() {
        let six = || DataType::new_fixed_size_list(DataType::Float32, 6, false);
        let fixed =
            |metadata: &str| TensorType::of(&column(six(), FixedShapeTensor::NAME, metadata));
        let expected = Some(TensorType::Fixed { item: DataType::Float32, shape: vec![2, 3] });
        for metadata in [r#"{"shape":[2,3]}"#, r#"{"shape":[2,3],"permutation":[0,1]}"#] {
            assert_eq!(fixed(metadata).unwrap(), expected);
        }
        let large = r#"{"shape":[4294967296,4294967296]}"#;
        for (metadata, problem) in [
            ("", "its metadata have no shape"),
            ("[", "its metadata '[' cannot be read"),
            (r#"{"shape":[2,2]}"#, "its shape [2, 2] is not of 6 elements"),
            (r#"{"shape":[2,-3]}"#, "its shape is [2,-3]"),
            (large, "is not of 6 elements"),
            (r#"{"shape":[2,3],"permutation":[1,0]}"#, "its dimensions are in the order [1,0]"),
            (r#"{"shape":[2,3],"permutations":[1,0]}"#, "its dimensions are in the order [1,0]"),
        ] {
            let error = fixed(metadata).unwrap_err().to_string();
            assert!(error.contains("column 't' has the type arrow.fixed_shape_tensor"), "{error}");
            assert!(error.contains(problem), "{error}");
        }
        let fields = DataType::Struct(variable_shape_fields(DataType::UInt8, 2).unwrap());
        let variable = |metadata| column(fields.clone(), VariableShapeTensor::NAME, metadata);
        assert!(TensorType::of(&variable("")).unwrap().is_some());
        let permuted = variable(r#"{"permutation":[1,0]}"#);
        assert!(TensorType::of(&permuted).is_err() && check_order(&permuted).is_err());
        assert_eq!(tensor_type_name(&permuted), None);
    }
}
