//! Rows → rounds of batches, one for each reader, of similar length.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::kernels::length::length;
use arrow::compute::{cast, sort_to_indices, take_record_batch};
use arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};

/// Rounds whose rows are sorted together: the more, the closer lengths come, and the longer rows wait.
pub(super) const ROUNDS_IN_WINDOW: usize = 16;

/// How rows become rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    /// The column that says how long a row is, or whose values have a length.
    pub(super) column: usize,
    pub(super) readers: usize,
    pub(super) batch_rows: usize,
}

impl Rounds {
    /// Rows that are sorted together.
    pub(super) fn window_rows(self) -> usize {
        self.round_rows().saturating_mul(ROUNDS_IN_WINDOW)
    }

    fn round_rows(self) -> usize {
        self.readers.saturating_mul(self.batch_rows)
    }

    /// Whether rows of this type have a length.
    ///
    /// # Errors
    /// If not.
    pub(super) fn check(name: &str, data_type: &DataType) -> Result<()> {
        let has_length = data_type.is_integer()
            || matches!(
                data_type,
                DataType::Utf8
                    | DataType::LargeUtf8
                    | DataType::Utf8View
                    | DataType::Binary
                    | DataType::LargeBinary
                    | DataType::BinaryView
                    | DataType::List(_)
                    | DataType::LargeList(_)
            );
        if has_length {
            return Ok(());
        }
        plan_err!(
            "the column '{name}' is {data_type}, expected a whole number, a text or a list, which have \
             a length"
        )
    }

    /// A window's rounds, each with a batch for every reader. Every row is in exactly one batch; those
    /// of the last round are smaller, and may be empty, when the window is not full.
    ///
    /// # Errors
    /// Those of arrow's kernels.
    pub(super) fn of(self, window: &RecordBatch) -> Result<Vec<Vec<RecordBatch>>> {
        let lengths = lengths(window.column(self.column))?;
        let sorted = take_record_batch(window, &order(&lengths)?)?;
        let mut rounds = vec![];
        let mut start = 0;
        while start < sorted.num_rows() {
            let rows = self.round_rows().min(sorted.num_rows() - start);
            rounds.push(self.shared_out(&sorted.slice(start, rows)));
            start += rows;
        }
        Ok(rounds)
    }

    /// Nearly the same number of rows for each reader.
    fn shared_out(self, rows: &RecordBatch) -> Vec<RecordBatch> {
        let bound = |reader: usize| reader * rows.num_rows() / self.readers;
        let part = |reader| rows.slice(bound(reader), bound(reader + 1) - bound(reader));
        (0..self.readers).map(part).collect()
    }
}

fn lengths(column: &ArrayRef) -> Result<ArrayRef> {
    let found = match column.data_type() {
        data_type if data_type.is_integer() => Arc::clone(column),
        DataType::Utf8View => length(&cast(column, &DataType::LargeUtf8)?)?,
        DataType::BinaryView => length(&cast(column, &DataType::LargeBinary)?)?,
        _ => length(column)?,
    };
    Ok(found)
}

fn order(lengths: &dyn Array) -> Result<UInt32Array> {
    Ok(sort_to_indices(lengths, None, None)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array, StringArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn window(lengths: Vec<i64>) -> RecordBatch {
        let ids = Int64Array::from_iter_values(0..lengths.len() as i64);
        let lengths = Int64Array::from(lengths);
        let columns = [("id", Arc::new(ids) as ArrayRef), ("length", Arc::new(lengths) as _)];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn each_row_is_in_one_batch_and_rounds_do_not_overlap_in_length() {
        for rows in [0, 1, 2, 5, 12, 100, 191, 192] {
            let lengths: Vec<i64> = (0..rows).map(|row| row * 7919 % 101).collect();
            let rounds = Rounds { column: 1, readers: 3, batch_rows: 4 };
            let found = rounds.of(&window(lengths)).unwrap();
            let mut ids = vec![];
            let mut longest_before = 0;
            for round in &found {
                assert_eq!(round.len(), 3);
                let sizes: Vec<_> = round.iter().map(RecordBatch::num_rows).collect();
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                let column = |at: usize| -> Vec<i64> {
                    let of = |batch: &RecordBatch| {
                        batch.column(at).as_primitive::<Int64Type>().values().to_vec()
                    };
                    round.iter().flat_map(of).collect()
                };
                assert!(column(1).iter().min().is_none_or(|shortest| *shortest >= longest_before));
                longest_before = column(1).into_iter().max().unwrap_or(longest_before);
                ids.extend(column(0));
            }
            ids.sort_unstable();
            assert_eq!(ids, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn texts_have_a_length() {
        let texts = StringArray::from(vec![Some("long text"), None, Some("a"), Some("text")]);
        let window = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap();
        let rounds = Rounds { column: 0, readers: 1, batch_rows: 2 }.of(&window).unwrap();
        let text = |round: usize, row| rounds[round][0].column(0).as_string::<i32>().value(row);
        assert_eq!([text(0, 1), text(1, 0), text(1, 1)], ["a", "text", "long text"]);
        assert!(Rounds::check("x", &DataType::Float32).is_err());
    }
}
