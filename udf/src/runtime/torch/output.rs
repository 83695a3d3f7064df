//! A program's results → the declared columns: tensors as they are, numbers as the texts they stand
//! for, and lists of what belongs to each row's tokens.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use tch::{Kind, Tensor};

use super::super::labels::Labels;
use super::tensor::{Mismatch, to_column};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, type_name};

/// The declared outputs, with what it takes to read them from a program's results.
#[derive(Debug)]
pub(super) struct Outputs {
    outputs: Vec<Output>,
    /// Whether a last result says which tokens the lists hold.
    has_lists: bool,
}

#[derive(Debug)]
struct Output {
    field: FieldRef,
    /// The texts that the program's numbers stand for.
    labels: Option<Labels>,
}

impl Outputs {
    /// Reads the files of labels.
    pub(super) fn load(model: &ModelDeclaration, package: &Package) -> Result<Self, RuntimeError> {
        let outputs = model.signature.outputs.iter().zip(&package.manifest.labels);
        let output = |(field, file): (&FieldRef, &Option<String>)| {
            let labels =
                file.as_ref().map(|file| Labels::load(model, package, file)).transpose()?;
            Ok(Output { field: Arc::clone(field), labels })
        };
        let outputs = outputs.map(output).collect::<Result<Vec<_>, RuntimeError>>()?;
        let has_lists = outputs.iter().any(|output| list_item(&output.field).is_some());
        Ok(Self { outputs, has_lists })
    }

    /// How many tensors the program returns: one per output, and for lists the one that says which
    /// tokens they hold.
    pub(super) fn results(&self) -> usize {
        self.outputs.len() + usize::from(self.has_lists)
    }

    /// One column per output, or the name of the output that is not as declared, and why.
    pub(super) fn columns(
        &self,
        mut results: Vec<Tensor>,
        rows: usize,
        inputs: &[Tensor],
    ) -> Result<Vec<ArrayRef>, (String, Mismatch)> {
        let kept = if self.has_lists { results.pop() } else { None };
        let column = |(output, result): (&Output, Tensor)| {
            let column = match (list_item(&output.field), &kept) {
                (Some(item), Some(kept)) => output.list(item, result, kept, rows),
                _ => output.column(&output.field, result, rows, inputs),
            };
            column.map_err(|mismatch| (output.field.name().clone(), mismatch))
        };
        self.outputs.iter().zip(results).map(column).collect()
    }
}

impl Output {
    /// One value per row.
    fn column(
        &self,
        field: &FieldRef,
        result: Tensor,
        rows: usize,
        inputs: &[Tensor],
    ) -> Result<ArrayRef, Mismatch> {
        let Some(labels) = &self.labels else { return to_column(result, field, rows, inputs) };
        let indices = Arc::new(Field::new(field.name(), DataType::Int64, true));
        let indices = to_column(result, &indices, rows, inputs)?;
        labels.texts(indices.as_primitive::<Int64Type>()).map_err(|index| Mismatch::Shape {
            expected: format!("{} of {} labels", type_name(field.data_type()), labels.count()),
            found: format!("the index {index}"),
        })
    }

    /// Of `[rows, longest]` values, those that are kept, as one list per row.
    fn list(
        &self,
        item: &FieldRef,
        result: Tensor,
        kept: &Tensor,
        rows: usize,
    ) -> Result<ArrayRef, Mismatch> {
        let size = kept.size();
        let fits = size.len() == 2 && size[0] == rows as i64 && kept.f_kind()? == Kind::Bool;
        if !fits || result.size() != size {
            return Err(Mismatch::Shape {
                expected: format!(
                    "{} for {rows} rows, and a last result that is bool of the same shape",
                    type_name(self.field.data_type())
                ),
                found: format!("the shapes {:?} and {size:?}", result.size()),
            });
        }
        let lengths = kept.f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Int64)?;
        let lengths = Vec::<i64>::try_from(&lengths.f_to_device(tch::Device::Cpu)?)?;
        let lengths = lengths.iter().map(|length| *length as usize);
        let values = result.f_masked_select(kept)?;
        let count = lengths.clone().sum();
        // The selection is a copy, so it shares no memory with the inputs.
        let values = self.column(item, values, count, &[])?;
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok(Arc::new(ListArray::new(Arc::clone(item), offsets, values, None)))
    }
}

fn list_item(field: &FieldRef) -> Option<&FieldRef> {
    match field.data_type() {
        DataType::List(item) => Some(item),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Int32Array, StringArray};

    use super::*;
    use crate::model::parse_type;

    fn output(sql_type: &str, labels: Option<&[&str]>) -> Output {
        super::super::info().unwrap();
        let field = Field::new("o", parse_type(sql_type).unwrap(), true);
        let labels = labels.map(Labels::of);
        Output { field: Arc::new(field), labels }
    }

    fn list(output: Output, values: Tensor, kept: &Tensor) -> Result<ArrayRef, String> {
        let item = list_item(&output.field).unwrap();
        output.list(item, values, kept, 3).map_err(|mismatch| match mismatch {
            Mismatch::Shape { expected, found } => format!("{expected}: {found}"),
            Mismatch::Torch(error) => error.to_string(),
        })
    }

    fn kept() -> Tensor {
        Tensor::from_slice2(&[[false, true, true], [false, false, false], [true, false, true]])
    }

    #[test]
    fn lists_hold_what_is_kept_row_by_row() {
        let output = output("INT[]", None);
        let values = Tensor::from_slice2(&[[1_i32, 2, 3], [4, 5, 6], [7, 8, 9]]);
        let found = list(output, values, &kept()).unwrap();
        assert_eq!(type_name(found.data_type()), "INT[]");
        let rows: Vec<Vec<i32>> = (0..3)
            .map(|row| {
                let row = found.as_list::<i32>().value(row);
                row.as_any().downcast_ref::<Int32Array>().unwrap().values().to_vec()
            })
            .collect();
        assert_eq!(rows, [vec![2, 3], vec![], vec![7, 9]]);
    }

    #[test]
    fn lists_of_labels_are_text() {
        let output = output("STRING[]", Some(&["a", "b"]));
        let values = Tensor::from_slice2(&[[9_i64, 0, 1], [9, 9, 9], [1, 9, 0]]);
        let found = list(output, values, &kept()).unwrap();
        let texts = found.as_list::<i32>().values().as_string::<i32>().clone();
        assert_eq!(texts, StringArray::from(vec!["a", "b", "b", "a"]));
    }

    #[test]
    fn lists_that_disagree_with_their_tokens_are_refused() {
        let ones = |shape: &[i64], kind| Tensor::ones(shape, (kind, tch::Device::Cpu));
        for (values, kept, expected) in [
            (&[3, 2][..], (&[3, 3][..], Kind::Bool), "the shapes [3, 2] and [3, 3]"),
            (&[3, 3], (&[3, 3], Kind::Int64), "a last result that is bool"),
            (&[3], (&[3], Kind::Bool), "the shapes [3] and [3]"),
            (&[2, 3], (&[2, 3], Kind::Bool), "FLOAT[] for 3 rows"),
        ] {
            let output = output("FLOAT[]", None);
            let message =
                list(output, ones(values, Kind::Float), &ones(kept.0, kept.1)).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
