//! Image files → pixels of one size, as bytes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeListArray, UInt8Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef};

use super::interface::{Transform, Transformed};
use crate::error::RuntimeError;
use crate::feature::arguments::BytesColumn;
use crate::feature::image::{Filter, Fit, Middle, Recipe, Workspace};
use crate::model::{ModelDeclaration, type_name};

/// What is prepared of each image: `crop` times `crop` pixels of three bytes.
pub(super) fn output_field(crop: u32) -> FieldRef {
    let bytes = i32::try_from(u64::from(crop) * u64::from(crop) * 3).unwrap_or(i32::MAX);
    let data_type = DataType::new_fixed_size_list(DataType::UInt8, bytes, true);
    Arc::new(Field::new("__forebay_pixels", data_type, true))
}

/// Decodes, resizes and crops. Each call works on its own thread only: the producers in front of an
/// exchange are parallel already.
#[derive(Debug)]
pub(super) struct Images {
    model: String,
    input: String,
    recipe: Recipe,
}

impl Images {
    pub(super) fn new(
        model: &ModelDeclaration,
        (resize, crop): (u32, u32),
        (filter, fit, middle): (Filter, Fit, Middle),
    ) -> Result<Self, RuntimeError> {
        let input = model.signature.inputs.first().map(|field| field.name().clone());
        let (model, input) = (model.name.clone(), input.unwrap_or_default());
        match Recipe::try_new(resize, crop) {
            Ok(recipe) => {
                let recipe = recipe.with_filter(filter).with_fit(fit).with_middle(middle);
                Ok(Self { model, input, recipe })
            }
            Err(problem) => Err(RuntimeError::Transform { model, input, problem }),
        }
    }

    fn problem(&self, problem: String) -> RuntimeError {
        let (model, input) = (self.model.clone(), self.input.clone());
        RuntimeError::Transform { model, input, problem }
    }
}

impl Transform for Images {
    fn output_fields(&self) -> Vec<FieldRef> {
        vec![output_field(self.recipe.crop)]
    }

    fn apply(&self, inputs: &[ArrayRef]) -> Result<Transformed, RuntimeError> {
        let [column] = inputs else {
            return Err(self.problem(format!("found {} columns, expected 1", inputs.len())));
        };
        let Some(files) = BytesColumn::of(column) else {
            let found = type_name(column.data_type());
            return Err(self.problem(format!("found {found}, expected BINARY")));
        };
        let bytes = self.recipe.bytes();
        let mut pixels = Vec::with_capacity(bytes * column.len());
        let mut workspace = Workspace::default();
        for row in 0..column.len() {
            match files.get(row) {
                Some(file) => {
                    let image = self.recipe.apply(file, &mut workspace);
                    pixels.extend(image.map_err(|problem| self.problem(problem))?);
                }
                None => pixels.resize(pixels.len() + bytes, 0),
            }
        }
        let field = output_field(self.recipe.crop);
        let DataType::FixedSizeList(item, length) = field.data_type() else {
            return Err(self.problem("its pixels are not a vector".to_owned()));
        };
        let nulls: Option<NullBuffer> = column.nulls().cloned();
        let values = Arc::new(UInt8Array::from(pixels));
        FixedSizeListArray::try_new(Arc::clone(item), *length, values, nulls)
            .map(|column| Transformed { columns: vec![Arc::new(column)], truncated: 0 })
            .map_err(|error| self.problem(error.to_string()))
    }
}
