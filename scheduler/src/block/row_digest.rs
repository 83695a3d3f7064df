//! A number that tells whether a run that is made again has the keys that it had first.

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::hash_utils::{QualityRandomState, create_hashes};
use datafusion::physical_expr::LexOrdering;

/// Sums rows up: their keys, in any order and in any batches. It is the same on each worker.
///
/// What a row has beside its keys moves it to no other range, and may be another value when it is computed again:
/// the last digits of a sum, or the order in which an aggregate puts its values together.
#[derive(Clone, Debug)]
pub(super) struct RowDigest {
    order: LexOrdering,
}

/// Each worker hashes alike.
const HASHES: QualityRandomState = QualityRandomState::with_seed(0);

impl RowDigest {
    /// Of rows in this order.
    pub(super) fn new(order: &LexOrdering) -> Self {
        Self { order: order.clone() }
    }

    /// A number for each row. The sum over those of a run, which may wrap around, is what tells one from another.
    ///
    /// # Errors
    /// If the order cannot be computed.
    pub(super) fn hashes(&self, rows: &RecordBatch) -> Result<Vec<u64>> {
        let count = rows.num_rows();
        let keys = self.order.iter().map(|key| key.expr.evaluate(rows)?.into_array(count));
        let mut hashes = vec![0; count];
        create_hashes(keys.collect::<Result<Vec<_>>>()?, &HASHES, &mut hashes)?;
        Ok(hashes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, DictionaryArray, Float64Array, Int64Array, ListArray, StringViewArray,
        UInt32Array,
    };
    use arrow::compute::take_record_batch;
    use arrow::datatypes::{Int8Type, Int32Type};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;

    use super::*;

    const WORDS: [&str; 4] = ["a", "", "longer than what a view holds by itself", "z"];

    /// Rows of which the last has this float.
    fn rows(last: f64) -> RecordBatch {
        let numbers: Int64Array = (0..40).map(|row| (row % 7 != 0).then_some(row)).collect();
        let floats: Float64Array = (0..40)
            .map(|row| if row == 39 { last } else { f64::from(row) / 3.0 })
            .map(Some)
            .collect();
        let views = StringViewArray::from_iter_values((0..40).map(|row| WORDS[row % 4]));
        let words: DictionaryArray<Int8Type> = (0..40).map(|row| Some(WORDS[row % 3])).collect();
        let lists = (0..40).map(|row| Some(vec![Some(row), None, Some(row + 1)]));
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
        let columns: [(&str, ArrayRef); 5] = [
            ("n", Arc::new(numbers)),
            ("f", Arc::new(floats)),
            ("v", Arc::new(views)),
            ("w", Arc::new(words)),
            ("l", Arc::new(lists)),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// The sum over the rows, by these keys.
    fn digest(keys: &[&str], rows: &RecordBatch) -> u64 {
        let schema = rows.schema();
        let key = |key: &&str| PhysicalSortExpr::new_default(col(key, &schema).unwrap());
        let order = LexOrdering::new(keys.iter().map(key)).unwrap();
        RowDigest::new(&order).hashes(rows).unwrap().into_iter().fold(0, u64::wrapping_add)
    }

    /// What a `string_agg` or a sum of floats gives may be another value when it is computed again.
    #[test]
    fn what_is_beside_the_keys_does_not_count() {
        let [one, other] = [0.1, 0.1 + f64::EPSILON].map(rows);
        for keys in [&["n"][..], &["v"], &["w", "n", "v"]] {
            assert_eq!(digest(keys, &one), digest(keys, &other), "{keys:?}");
        }
        for keys in [&["f"][..], &["n", "f"], &["f", "w"]] {
            assert_ne!(digest(keys, &one), digest(keys, &other), "{keys:?}");
        }
    }

    #[test]
    fn it_is_a_sum_over_the_rows_and_their_keys() {
        let keys = ["n", "f", "v", "w"];
        let all = rows(0.1);
        let whole = digest(&keys, &all);
        let parts = [all.slice(0, 13), all.slice(13, 1), all.slice(14, 0), all.slice(14, 26)];
        let parts = parts.iter().map(|part| digest(&keys, part));
        assert_eq!(parts.fold(0, u64::wrapping_add), whole);
        let backwards = UInt32Array::from_iter_values((0..40).rev());
        assert_eq!(digest(&keys, &take_record_batch(&all, &backwards).unwrap()), whole);
        // Another key in one row, a row instead of another one, a key in another row.
        assert_ne!(digest(&keys, &rows(0.1 + f64::EPSILON)), whole);
        let doubled = UInt32Array::from_iter_values((0..40).map(|row| row.max(1)));
        assert_ne!(digest(&keys, &take_record_batch(&all, &doubled).unwrap()), whole);
        let mut columns = all.columns().to_vec();
        let swapped: Int64Array = (0..40)
            .map(|row| [1, 0].get(row).map_or(row, |at| *at))
            .map(|row| row as i64)
            .map(Some)
            .collect();
        let plain: Int64Array = (0..40).map(Some).collect();
        columns[0] = Arc::new(plain);
        let plain = RecordBatch::try_new(all.schema(), columns.clone()).unwrap();
        columns[0] = Arc::new(swapped);
        let swapped = RecordBatch::try_new(all.schema(), columns).unwrap();
        assert_ne!(digest(&keys, &plain), digest(&keys, &swapped));
    }

    /// Workers of one release, whatever machine they are built for, tell the same.
    #[test]
    fn it_is_the_same_on_each_worker() {
        assert_eq!(
            digest(&["n", "f", "v", "w"], &rows(0.1)),
            386559344110015532,
            "{}",
            super::super::row_keys::CHANGED
        );
    }
}
