//! The keys of rows in an order, as bytes that compare as the rows do.

use std::fmt;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::take;
use arrow::datatypes::{DataType, Schema};
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::LexOrdering;

/// Makes keys by one order: in arrow's row format, so that one worker's keys compare with another's.
pub struct RowKeys {
    order: LexOrdering,
    converter: RowConverter,
}

impl RowKeys {
    /// Whether keys of an order compare as DataFusion's sorts and merges do: each column has a total order, and
    /// the same one in arrow's row format. Of nested columns that is not certain.
    pub fn can_encode(order: &LexOrdering, schema: &Schema) -> bool {
        order.iter().all(|key| key.expr.data_type(schema).is_ok_and(|of| is_plain(&of)))
    }

    /// Keys by this order, of rows of this schema.
    ///
    /// # Errors
    /// If the order is not one by columns of the schema.
    pub fn try_new(order: &LexOrdering, schema: &Schema) -> Result<Self> {
        let fields = order.iter().map(|key| {
            let of = key.expr.data_type(schema)?;
            Ok(SortField::new_with_options(value_type(&of).clone(), key.options))
        });
        let converter = RowConverter::new(fields.collect::<Result<_>>()?)?;
        Ok(Self { order: order.clone(), converter })
    }

    /// The key of one row.
    ///
    /// # Errors
    /// If the order cannot be computed.
    pub fn of(&self, rows: &RecordBatch, at: usize) -> Result<OwnedRow> {
        if at >= rows.num_rows() {
            return internal_err!("the key of row {at} of {}", rows.num_rows());
        }
        let row = rows.slice(at, 1);
        let columns = self.order.iter().map(|key| values(key.expr.evaluate(&row)?.into_array(1)?));
        let keys = self.converter.convert_columns(&columns.collect::<Result<Vec<_>>>()?)?;
        Ok(keys.row(0).owned())
    }
}

/// What a dictionary is of.
fn value_type(of: &DataType) -> &DataType {
    match of {
        DataType::Dictionary(_, values) => value_type(values),
        other => other,
    }
}

/// The values of what may be a dictionary. Arrow's converter gives the same bytes for both, but would convert the
/// whole dictionary for the sake of a row.
fn values(of: ArrayRef) -> Result<ArrayRef> {
    match of.as_any_dictionary_opt() {
        Some(dictionary) => values(take(dictionary.values(), dictionary.keys(), None)?),
        None => Ok(of),
    }
}

impl fmt::Debug for RowKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowKeys").field("order", &self.order).finish_non_exhaustive()
    }
}

/// What to do if another release of a library makes other bytes of a row.
#[cfg(test)]
pub(super) const CHANGED: &str = "workers of two releases no longer tell the same of a row, and what a journal has is \
    no longer told by tasks that run again: raise PROTOCOL in protocol/messages/mod.rs, which is a part of the \
    checksum of a job's cut in coordinator/job.rs as well, and put the new bytes here";

