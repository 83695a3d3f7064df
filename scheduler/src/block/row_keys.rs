//! The keys of rows in an order, as bytes that compare as the rows do.

use std::fmt;

use arrow::array::RecordBatch;
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
        let fields = order
            .iter()
            .map(|key| Ok(SortField::new_with_options(key.expr.data_type(schema)?, key.options)));
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
        let columns = self.order.iter().map(|key| key.expr.evaluate(&row)?.into_array(1));
        let keys = self.converter.convert_columns(&columns.collect::<Result<Vec<_>>>()?)?;
        Ok(keys.row(0).owned())
    }
}

impl fmt::Debug for RowKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowKeys").field("order", &self.order).finish_non_exhaustive()
    }
}

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
        ArrayRef, Decimal128Array, DictionaryArray, Float64Array, Int32Array, StringArray,
        StringViewArray,
    };
    use arrow::compute::{SortColumn, SortOptions, lexsort_to_indices, take_record_batch};
    use arrow::datatypes::{Field, Int8Type};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;
    use forebay_testkit::random::Random;

    use super::*;

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
