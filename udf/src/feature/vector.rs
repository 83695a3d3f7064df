//! Distances between embeddings.
//!
//! DataFusion has these functions, but turns vectors of a fixed length into lists of `DOUBLE`
//! first, a constant one once per row, and then adds up one product at a time. Here `FLOAT[n]` is
//! read where it lies; every other type goes to DataFusion's own implementation. Results agree to
//! the last digits of a `DOUBLE`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float64Array};
use arrow::datatypes::{DataType, Float32Type};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::functions_nested::cosine_distance::cosine_distance_udf;
use datafusion::functions_nested::distance::array_distance_udf;
use datafusion::functions_nested::inner_product::inner_product_udf;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use crate::model::type_name;

/// Functions that replace DataFusion's own of the same names when they are registered.
pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    [
        (Kernel::Cosine, cosine_distance_udf()),
        (Kernel::InnerProduct, inner_product_udf()),
        (Kernel::Euclidean, array_distance_udf()),
    ]
    .map(|(kernel, general)| Arc::new(ScalarUDF::new_from_impl(VectorFunction { kernel, general })))
    .into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kernel {
    Cosine,
    InnerProduct,
    Euclidean,
}

/// A function of two vectors, with a short way for `FLOAT[n]`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct VectorFunction {
    kernel: Kernel,
    /// DataFusion's function, for all other types.
    general: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for VectorFunction {
    fn name(&self) -> &str {
        self.general.name()
    }

    fn aliases(&self) -> &[String] {
        self.general.aliases()
    }

    fn signature(&self) -> &Signature {
        self.general.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.general.return_type(arg_types)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        match arg_types {
            [one, other] => match (float_vector_length(one), float_vector_length(other)) {
                (Some(a), Some(b)) if a == b => Ok(arg_types.to_vec()),
                (Some(_), Some(_)) => plan_err!(
                    "{}: the vectors differ in length: {} and {}",
                    self.name(),
                    type_name(one),
                    type_name(other)
                ),
                _ => self.general.coerce_types(arg_types),
            },
            _ => self.general.coerce_types(arg_types),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [one, other] = args.args.as_slice() else {
            return self.general.invoke_with_args(args);
        };
        match (Operand::of(one)?, Operand::of(other)?) {
            (Some(one), Some(other)) => {
                let rows = if one.is_constant && other.is_constant { 1 } else { args.number_rows };
                let column = self.compute(&one, &other, rows);
                if one.is_constant && other.is_constant {
                    let value = column.is_valid(0).then(|| column.value(0));
                    return Ok(ColumnarValue::Scalar(ScalarValue::Float64(value)));
                }
                Ok(ColumnarValue::Array(Arc::new(column)))
            }
            (None, None) => self.general.invoke_with_args(args),
            _ => internal_err!("{} received mixed types after coercion", self.name()),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.general.documentation()
    }
}

fn float_vector_length(data_type: &DataType) -> Option<i32> {
    match data_type {
        DataType::FixedSizeList(item, length) if item.data_type() == &DataType::Float32 => {
            Some(*length)
        }
        _ => None,
    }
}

/// A column of vectors, or one vector for all rows.
struct Operand {
    vectors: FixedSizeListArray,
    is_constant: bool,
}

impl Operand {
    fn of(value: &ColumnarValue) -> Result<Option<Self>> {
        if float_vector_length(&value.data_type()).is_none() {
            return Ok(None);
        }
        let (array, is_constant): (ArrayRef, bool) = match value {
            ColumnarValue::Array(array) => (Arc::clone(array), false),
            ColumnarValue::Scalar(scalar) => (scalar.to_array()?, true),
        };
        Ok(Some(Self { vectors: array.as_fixed_size_list().clone(), is_constant }))
    }

    /// The vector of a row; `None` if it is NULL or holds one.
    fn row<'a>(&self, values: &'a [f32], row: usize) -> Option<&'a [f32]> {
        let row = if self.is_constant { 0 } else { row };
        let length = self.vectors.value_length() as usize;
        let has_null = self.vectors.values().nulls().is_some_and(|nulls| {
            nulls.null_count() > 0 && nulls.slice(row * length, length).null_count() > 0
        });
        let is_null = self.vectors.is_null(row) || has_null;
        (!is_null).then(|| &values[row * length..(row + 1) * length])
    }

    fn values(&self) -> &[f32] {
        self.vectors.values().as_primitive::<Float32Type>().values()
    }
}

