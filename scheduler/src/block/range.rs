//! The rows of a sorted run that are in a range of its order.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::physical_expr::LexOrdering;

use super::row_keys::RowKeys;
use crate::graph::{KeyRange, RowKey};

/// What is left of the batches of a run: all rows, or those in a range.
#[derive(Debug)]
pub(super) struct RangeCut(Option<(KeyRange, RowKeys)>);

impl RangeCut {
    /// All rows.
    pub(super) fn all() -> Self {
        Self(None)
    }

    /// Rows in a range of this order, of runs with this schema.
    ///
    /// # Errors
    /// If the order is not one by columns of the schema.
    pub(super) fn try_new(range: KeyRange, order: &LexOrdering, schema: &Schema) -> Result<Self> {
        Ok(Self(Some((range, RowKeys::try_new(order, schema)?))))
    }

    /// How many rows of a batch are before the range, and those that are in it; none if it and all that follow are
    /// behind.
    ///
    /// # Errors
    /// If the order cannot be computed.
    pub(super) fn within(&self, batch: RecordBatch) -> Result<(usize, Option<RecordBatch>)> {
        let Some((range, keys)) = &self.0 else { return Ok((0, Some(batch))) };
        if batch.num_rows() == 0 {
            return Ok((0, Some(batch)));
        }
        let from = range.from.as_ref().map_or(Ok(0), |key| first_from(keys, &batch, key))?;
        let to = match &range.to {
            Some(key) => first_from(keys, &batch, key)?,
            None => batch.num_rows(),
        };
        let rows = (to > 0).then(|| batch.slice(from, to.saturating_sub(from)));
        Ok((from, rows))
    }
}

/// The first row that is not before a key. Most batches are in the range as a whole: the last row is asked first.
fn first_from(keys: &RowKeys, batch: &RecordBatch, key: &RowKey) -> Result<usize> {
    let is_before = |row: usize| {
        Ok::<_, datafusion::error::DataFusionError>(keys.of(batch, row)?.as_ref() < key.bytes())
    };
    let (mut first, mut end) = (0, batch.num_rows());
    if is_before(end - 1)? {
        return Ok(end);
    }
    if !is_before(0)? {
        return Ok(0);
    }
    while first < end {
        let middle = usize::midpoint(first, end);
        match is_before(middle)? {
            true => first = middle + 1,
            false => end = middle,
        }
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::compute::SortOptions;
    use arrow::datatypes::Int64Type;
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;

    use super::*;

    fn batch(numbers: &[i64]) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    fn order() -> LexOrdering {
        let key = col("n", &batch(&[]).schema()).unwrap();
        LexOrdering::new([PhysicalSortExpr::new(key, SortOptions::default())]).unwrap()
    }

    /// What is before a range of numbers in a batch, and what is left of it in the range.
    fn within(numbers: &[i64], from: Option<i64>, to: Option<i64>) -> (usize, Option<Vec<i64>>) {
        let batch = batch(numbers);
        let keys = RowKeys::try_new(&order(), &batch.schema()).unwrap();
        let key = |number: i64| {
            let key = keys.of(&self::batch(&[number]), 0).unwrap();
            RowKey::new(key.as_ref())
        };
        let range = KeyRange { from: from.map(key), to: to.map(key) };
        let cut = RangeCut::try_new(range, &order(), &batch.schema()).unwrap();
        let (before, left) = cut.within(batch).unwrap();
        let numbers = left.map(|left| left.column(0).as_primitive::<Int64Type>().values().to_vec());
        (before, numbers)
    }

    /// Every range of every batch, counted by the plainest rule.
    #[test]
    fn rows_are_in_the_range_of_their_keys() {
        for numbers in [&[1, 2, 2, 2, 5, 7][..], &[2], &[3, 3, 3], &[-4, 9]] {
            let bounds = || [None].into_iter().chain((-5..11).map(Some));
            for (from, to) in bounds().flat_map(|from| bounds().map(move |to| (from, to))) {
                if from.zip(to).is_some_and(|(from, to)| from > to) {
                    continue;
                }
                let is_in =
                    |n: &&i64| from.is_none_or(|from| **n >= from) && to.is_none_or(|to| **n < to);
                let expected: Vec<i64> = numbers.iter().filter(is_in).copied().collect();
                let is_behind = to.is_some_and(|to| numbers[0] >= to);
                let is_before = |n: &&i64| from.is_some_and(|from| **n < from);
                let before = numbers.iter().filter(is_before).count();
                let expected = (before, (!is_behind).then_some(expected));
                assert_eq!(within(numbers, from, to), expected, "{numbers:?} {from:?} {to:?}");
            }
        }
        assert_eq!(within(&[], None, Some(3)), (0, Some(vec![])));
    }
}
