//! Numbers and vectors, passed as they are.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, make_array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{Field, FieldRef};

use super::interface::{Transform, Transformed};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Signature, type_name};

pub(super) fn output_fields(signature: &Signature) -> Vec<FieldRef> {
    let prepared = |(i, field): (usize, &FieldRef)| {
        let name = format!("__forebay_tensor_{i}");
        Arc::new(Field::new(name, field.data_type().clone(), true))
    };
    signature.inputs.iter().enumerate().map(prepared).collect()
}

/// Passes numbers and vectors on without a copy, once they are known to hold no NULL inside.
#[derive(Debug)]
pub(super) struct Tensors {
    model: String,
    inputs: Vec<FieldRef>,
    outputs: Vec<FieldRef>,
}

impl Tensors {
    pub(super) fn new(model: &ModelDeclaration) -> Self {
        Self {
            model: model.name.clone(),
            inputs: model.signature.inputs.iter().cloned().collect(),
            outputs: output_fields(&model.signature),
        }
    }

    fn problem(&self, field: &FieldRef, problem: String) -> RuntimeError {
        RuntimeError::Transform { model: self.model.clone(), input: field.name().clone(), problem }
    }

    /// Text has several layouts, and what a vector holds several names: `item` in Arrow, `element` in
    /// Parquet files. Numbers have one.
    fn in_declared_layout(
        &self,
        field: &FieldRef,
        column: ArrayRef,
    ) -> Result<ArrayRef, RuntimeError> {
        if column.data_type() == field.data_type() {
            return Ok(column);
        }
        cast(&column, field.data_type()).map_err(|e| self.problem(field, e.to_string()))
    }

    fn check(&self, field: &FieldRef, column: &ArrayRef) -> Result<(), RuntimeError> {
        let (found, expected) = (type_name(column.data_type()), type_name(field.data_type()));
        if found != expected {
            return Err(self.problem(field, format!("found {found}, expected {expected}")));
        }
        let Some(list) = column.as_fixed_size_list_opt() else { return Ok(()) };
        let Some(item_nulls) = list.values().nulls().filter(|nulls| nulls.null_count() > 0) else {
            return Ok(());
        };
        let length = list.value_length() as usize;
        let is_broken = (0..list.len()).any(|row| {
            list.is_valid(row) && item_nulls.slice(row * length, length).null_count() > 0
        });
        if is_broken {
            Err(self.problem(field, "a vector holds a NULL".to_owned()))
        } else {
            Ok(())
        }
    }
}

impl Transform for Tensors {
    fn output_fields(&self) -> Vec<FieldRef> {
        self.outputs.clone()
    }

    fn apply(&self, inputs: &[ArrayRef]) -> Result<Transformed, RuntimeError> {
        for (field, column) in self.inputs.iter().zip(inputs) {
            self.check(field, column)?;
        }
        let nulls = inputs.iter().fold(None, |nulls: Option<NullBuffer>, column| {
            NullBuffer::union(nulls.as_ref(), column.nulls())
        });
        let prepared = self.inputs.iter().zip(inputs).map(|(field, column)| {
            let mut prepared = Arc::clone(column);
            if nulls.as_ref().map_or(0, NullBuffer::null_count) != column.null_count() {
                let data = column.to_data().into_builder().nulls(nulls.clone()).build();
                prepared = make_array(data.map_err(|e| self.problem(field, e.to_string()))?);
            }
            self.in_declared_layout(field, prepared)
        });
        Ok(Transformed { columns: prepared.collect::<Result<_, _>>()?, truncated: 0 })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        FixedSizeListArray, Float32Array, Int64Array, StringArray, StringViewArray,
    };
    use arrow::datatypes::{DataType, Float32Type};

    use super::*;
    use crate::fixture::{Folder, open, tensors};