impl VectorFunction {
    fn compute(&self, one: &Operand, other: &Operand, rows: usize) -> Float64Array {
        let (one_values, other_values) = (one.values(), other.values());
        let pair = |row| Some((one.row(one_values, row)?, other.row(other_values, row)?));
        let distance: fn(&[f32], &[f32]) -> Option<f64> = match self.kernel {
            Kernel::Cosine => cosine_distance,
            Kernel::InnerProduct => |a, b| Some(inner_product(a, b)),
            Kernel::Euclidean => |a, b| Some(sum(a, b, |a, b| (a - b) * (a - b)).sqrt()),
        };
        (0..rows).map(|row| pair(row).and_then(|(a, b)| distance(a, b))).collect()
    }
}

/// NULL if either vector holds only zeros, as in DataFusion.
fn cosine_distance(a: &[f32], b: &[f32]) -> Option<f64> {
    // Three passes over vectors that are in the cache: the compiler vectorizes each, and not a
    // single pass with three sums.
    let (a_squared, b_squared) = (inner_product(a, a), inner_product(b, b));
    let has_direction = a_squared != 0.0 && b_squared != 0.0;
    has_direction.then(|| 1.0 - inner_product(a, b) / (a_squared.sqrt() * b_squared.sqrt()))
}

fn inner_product(a: &[f32], b: &[f32]) -> f64 {
    sum(a, b, |a, b| a * b)
}

/// Sums that are independent of each other, so that the compiler can use vector instructions: it
/// must not reorder the additions of one sum.
const LANES: usize = 8;

fn sum(a: &[f32], b: &[f32], term: impl Fn(f64, f64) -> f64) -> f64 {
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += term(f64::from(a[lane]), f64::from(b[lane]));
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| term(f64::from(*a), f64::from(*b)));
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Field, Schema};
    use arrow::record_batch::RecordBatch;
    use datafusion::prelude::SessionContext;

    use super::*;

    const DIMENSIONS: usize = 19;
    const NAMES: [&str; 3] = ["cosine_distance", "inner_product", "array_distance"];

    /// Rows with values, zeros, a NULL inside and a NULL row; `b` is `a` in another order.
    fn context(ours: bool) -> SessionContext {
        let row = |i: usize| -> Option<Vec<Option<f32>>> {
            match i {
                3 => Some(vec![Some(0.0); DIMENSIONS]),
                4 => Some((0..DIMENSIONS).map(|d| (d != 7).then_some(1.0)).collect()),
                5 => None,
                _ => Some((0..DIMENSIONS).map(|d| Some(((i * 31 + d * 7) as f32).sin())).collect()),
            }
        };
        let column = |order: &dyn Fn(usize) -> usize| -> ArrayRef {
            let rows = (0..12).map(|i| row(order(i)));
            Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
                rows,
                DIMENSIONS as i32,
            ))
        };
        let columns = vec![column(&|i| i), column(&|i| (i + 5) % 12)];
        let field = |name: &str| Field::new(name, columns[0].data_type().clone(), true);
        let schema = Arc::new(Schema::new(vec![field("a"), field("b")]));
        let context = SessionContext::new();
        context.register_batch("t", RecordBatch::try_new(schema, columns).unwrap()).unwrap();
        if ours {
            for function in functions() {
                context.register_udf(ScalarUDF::clone(&function));
            }
        }
        context
    }

    async fn query(context: &SessionContext, sql: &str) -> Vec<Option<f64>> {
        let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
        let columns = batches.iter().map(|batch| {
            batch
                .column(0)
                .as_primitive::<arrow::datatypes::Float64Type>()
                .iter()
                .collect::<Vec<_>>()
        });
        columns.flatten().collect()
    }

    #[tokio::test]
    async fn results_are_those_of_datafusion() {
        let (ours, theirs) = (context(true), context(false));
        for name in NAMES.into_iter().chain(["dot_product", "list_distance"]) {
            for arguments in ["a, b", "b, a", "a, (SELECT b FROM t LIMIT 1)", "[1.0, 2.0], [3, 4]"]
            {
                let sql = format!("SELECT {name}({arguments}) FROM t");
                let (found, expected) = (query(&ours, &sql).await, query(&theirs, &sql).await);
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.into_iter().zip(expected) {
                    match (found, expected) {
                        (Some(found), Some(expected)) => {
                            assert!((found - expected).abs() < 1e-12, "{sql}: {found} {expected}");
                        }
                        (found, expected) => assert_eq!(found, expected, "{sql}"),
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn vectors_of_different_lengths_are_a_planning_error() {
        let context = context(true);
        let sql =
            "SELECT cosine_distance(a, arrow_cast([1.0, 2.0], 'FixedSizeList(2, Float32)')) FROM t";
        let error = context.sql(sql).await.unwrap_err().to_string();
        assert!(error.contains("the vectors differ in length: FLOAT[19] and FLOAT[2]"), "{error}");
    }
}
