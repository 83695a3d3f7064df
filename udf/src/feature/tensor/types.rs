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
    /// By the column's extension type. `None` if it has none of tensors.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        match (field.extension_type_name()?, field.data_type()) {
            (FixedShapeTensor::NAME, DataType::FixedSizeList(item, elements)) => {
                let shape = declared_shape(field.extension_type_metadata()?)?;
                let is_whole =
                    shape.iter().product::<usize>() == usize::try_from(*elements).ok()?;
                is_whole.then(|| Self::Fixed { item: item.data_type().clone(), shape })
            }
            (VariableShapeTensor::NAME, data_type) => Self::of_struct(data_type),
            _ => None,
        }
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

fn declared_shape(metadata: &str) -> Option<Vec<usize>> {
    let metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
    let sides = metadata.get("shape")?.as_array()?.iter();
    sides.map(|side| usize::try_from(side.as_u64()?).ok()).collect()
}

impl std::fmt::Display for TensorType {
    /// `fixed_shape_tensor(UInt8, [224, 224, 3])`
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

/// The type of a column of tensors with its shape, as users should read it. `None` for other columns.
pub fn tensor_type_name(field: &Field) -> Option<String> {
    TensorType::of(field).map(|tensor| tensor.to_string())
}

/// The name of a column's type: a tensor's with its shape, SQL's for every other.
pub fn column_type_name(field: &Field) -> String {
    tensor_type_name(field).unwrap_or_else(|| type_name(field.data_type()))
}
