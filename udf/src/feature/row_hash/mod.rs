//! `row_hash(seed, value, …)`: a number from the values of a row, the same in each run.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::hash_utils::{QualityRandomState, create_hashes};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use self::apart::told_apart;
use crate::feature::docs::documentation;

mod apart;

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
        let columns =
            values.iter().map(|value| Ok(told_apart(&without_views(value.to_array(rows)?)?)));
        let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        let mut hashes = vec![0; rows];
        create_hashes(&columns, &QualityRandomState::with_seed(seed.cast_unsigned()), &mut hashes)?;
        Ok(ColumnarValue::Array(Arc::new(UInt64Array::from(hashes))))
    }
}

/// Short texts in views have other hashes than texts, and whether a column has views depends on who reads it.
fn without_views(values: ArrayRef) -> Result<ArrayRef> {
    let plain = plain(values.data_type());
    if plain == *values.data_type() { Ok(values) } else { Ok(cast(&values, &plain)?) }
}

fn plain(found: &DataType) -> DataType {
    let of = |field: &FieldRef| -> FieldRef {
        Arc::new(field.as_ref().clone().with_data_type(plain(field.data_type())))
    };
    match found {
        DataType::Utf8View => DataType::LargeUtf8,
        DataType::BinaryView => DataType::LargeBinary,
        DataType::Dictionary(key, value) => {
            DataType::Dictionary(key.clone(), Box::new(plain(value)))
        }
        DataType::List(item) => DataType::List(of(item)),
        DataType::LargeList(item) => DataType::LargeList(of(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(of(item), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(of).collect()),
        DataType::Map(entries, is_sorted) => DataType::Map(of(entries), *is_sorted),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Float64Array, ListArray, StringArray, StructArray};
    use arrow::datatypes::{Field, Fields, Int32Type};
    use datafusion::config::ConfigOptions;

    use super::*;

    fn hashes(values: ArrayRef) -> Vec<u64> {
        let args = ScalarFunctionArgs {
            number_rows: values.len(),
            arg_fields: vec![],
            args: vec![
                ColumnarValue::Scalar(ScalarValue::Int64(Some(7))),
                ColumnarValue::Array(values),
            ],
            return_field: Arc::new(Field::new("hash", DataType::UInt64, true)),
            config_options: Arc::new(ConfigOptions::default()),
        };
        let row_hash = RowHash { signature: Signature::user_defined(Volatility::Immutable) };
        let hashes = row_hash.invoke_with_args(args).unwrap().to_array(0).unwrap();
        hashes.as_primitive::<arrow::datatypes::UInt64Type>().values().to_vec()
    }

    /// Else their order would be whose turn it is.
    #[test]
    fn values_that_differ_have_different_hashes() {
        let numbers = |all: &[f64]| -> ArrayRef { Arc::new(Float64Array::from(all.to_vec())) };
        let lists = |all: Vec<Option<Vec<Option<i32>>>>| -> ArrayRef {
            let rows =
                all.into_iter().map(|row| row.map(|row| row.into_iter().collect::<Vec<_>>()));
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows))
        };
        let nested = |validity: &[bool], lengths: &[usize]| -> ArrayRef {
            let items = lists(vec![None, Some(vec![]), Some(vec![None])]);
            let field = Arc::new(Field::new("item", items.data_type().clone(), true));
            let offsets = arrow::buffer::OffsetBuffer::from_lengths(lengths.iter().copied());
            let nulls = Some(validity.to_vec().into());
            Arc::new(ListArray::new(field, offsets, items, nulls))
        };
        let fields = Fields::from(vec![Field::new("number", DataType::Float64, true)]);
        let inner: ArrayRef = Arc::new(Float64Array::from(vec![None, None, Some(-0.0), Some(0.0)]));
        let nulls = Some(vec![false, true, true, true].into());
        let structs: ArrayRef = Arc::new(StructArray::new(fields, vec![inner], nulls));
        for (what, values) in [
            ("zeros", numbers(&[0.0, -0.0, 1.0, f64::NAN])),
            ("lists", lists(vec![None, Some(vec![]), Some(vec![None]), Some(vec![Some(1)])])),
            ("lists in lists", nested(&[true, true, true], &[1, 1, 1])),
            ("lists that are NULL", nested(&[false, true, true], &[0, 0, 3])),
            ("structs", structs),
        ] {
            let found = hashes(Arc::clone(&values));
            let different: std::collections::HashSet<u64> = found.iter().copied().collect();
            assert_eq!(different.len(), values.len(), "{what}: {found:?}");
            // Of some of the rows, too.
            assert_eq!(hashes(values.slice(1, 2)), found[1..3], "{what}");
        }
    }

    /// One process reads texts of Parquet files as views, and workers do not.
    #[test]
    fn views_have_the_hashes_of_what_they_show() {
        let texts = [Some("short"), None, Some(""), Some("longer than the twelve bytes of a view")];
        let texts: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
        let bytes: ArrayRef =
            Arc::new(BinaryArray::from(vec![&b"ab"[..], b"\xff", b"", b"0123456789abc"]));
        let of_list = Field::new("item", DataType::Utf8, true);
        let offsets = arrow::buffer::OffsetBuffer::from_lengths([1, 0, 2, 1]);
        let lists: ArrayRef =
            Arc::new(ListArray::new(Arc::new(of_list), offsets, Arc::clone(&texts), None));
        let fields = Fields::from(vec![Field::new("text", DataType::Utf8, true)]);
        let structs: ArrayRef = Arc::new(StructArray::new(fields, vec![Arc::clone(&texts)], None));
        let view = |data_type: DataType| Arc::new(Field::new("item", data_type, true));
        let of_struct = Fields::from(vec![Field::new("text", DataType::Utf8View, true)]);
        for (plain, views) in [
            (texts, DataType::Utf8View),
            (bytes, DataType::BinaryView),
            (lists, DataType::List(view(DataType::Utf8View))),
            (structs, DataType::Struct(of_struct)),
        ] {
            let viewed = cast(&plain, &views).unwrap();
            assert_eq!(viewed.data_type(), &views);
            let found = hashes(Arc::clone(&plain));
            assert_eq!(hashes(viewed), found, "{views}");
            assert_ne!(found[0], found[3]);
        }
        let keys = arrow::array::Int32Array::from(vec![0, 1, 0]);
        let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let dictionary = arrow::array::DictionaryArray::<Int32Type>::new(keys, words);
        let plain: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "a"]));
        assert_eq!(hashes(Arc::new(dictionary)), hashes(plain));
    }
}
