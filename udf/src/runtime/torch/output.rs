//! A program's tensors → the declared columns.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use tch::{Kind, Tensor};

use super::super::outputs::{Output, Outputs, Part, Unlike};
use super::tensor::{Mismatch, to_column};

impl From<Unlike> for Mismatch {
    fn from(unlike: Unlike) -> Self {
        Self::Shape { expected: unlike.expected, found: unlike.found }
    }
}

/// One column per output, or the name of the output that is not as declared, and why.
pub(super) fn columns(
    outputs: &Outputs,
    results: &[Tensor],
    rows: usize,
    inputs: &[Tensor],
) -> Result<Vec<ArrayRef>, (String, Mismatch)> {
    outputs.columns(
        results,
        |part, result| column(part, result, rows, inputs),
        |output, own, kept| lists(output, own, kept, rows),
    )
}

/// One value per row.
fn column(
    part: &Part,
    result: &Tensor,
    rows: usize,
    inputs: &[Tensor],
) -> Result<ArrayRef, Mismatch> {
    let field = Arc::new(Field::new_list_field(part.given().clone(), true));
    Ok(part.named(to_column(result.shallow_clone(), &field, rows, inputs)?)?)
}

/// Of `[rows, longest]` values, those that are kept, as one list per row.
fn lists(
    output: &Output,
    results: &[Tensor],
    kept: &Tensor,
    rows: usize,
) -> Result<ArrayRef, Mismatch> {
    let size = kept.size();
    let fits = size.len() == 2 && size[0] == rows as i64 && kept.f_kind()? == Kind::Bool;
    if let Some(other) = results.iter().find(|result| !fits || result.size() != size) {
        let found = format!("the shapes {:?} and {size:?}", other.size());
        return Err(Mismatch::Shape { expected: output.expected(rows), found });
    }
    let lengths = kept.f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Int64)?;
    let lengths = Vec::<i64>::try_from(&lengths.f_to_device(tch::Device::Cpu)?)?;
    let lengths: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
    let count = lengths.iter().sum();
    let values = |(part, result): (&Part, &Tensor)| {
        // The selection is a copy, so it shares no memory with the inputs.
        column(part, &result.f_masked_select(kept)?, count, &[])
    };
    let values = output.parts().iter().zip(results).map(values).collect::<Result<_, Mismatch>>()?;
    output.lists(lengths, values).map_err(|error| Mismatch::Shape {
        expected: output.expected(rows),
        found: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Float32Array, Int32Array, StringArray};

    use super::super::super::labels::Labels;
    use super::*;
    use crate::model::{parse_type, type_name};

    fn output(sql_type: &str, labels: Option<&[&str]>) -> Output {
        super::super::info().unwrap();
        let field = Arc::new(Field::new("o", parse_type(sql_type).unwrap(), true));
        Output::new(&field, labels.map(Labels::of))
    }

    fn list(output: Output, values: Tensor, kept: &Tensor) -> Result<ArrayRef, String> {
        all(&output, &[values], kept)
    }

    fn all(output: &Output, results: &[Tensor], kept: &Tensor) -> Result<ArrayRef, String> {
        lists(output, results, kept, 3).map_err(|mismatch| match mismatch {
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
    fn lists_of_structs_have_a_result_for_each_field() {
        let output = output("STRUCT<token STRING, weight FLOAT>[]", Some(&["a", "b"]));
        let tokens = Tensor::from_slice2(&[[9_i64, 0, 1], [9, 9, 9], [1, 9, 0]]);
        let weights = Tensor::from_slice2(&[[9_f32, 0.5, 1.5], [9.0, 9.0, 9.0], [2.5, 9.0, 3.5]]);
        let found = all(&output, &[tokens, weights.shallow_clone()], &kept()).unwrap();
        assert_eq!(type_name(found.data_type()), "STRUCT<token STRING, weight FLOAT>[]");
        let lists = found.as_list::<i32>();
        assert_eq!(lists.value_offsets(), [0, 2, 2, 4]);
        let items = lists.values().as_struct();
        assert_eq!(
            items.column(0).as_string::<i32>(),
            &StringArray::from(vec!["a", "b", "b", "a"])
        );
        assert_eq!(items.column(1).as_ref(), &Float32Array::from(vec![0.5, 1.5, 2.5, 3.5]));
        let beyond = Tensor::from_slice2(&[[9_i64, 7, 1], [9, 9, 9], [1, 9, 0]]);
        let message = all(&output, &[beyond, weights], &kept()).unwrap_err();
        let expected = "STRUCT<token STRING, weight FLOAT>[] of 2 labels: the index 7";
        assert_eq!(message, expected);
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