    fn transform(inputs: &[(&str, &str)]) -> Tensors {
        let runtime = "kind = \"emulated\"\nservice_ms = 1";
        let folder = Folder::new(&tensors(inputs, &[("o", "FLOAT")], runtime), &[]);
        Tensors::new(&open(folder.path()).0)
    }

    fn vectors(rows: &[Option<Vec<Option<f32>>>]) -> ArrayRef {
        Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows.to_vec(), 2))
    }

    #[test]
    fn columns_without_nulls_are_passed_as_they_are() {
        let transform = transform(&[("v", "FLOAT[2]"), ("n", "BIGINT")]);
        let inputs = [
            vectors(&[Some(vec![Some(1.0), Some(2.0)])]),
            Arc::new(Int64Array::from(vec![7])) as ArrayRef,
        ];
        let prepared = transform.apply(&inputs).unwrap().columns;
        for ((prepared, input), field) in
            prepared.iter().zip(&inputs).zip(transform.output_fields())
        {
            assert!(Arc::ptr_eq(prepared, input));
            assert_eq!(prepared.data_type(), field.data_type());
        }
    }

    #[test]
    fn vectors_of_parquet_files_are_vectors() {
        let transform = transform(&[("v", "FLOAT[2]")]);
        let values = Arc::new(Float32Array::from(vec![1.0, 2.0, 3.0, 4.0]));
        for (name, nullable) in [("element", true), ("item", false), ("element", false)] {
            let field = Arc::new(Field::new(name, DataType::Float32, nullable));
            let nulls = Some(NullBuffer::from(vec![true, false]));
            let column = FixedSizeListArray::new(field, 2, Arc::clone(&values) as _, nulls);
            let prepared = transform.apply(&[Arc::new(column)]).unwrap().columns;
            assert_eq!(prepared[0].data_type(), transform.output_fields()[0].data_type());
            let row = prepared[0].as_fixed_size_list().value(0);
            assert_eq!(row.as_primitive::<Float32Type>().values(), &[1.0, 2.0]);
            assert!(prepared[0].is_null(1));
        }
    }

    #[test]
    fn a_row_with_any_null_is_null_in_all() {
        let transform = transform(&[("a", "BIGINT"), ("b", "FLOAT")]);
        let a: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4)]));
        let b: ArrayRef = Arc::new(Float32Array::from(vec![Some(1.0), Some(2.0), None, Some(4.0)]));
        let prepared = transform.apply(&[a, b]).unwrap().columns;
        for column in prepared {
            let valid: Vec<bool> = (0..4).map(|row| column.is_valid(row)).collect();
            assert_eq!(valid, [true, false, false, true]);
        }
    }

    #[test]
    fn a_null_inside_a_vector_is_an_error_unless_its_row_is_null() {
        let transform = transform(&[("v", "FLOAT[2]")]);
        let whole = vectors(&[Some(vec![Some(1.0), Some(2.0)]), None]);
        transform.apply(&[whole]).unwrap();
        let broken = vectors(&[None, Some(vec![Some(1.0), None])]);
        let message = transform.apply(&[broken]).unwrap_err().to_string();
        assert_eq!(message, "model 'm': input 'v': a vector holds a NULL");
    }

    #[test]
    fn other_types_are_refused() {
        let transform = transform(&[("n", "BIGINT")]);
        let column: ArrayRef = Arc::new(StringArray::from(vec!["7"]));
        let message = transform.apply(&[column]).unwrap_err().to_string();
        assert!(message.contains("found STRING, expected BIGINT"), "{message}");
    }

    #[test]
    fn text_gets_its_declared_layout() {
        let transform = transform(&[("t", "STRING")]);
        let column: ArrayRef = Arc::new(StringViewArray::from(vec![Some("a"), None]));
        let prepared = transform.apply(&[column]).unwrap().columns;
        assert_eq!(prepared[0].data_type(), &DataType::Utf8);
        assert_eq!(prepared[0].null_count(), 1);
    }
}
