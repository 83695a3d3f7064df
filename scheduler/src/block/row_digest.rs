//! A number that tells whether a run that is made again has the rows that it had first.

use std::collections::HashSet;

use arrow::array::{RecordBatch, new_empty_array};
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::Result;
use datafusion::common::hash_utils::{QualityRandomState, create_hashes};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_expr::utils::collect_columns;

/// Sums rows up: their values, in any order and in any batches. It is the same on each worker.
///
/// Floats that are no part of the order do not count: what a model gives may differ in its last digits when it is
/// computed again in other batches, and that moves no row from one range to another.
#[derive(Clone, Debug)]
pub(super) struct RowDigest {
    columns: Vec<usize>,
}

/// Each worker hashes alike.
const HASHES: QualityRandomState = QualityRandomState::with_seed(0);

impl RowDigest {
    /// Of rows of this schema, in this order. Columns whose values have no hash do not count.
    pub(super) fn new(order: &LexOrdering, schema: &Schema) -> Self {
        let keys = order.iter().flat_map(|key| collect_columns(&key.expr));
        let keys: HashSet<usize> = keys.map(|column| column.index()).collect();
        let counts =
            |at: usize, of: &DataType| can_hash(of) && (keys.contains(&at) || !has_floats(of));
        let fields = schema.fields().iter().enumerate();
        let counted = fields.filter(|(at, field)| counts(*at, field.data_type()));
        Self { columns: counted.map(|(at, _)| at).collect() }
    }

    /// The sum over these rows. That of several batches is the sum of theirs, which may wrap around.
    ///
    /// # Errors
    /// If the rows are of another schema.
    pub(super) fn of(&self, rows: &RecordBatch) -> Result<u64> {
        let mut hashes = vec![0; rows.num_rows()];
        let columns = self.columns.iter().map(|at| rows.column(*at));
        create_hashes(columns, &HASHES, &mut hashes)?;
        Ok(hashes.into_iter().fold(0, u64::wrapping_add))
    }
}

fn can_hash(of: &DataType) -> bool {
    create_hashes([new_empty_array(of)], &HASHES, &mut []).is_ok()
}

fn has_floats(of: &DataType) -> bool {
    let has = |field: &FieldRef| has_floats(field.data_type());
    match of {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::Map(field, _)
        | DataType::RunEndEncoded(_, field) => has(field),
        DataType::Struct(fields) => fields.iter().any(has),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| has(field)),
        DataType::Dictionary(_, values) => has_floats(values),
        other => other.is_floating(),
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

    fn by(key: &str, rows: &RecordBatch) -> RowDigest {
        let schema = rows.schema();
        let key = PhysicalSortExpr::new_default(col(key, &schema).unwrap());
        RowDigest::new(&LexOrdering::new([key]).unwrap(), &schema)
    }

    #[test]
    fn floats_count_where_rows_are_in_their_order() {
        let [one, other] = [0.1, 0.1 + f64::EPSILON].map(rows);
        let of = |key: &str, rows: &RecordBatch| by(key, rows).of(rows).unwrap();
        assert_eq!(of("n", &one), of("n", &other));
        assert_ne!(of("f", &one), of("f", &other));
        assert_eq!(by("n", &one).columns, [0, 2, 3, 4]);
    }

    #[test]
    fn it_is_a_sum_over_the_rows_and_their_values() {
        let all = rows(0.1);
        let digest = by("f", &all);
        assert_eq!(digest.columns.len(), 5);
        let whole = digest.of(&all).unwrap();
        let parts = [all.slice(0, 13), all.slice(13, 1), all.slice(14, 0), all.slice(14, 26)];
        let parts = parts.iter().map(|part| digest.of(part).unwrap());
        assert_eq!(parts.fold(0, u64::wrapping_add), whole);
        let backwards = UInt32Array::from_iter_values((0..40).rev());
        assert_eq!(digest.of(&take_record_batch(&all, &backwards).unwrap()).unwrap(), whole);
        // Another value in one row, a row instead of another one, a value in another row.
        assert_ne!(digest.of(&rows(0.1 + f64::EPSILON)).unwrap(), whole);
        let doubled = UInt32Array::from_iter_values((0..40).map(|row| row.max(1)));
        assert_ne!(digest.of(&take_record_batch(&all, &doubled).unwrap()).unwrap(), whole);
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
        assert_ne!(digest.of(&plain).unwrap(), digest.of(&swapped).unwrap());
    }

    /// Workers of one release, whatever machine they are built for, tell the same.
    #[test]
    fn it_is_the_same_on_each_worker() {
        let all = rows(0.1);
        assert_eq!(
            by("f", &all).of(&all).unwrap(),
            1839489710598593560,
            "{}",
            super::super::row_keys::CHANGED
        );
    }
}
