//! `row_hash(seed, value, …)`: a number from the values of a row, the same in each run.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::hash_utils::{QualityRandomState, create_hashes};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use crate::feature::docs::documentation;

pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let signature = Signature::user_defined(Volatility::Immutable);
    vec![Arc::new(ScalarUDF::new_from_impl(RowHash { signature }))]
}

/// Rows sorted by it are shuffled: the seed and the values alone say how, not the order or the
/// machine in which rows come. The hash is DataFusion's, which may change with its version.
#[derive(Debug, PartialEq, Eq, Hash)]
struct RowHash {
    signature: Signature,
}

impl ScalarUDFImpl for RowHash {
    fn name(&self) -> &'static str {
        "row_hash"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        match found {
            [seed, values @ ..] if seed.is_integer() && !values.is_empty() => {
                Ok([&[DataType::Int64], values].concat())
            }
            _ => plan_err!("row_hash takes a seed, a whole number, and values: row_hash(7, id)"),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let [seed, values @ ..] = args.args.as_slice() else {
            return internal_err!("row_hash without arguments");
        };
        let seed = match seed {
            ColumnarValue::Scalar(ScalarValue::Int64(Some(seed))) => *seed,
            ColumnarValue::Array(seeds) if !seeds.is_empty() && seeds.null_count() == 0 => {
                let seeds = seeds.as_primitive::<Int64Type>();
                if seeds.values().iter().all(|seed| *seed == seeds.value(0)) {
                    seeds.value(0)
                } else {
                    return exec_err!("row_hash: the seed differs from row to row");
                }
            }
            ColumnarValue::Array(seeds) if seeds.is_empty() => 0,
            _ => return exec_err!("row_hash: the seed is NULL, expected a whole number"),
        };
        let columns = values.iter().map(|value| value.to_array(rows));
        let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        let mut hashes = vec![0; rows];
        create_hashes(&columns, &QualityRandomState::with_seed(seed.cast_unsigned()), &mut hashes)?;
        Ok(ColumnarValue::Array(Arc::new(UInt64Array::from(hashes))))
    }
}