fn is_plain(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, values) => is_plain(values),
        DataType::Interval(_) => false,
        other => !other.is_nested(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
        Float64Array, Int8Array, Int32Array, StringArray, StringViewArray,
        TimestampMicrosecondArray, UInt64Array,
    };
    use arrow::compute::{SortColumn, SortOptions, lexsort_to_indices, take_record_batch};
    use arrow::datatypes::{Field, Int8Type};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;
    use forebay_testkit::random::Random;

    use super::*;
    use crate::graph::RowKey;

    fn order(schema: &Schema, keys: &[(&str, bool, bool)]) -> LexOrdering {
        let key = |(name, descending, nulls_first): &(&str, bool, bool)| {
            let options = SortOptions { descending: *descending, nulls_first: *nulls_first };
            PhysicalSortExpr::new(col(name, schema).unwrap(), options)
        };
        LexOrdering::new(keys.iter().map(key)).unwrap()
    }

    /// Columns with few values, so that rows are often equal in some.
    fn rows(random: &mut Random) -> RecordBatch {
        const ROWS: usize = 60;
        let nan = f64::from_bits(0xfff8_0000_0000_0001);
        let floats = [f64::NAN, nan, -0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, 1.5, -1.5];
        let long = "a string that is longer than what a view holds, and longer than 32 bytes";
        let texts = ["", "\0", "a", "a\0", "aa", long, "ä", "z"];
        let mut pick = |some: usize| random.chance(80).then(|| random.index(some));
        let floats: Float64Array = (0..ROWS).map(|_| Some(floats[pick(8)?])).collect();
        let strings: StringArray = (0..ROWS).map(|_| Some(texts[pick(8)?])).collect();
        let views: StringViewArray = (0..ROWS).map(|_| Some(texts[pick(8)?])).collect();
        let words: DictionaryArray<Int8Type> = (0..ROWS).map(|_| Some(texts[pick(8)?])).collect();
        let decimals: Decimal128Array =
            (0..ROWS).map(|_| Some([-7, 0, 7, 1 << 100][pick(4)?])).collect();
        let numbers: Int32Array = (0..ROWS as i32).collect();
        let columns: [(&str, ArrayRef); 6] = [
            ("f", Arc::new(floats)),
            ("s", Arc::new(strings)),
            ("v", Arc::new(views)),
            ("w", Arc::new(words)),
            ("d", Arc::new(decimals)),
            ("n", Arc::new(numbers)),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn keys_compare_as_rows_are_sorted() {
        let mut random = Random::new(1);
        for _ in 0..200 {
            let batch = rows(&mut random);
            let names: Vec<_> = (0..random.between(1, 3)).map(|_| random.index(5)).collect();
            let keys: Vec<_> = names
                .into_iter()
                .map(|at| (["f", "s", "v", "w", "d"][at], random.chance(50), random.chance(50)))
                .collect();
            let order = order(&batch.schema(), &keys);
            assert!(RowKeys::can_encode(&order, &batch.schema()));
            let columns: Vec<_> = order
                .iter()
                .map(|key| SortColumn {
                    values: key.expr.evaluate(&batch).unwrap().into_array(1).unwrap(),
                    options: Some(key.options),
                })
                .collect();
            let sorted = lexsort_to_indices(&columns, None).unwrap();
            let sorted = take_record_batch(&batch, &sorted).unwrap();
            let encoder = RowKeys::try_new(&order, &batch.schema()).unwrap();
            let encoded: Vec<_> =
                (0..sorted.num_rows()).map(|row| encoder.of(&sorted, row).unwrap()).collect();
            assert!(encoded.is_sorted(), "{keys:?}");
        }
        let batch = rows(&mut random);
        let encoder =
            RowKeys::try_new(&order(&batch.schema(), &[("n", true, true)]), &batch.schema());
        encoder.unwrap().of(&batch, 60).unwrap_err();
    }

    /// Keys of several workers compare with each other, and with those that a journal has.
    #[test]
    fn the_bytes_of_keys_stay_what_they_are() {
        let words: DictionaryArray<Int8Type> = [None, Some("ab")].into_iter().collect();
        let times = TimestampMicrosecondArray::from(vec![None, Some(-1)]).with_timezone("UTC");
        let decimals =
            Decimal128Array::from(vec![None, Some(-7)]).with_precision_and_scale(20, 3).unwrap();
        let columns: [(ArrayRef, &str); 11] = [
            (Arc::new(BooleanArray::from(vec![None, Some(true)])), "ff00 0101 0000 01fe"),
            (
                Arc::new(Int32Array::from(vec![None, Some(-2)])),
                "ff00000000 017ffffffe 0000000000 0180000001",
            ),
            (
                Arc::new(UInt64Array::from(vec![None, Some(258)])),
                "ff0000000000000000 010000000000000102 000000000000000000 01fffffffffffffefd",
            ),
            (
                Arc::new(Float64Array::from(vec![None, Some(-1.5)])),
                "ff0000000000000000 014007ffffffffffff 000000000000000000 01bff8000000000000",
            ),
            (
                Arc::new(decimals),
                "ff00000000000000000000000000000000 017ffffffffffffffffffffffffffffff9 0000000000000000000000000000000000 0180000000000000000000000000000006",
            ),
            (
                Arc::new(Date32Array::from(vec![None, Some(1)])),
                "ff00000000 0180000001 0000000000 017ffffffe",
            ),
            (
                Arc::new(times),
                "ff0000000000000000 017fffffffffffffff 000000000000000000 018000000000000000",
            ),
            (
                Arc::new(StringArray::from(vec![None, Some("ab")])),
                "ff 02616200000000000002 00 fd9e9dfffffffffffffd",
            ),
            (
                Arc::new(StringViewArray::from(vec![None, Some("ab")])),
                "ff 02616200000000000002 00 fd9e9dfffffffffffffd",
            ),
            (
                Arc::new(BinaryArray::from(vec![None, Some(&b"\0\xff"[..])])),
                "ff 0200ff00000000000002 00 fdff00fffffffffffffd",
            ),
            (Arc::new(words), "ff 02616200000000000002 00 fd9e9dfffffffffffffd"),
        ];
        // Where NULLs are last, NULL and the value; where they are first, NULL; descending, the value.
        for (column, expected) in columns {
            let (of, batch) =
                (column.data_type().clone(), RecordBatch::try_from_iter([("c", column)]).unwrap());
            let key = |row: usize, descending: bool, nulls_first: bool| {
                let order = order(&batch.schema(), &[("c", descending, nulls_first)]);
                let keys = RowKeys::try_new(&order, &batch.schema()).unwrap();
                format!("{:?}", RowKey::new(keys.of(&batch, row).unwrap().as_ref()))
            };
            let found = [
                key(0, false, false),
                key(1, false, false),
                key(0, false, true),
                key(1, true, false),
            ];
            assert_eq!(found.join(" "), expected, "{of}: {CHANGED}");
        }
    }

    #[test]
    fn a_row_of_a_dictionary_has_the_key_that_arrow_gives_for_the_dictionary() {
        let texts = StringArray::from(vec![Some("z"), None, Some(""), Some("a\0"), Some("a")]);
        let at = Int8Array::from(vec![Some(3), None, Some(1), Some(0), Some(4), Some(2)]);
        let words = DictionaryArray::new(at, Arc::new(texts));
        let numbers = Int32Array::from(vec![7, -7]);
        let at = Int8Array::from(vec![Some(1), Some(0), None, None, Some(1), Some(0)]);
        let numbers = DictionaryArray::new(at, Arc::new(numbers));
        let columns: [(&str, ArrayRef); 2] = [("w", Arc::new(words)), ("n", Arc::new(numbers))];
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.map(|(name, column)| (name, column, true)),
        );
        let batch = batch.unwrap().slice(1, 5);
        for options in [(false, false), (false, true), (true, false), (true, true)] {
            let order =
                order(&batch.schema(), &["w", "n"].map(|name| (name, options.0, options.1)));
            let fields = batch.columns().iter().zip(&order).map(|(column, key)| {
                SortField::new_with_options(column.data_type().clone(), key.options)
            });
            let arrows = RowConverter::new(fields.collect()).unwrap();
            let arrows = arrows.convert_columns(batch.columns()).unwrap();
            let keys = RowKeys::try_new(&order, &batch.schema()).unwrap();
            for row in 0..5 {
                assert_eq!(keys.of(&batch, row).unwrap().as_ref(), arrows.row(row).as_ref());
            }
        }
    }

    #[test]
    fn what_may_compare_otherwise_is_not_encoded() {
        let list = DataType::new_list(DataType::Int32, true);
        let interval = DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano);
        let of_lists = DataType::Dictionary(Box::new(DataType::Int8), Box::new(list.clone()));
        for of in [list, interval, of_lists] {
            let schema = Schema::new(vec![Field::new("c", of, true)]);
            assert!(!RowKeys::can_encode(&order(&schema, &[("c", false, false)]), &schema));
        }
    }
}
