//! The types, and fields that carry them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use arrow::error::ArrowError;
use arrow_schema::extension::{ExtensionType, FixedShapeTensor, VariableShapeTensor};
use datafusion::common::{Result, plan_datafusion_err, plan_err};

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
